"""What a rollout is decided from and what it decides, how many replicas each revision should have now, and whether there is to be a trial.
Pure; `plan` makes the values, `rollout` calls the rest."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pagoda_contracts.resources.status import RolloutStatus
from pagoda_contracts.resources.traffic import CanaryStep, RolloutSpec
from pagoda_placement.values import unix

from pagoda_operator.api.signals import ServiceSignals
from pagoda_operator.decide.replicas.replicas import RevisionState
from pagoda_operator.decide.rollout.trial import PATIENCE_S, Trial

Strategy = Literal["Surge", "Replace"]


@dataclass(frozen=True)
class RolloutState:
    """All that is decided by. `room`: how many more replicas find a place now, None if it is unknown."""

    spec: RolloutSpec
    wanted: int
    current: RevisionState
    olds: tuple[RevisionState, ...] = ()
    record: RolloutStatus | None = None
    room: int | None = None
    signals: ServiceSignals | None = None
    now: float = 0.0
    # Seconds since the record's `since`, if they were counted.
    elapsed: float | None = None
    trial: Trial = field(default=Trial())
    # It is unknown whether the new revision may have anything, so no replica of an old one makes room for it.
    frozen: bool = False

    @property
    def canary(self) -> tuple[CanaryStep, ...]:
        """The canary's steps; none if the spec has no canary."""
        return self.spec.canary.steps if self.spec.canary else ()

    def step(self, record: RolloutStatus) -> CanaryStep | None:
        """The canary's step under way; None after the last one, or without a canary."""
        return self.canary[record.step] if record.step is not None and record.step < len(self.canary) else None

    def elapsed_s(self, record: RolloutStatus) -> float:
        """Seconds since the record's `since`."""
        since = unix(record.since)
        return 0.0 if since is None else self.now - since if self.elapsed is None else self.elapsed


@dataclass(frozen=True)
class Rollout:
    """Replicas by Deployment, the record to keep in the status, percent of requests by revision (empty: by load), what must not be deleted
    though it has no replicas, and whether the new revision is tried before the last old replica goes. `gives_up`: the service returns to
    the old revision if the new one is broken. `hold_s`: how long the canary's step under way lasts."""

    targets: Mapping[str, int]
    record: RolloutStatus | None = None
    weights: Mapping[str, int] = field(default_factory=dict)
    kept: frozenset[str] = frozenset()
    again: float | None = None
    waits: str = ""
    tries: bool = False
    gives_up: bool = False
    hold_s: float = 0.0


def share(wanted: int, weight: int) -> int:
    """Replicas for so many percent of the load, one at least."""
    return max(1, math.ceil(wanted * weight / 100))


def counts(state: RolloutState, old: RevisionState, record: RolloutStatus) -> tuple[int, int]:
    """Replicas of the new and of the old revision."""
    wanted, new = state.wanted, state.current
    if record.phase == "RolledBack":
        back, failing = _shift(state, (old, new), record.strategy)
        return min(failing, new.up), back
    if record.phase == "Retiring":
        return wanted, min(wanted, new.broken)
    if wanted and (step := state.step(record)) is not None:
        return _canary_counts(state, old, record.strategy, share(wanted, step.weight))
    asked, left = _shift(state, (new, old), record.strategy)
    return asked, max(left, 1) if tries(state, old, record) and not state.trial.passed else left


def _shift(state: RolloutState, revisions: tuple[RevisionState, RevisionState], strategy: Strategy) -> tuple[int, int]:
    """All of the first revision and none of the second, with as few as possible that serve less on the way."""
    (new, old), wanted = revisions, state.wanted
    if new.ready >= wanted:
        return wanted, 0
    if strategy == "Replace":
        asked = min(wanted, max(new.total, wanted - old.occupied))
        return asked, max(0, _left(old, wanted - new.up - 1, wanted - new.ready - 1))
    if state.room is None:
        return wanted, wanted
    asked = _within_room(state.room, new, wanted)
    # Between what the new revision cannot serve and what it already does: its hiccups move nothing.
    least = max(0, wanted - max(0, asked - new.broken))
    most = min(old.total, wanted) if asked >= wanted else _left(old, wanted - new.up, wanted - new.ready)
    return asked, max(least, most)


def _left(old: RevisionState, needed: int, perhaps: int) -> int:
    """How many of the old revision stay: as many as are needed, with drains cancelled for it; and of those that do not drain as many as
    perhaps are. An unverified replica stops the next drain and cancels none."""
    return max(min(old.total, needed), min(old.up, perhaps))


def _within_room(room: int, new: RevisionState, goal: int) -> int:
    """As many as have a place or find one, and always one that asks for it: an autoscaler adds nodes for pods that wait."""
    return min(goal, max(1, new.total, new.placed + room))


def _canary_counts(state: RolloutState, old: RevisionState, strategy: Strategy, goal: int) -> tuple[int, int]:
    """The step's share of the new revision. The old one stays whole if there is room, so that going back costs nothing."""
    new, wanted = state.current, state.wanted
    goal = max(goal, min(wanted, new.up))  # going back to a revision that still serves takes nothing from it
    if strategy == "Surge":
        return goal if state.room is None else _within_room(state.room, new, goal), wanted
    asked = min(goal, max(new.total, wanted - old.occupied))
    # One at a time, and the last old one stays: without it the canary would get all requests.
    return asked, max(1, _left(old, wanted - min(goal, new.up + 1), wanted - min(goal, new.ready + 1)))


def others(state: RolloutState, old: RevisionState) -> dict[str, int]:
    """Replicas of revisions that are older still: as many of those that serve as the two that count lack."""
    missing, kept = max(0, state.wanted - state.current.ready - old.ready), {}
    for other in sorted(state.olds, key=lambda other: (-other.up, other.name)):
        if other.name != old.name:
            kept[other.name] = min(other.up, missing)
            missing -= kept[other.name]
    return kept


def tries(state: RolloutState, old: RevisionState, record: RolloutStatus) -> bool:
    """Whether there is to be a trial. One that has no place shows nothing, and is not waited for any longer than its patience."""
    return removes_last(state, old, record) and (state.trial.placed or state.elapsed_s(record) < PATIENCE_S)


def removes_last(state: RolloutState, old: RevisionState, record: RolloutStatus) -> bool:
    """Whether the last old replica that serves would be removed for a revision that never served. While there is a trial, the old one need
    not serve at this moment: a hiccup must not cost what the trial is for, and a drain goes on."""
    new, under_way = state.current, record.phase == "Progressing" and state.step(record) is None
    if not (under_way and record.strategy == "Replace" and state.wanted) or new.ready or new.proven:
        return False
    if _shift(state, (new, old), record.strategy)[1]:
        return False
    return old.up > 0 or (state.trial.there and old.occupied > old.broken)
