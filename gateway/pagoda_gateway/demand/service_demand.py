"""What the gateway tells of one service: its replicas' states, what it holds, what came and ended, as a ServiceDemand. Pure.

Called by demand_server.py, which decides when. Ages are told in whole seconds and more, so that a service at rest stays equal to itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from pagoda_contracts.names import STATE_DEAD_MS
from pagoda_contracts.pb import demand_pb2 as pb

from pagoda_gateway.requests.tally import SLICE_MS, SLICES, ServiceTally
from pagoda_gateway.routing.picker import Endpoint, Frame, Verdict, old_engine, verdict
from pagoda_gateway.watch.fleet import Service

_WINDOW_S: Final = SLICE_MS * SLICES / 1000
_AGE_STEP_MS: Final = 1_000
_IDLE_STEP_MS: Final = 5_000
# Bounds what clients of many revisions could add to a frame; a rollout has two.
_MAX_REVISIONS: Final = 8
# A step that takes too long is another thing than an engine that no longer beats: how long is too long, the service may say.
_OVERDUE: Final = "overdue"
_WORTH: Final = {
    Verdict.UNHEARD: pb.VERDICT_UNSPECIFIED,
    Verdict.SUSPECT: pb.VERDICT_SUSPECT,
    Verdict.SILENT: pb.VERDICT_DEAD,
    Verdict.STUCK: pb.VERDICT_DEAD,
    Verdict.DEEP_CHECK: pb.VERDICT_DEAD,
}


class Line(NamedTuple):
    """Requests held for a service, and since when the oldest is (None: nobody)."""

    held: int
    since_ms: float | None


class Facts(NamedTuple):
    """All that is known of one service."""

    service: Service
    endpoints: Sequence[Endpoint]
    line: Line
    tally: ServiceTally


def describe(facts: Facts, now_ms: float) -> pb.ServiceDemand:
    """One service now."""
    namespace, _, name = facts.service.key.partition("/")
    told = pb.ServiceDemand(namespace=namespace, name=name, held=facts.line.held)
    if facts.line.since_ms is not None:
        told.oldest_held_ms = _floor(now_ms - facts.line.since_ms, _AGE_STEP_MS)
    told.wake = bool(facts.line.held) and all(endpoint.leaving for endpoint in facts.endpoints)
    frames = [frame for endpoint in facts.endpoints if (frame := heard(endpoint, now_ms)) is not None]
    _sum(told, frames)
    _count(told, facts.tally, now_ms)
    told.ttft_p95_ms = told.ttft_p95_ms or max((frame.ttft_p95_ms for frame in frames), default=0)
    told.endpoints.extend(_endpoint(endpoint, now_ms) for endpoint in facts.endpoints)
    return told


def heard(endpoint: Endpoint, now_ms: float) -> Frame | None:
    """What it last said, unless that is old."""
    return endpoint.frame if endpoint.frame and now_ms - endpoint.made_at_ms <= STATE_DEAD_MS else None


def _sum(told: pb.ServiceDemand, frames: Sequence[Frame]) -> None:
    told.running = sum(frame.running for frame in frames)
    told.waiting = sum(frame.waiting for frame in frames)
    told.waiting_tokens = sum(frame.waiting_tokens for frame in frames)
    told.in_flight = sum(frame.in_flight for frame in frames)
    told.blocks_used = sum(frame.blocks_used for frame in frames)
    told.blocks_total = sum(frame.blocks_total for frame in frames)
    told.kv_utilization = max((frame.blocks_used / frame.blocks_total for frame in frames if frame.blocks_total), default=0.0)


def _count(told: pb.ServiceDemand, tally: ServiceTally, now_ms: float) -> None:
    minute = tally.window.minute(now_ms)
    told.requests_per_second = minute.arrived / _WINDOW_S
    told.ttft_p95_ms = minute.ttft_p95_ms
    told.error_rate = minute.failed / minute.ended if minute.ended else 0.0
    told.idle_ms = 0 if tally.under_way else _floor(now_ms - tally.changed_ms, _IDLE_STEP_MS)
    told.requests_arrived, told.requests_ended = tally.arrived, tally.ended
    for revision in sorted(tally.revisions)[:_MAX_REVISIONS]:
        seen = tally.revisions[revision].minute(now_ms)
        if seen.ended or seen.ttft_p95_ms:
            told.revisions.add(revision=revision, requests=seen.ended, errors=seen.failed, ttft_p95_ms=seen.ttft_p95_ms)


def _endpoint(endpoint: Endpoint, now_ms: float) -> pb.EndpointDemand:
    seen, frame = verdict(endpoint, now_ms), endpoint.frame
    silent = frame is not None and heard(endpoint, now_ms) is None
    return pb.EndpointDemand(
        pod=endpoint.name.rpartition("/")[2],
        revision=endpoint.revision,
        verdict=pb.VERDICT_DEAD if silent else _WORTH.get(seen, pb.VERDICT_FRESH if frame else pb.VERDICT_UNSPECIFIED),
        reason=_OVERDUE if seen is Verdict.STUCK and frame and not old_engine(frame, now_ms - endpoint.made_at_ms) else seen,
        in_flight=frame.in_flight if frame else 0,
        draining=seen is Verdict.DRAINING,
        phase=frame.phase_number if frame else 0,
        state_age_ms=_floor(now_ms - endpoint.made_at_ms, _AGE_STEP_MS) if frame else 0,
        deep_check_failed=bool(frame and frame.deep_failed),
    )


def _floor(age_ms: float, step: int) -> int:
    return int(max(0.0, age_ms) // step) * step
