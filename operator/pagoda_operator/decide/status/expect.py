"""When replicas under way should be ready, from how long their like took: those that are there, else those that scaling remembers. Pure;
called by `status`.

An absolute time, so that it stays the same while nothing changes: a countdown would be a write each second. It is not moved where it
passes: that a start takes longer than others did is worth seeing.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType

from pagoda_operator.api.pods import Pod


def expected(pods: Sequence[Pod], wanted: int, remembered: Mapping[str, Sequence[float]] = MappingProxyType({})) -> str | None:
    """When the last of the replicas under way should serve; None where none is under way or nothing is known of such a start. `remembered`:
    seconds that earlier starts took, by accelerator."""
    under_way = [pod for pod in pods if not pod.ready and pod.exit_code is None and pod.created]
    if not under_way or sum(pod.ready for pod in pods) >= wanted:
        return None
    moments = [pod.created + took for pod in under_way if (took := _start_took(pods, pod, remembered)) is not None]
    if len(moments) < len(under_way):
        return None
    return datetime.fromtimestamp(max(moments), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _start_took(pods: Iterable[Pod], like: Pod, remembered: Mapping[str, Sequence[float]]) -> float | None:
    """Seconds from creation to readiness of those on the same accelerator that came up at the first try."""
    peers = [pod for pod in pods if pod.accelerator == like.accelerator and pod.restarts == 0]
    took = [pod.ready_since - pod.created for pod in peers if pod.ready_since is not None and pod.created]
    known = took or remembered.get(like.accelerator, ())
    return statistics.median(known) if known else None
