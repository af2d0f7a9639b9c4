"""From one revision to the next: how many replicas each should have, what share of requests the new one gets, and when it is turned back.

An old replica goes only for a new one that answers: that kubelet calls it Ready is not enough where gateways say otherwise. Who is Ready
all the same is not taken away for being doubted, on either side.

Pure; called by `plan`. A decision is first written into the status and acted on by the next look, which reads it there: an operator that
dies in between has decided nothing, one that dies later goes on. Surge makes new replicas beside the old ones, Replace first takes an old
one away. Auto begins with a surge and becomes Replace, for good, where there is no room.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, Literal, NamedTuple

from pagoda_contracts.resources.status import RolloutStatus
from pagoda_contracts.resources.traffic import CanaryStep, RolloutSpec
from pagoda_contracts.units import parse_duration

from pagoda_operator.canary import judge
from pagoda_operator.orders import unix
from pagoda_operator.sides import Side
from pagoda_operator.signals_view import RevisionSignal, ServiceSignals

Strategy = Literal["Surge", "Replace"]

_MAX_REASON: Final = 500
# How often a canary is judged: gateways count over a minute.
_JUDGE_S: Final = 5.0
# How often one without a node is looked at until it counts as stuck.
_SHORT_S: Final = 10.0


@dataclass(frozen=True)
class Scene:
    """All that is decided by. `room`: how many more replicas find a place now, None where nobody knows."""

    spec: RolloutSpec
    wanted: int
    current: Side
    olds: tuple[Side, ...] = ()
    record: RolloutStatus | None = None
    room: int | None = None
    signals: ServiceSignals | None = None
    now: float = 0.0
    # How long the canary's step has lasted, where anybody has counted.
    held: float | None = None
    # Nobody can tell whether the new side may have anything, and no replica of an old one makes room for one of it.
    stays: bool = False


@dataclass(frozen=True)
class Rollout:
    """Replicas by Deployment, the record to keep in the status, percent of requests by revision (empty: by load), and what must not be
    deleted though it has no replicas."""

    targets: Mapping[str, int]
    record: RolloutStatus | None = None
    weights: Mapping[str, int] = field(default_factory=dict)
    kept: frozenset[str] = frozenset()
    again: float | None = None
    waits: str = ""


class _Steps(NamedTuple):
    """The canary's steps as they apply now; none where there is nothing to try the new revision against."""

    all: tuple[CanaryStep, ...]
    at: int | None

    @property
    def now(self) -> CanaryStep | None:
        """The step under way."""
        return self.all[self.at] if self.at is not None and self.at < len(self.all) else None


def decide(scene: Scene) -> Rollout:
    """What should be now."""
    old = _fallback(scene)
    if old is None:
        return Rollout({**{side.name: 0 for side in scene.olds}, scene.current.name: scene.wanted})
    record = scene.record if _speaks_of(scene.record, scene.current, old) else None
    if record is None:
        frozen = {side.name: side.replicas for side in (*scene.olds, scene.current)}
        begun = _begin(scene, old)
        return Rollout(frozen, begun, _weights(scene, old, begun), frozenset({old.name}))
    if scene.stays:
        return Rollout(_still(scene), record, _weights(scene, old, record), frozenset(side.name for side in scene.olds))
    new_count, old_count = _counts(scene, old, record)
    targets = {**_spares(scene, old), old.name: old_count, scene.current.name: new_count}
    kept = frozenset({old.name}) if record.phase != "Retiring" else frozenset[str]()
    advanced, waits = _advance(scene, old, record)
    return Rollout(targets, advanced, _weights(scene, old, advanced), kept, _again(scene, old, record), waits)


def _still(scene: Scene) -> dict[str, int]:
    """Every side as it is, as far as that many are wanted: those that serve most first."""
    targets, left = {}, scene.wanted
    for side in (scene.current, *sorted(scene.olds, key=lambda side: (-side.up, side.name))):
        targets[side.name] = min(side.replicas, left)
        left -= targets[side.name]
    return targets


def _fallback(scene: Scene) -> Side | None:
    """The old side that goes on serving: the one that the record names, else of those that ever served the one that serves most."""
    recorded = next((side for side in scene.olds if _speaks_of(scene.record, scene.current, side)), None)
    if recorded is not None:
        return recorded
    # By kubelet's word: nobody goes back to what no record speaks of for a moment's doubt, under a canary with all of its requests.
    if scene.wanted and scene.current.up >= scene.wanted:
        return None
    asleep = scene.wanted == 0 and scene.spec.canary is not None
    proven = [side for side in scene.olds if side.proven and (side.replicas > 0 or asleep)]
    unfinished = scene.record.revision if scene.record is not None and scene.record.phase != "Retiring" else None
    return max(proven, key=lambda side: (side.up > 0, side.hash != unfinished, side.up, side.number, side.name), default=None)


def _speaks_of(record: RolloutStatus | None, new: Side, old: Side) -> bool:
    return record is not None and (record.revision, record.replaces) == (new.hash, old.hash)


def _begin(scene: Scene, old: Side) -> RolloutStatus:
    strategy = scene.spec.strategy
    chosen: Strategy = ("Replace" if scene.room == 0 else "Surge") if strategy == "Auto" else strategy
    step = 0 if scene.spec.canary is not None and old.hash != scene.current.hash else None
    return RolloutStatus(revision=scene.current.hash, replaces=old.hash, strategy=chosen, phase="Progressing", step=step)


def _steps(scene: Scene, record: RolloutStatus) -> _Steps:
    return _Steps(scene.spec.canary.steps if scene.spec.canary else (), record.step)


# How many


def _counts(scene: Scene, old: Side, record: RolloutStatus) -> tuple[int, int]:
    """Replicas of the new and of the old side."""
    wanted, new = scene.wanted, scene.current
    if record.phase == "RolledBack":
        back, failing = _shift(scene, (old, new), record.strategy)
        return min(failing, new.up), back
    if record.phase == "Retiring":
        return wanted, min(wanted, new.broken)
    if wanted and (step := _steps(scene, record).now) is not None:
        return _canary_counts(scene, old, record.strategy, share(wanted, step.weight))
    return _shift(scene, (new, old), record.strategy)


def share(wanted: int, weight: int) -> int:
    """Replicas that bear so many percent of the load, one at least."""
    return max(1, math.ceil(wanted * weight / 100))


def _shift(scene: Scene, sides: tuple[Side, Side], strategy: Strategy) -> tuple[int, int]:
    """All of the first side, none of the second, and never fewer that serve than can be helped on the way."""
    (new, old), wanted = sides, scene.wanted
    if new.ready >= wanted:
        return wanted, 0
    if strategy == "Replace":
        asked = min(wanted, max(new.held, wanted - max(old.pods, old.replicas)))
        return asked, max(0, _left(old, wanted - new.up - 1, wanted - new.ready - 1))
    if scene.room is None:
        return wanted, wanted
    asked = _within_room(scene.room, new, wanted)
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


def _canary_counts(scene: Scene, old: Side, strategy: Strategy, goal: int) -> tuple[int, int]:
    """The step's share of the new side; the old one stays whole where there is room, so that going back costs nothing."""
    new, wanted = scene.current, scene.wanted
    goal = max(goal, min(wanted, new.up))  # who goes back to a revision that still serves takes nothing from it
    if strategy == "Surge":
        return goal if scene.room is None else _within_room(scene.room, new, goal), wanted
    asked = min(goal, max(new.held, wanted - max(old.pods, old.replicas)))
    # One at a time, and the last old one stays: a canary without an old side would be everybody's.
    return asked, max(1, _left(old, wanted - min(goal, new.up + 1), wanted - min(goal, new.ready + 1)))


def _spares(scene: Scene, old: Side) -> dict[str, int]:
    """Older sides yet: as long as the two that count do not serve enough, those of them that do."""
    missing, kept = max(0, scene.wanted - scene.current.ready - old.ready), {}
    for side in sorted(scene.olds, key=lambda side: (-side.up, side.name)):
        if side.name != old.name:
            kept[side.name] = min(side.up, missing)
            missing -= kept[side.name]
    return kept


# What next


def _advance(scene: Scene, old: Side, record: RolloutStatus) -> tuple[RolloutStatus, str]:
    """The record as it should be, and what is waited for."""
    if record.phase != "Progressing":
        return record, ""
    record = record.model_copy(update={"strategy": _strategy(scene, record)})
    if why := _broken(scene, record):
        return _turned_back(record, why), ""
    step = _steps(scene, record).now
    if step is not None:
        return _next_step(scene, old, record, step) if scene.wanted else (record, "")
    if scene.current.ready < scene.wanted:
        return record, scene.current.doubt
    return record.model_copy(update={"phase": "Retiring"}), ""


def _strategy(scene: Scene, record: RolloutStatus) -> Strategy:
    if scene.spec.strategy != "Auto":
        return scene.spec.strategy
    step = _steps(scene, record).now
    goal = share(scene.wanted, step.weight) if step is not None else scene.wanted
    if scene.current.stuck or (scene.room == 0 and scene.current.placed < goal):
        return "Replace"
    return record.strategy


def _broken(scene: Scene, record: RolloutStatus) -> str:
    """Why the new side is given up: it fails where it took the old one's place, or after it had begun to serve. One that fails beside a
    whole old side is left to mend itself."""
    serving = record.since is not None and _steps(scene, record).now is not None
    return scene.current.why if scene.current.broken and (record.strategy == "Replace" or serving) else ""


def _turned_back(record: RolloutStatus, why: str) -> RolloutStatus:
    return record.model_copy(update={"phase": "RolledBack", "since": None, "reason": why[:_MAX_REASON]})


def _next_step(scene: Scene, old: Side, record: RolloutStatus, step: CanaryStep) -> tuple[RolloutStatus, str]:
    if (since := unix(record.since)) is None:
        there = scene.current.ready >= share(scene.wanted, step.weight)
        return (record.model_copy(update={"since": _stamp(scene.now)}), "") if there else (record, scene.current.doubt)
    limits = scene.spec.canary.abort_on if scene.spec.canary else None
    if limits is not None:
        if scene.signals is None or not scene.signals.fresh:
            return record, "no gateway tells how the new revision does"
        of = scene.signals.revisions
        if why := judge(limits, of.get(scene.current.hash, RevisionSignal()), of.get(old.hash, RevisionSignal())):
            return _turned_back(record, f"canary at {step.weight}%: {why}"), ""
    if (scene.now - since if scene.held is None else scene.held) < parse_duration(step.hold):
        return record, ""
    return record.model_copy(update={"step": (record.step or 0) + 1, "since": None}), ""


def _stamp(now: float) -> str:
    """Rounded up, so that a hold is never shorter than it says."""
    return datetime.fromtimestamp(math.ceil(now), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _weights(scene: Scene, old: Side, record: RolloutStatus) -> dict[str, int]:
    """A step's share from the moment that its replicas are there; until then the one before."""
    steps = _steps(scene, record)
    if steps.at is None or not steps.all:
        return {}
    if record.phase != "Progressing":
        mine = 100 if record.phase == "Retiring" else 0
    else:
        passed = steps.at + 1 if record.since is not None else steps.at
        mine = steps.all[min(passed, len(steps.all)) - 1].weight if passed else 0
    others = {side.hash: 0 for side in scene.olds}
    return {**others, old.hash: 100 - mine, scene.current.hash: mine}


def _again(scene: Scene, old: Side, record: RolloutStatus) -> float | None:
    """When time alone may change the answer."""
    if record.phase != "Progressing":
        return old.again if record.phase == "RolledBack" and old.doubt and scene.current.up else None
    if _steps(scene, record).now is not None and record.since is not None:
        return _JUDGE_S
    short = _SHORT_S if scene.current.short and not scene.current.stuck else None
    return min((wait for wait in (short, scene.current.again) if wait is not None), default=None)
