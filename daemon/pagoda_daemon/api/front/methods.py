"""Every gRPC method of a replica, in one list. Called by `front.py`."""

from __future__ import annotations

from pagoda_daemon.api.grpc.control import Control
from pagoda_daemon.api.grpc.generate import GenerateService
from pagoda_daemon.api.grpc.health import HealthService
from pagoda_daemon.api.grpc.orders import AdapterOrders
from pagoda_daemon.api.grpc.server import Method
from pagoda_daemon.api.grpc.watch import StateFeed
from pagoda_daemon.api.http.app import Parts


def methods(parts: Parts, feed: StateFeed, control: Control, orders: AdapterOrders) -> tuple[Method, ...]:
    """Who may use which stands in `api/access/roles.py`."""
    feed.counts = parts.generator.counts
    generate = GenerateService(parts.admission, parts.generator, parts.served_names)
    return (feed.method(), generate.method(), control.method(), orders.method(), *HealthService(parts.replica).methods())
