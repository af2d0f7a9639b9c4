"""The demand of one service as a ServiceDemand message: its replicas' states, held requests, requests that came and ended. Pure.

Called by messages.py, which decides when. Ages are rounded down to whole seconds or more, so that the message
of a service at rest stays equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from pagoda_contracts.names import STATE_DEAD_MS
from pagoda_contracts.pb import demand_pb2 as pb

from pagoda_gateway.requests.tally import SLICE_MS, SLICES, ServiceTally
from pagoda_gateway.routing.endpoint import Endpoint, Frame
from pagoda_gateway.routing.verdict import Verdict, engine_is_silent, judge
from pagoda_gateway.watch.services import Service

_WINDOW_S: Final = SLICE_MS * SLICES / 1000
_AGE_STEP_MS: Final = 1_000
_IDLE_STEP_MS: Final = 5_000
# Bounds the size of a message; a rollout has two revisions.
_MAX_REVISIONS: Final = 8
# A step that takes too long is not an engine without heartbeat: a service may set how long is too long.
_OVERDUE: Final = "overdue"
_SIGNALS: Final = {
    Verdict.UNHEARD: pb.VERDICT_UNSPECIFIED,
    Verdict.SUSPECT: pb.VERDICT_SUSPECT,
    Verdict.SILENT: pb.VERDICT_DEAD,
    Verdict.STUCK: pb.VERDICT_DEAD,
    Verdict.DEEP_CHECK: pb.VERDICT_DEAD,
}


class Held(NamedTuple):
    """How many requests are held for a service, and since when the oldest (None: none is)."""

    requests: int
    since_ms: float | None


class Facts(NamedTuple):
    """All that the gateway knows of one service."""

    service: Service
    endpoints: Sequence[Endpoint]
    held: Held
    tally: ServiceTally


def service_demand(facts: Facts, now_ms: float) -> pb.ServiceDemand:
    """Returns the message of one service as of now."""
    namespace, _, name = facts.service.key.partition("/")
    message = pb.ServiceDemand(namespace=namespace, name=name, held=facts.held.requests)
    if facts.held.since_ms is not None:
        message.oldest_held_ms = _floor(now_ms - facts.held.since_ms, _AGE_STEP_MS)
    message.wake = bool(facts.held.requests) and all(judge(endpoint, now_ms) is Verdict.DRAINING for endpoint in facts.endpoints)
    frames = [frame for endpoint in facts.endpoints if (frame := fresh_frame(endpoint, now_ms)) is not None]
    _sum(message, frames)
    _count(message, facts.tally, now_ms)
    message.ttft_p95_ms = message.ttft_p95_ms or max((frame.ttft_p95_ms for frame in frames), default=0)
    message.endpoints.extend(_endpoint(endpoint, now_ms) for endpoint in facts.endpoints)
    return message


def fresh_frame(endpoint: Endpoint, now_ms: float) -> Frame | None:
    """Returns the endpoint's last frame, None if that is too old."""
    return endpoint.frame if endpoint.frame and now_ms - endpoint.frame_made_ms <= STATE_DEAD_MS else None


def _sum(message: pb.ServiceDemand, frames: Sequence[Frame]) -> None:
    message.running = sum(frame.running for frame in frames)
    message.waiting = sum(frame.waiting for frame in frames)
    message.waiting_tokens = sum(frame.waiting_tokens for frame in frames)
    message.in_flight = sum(frame.in_flight for frame in frames)
    message.blocks_used = sum(frame.blocks_used for frame in frames)
    message.blocks_total = sum(frame.blocks_total for frame in frames)
    message.kv_utilization = max((frame.blocks_used / frame.blocks_total for frame in frames if frame.blocks_total), default=0.0)


def _count(message: pb.ServiceDemand, tally: ServiceTally, now_ms: float) -> None:
    minute = tally.window.minute(now_ms)
    message.requests_per_second = minute.arrived / _WINDOW_S
    message.ttft_p95_ms = minute.ttft_p95_ms
    message.error_rate = minute.failed / minute.ended if minute.ended else 0.0
    message.idle_ms = 0 if tally.under_way else _floor(now_ms - tally.changed_ms, _IDLE_STEP_MS)
    message.requests_arrived, message.requests_ended = tally.arrived, tally.ended
    for revision in sorted(tally.revisions)[:_MAX_REVISIONS]:
        last = tally.revisions[revision].minute(now_ms)
        if last.ended or last.ttft_p95_ms:
            message.revisions.add(revision=revision, requests=last.ended, errors=last.failed, ttft_p95_ms=last.ttft_p95_ms)


def _endpoint(endpoint: Endpoint, now_ms: float) -> pb.EndpointDemand:
    verdict, frame = judge(endpoint, now_ms), endpoint.frame
    silent = frame is not None and fresh_frame(endpoint, now_ms) is None
    return pb.EndpointDemand(
        pod=endpoint.name.rpartition("/")[2],
        revision=endpoint.revision,
        verdict=pb.VERDICT_DEAD if silent else _SIGNALS.get(verdict, pb.VERDICT_FRESH if frame else pb.VERDICT_UNSPECIFIED),
        reason=_reason(verdict, endpoint, now_ms),
        in_flight=frame.in_flight if frame else 0,
        draining=verdict is Verdict.DRAINING,
        phase=frame.phase_number if frame else 0,
        state_age_ms=_floor(now_ms - endpoint.frame_made_ms, _AGE_STEP_MS) if frame else 0,
        deep_check_failed=bool(frame and frame.deep_check_failed),
        device_fault=frame.device_fault if frame else "",
        warm_ms=frame.warm_ms if frame else 0,
    )


def _reason(verdict: Verdict, endpoint: Endpoint, now_ms: float) -> str:
    frame = endpoint.frame
    by_step = verdict is Verdict.STUCK and frame and not engine_is_silent(frame, now_ms - endpoint.frame_made_ms)
    return _OVERDUE if by_step else verdict


def _floor(age_ms: float, step: int) -> int:
    return int(max(0.0, age_ms) // step) * step
