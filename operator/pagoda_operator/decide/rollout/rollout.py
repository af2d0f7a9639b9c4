"""From one revision to the next: how many replicas each should have, what share of requests the new one gets, and when it is rolled back.

An old replica goes only for a new one that answers, which Ready alone does not prove. A replica that is Ready, of either revision, is not
removed because gateways are uncertain about it.

Pure; called by `plan`. A decision is first written into the status and acted on by the next run, which reads it there: an operator that
dies in between has decided nothing, one that dies later goes on. Surge makes new replicas beside the old ones, Replace first removes an old
one; the last that serves only after a trial has shown that the new image and model exist (trial.py). Auto begins with a surge and becomes
Replace, for good, if there is no room.
"""

from __future__ import annotations

import math
from typing import Final

from pagoda_contracts.resources.status import RolloutStatus
from pagoda_contracts.resources.traffic import AbortOn, CanaryStep
from pagoda_contracts.units import parse_duration
from pagoda_placement.values import stamp, unix

from pagoda_operator.api.conditions import waiting
from pagoda_operator.api.signals import RevisionSignal
from pagoda_operator.decide.replicas.replicas import RevisionState
from pagoda_operator.decide.rollout.counts import Rollout, RolloutState, Strategy, counts, others, removes_last, share, tries
from pagoda_operator.decide.rollout.trial import DAY_S, PATIENCE_S

_MAX_REASON: Final = 500
# How often a canary is judged: gateways count over a minute.
_JUDGE_S: Final = 5.0
# How often one without a node is checked until it counts as stuck.
_SHORT_S: Final = 10.0


def decide(state: RolloutState) -> Rollout:
    """What should be now."""
    old = _fallback(state)
    if old is None:
        return Rollout({**{other.name: 0 for other in state.olds}, state.current.name: state.wanted})
    record = state.record if _names(state.record, state.current, old) else None
    if record is None:
        as_it_is = {one.name: one.replicas for one in (*state.olds, state.current)}
        begun = _begin(state, old)
        return Rollout(as_it_is, begun, _weights(state, old, begun), frozenset({old.name}))
    if record.phase == "Progressing" and record.step is not None and not state.canary:
        # The canary was taken out of the spec: its time is no trial's.
        record = record.model_copy(update={"step": None, "since": None})
    if state.frozen:
        return Rollout(_unchanged(state), record, _weights(state, old, record), frozenset(other.name for other in state.olds))
    new_count, old_count = counts(state, old, record)
    targets = {**others(state, old), old.name: old_count, state.current.name: new_count}
    kept = frozenset({old.name}) if record.phase != "Retiring" else frozenset[str]()
    advanced, waits = _advance(state, old, record)
    weights, again = _weights(state, old, advanced), _again(state, old, record)
    tried, returns, step = tries(state, old, record), _gives_up(state, advanced), state.step(advanced)
    hold_s = parse_duration(step.hold) if step is not None else 0.0
    return Rollout(targets, advanced, weights, kept, again, waits, tries=tried, gives_up=returns, hold_s=hold_s)


def _unchanged(state: RolloutState) -> dict[str, int]:
    """Every revision as it is, as far as that many are wanted: those that serve most first."""
    targets, left = {}, state.wanted
    for one in (state.current, *sorted(state.olds, key=lambda old: (-old.up, old.name))):
        targets[one.name] = min(one.replicas, left)
        left -= targets[one.name]
    return targets


def _fallback(state: RolloutState) -> RevisionState | None:
    """The old revision that goes on serving: the one that the record names, else the one that serves most of those that ever served."""
    recorded = next((old for old in state.olds if _names(state.record, state.current, old)), None)
    if recorded is not None:
        return recorded
    # By kubelet's word: without a record, uncertain replicas start no rollout back, which under a canary would get all requests.
    if state.wanted and state.current.up >= state.wanted:
        return None
    asleep = state.wanted == 0 and state.spec.canary is not None
    proven = [old for old in state.olds if old.proven and (old.replicas > 0 or asleep)]
    unfinished = state.record.revision if state.record is not None and state.record.phase != "Retiring" else None
    return max(proven, key=lambda old: (old.up > 0, old.hash != unfinished, old.up, old.number, old.name), default=None)


def _names(record: RolloutStatus | None, new: RevisionState, old: RevisionState) -> bool:
    return record is not None and (record.revision, record.replaces) == (new.hash, old.hash)


def _begin(state: RolloutState, old: RevisionState) -> RolloutStatus:
    strategy = state.spec.strategy
    chosen: Strategy = ("Replace" if state.room == 0 else "Surge") if strategy == "Auto" else strategy
    step = 0 if state.spec.canary is not None and old.hash != state.current.hash else None
    return RolloutStatus(revision=state.current.hash, replaces=old.hash, strategy=chosen, phase="Progressing", step=step)


# What next


def _advance(state: RolloutState, old: RevisionState, record: RolloutStatus) -> tuple[RolloutStatus, str]:
    """The record as it should be, and what is waited for."""
    if record.phase != "Progressing":
        return record, ""
    record = record.model_copy(update={"strategy": _strategy(state, record)})
    if why := _broken(state, record):
        return _rolled_back(record, why), ""
    step = state.step(record)
    if step is not None:
        return _next_step(state, old, record, step) if state.wanted else (record, "")
    if tries(state, old, record):
        return _on_trial(state, record)
    if record.since is not None and not removes_last(state, old, record):
        record = record.model_copy(update={"since": None})
    if state.current.ready < state.wanted:
        return record, state.current.unverified
    return record.model_copy(update={"phase": "Retiring"}), ""


def _on_trial(state: RolloutState, record: RolloutStatus) -> tuple[RolloutStatus, str]:
    """Rolled back by what the trial found; else what is waited for, and since when the trial has no place."""
    trial = state.trial
    if trial.failed:
        return _rolled_back(record, f"The trial of the new revision failed: {trial.failed}"), ""
    since = None if trial.placed else record.since or _stamp(state.now)
    gone, ends = unix(since), f"at {stamp(trial.created + DAY_S)} the service returns to the old revision"
    then = f"at {stamp(gone + PATIENCE_S)} the rollout goes on without it" if gone is not None else ends
    said = f"the old replica stays until the trial of the new revision has passed: {trial.progress}{waiting(trial.created, then)}"
    return record.model_copy(update={"since": since}), "" if trial.passed else said


def _strategy(state: RolloutState, record: RolloutStatus) -> Strategy:
    if state.spec.strategy != "Auto":
        return state.spec.strategy
    step = state.step(record)
    goal = share(state.wanted, step.weight) if step is not None else state.wanted
    if state.current.stuck or (state.room == 0 and state.current.placed < goal):
        return "Replace"
    return record.strategy


def _broken(state: RolloutState, record: RolloutStatus) -> str:
    """Why the new revision is given up."""
    return state.current.why if state.current.broken and _gives_up(state, record) else ""


def _gives_up(state: RolloutState, record: RolloutStatus) -> bool:
    """Whether a new revision that is broken is given up: in the old one's place, or after it had begun to serve. One that fails beside a
    whole old revision may still recover."""
    serving = record.since is not None and state.step(record) is not None
    return record.phase == "Progressing" and (record.strategy == "Replace" or serving)


def _rolled_back(record: RolloutStatus, why: str) -> RolloutStatus:
    return record.model_copy(update={"phase": "RolledBack", "since": None, "reason": why[:_MAX_REASON]})


def _next_step(state: RolloutState, old: RevisionState, record: RolloutStatus, step: CanaryStep) -> tuple[RolloutStatus, str]:
    if record.since is None:
        there = state.current.ready >= share(state.wanted, step.weight)
        return (record.model_copy(update={"since": _stamp(state.now)}), "") if there else (record, state.current.unverified)
    limits = state.spec.canary.abort_on if state.spec.canary else None
    if limits is not None:
        if state.signals is None or not state.signals.fresh:
            return record, "no gateway reports on the new revision"
        of = state.signals.revisions
        if why := judge(limits, of.get(state.current.hash, RevisionSignal()), of.get(old.hash, RevisionSignal())):
            return _rolled_back(record, f"canary at {step.weight} %: {why}"), ""
    if state.elapsed_s(record) < parse_duration(step.hold):
        return record, ""
    return record.model_copy(update={"step": (record.step or 0) + 1, "since": None}), ""


def _stamp(now: float) -> str:
    """Rounded up, so that a step never ends before its time."""
    return stamp(math.ceil(now))


def _weights(state: RolloutState, old: RevisionState, record: RolloutStatus) -> dict[str, int]:
    """A step's share after its replicas are Ready; until then the share of the step before."""
    if record.step is None or not state.canary:
        return {}
    if record.phase != "Progressing":
        mine = 100 if record.phase == "Retiring" else 0
    else:
        passed = record.step + 1 if record.since is not None else record.step
        mine = state.canary[min(passed, len(state.canary)) - 1].weight if passed else 0
    return {**{other.hash: 0 for other in state.olds}, old.hash: 100 - mine, state.current.hash: mine}


def _again(state: RolloutState, old: RevisionState, record: RolloutStatus) -> float | None:
    """When time alone may change the answer."""
    if record.phase != "Progressing":
        return old.again if record.phase == "RolledBack" and old.unverified and state.current.up else None
    if state.step(record) is not None and record.since is not None:
        return _JUDGE_S
    waits = [_SHORT_S if state.current.short and not state.current.stuck else None, state.current.again]
    if tries(state, old, record):
        waits += [state.trial.again, None if state.trial.placed else PATIENCE_S - state.elapsed_s(record)]
    return min((wait for wait in waits if wait is not None), default=None)


# The judgement of a canary, by what gateways counted over the last minute, and only if they counted enough requests. A canary that is not
# judged passes by time.

# Errors: Wilson's lower bound at 97.5 % must be above the limit, and from 20 requests on. One error of 20 (bound 0.9 %) does not break
# a limit of 1 %, two (2.8 %) do; below 20 a single one would.
_MIN_REQUESTS: Final = 20
_Z: Final = 1.96
# Time to first token: of 40 requests two lie above the 95th percentile, so that one slow request alone decides nothing.
_MIN_TIMED: Final = 40


def judge(limits: AbortOn, new: RevisionSignal, old: RevisionSignal) -> str:
    """Why the canary is over; empty if nothing speaks against it."""
    return _errors(limits, new) or _first_tokens(limits, new, old)


def _errors(limits: AbortOn, new: RevisionSignal) -> str:
    if limits.error_rate is None or new.requests < _MIN_REQUESTS:
        return ""
    limit = float(limits.error_rate.removesuffix("%")) / 100
    if _lower_bound(new.errors, new.requests) <= limit:
        return ""
    return f"{new.errors} of {new.requests} requests failed within a minute, abortOn.errorRate is {limits.error_rate}"


def _first_tokens(limits: AbortOn, new: RevisionSignal, old: RevisionSignal) -> str:
    if limits.ttft_p95 is None or new.requests < _MIN_TIMED or not new.ttft_p95_s:
        return ""
    slow = f"the first token took {new.ttft_p95_s:.2f} s (p95 of {new.requests} requests), abortOn.ttftP95 is {limits.ttft_p95}"
    if not limits.ttft_p95.endswith("x"):
        return slow if new.ttft_p95_s > parse_duration(limits.ttft_p95) else ""
    if old.requests < _MIN_TIMED or not old.ttft_p95_s:
        return ""
    ratio = float(limits.ttft_p95.removesuffix("x"))
    return f"{slow} of the old one's {old.ttft_p95_s:.2f} s" if new.ttft_p95_s > ratio * old.ttft_p95_s else ""


def _lower_bound(hits: int, total: int) -> float:
    """Wilson's: the share that is at least likely behind so many hits."""
    share, square = hits / total, _Z * _Z
    middle = share + square / (2 * total)
    margin = _Z * math.sqrt(share * (1 - share) / total + square / (4 * total * total))
    return (middle - margin) / (1 + square / total)
