"""Every gRPC method of a replica, in one list. Called by `front.py`."""

from __future__ import annotations

from pagoda_daemon.api.app import Parts
from pagoda_daemon.api.control import Control
from pagoda_daemon.api.grpc_generate import GenerateService
from pagoda_daemon.api.grpc_health import HealthService
from pagoda_daemon.api.grpc_server import Door
from pagoda_daemon.api.watch import StateFeed


def doors(parts: Parts, feed: StateFeed, control: Control) -> tuple[Door, ...]:
    """Who may use which stands in `access.py`."""
    feed.counts = parts.generator.counts
    generate = GenerateService(parts.admission, parts.generator, parts.served_names)
    return (feed.door(), generate.door(), *control.doors(), *HealthService(parts.replica).doors())
