"""From one revision to the next: how many replicas each should have, what share of requests the new one gets, and when it is turned back.

An old replica goes only for a new one that answers: that kubelet calls it Ready is not enough where gateways say otherwise. Who is Ready
all the same is not taken away for being doubted, on either side.

Pure; called by `plan`. A decision is first written into the status and acted on by the next run, which reads it there: an operator that
dies in between has decided nothing, one that dies later goes on. Surge makes new replicas beside the old ones, Replace first takes an old
one away; the last that serves it takes once a trial has shown that the new revision's image and model are there (trial.py). Auto begins
with a surge and becomes Replace, for good, where there is no room.
"""

from __future__ import annotations

import math
from typing import Final

from pagoda_contracts.resources.status import RolloutStatus
from pagoda_contracts.resources.traffic import CanaryStep
from pagoda_contracts.units import parse_duration

from pagoda_operator.api.signals import RevisionSignal
from pagoda_operator.decide.replicas.sides import Side
from pagoda_operator.decide.rollout.canary import judge, share
from pagoda_operator.decide.rollout.counts import Rollout, RolloutState, Strategy, counts, held_s, spares, steps_of, takes_the_last, tries
from pagoda_operator.decide.rollout.trial import PATIENCE_S
from pagoda_operator.inventory.values import stamp

_MAX_REASON: Final = 500
# How often a canary is judged: gateways count over a minute.
_JUDGE_S: Final = 5.0
# How often one without a node is checked until it counts as stuck.
_SHORT_S: Final = 10.0


def decide(state: RolloutState) -> Rollout:
    """What should be now."""
    old = _fallback(state)
    if old is None:
        return Rollout({**{side.name: 0 for side in state.olds}, state.current.name: state.wanted})
    record = state.record if _speaks_of(state.record, state.current, old) else None
    if record is None:
        frozen = {side.name: side.replicas for side in (*state.olds, state.current)}
        begun = _begin(state, old)
        return Rollout(frozen, begun, _weights(state, old, begun), frozenset({old.name}))
    record = _uncanaried(state, record)
    if state.stays:
        return Rollout(_still(state), record, _weights(state, old, record), frozenset(side.name for side in state.olds))
    new_count, old_count = counts(state, old, record)
    targets = {**spares(state, old), old.name: old_count, state.current.name: new_count}
    kept = frozenset({old.name}) if record.phase != "Retiring" else frozenset[str]()
    advanced, waits = _advance(state, old, record)
    weights, again = _weights(state, old, advanced), _again(state, old, record)
    return Rollout(targets, advanced, weights, kept, again, waits, tries=tries(state, old, record))


def _uncanaried(state: RolloutState, record: RolloutStatus) -> RolloutStatus:
    """Where the canary was taken out of the spec, its times are no trial's."""
    steps = steps_of(state, record)
    left = record.phase == "Progressing" and steps.at is not None and not steps.all
    return record.model_copy(update={"step": None, "since": None}) if left else record


def _still(state: RolloutState) -> dict[str, int]:
    """Every side as it is, as far as that many are wanted: those that serve most first."""
    targets, left = {}, state.wanted
    for side in (state.current, *sorted(state.olds, key=lambda side: (-side.up, side.name))):
        targets[side.name] = min(side.replicas, left)
        left -= targets[side.name]
    return targets


def _fallback(state: RolloutState) -> Side | None:
    """The old side that goes on serving: the one that the record names, else of those that ever served the one that serves most."""
    recorded = next((side for side in state.olds if _speaks_of(state.record, state.current, side)), None)
    if recorded is not None:
        return recorded
    # By kubelet's word: nobody goes back to what no record speaks of for a moment's doubt, under a canary with all of its requests.
    if state.wanted and state.current.up >= state.wanted:
        return None
    asleep = state.wanted == 0 and state.spec.canary is not None
    proven = [side for side in state.olds if side.proven and (side.replicas > 0 or asleep)]
    unfinished = state.record.revision if state.record is not None and state.record.phase != "Retiring" else None
    return max(proven, key=lambda side: (side.up > 0, side.hash != unfinished, side.up, side.number, side.name), default=None)


def _speaks_of(record: RolloutStatus | None, new: Side, old: Side) -> bool:
    return record is not None and (record.revision, record.replaces) == (new.hash, old.hash)


def _begin(state: RolloutState, old: Side) -> RolloutStatus:
    strategy = state.spec.strategy
    chosen: Strategy = ("Replace" if state.room == 0 else "Surge") if strategy == "Auto" else strategy
    step = 0 if state.spec.canary is not None and old.hash != state.current.hash else None
    return RolloutStatus(revision=state.current.hash, replaces=old.hash, strategy=chosen, phase="Progressing", step=step)


def _on_trial(state: RolloutState, record: RolloutStatus) -> tuple[RolloutStatus, str]:
    """Turned back by what the trial found, or what is waited for, and since when it has no place."""
    tried = state.tried
    if tried.failed:
        return _turned_back(record, f"The trial of the new revision failed: {tried.failed}"), ""
    since = None if tried.placed else record.since or _stamp(state.now)
    waits = "" if tried.passed else f"the old replica stays until the trial of the new revision has passed: {tried.progress}"
    return record.model_copy(update={"since": since}), waits


# What next


def _advance(state: RolloutState, old: Side, record: RolloutStatus) -> tuple[RolloutStatus, str]:
    """The record as it should be, and what is waited for."""
    if record.phase != "Progressing":
        return record, ""
    record = record.model_copy(update={"strategy": _strategy(state, record)})
    if why := _broken(state, record):
        return _turned_back(record, why), ""
    step = steps_of(state, record).now
    if step is not None:
        return _next_step(state, old, record, step) if state.wanted else (record, "")
    if tries(state, old, record):
        return _on_trial(state, record)
    if record.since is not None and not takes_the_last(state, old, record):
        record = record.model_copy(update={"since": None})
    if state.current.ready < state.wanted:
        return record, state.current.doubt
    return record.model_copy(update={"phase": "Retiring"}), ""


def _strategy(state: RolloutState, record: RolloutStatus) -> Strategy:
    if state.spec.strategy != "Auto":
        return state.spec.strategy
    step = steps_of(state, record).now
    goal = share(state.wanted, step.weight) if step is not None else state.wanted
    if state.current.stuck or (state.room == 0 and state.current.placed < goal):
        return "Replace"
    return record.strategy


def _broken(state: RolloutState, record: RolloutStatus) -> str:
    """Why the new side is given up: it fails where it took the old one's place, or after it had begun to serve. One that fails beside a
    whole old side is left to mend itself."""
    serving = record.since is not None and steps_of(state, record).now is not None
    return state.current.why if state.current.broken and (record.strategy == "Replace" or serving) else ""


def _turned_back(record: RolloutStatus, why: str) -> RolloutStatus:
    return record.model_copy(update={"phase": "RolledBack", "since": None, "reason": why[:_MAX_REASON]})


def _next_step(state: RolloutState, old: Side, record: RolloutStatus, step: CanaryStep) -> tuple[RolloutStatus, str]:
    if record.since is None:
        there = state.current.ready >= share(state.wanted, step.weight)
        return (record.model_copy(update={"since": _stamp(state.now)}), "") if there else (record, state.current.doubt)
    limits = state.spec.canary.abort_on if state.spec.canary else None
    if limits is not None:
        if state.signals is None or not state.signals.fresh:
            return record, "no gateway reports on the new revision"
        of = state.signals.revisions
        if why := judge(limits, of.get(state.current.hash, RevisionSignal()), of.get(old.hash, RevisionSignal())):
            return _turned_back(record, f"canary at {step.weight} %: {why}"), ""
    if held_s(state, record) < parse_duration(step.hold):
        return record, ""
    return record.model_copy(update={"step": (record.step or 0) + 1, "since": None}), ""


def _stamp(now: float) -> str:
    """Rounded up, so that a hold is never shorter than it says."""
    return stamp(math.ceil(now))


def _weights(state: RolloutState, old: Side, record: RolloutStatus) -> dict[str, int]:
    """A step's share from the moment that its replicas are there; until then the one before."""
    steps = steps_of(state, record)
    if steps.at is None or not steps.all:
        return {}
    if record.phase != "Progressing":
        mine = 100 if record.phase == "Retiring" else 0
    else:
        passed = steps.at + 1 if record.since is not None else steps.at
        mine = steps.all[min(passed, len(steps.all)) - 1].weight if passed else 0
    others = {side.hash: 0 for side in state.olds}
    return {**others, old.hash: 100 - mine, state.current.hash: mine}


def _again(state: RolloutState, old: Side, record: RolloutStatus) -> float | None:
    """When time alone may change the answer."""
    if record.phase != "Progressing":
        return old.again if record.phase == "RolledBack" and old.doubt and state.current.up else None
    if steps_of(state, record).now is not None and record.since is not None:
        return _JUDGE_S
    short = _SHORT_S if state.current.short and not state.current.stuck else None
    waits = (short, state.current.again, *(_trial_again(state, record) if tries(state, old, record) else ()))
    return min((wait for wait in waits if wait is not None), default=None)


def _trial_again(state: RolloutState, record: RolloutStatus) -> tuple[float | None, float | None]:
    """Its own, and when it is not waited for any longer."""
    return state.tried.again, None if state.tried.placed else PATIENCE_S - held_s(state, record)
