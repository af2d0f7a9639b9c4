"""Verdict: what an endpoint's state says about it, for any request and for one request. Pure: time is a parameter."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from pagoda_contracts.names import STATE_DEAD_MS, STATE_SUSPECT_MS, STEP_STUCK_MS, STEP_STUCK_TIMES

from pagoda_gateway.routing.endpoint import Endpoint, Frame
from pagoda_gateway.routing.request import RoutingRequest

# As STEP_STUCK_MS and STEP_STUCK_TIMES, for a doubt.
_STEP_SUSPECT: Final = (5_000, 10)


class Verdict(StrEnum):
    """From the most to the least hopeful; only the first two take requests."""

    READY = "ready"
    SUSPECT = "suspect"
    TRIED = "tried"
    REFUSED = "refused"
    OTHER_NAME = "other-name"
    WARMING = "warming"
    LOADING = "loading"
    STARTING = "starting"
    UNHEARD = "unheard"
    DEGRADED = "degraded"
    DEEP_CHECK = "deep-check"
    DEVICE_FAULT = "device-fault"
    STUCK = "stuck"
    SILENT = "silent"
    DRAINING = "draining"
    STOPPED = "stopped"
    NO_REPLICA = "no-replica"


ROUTABLE: Final = (Verdict.READY, Verdict.SUSPECT)
UNSOUND: Final = (Verdict.DEEP_CHECK, Verdict.DEVICE_FAULT)
# These cannot take this request, or not for half a second. An unsound endpoint is still no alternative to them.
SOUND: Final = (*ROUTABLE, Verdict.TRIED, Verdict.REFUSED, Verdict.OTHER_NAME)

RANK: Final = {verdict: rank for rank, verdict in enumerate(Verdict)}


def judge(endpoint: Endpoint, now_ms: float) -> Verdict:
    """Returns whether an endpoint can take requests, and if not, why. Silence counts from when the sender made its last frame, so a
    reader that is late does not make the sender dead."""
    frame = endpoint.frame
    if endpoint.draining:
        return Verdict.DRAINING
    if frame is None:
        return Verdict.UNHEARD
    silent_ms = now_ms - endpoint.frame_made_ms
    if silent_ms > STATE_DEAD_MS:
        return Verdict.SILENT
    if frame.phase != Verdict.READY:
        return Verdict(frame.phase)
    aged = _by_age(frame, endpoint.connected, frame.engine_age_ms + silent_ms)
    unsound = None if aged is Verdict.STUCK else _unsound(endpoint, frame)
    return unsound or (Verdict.REFUSED if endpoint.refused else aged)


def judge_for(endpoint: Endpoint, request: RoutingRequest, tried: Mapping[str, int], now_ms: float) -> Verdict:
    """Returns whether an endpoint can take this request. `tried`: endpoint → sequence of its frame when this request failed there."""
    verdict = judge(endpoint, now_ms)
    frame = endpoint.frame
    if verdict not in (*ROUTABLE, *UNSOUND) or frame is None:
        return verdict
    if tried.get(endpoint.name) == frame.sequence:
        return Verdict.TRIED
    if endpoint.no_place and endpoint.must_load(request.model):
        return Verdict.REFUSED
    named = not frame.served_names or request.model in frame.served_names or request.model in frame.adapters
    return verdict if named else Verdict.OTHER_NAME


def engine_is_silent(frame: Frame, silent_ms: float) -> bool:
    """Returns whether the engine's heartbeat is too old, so that a stuck replica is not stuck for its step alone."""
    return frame.engine_age_ms + silent_ms > STATE_DEAD_MS


def _unsound(endpoint: Endpoint, frame: Frame) -> Verdict | None:
    if frame.deep_check_failed:
        return Verdict.DEEP_CHECK
    return Verdict.DEVICE_FAULT if endpoint.faulty or frame.device_fault else None


def _by_age(frame: Frame, connected: bool, engine_ms: float) -> Verdict:
    if engine_ms > STATE_DEAD_MS or _overdue(frame, STEP_STUCK_MS, STEP_STUCK_TIMES):
        return Verdict.STUCK
    suspect = not connected or engine_ms > STATE_SUSPECT_MS or _overdue(frame, *_STEP_SUSPECT)
    return Verdict.SUSPECT if suspect else Verdict.READY


def _overdue(frame: Frame, least_ms: int, times: int) -> bool:
    return frame.step_age_ms > max(least_ms, times * frame.predicted_step_ms)
