"""What a rollout is decided from and what it decides, how many replicas each side should have now, and whether the last old one waits for
a trial. Pure; the values are made by `plan`, the rest is called by `rollout`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pagoda_contracts.resources.status import RolloutStatus
from pagoda_contracts.resources.traffic import RolloutSpec

from pagoda_operator.api.signals import ServiceSignals
from pagoda_operator.decide.replicas.sides import Side
from pagoda_operator.decide.rollout.canary import Steps, share
from pagoda_operator.decide.rollout.trial import PATIENCE_S, Trial
from pagoda_operator.inventory.values import unix

Strategy = Literal["Surge", "Replace"]


@dataclass(frozen=True)
class RolloutState:
    """All that is decided by. `room`: how many more replicas find a place now, None where nobody knows."""

    spec: RolloutSpec
    wanted: int
    current: Side
    olds: tuple[Side, ...] = ()
    record: RolloutStatus | None = None
    room: int | None = None
    signals: ServiceSignals | None = None
    now: float = 0.0
    # How long the record's `since` is ago, where anybody has counted.
    held: float | None = None
    # What a trial of the new revision has shown.
    tried: Trial = field(default=Trial())
    # Nobody can tell whether the new side may have anything, and no replica of an old one makes room for one of it.
    stays: bool = False


@dataclass(frozen=True)
class Rollout:
    """Replicas by Deployment, the record to keep in the status, percent of requests by revision (empty: by load), what must not be deleted
    though it has no replicas, and whether the new revision is tried before the last old replica goes."""

    targets: Mapping[str, int]
    record: RolloutStatus | None = None
    weights: Mapping[str, int] = field(default_factory=dict)
    kept: frozenset[str] = frozenset()
    again: float | None = None
    waits: str = ""
    tries: bool = False


def steps_of(state: RolloutState, record: RolloutStatus) -> Steps:
    """For the record as it is."""
    return Steps(state.spec.canary.steps if state.spec.canary else (), record.step)


def held_s(state: RolloutState, record: RolloutStatus) -> float:
    """How long ago the record's `since` is."""
    since = unix(record.since)
    return 0.0 if since is None else state.now - since if state.held is None else state.held


def counts(state: RolloutState, old: Side, record: RolloutStatus) -> tuple[int, int]:
    """Replicas of the new and of the old side."""
    wanted, new = state.wanted, state.current
    if record.phase == "RolledBack":
        back, failing = _shift(state, (old, new), record.strategy)
        return min(failing, new.up), back
    if record.phase == "Retiring":
        return wanted, min(wanted, new.broken)
    if wanted and (step := steps_of(state, record).now) is not None:
        return _canary_counts(state, old, record.strategy, share(wanted, step.weight))
    asked, left = _shift(state, (new, old), record.strategy)
    return asked, max(left, 1) if tries(state, old, record) and not state.tried.passed else left


def _shift(state: RolloutState, sides: tuple[Side, Side], strategy: Strategy) -> tuple[int, int]:
    """All of the first side, none of the second, and never fewer that serve than can be helped on the way."""
    (new, old), wanted = sides, state.wanted
    if new.ready >= wanted:
        return wanted, 0
    if strategy == "Replace":
        asked = min(wanted, max(new.held, wanted - max(old.pods, old.replicas)))
        return asked, max(0, _left(old, wanted - new.up - 1, wanted - new.ready - 1))
    if state.room is None:
        return wanted, wanted
    asked = _within_room(state.room, new, wanted)
    # Between what the new side cannot bear and what it already does: its hiccups move nothing.
    least = max(0, wanted - max(0, asked - new.broken))
    most = min(old.held, wanted) if asked >= wanted else _left(old, wanted - new.up, wanted - new.ready)
    return asked, max(least, most)


def _left(old: Side, needed: int, doubtful: int) -> int:
    """Of what the old side has, as many as are needed, those that drain turned back for it; of those that stay as many as may be needed:
    a doubt stops the next drain and recalls none."""
    return max(min(old.held, needed), min(old.up, doubtful))


def _within_room(room: int, new: Side, goal: int) -> int:
    """As many as have a place or find one, and always one that asks for it: who adds nodes goes by pods that wait."""
    return min(goal, max(1, new.held, new.placed + room))


def _canary_counts(state: RolloutState, old: Side, strategy: Strategy, goal: int) -> tuple[int, int]:
    """The step's share of the new side; the old one stays whole where there is room, so that going back costs nothing."""
    new, wanted = state.current, state.wanted
    goal = max(goal, min(wanted, new.up))  # who goes back to a revision that still serves takes nothing from it
    if strategy == "Surge":
        return goal if state.room is None else _within_room(state.room, new, goal), wanted
    asked = min(goal, max(new.held, wanted - max(old.pods, old.replicas)))
    # One at a time, and the last old one stays: a canary without an old side would be everybody's.
    return asked, max(1, _left(old, wanted - min(goal, new.up + 1), wanted - min(goal, new.ready + 1)))


def spares(state: RolloutState, old: Side) -> dict[str, int]:
    """Older sides yet: as long as the two that count do not serve enough, those of them that do."""
    missing, kept = max(0, state.wanted - state.current.ready - old.ready), {}
    for side in sorted(state.olds, key=lambda side: (-side.up, side.name)):
        if side.name != old.name:
            kept[side.name] = min(side.up, missing)
            missing -= kept[side.name]
    return kept


def tries(state: RolloutState, old: Side, record: RolloutStatus) -> bool:
    """Whether a trial is to be there. One that tells nothing for lack of a place is not waited for any longer."""
    return takes_the_last(state, old, record) and (state.tried.placed or held_s(state, record) < PATIENCE_S)


def takes_the_last(state: RolloutState, old: Side, record: RolloutStatus) -> bool:
    """Whether the last old one that serves would go for a revision that nobody has seen serve. While a trial is there also one that
    does not at this moment: a hiccup must not cost what the trial is for, and one that drains goes on draining."""
    new, under_way = state.current, record.phase == "Progressing" and steps_of(state, record).now is None
    if not (under_way and record.strategy == "Replace" and state.wanted) or new.ready or new.proven:
        return False
    if _shift(state, (new, old), record.strategy)[1]:
        return False
    return old.up > 0 or (state.tried.there and max(old.pods, old.replicas) > old.broken)
