"""run: one trace through one policy, on a virtual clock. Called by `replay.command` and by tests; prints nothing."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from pagoda_contracts.resources.scaling import ScalingSpec

from pagoda_operator.api.scaling import BIN_S
from pagoda_operator.replay.fleet import Fleet, Replica
from pagoda_operator.replay.hpa import PERIOD_S, Hpa
from pagoda_operator.replay.traces import Arrival
from pagoda_operator.replay.watcher import LOOK_S, Calendar, Watcher

Decide = Callable[[Fleet], int]
"""What a policy makes of the fleet at `fleet.now`: replicas wanted."""

_FILL: Final = 0.8  # of a replica's rows: what an HPA is told to aim at


@dataclass(frozen=True, slots=True)
class Policy:
    """Asked every `period_s` seconds; of every `course_s` the course has a line."""

    name: str
    decide: Decide
    period_s: float
    course_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Bounds:
    """What may be asked for, and where it begins; `ttft_s` is the longest first token that is no miss."""

    least: int = 1
    most: int = 32
    ttft_s: float = 2.0


@dataclass(frozen=True, slots=True)
class Sample:
    """One line of the course of things."""

    at: float
    wanted: int
    ready: int
    running: int
    waiting: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """A policy's account of a trace. `too_long` of the missed are prompts that take longer than `ttft_s` by themselves: nobody's fault."""

    policy: str
    requests: int
    missed: int
    too_long: int
    gpu_hours: float
    longest_wait_s: float
    changes: int
    course: tuple[Sample, ...]


def replay(arrivals: Iterable[Arrival], policy: Policy, kind: Replica, bounds: Bounds) -> Outcome:
    """Until the last answer has ended. `gpu_hours` are replica-hours, each from the replica's order to its end."""
    fleet = Fleet(kind, bounds.least, bounds.ttft_s)
    course: list[Sample] = []
    pending = deque(arrivals)
    tick, changes, too_long = 0.0, 0, 0
    while pending or any(member.load for member in fleet.members) or fleet.held:
        tick += policy.period_s
        while pending and pending[0].at < tick:
            too_long += pending[0].prompt * kind.prompt_s > bounds.ttft_s
            fleet.arrive(pending.popleft())
        fleet.until(tick)
        wanted = min(bounds.most, max(bounds.least, policy.decide(fleet)))
        changes += wanted != len(fleet.wanted)
        fleet.order(wanted)
        if not policy.course_s or tick % policy.course_s == 0:
            course.append(_sample(fleet))
    tally = fleet.tally
    return Outcome(policy.name, tally.served, tally.missed, too_long, tally.paid_s / 3600, tally.longest_wait_s, changes, tuple(course))


def _sample(fleet: Fleet) -> Sample:
    running = sum(member.running for member in fleet.members)
    waiting = sum(len(member.queue) for member in fleet.members) + len(fleet.held)
    return Sample(fleet.now, len(fleet.wanted), len(fleet.ready), running, waiting)


def hpa(kind: Replica, bounds: Bounds) -> Policy:
    """HPA on the queue: requests per replica, to fill four fifths of its rows."""
    state = Hpa(_FILL * kind.rows, bounds.least, bounds.most)

    def decide(fleet: Fleet) -> int:
        ready = fleet.ready
        return state.decide(fleet.now, len(fleet.wanted), len(ready), sum(member.load for member in ready) + len(fleet.held))

    return Policy("hpa", decide, PERIOD_S)


def pagoda(kind: Replica, bounds: Bounds, spec: ScalingSpec | None = None, calendar: Calendar | None = None) -> Policy:
    """The operator's own `scaling`, on what gateways would have told it."""
    return Policy("pagoda", Watcher(kind, spec or plain(bounds), calendar or Calendar()), LOOK_S, BIN_S)


def plain(bounds: Bounds) -> ScalingSpec:
    """Mode Auto with the bounds and their time to the first token, nothing else."""
    targets = {"queueDepth": 1, "ttftP95": f"{bounds.ttft_s:g}s"}
    return ScalingSpec.model_validate({"mode": "Auto", "min": bounds.least, "max": bounds.most, "targets": targets})
