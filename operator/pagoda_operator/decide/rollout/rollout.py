"""From one revision to the next: how many replicas each should have, what share of requests the new one gets, and when it is turned back.

An old replica goes only for a new one that answers: that kubelet calls it Ready is not enough where gateways say otherwise. Who is Ready
all the same is not taken away for being doubted, on either side.

Pure; called by `plan`. A decision is first written into the status and acted on by the next look, which reads it there: an operator that
dies in between has decided nothing, one that dies later goes on. Surge makes new replicas beside the old ones, Replace first takes an old
one away; the last that serves it takes once a trial has shown that the new revision's image and model are there (trial.py). Auto begins
with a surge and becomes Replace, for good, where there is no room.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Final

from pagoda_contracts.resources.status import RolloutStatus
from pagoda_contracts.resources.traffic import CanaryStep
from pagoda_contracts.units import parse_duration

from pagoda_operator.api.signals_view import RevisionSignal
from pagoda_operator.decide.replicas.sides import Side
from pagoda_operator.decide.rollout.canary import judge
from pagoda_operator.decide.rollout.counts import counts, spares, takes_the_last, tries
from pagoda_operator.decide.rollout.scene import Rollout, Scene, Strategy, held_s, share, steps_of
from pagoda_operator.decide.rollout.trial import PATIENCE_S

_MAX_REASON: Final = 500
# How often a canary is judged: gateways count over a minute.
_JUDGE_S: Final = 5.0
# How often one without a node is looked at until it counts as stuck.
_SHORT_S: Final = 10.0


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
    record = _uncanaried(scene, record)
    if scene.stays:
        return Rollout(_still(scene), record, _weights(scene, old, record), frozenset(side.name for side in scene.olds))
    new_count, old_count = counts(scene, old, record)
    targets = {**spares(scene, old), old.name: old_count, scene.current.name: new_count}
    kept = frozenset({old.name}) if record.phase != "Retiring" else frozenset[str]()
    advanced, waits = _advance(scene, old, record)
    weights, again = _weights(scene, old, advanced), _again(scene, old, record)
    return Rollout(targets, advanced, weights, kept, again, waits, tries=tries(scene, old, record))


def _uncanaried(scene: Scene, record: RolloutStatus) -> RolloutStatus:
    """Where the canary was taken out of the spec, its times are no trial's."""
    steps = steps_of(scene, record)
    left = record.phase == "Progressing" and steps.at is not None and not steps.all
    return record.model_copy(update={"step": None, "since": None}) if left else record


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


def _on_trial(scene: Scene, record: RolloutStatus) -> tuple[RolloutStatus, str]:
    """Turned back by what the trial found, or what is waited for, and since when it has no place."""
    tried = scene.tried
    if tried.failed:
        return _turned_back(record, f"The trial of the new revision failed: {tried.failed}"), ""
    since = None if tried.placed else record.since or _stamp(scene.now)
    waits = "" if tried.passed else f"the old replica stays until the trial of the new revision has passed: {tried.told}"
    return record.model_copy(update={"since": since}), waits


# What next


def _advance(scene: Scene, old: Side, record: RolloutStatus) -> tuple[RolloutStatus, str]:
    """The record as it should be, and what is waited for."""
    if record.phase != "Progressing":
        return record, ""
    record = record.model_copy(update={"strategy": _strategy(scene, record)})
    if why := _broken(scene, record):
        return _turned_back(record, why), ""
    step = steps_of(scene, record).now
    if step is not None:
        return _next_step(scene, old, record, step) if scene.wanted else (record, "")
    if tries(scene, old, record):
        return _on_trial(scene, record)
    if record.since is not None and not takes_the_last(scene, old, record):
        record = record.model_copy(update={"since": None})
    if scene.current.ready < scene.wanted:
        return record, scene.current.doubt
    return record.model_copy(update={"phase": "Retiring"}), ""


def _strategy(scene: Scene, record: RolloutStatus) -> Strategy:
    if scene.spec.strategy != "Auto":
        return scene.spec.strategy
    step = steps_of(scene, record).now
    goal = share(scene.wanted, step.weight) if step is not None else scene.wanted
    if scene.current.stuck or (scene.room == 0 and scene.current.placed < goal):
        return "Replace"
    return record.strategy


def _broken(scene: Scene, record: RolloutStatus) -> str:
    """Why the new side is given up: it fails where it took the old one's place, or after it had begun to serve. One that fails beside a
    whole old side is left to mend itself."""
    serving = record.since is not None and steps_of(scene, record).now is not None
    return scene.current.why if scene.current.broken and (record.strategy == "Replace" or serving) else ""


def _turned_back(record: RolloutStatus, why: str) -> RolloutStatus:
    return record.model_copy(update={"phase": "RolledBack", "since": None, "reason": why[:_MAX_REASON]})


def _next_step(scene: Scene, old: Side, record: RolloutStatus, step: CanaryStep) -> tuple[RolloutStatus, str]:
    if record.since is None:
        there = scene.current.ready >= share(scene.wanted, step.weight)
        return (record.model_copy(update={"since": _stamp(scene.now)}), "") if there else (record, scene.current.doubt)
    limits = scene.spec.canary.abort_on if scene.spec.canary else None
    if limits is not None:
        if scene.signals is None or not scene.signals.fresh:
            return record, "no gateway reports on the new revision"
        of = scene.signals.revisions
        if why := judge(limits, of.get(scene.current.hash, RevisionSignal()), of.get(old.hash, RevisionSignal())):
            return _turned_back(record, f"canary at {step.weight} %: {why}"), ""
    if held_s(scene, record) < parse_duration(step.hold):
        return record, ""
    return record.model_copy(update={"step": (record.step or 0) + 1, "since": None}), ""


def _stamp(now: float) -> str:
    """Rounded up, so that a hold is never shorter than it says."""
    return datetime.fromtimestamp(math.ceil(now), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _weights(scene: Scene, old: Side, record: RolloutStatus) -> dict[str, int]:
    """A step's share from the moment that its replicas are there; until then the one before."""
    steps = steps_of(scene, record)
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
    if steps_of(scene, record).now is not None and record.since is not None:
        return _JUDGE_S
    short = _SHORT_S if scene.current.short and not scene.current.stuck else None
    waits = (short, scene.current.again, *(_trial_again(scene, record) if tries(scene, old, record) else ()))
    return min((wait for wait in waits if wait is not None), default=None)


def _trial_again(scene: Scene, record: RolloutStatus) -> tuple[float | None, float | None]:
    """Its own, and when it is not waited for any longer."""
    return scene.tried.again, None if scene.tried.placed else PATIENCE_S - held_s(scene, record)
