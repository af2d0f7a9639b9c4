"""Which endpoint takes a request. Pure: state and time come in, an endpoint and a reason go out. Called by route.py.

It knows no sockets, no clock and no Kubernetes; fleet.py is the only writer of an Endpoint.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from pagoda_contracts.names import STATE_DEAD_MS, STATE_SUSPECT_MS
from pagoda_contracts.route import REASON_LEAST_LOADED, REASON_ONLY_ENDPOINT, REASON_ONLY_SUSPECT, REASON_ONLY_UNSOUND

# A step under way is overdue after so many ms, or so many times its predicted length, whichever is more: a first step compiles.
_STEP_SUSPECT = (5_000, 10)
_STEP_STUCK = (30_000, 20)


class Frame(NamedTuple):
    """What a replica last said of itself. `phase` is a Verdict's word or "ready"; `step_age_ms` 0 when idle. What follows it the picker
    has no use for: demand.py sums it up."""

    sequence: int
    phase: str
    running: int
    waiting: int
    engine_age_ms: int
    served_names: frozenset[str] = frozenset()
    step_age_ms: int = 0
    predicted_step_ms: int = 0
    deep_failed: bool = False
    revision: str = ""
    phase_number: int = 0
    in_flight: int = 0
    waiting_tokens: int = 0
    blocks_used: int = 0
    blocks_total: int = 0
    ttft_p95_ms: int = 0


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
    DEEP_CHECK = "deep-check"
    DEVICE_FAULT = "device-fault"
    STUCK = "stuck"
    SILENT = "silent"
    DRAINING = "draining"
    STOPPED = "stopped"
    NO_REPLICA = "no-replica"


ABLE: Final = (Verdict.READY, Verdict.SUSPECT)
UNSOUND: Final = (Verdict.DEEP_CHECK, Verdict.DEVICE_FAULT)
# Sound, only not for this request or not for half a second: no reason to turn to one that is unsound.
_SOUND: Final = (*ABLE, Verdict.TRIED, Verdict.REFUSED, Verdict.OTHER_NAME)
# So many unsound ones and no sound one: rather a wrong answer sheet or a false alarm than so many broken devices at once.
_NO_CHANCE: Final = 2

HOPE = {verdict: rank for rank, verdict in enumerate(Verdict)}


@dataclass(slots=True)
class Endpoint:
    """One replica as the gateway sees it. `made_at_ms`: when its frame was made, in the gateway's time."""

    name: str
    service: str
    http: str
    service_uid: str = ""
    leaving: bool = False
    sick: str = ""  # why its device is not to be trusted; empty while it is
    member_revision: str = ""  # as discovery knows it, before the replica itself speaks
    frame: Frame | None = None
    made_at_ms: float = 0.0
    connected: bool = False  # the state stream is open
    refused: bool = False  # turned a request away since its last frame
    own: int = 0  # requests of this gateway under way there
    own_at_frame: int = 0
    last_turn: int = 0  # the fleet's count of picks when it was picked last

    @property
    def revision(self) -> str:
        """What it runs; empty where nobody said."""
        return (self.frame.revision if self.frame else "") or self.member_revision


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
    aged = _by_age(frame, endpoint.connected, frame.engine_age_ms + silent_ms)
    unsound = None if aged is Verdict.STUCK else _unsound(endpoint, frame)
    return unsound or (Verdict.REFUSED if endpoint.refused else aged)


def _unsound(endpoint: Endpoint, frame: Frame) -> Verdict | None:
    if frame.deep_failed:
        return Verdict.DEEP_CHECK
    return Verdict.DEVICE_FAULT if endpoint.sick else None


def _by_age(frame: Frame, connected: bool, engine_ms: float) -> Verdict:
    if engine_ms > STATE_DEAD_MS or _overdue(frame, *_STEP_STUCK):
        return Verdict.STUCK
    suspect = not connected or engine_ms > STATE_SUSPECT_MS or _overdue(frame, *_STEP_SUSPECT)
    return Verdict.SUSPECT if suspect else Verdict.READY


def old_engine(frame: Frame, silent_ms: float) -> bool:
    """Is it the engine's heartbeat that makes the replica stuck, and not its step?"""
    return frame.engine_age_ms + silent_ms > STATE_DEAD_MS


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
    able = [(endpoint, seen) for endpoint, seen in judged if seen in ABLE] or _last_resort(judged)
    if not able:
        return NoPick(min((seen for _, seen in judged), key=HOPE.__getitem__, default=Verdict.NO_REPLICA))
    best, seen = min(able, key=lambda entry: (entry[0].name in tried, score(*entry)))
    if seen is not Verdict.READY:
        return Pick(best, REASON_ONLY_SUSPECT if seen is Verdict.SUSPECT else REASON_ONLY_UNSOUND)
    return Pick(best, REASON_LEAST_LOADED if len(able) > 1 else REASON_ONLY_ENDPOINT)


def _last_resort(judged: Sequence[tuple[Endpoint, Verdict]]) -> list[tuple[Endpoint, Verdict]]:
    """Where nobody is sound: whose device is called faulty and whose canary is right all the same, until another one serves; of the others
    several."""
    unsound = [entry for entry in judged if entry[1] in UNSOUND]
    if any(seen in _SOUND for _, seen in judged):
        return []
    answering = [entry for entry in unsound if entry[1] is Verdict.DEVICE_FAULT]
    able = answering or (unsound if len(unsound) >= _NO_CHANCE else [])
    return [entry for entry in able if not entry[0].refused]


def _for_request(endpoint: Endpoint, model: str, tried: Mapping[str, int], now_ms: float) -> Verdict:
    seen = verdict(endpoint, now_ms)
    frame = endpoint.frame
    if seen not in (*ABLE, *UNSOUND) or frame is None:
        return seen
    if tried.get(endpoint.name) == frame.sequence:
        return Verdict.TRIED
    return seen if model in frame.served_names or not frame.served_names else Verdict.OTHER_NAME


def any_able(endpoints: Iterable[Endpoint], now_ms: float) -> bool:
    """Is it worth waking whoever is held?"""
    judged = [(endpoint, verdict(endpoint, now_ms)) for endpoint in endpoints]
    return any(seen in ABLE for _, seen in judged) or bool(_last_resort(judged))
