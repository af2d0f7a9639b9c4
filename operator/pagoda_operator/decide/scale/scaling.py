"""scaling: how many replicas a service shall have, by its mode. Pure; called by `scaler`, and by `replay` on recorded demand.

Auto asks `autoscale`. External is somebody else's (an HPA, KEDA) through the scale subresource, and spec.replicas is the answer; but an HPA
at 0 is off, so at 0 a held request starts one replica, which goes when nobody asked for `idleAfter`. Manual is a person's: no decision.
Nothing here writes spec.replicas. Two clocks: a steady one for windows, the wall's for schedules, days and pods' ages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from pagoda_operator.api.scaling import Decision, Recommendation
from pagoda_operator.api.signals import ServiceSignals
from pagoda_operator.decide.scale.autoscale import QUANTILE_S, UNHEARD, autoscale, holds, limited
from pagoda_operator.decide.scale.behavior import Behavior, Change, resumes
from pagoda_operator.decide.scale.demand import offered
from pagoda_operator.decide.scale.inputs import (
    Basis,
    History,
    Memory,
    Moment,
    behavior_of,
    bounds_of,
    capacity_of,
    forecast_of,
    history_of,
    idle_after_s,
    targets_of,
)
from pagoda_operator.decide.scale.learned import loaded
from pagoda_operator.decide.scale.schedules import limits, next_edge

REASON_EVERY_S: Final = 60.0
"""How often at most the status gets a new reason while the number stays: each is a write."""

PREDICTED_EVERY_S: Final = 60.0
_SOONEST_S: Final = 0.5


def decide(basis: Basis, signals: ServiceSignals | None, memory: Memory, moment: Moment) -> tuple[Decision | None, Memory]:
    """The decision, None where a person or somebody else makes it, and what to remember of it."""
    if basis.spec.mode == "Manual":
        return None, memory
    if signals is not None and signals.fresh and signals.missing(basis.serving):
        signals = replace(signals, fresh=False)  # a replica that should be heard is not: its load is not in the sums
    memory = _watched(basis, signals, memory, moment)
    if basis.spec.mode == "External":
        found = _external(basis, signals, memory, moment)
        return (None, memory) if found is None else _remembered(basis, _clamped(found, basis), memory, moment)
    history, capacity = history_of(signals, memory), capacity_of(basis, memory, moment)
    bounds, expected = bounds_of(basis.spec, moment.wall), forecast_of(basis, memory, moment)
    found = autoscale(history, capacity, targets_of(basis), bounds, moment.steady, expected)
    return _remembered(basis, _clamped(found, basis), memory, moment)


def _watched(basis: Basis, signals: ServiceSignals | None, memory: Memory, moment: Moment) -> Memory:
    """When last a request was there, and what the load is, go into the memory."""
    if signals is None or not signals.fresh:
        return memory
    busy = signals.held or signals.wake or any(measure.active for measure in signals.measures[-1:])
    learned = loaded(memory.learned, offered(signals.measures), moment.wall, basis.day_s) if signals.measures else memory.learned
    return replace(memory, busy_at=moment.steady if busy else memory.busy_at, learned=learned)


def _external(basis: Basis, signals: ServiceSignals | None, memory: Memory, moment: Moment) -> Decision | None:
    """Only at 0, and only while somebody asks. Whom we woke stays until gateways are heard, which a restarted operator has to wait for; who
    was scaled to 0 from above goes: where no gateway is, nobody would ever end it."""
    if basis.replicas > 0:
        return None
    one = Recommendation(moment.steady, 1, 1)
    if signals is None:
        woken = basis.current > 0 and memory.told
        return Decision(1, one, UNHEARD, "unheard") if woken else None
    if signals.held or signals.wake:
        return Decision(1, one, "Requests are held and spec.replicas is 0.", "held")
    if not basis.current:
        return None
    if not signals.fresh:
        return Decision(1, one, UNHEARD, "unheard")
    idle_s = idle_after_s(basis.spec)
    quiet = moment.steady - history_of(signals, memory).quiet_since
    why = f"Requests arrived within the last {idle_s:.0f} s and spec.replicas is 0."
    return None if quiet >= idle_s else Decision(1, one, why, "last")


def _clamped(decision: Decision, basis: Basis) -> Decision:
    """By quota, and by what can be placed: who serves stays, and one more waits, since nobody adds a node or frees a device for none."""
    if basis.granted is not None and decision.replicas > basis.granted:
        why = limited(decision.reason, decision.replicas, f"the quota allows {basis.granted}")
        decision = replace(decision, replicas=basis.granted, reason=why, cause=f"{decision.cause}, quota")
    if basis.placeable is not None and decision.replicas > (room := max(basis.placeable + 1, min(basis.ready, decision.replicas))):
        why = limited(decision.reason, decision.replicas, f"{basis.placeable} can be placed now, and one more waits for capacity")
        decision = replace(decision, replicas=room, reason=why, cause=f"{decision.cause}, room")
    return decision


def _remembered(basis: Basis, found: Decision, memory: Memory, moment: Moment) -> tuple[Decision, Memory]:
    """With the reason that the status keeps: a new one where the number changes, else rarely and only where its point does."""
    behavior, changed = behavior_of(basis.spec), found.replicas - basis.current
    # What has grown is waited for, whatever the behavior looks back to: else a model that loads for 5 min is ordered twice.
    oldest = moment.steady - max(behavior.memory_s, capacity_of(basis, memory, moment).start_s + QUANTILE_S)
    anew = changed != 0 or not memory.told or (found.cause != memory.told_cause and moment.steady - memory.told_at >= REASON_EVERY_S)
    changes = (*memory.changes, Change(moment.steady, changed)) if changed else memory.changes
    remembered = replace(
        memory,
        wanted=found.replicas,
        recommendations=_recent(memory.recommendations, found.recommendation, behavior, moment.steady),
        changes=tuple(change for change in changes if change.at > oldest),
    )
    if anew:
        remembered = replace(remembered, told=found.reason, told_cause=found.cause, told_at=moment.steady)
    elif not memory.told_cause:  # a predecessor's words for the same number
        remembered = replace(remembered, told_cause=found.cause, told_at=moment.steady)
    return replace(found, reason=remembered.told), remembered


def _recent(past: Sequence[Recommendation], new: Recommendation, behavior: Behavior, now: float) -> tuple[Recommendation, ...]:
    """Without what is too old, and, where no window looks for the least, without what a later one outdoes: it would outlast it too."""
    oldest, least_counts = now - behavior.memory_s, bool(behavior.up.window_s)

    def counts(old: Recommendation) -> bool:
        return old.at > oldest and (least_counts or old.replicas > new.replicas or old.load > new.load)

    return (*(old for old in past if counts(old)), new)


def next_look(basis: Basis, signals: ServiceSignals | None, memory: Memory, decision: Decision | None, moment: Moment) -> float | None:
    """When a decision can change by time alone (a window ends, a schedule begins, the idle timer runs out), in seconds from now. None
    where only an event can change anything. A requeue too many costs reads, one too few a late decision."""
    if basis.spec.mode == "Manual":
        return None
    waits = [at - moment.steady for at in _timers(basis, signals, memory, decision, moment)]
    if basis.spec.mode == "Auto":
        edge = next_edge(basis.spec.schedules, moment.wall)
        waits += [edge - moment.wall] if edge is not None else []
        predictive = basis.spec.predictive is not None and basis.spec.predictive.enabled and memory.learned.days
        waits += [PREDICTED_EVERY_S] if predictive else []
    return max(_SOONEST_S, min(waits)) if waits else None


def _timers(basis: Basis, signals: ServiceSignals | None, memory: Memory, decision: Decision | None, moment: Moment) -> Iterator[float]:
    """By the steady clock, all in the future. Without fresh signals time changes nothing."""
    if signals is None or not signals.fresh or decision is None:
        return
    history = history_of(signals, memory)
    may_end = basis.spec.mode == "External" or limits(basis.spec, moment.wall).least == 0
    if decision.replicas and may_end:
        yield max(moment.steady, history.quiet_since + idle_after_s(basis.spec))
    if basis.spec.mode == "Auto":
        yield from (at for at in _windows(basis, memory, history, decision.replicas, moment) if at > moment.steady)


def _windows(basis: Basis, memory: Memory, history: History, replicas: int, moment: Moment) -> Iterator[float]:
    """Where the last wish is another number: what still stands in its way, and until when."""
    behavior, wish = behavior_of(basis.spec), memory.recommendations[-1].replicas if memory.recommendations else replicas
    if wish < replicas:
        yield history.since + behavior.down_window_s
        holding = holds(memory.recommendations, capacity_of(basis, memory, moment), behavior, moment.steady)
        yield max((until for until, most in holding if most >= replicas), default=0.0)
        yield resumes(memory.changes, behavior.down, moment.steady) or 0.0
    elif wish > replicas:
        window = behavior.up.window_s or 0.0
        yield max((past.at + window for past in memory.recommendations if past.replicas < wish), default=0.0)
        yield resumes(memory.changes, behavior.up, moment.steady) or 0.0
