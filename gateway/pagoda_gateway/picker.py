"""Which endpoint takes a request. Pure: state and time come in, an endpoint and a reason go out. Called by route.py.

It knows no sockets, no clock and no Kubernetes; fleet.py is the only writer of an Endpoint.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from pagoda_contracts.names import STATE_DEAD_MS, STATE_SUSPECT_MS
from pagoda_contracts.route import REASON_LEAST_LOADED, REASON_ONLY_ENDPOINT, REASON_ONLY_SUSPECT

# A step under way is overdue after so many ms, or so many times its predicted length, whichever is more: a first step compiles.
_STEP_SUSPECT = (5_000, 10)
_STEP_STUCK = (30_000, 20)


class Frame(NamedTuple):
    """What a replica last said of itself. `phase` is a Verdict's word or "ready"; `step_age_ms` 0 when idle."""

    sequence: int
    phase: str
    running: int
    waiting: int
    engine_age_ms: int
    served_names: frozenset[str] = frozenset()
    step_age_ms: int = 0
    predicted_step_ms: int = 0


class Verdict(StrEnum):
    """What the state says of an endpoint, from most to least hopeful; only the first two take requests."""

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
    STUCK = "stuck"
    SILENT = "silent"
    DRAINING = "draining"
    STOPPED = "stopped"
    NO_REPLICA = "no-replica"


HOPE = {verdict: rank for rank, verdict in enumerate(Verdict)}


@dataclass(slots=True)
class Endpoint:
    """One replica as the gateway sees it. `made_at_ms`: when its frame was made, in the gateway's time."""

    name: str
    service: str
    http: str
    service_uid: str = ""
    leaving: bool = False
    frame: Frame | None = None
    made_at_ms: float = 0.0
    connected: bool = False  # the state stream is open
    refused: bool = False  # turned a request away since its last frame
    own: int = 0  # requests of this gateway under way there
    own_at_frame: int = 0
    last_turn: int = 0  # the fleet's count of picks when it was picked last


class Pick(NamedTuple):
    """This endpoint, for this reason."""

    endpoint: Endpoint
    reason: str


class NoPick(NamedTuple):
    """None, and the most hopeful endpoint's verdict."""

    reason: Verdict


def verdict(endpoint: Endpoint, now_ms: float) -> Verdict:
    """May this endpoint take a request? Silence counts from when the sender made the frame: a late reader is no dead sender."""
    frame = endpoint.frame
    if endpoint.leaving:
        return Verdict.DRAINING
    if frame is None:
        return Verdict.UNHEARD
    silent_ms = now_ms - endpoint.made_at_ms
    if silent_ms > STATE_DEAD_MS:
        return Verdict.SILENT
    if frame.phase != Verdict.READY:
        return Verdict(frame.phase)
    return Verdict.REFUSED if endpoint.refused else _by_age(frame, endpoint.connected, frame.engine_age_ms + silent_ms)


def _by_age(frame: Frame, connected: bool, engine_ms: float) -> Verdict:
    if engine_ms > STATE_DEAD_MS or _overdue(frame, *_STEP_STUCK):
        return Verdict.STUCK
    suspect = not connected or engine_ms > STATE_SUSPECT_MS or _overdue(frame, *_STEP_SUSPECT)
    return Verdict.SUSPECT if suspect else Verdict.READY


def _overdue(frame: Frame, least_ms: int, times: int) -> bool:
    return frame.step_age_ms > max(least_ms, times * frame.predicted_step_ms)


def load(endpoint: Endpoint) -> int:
    """Requests there now: the pushed count, corrected by our own that began or ended since; never below our own."""
    frame = endpoint.frame
    pushed = frame.running + frame.waiting if frame else 0
    return max(endpoint.own, pushed + endpoint.own - endpoint.own_at_frame)


def score(endpoint: Endpoint, judged: Verdict) -> tuple[bool, int, int, str]:
    """Smaller is better: trusted before suspect, then least loaded, then longest not picked (a stable rotation), then by name."""
    return judged is Verdict.SUSPECT, load(endpoint), endpoint.last_turn, endpoint.name


def pick(endpoints: Collection[Endpoint], model: str, tried: Mapping[str, int], now_ms: float) -> Pick | NoPick:
    """The best endpoint for a request. `tried`: endpoint → sequence of the frame under which it failed this very request;
    it is passed over until it speaks again, and is the last choice then: a killed replica's last frames may arrive late."""
    judged = [(endpoint, _for_request(endpoint, model, tried, now_ms)) for endpoint in endpoints]
    able = [(endpoint, seen) for endpoint, seen in judged if seen in (Verdict.READY, Verdict.SUSPECT)]
    if not able:
        return NoPick(min((seen for _, seen in judged), key=HOPE.__getitem__, default=Verdict.NO_REPLICA))
    best, seen = min(able, key=lambda entry: (entry[0].name in tried, score(*entry)))
    if seen is Verdict.SUSPECT:
        return Pick(best, REASON_ONLY_SUSPECT)
    return Pick(best, REASON_LEAST_LOADED if len(able) > 1 else REASON_ONLY_ENDPOINT)


def _for_request(endpoint: Endpoint, model: str, tried: Mapping[str, int], now_ms: float) -> Verdict:
    seen = verdict(endpoint, now_ms)
    frame = endpoint.frame
    if seen not in (Verdict.READY, Verdict.SUSPECT) or frame is None:
        return seen
    if tried.get(endpoint.name) == frame.sequence:
        return Verdict.TRIED
    return seen if model in frame.served_names or not frame.served_names else Verdict.OTHER_NAME


def any_able(endpoints: Iterable[Endpoint], now_ms: float) -> bool:
    """Is it worth waking whoever is held?"""
    return any(verdict(endpoint, now_ms) in (Verdict.READY, Verdict.SUSPECT) for endpoint in endpoints)
