"""How many replicas a service should have, by its mode. Pure; called by `scaler`, and by `replay` on recorded demand.

In mode Auto, `autoscale` decides. In mode External an HPA or KEDA sets spec.replicas. An HPA at 0 is off, so at 0 a held request starts one
replica, which is removed after `idleAfter` without requests. In mode Manual there is no decision. Nothing here writes spec.replicas.
Windows use the monotonic clock; schedules, days and pods' ages use the wall clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from pagoda_contracts.resources.scaling import ScalingSpec

from pagoda_operator.api.signals import Decision, Recommendation, ServiceSignals
from pagoda_operator.decide.scale.autoscale import QUANTILE_S, UNHEARD, autoscale, limited
from pagoda_operator.decide.scale.bounds import Behavior, Bounds, Change, behavior_of, bounds_of, idle_after_s, next_edge
from pagoda_operator.decide.scale.demand import offered
from pagoda_operator.decide.scale.inputs import Basis, Memory, Moment, capacity_of, forecast_of, history_of, targets_of
from pagoda_operator.decide.scale.learned import loaded

REASON_EVERY_S: Final = 60.0
"""The least time between two reasons in the status while the number stays: each is a write."""

PREDICTED_EVERY_S: Final = 60.0
_SOONEST_S: Final = 0.5


def decide(basis: Basis, signals: ServiceSignals | None, memory: Memory, moment: Moment) -> tuple[Decision | None, Memory]:
    """Returns the decision, None if spec.replicas counts, and what to remember of it."""
    if basis.spec.mode == "Manual":
        return None, memory
    if signals is not None and signals.fresh and signals.missing(basis.serving):
        signals = replace(signals, fresh=False)  # the load of a silent replica is not in the sums
    memory = _measured(basis, signals, memory, moment)
    if basis.spec.mode == "External":
        found = _external(basis, signals, memory, moment)
        return (None, memory) if found is None else _remembered(basis, _clamped(found, basis), memory, moment)
    history, capacity = history_of(signals, memory), capacity_of(basis, memory, moment)
    bounds, expected = _bounds(basis.spec, signals, moment), forecast_of(basis, memory, moment)
    found = autoscale(history, capacity, targets_of(basis), bounds, moment.steady, expected)
    return _remembered(basis, _clamped(found, basis), memory, moment)


def _awaited(basis: Basis, memory: Memory, moment: Moment) -> Memory:
    """Until a replica of the newest revision has served, no time without requests counts: a model may load for longer than `idleAfter`,
    and a client that waited for it may be gone. One that served and is not Ready for a while does not begin again."""
    served = "" if not basis.current else basis.newest if basis.serves else memory.served
    new = not served or (bool(basis.newest) and basis.newest != served)
    arriving = bool(basis.current) and new and moment.wall < basis.arrives_until
    busy_at = moment.steady if arriving or memory.arriving else memory.busy_at
    return replace(memory, busy_at=busy_at, arriving=arriving, served=served)


def _measured(basis: Basis, signals: ServiceSignals | None, memory: Memory, moment: Moment) -> Memory:
    """Remembers when the last request was there, and the load."""
    memory = _awaited(basis, memory, moment)
    if signals is None or not signals.fresh:
        return memory
    busy = signals.held or signals.wake or any(measure.active for measure in signals.measures[-1:])
    learned = loaded(memory.learned, offered(signals.measures), moment.wall, basis.day_s) if signals.measures else memory.learned
    return replace(memory, busy_at=moment.steady if busy else memory.busy_at, learned=learned)


def _external(basis: Basis, signals: ServiceSignals | None, memory: Memory, moment: Moment) -> Decision | None:
    """Only at 0, and only while there are requests. A replica that the operator started stays until a gateway reports, which a restarted
    operator has to wait for. A replica that was scaled to 0 goes: without a gateway nothing else would remove it."""
    if basis.replicas > 0:
        return None
    one = Recommendation(moment.steady, 1, 1)
    if signals is None:
        woken = basis.current > 0 and memory.reported
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
    """By quota, and by what can be placed. Ready replicas stay, and one more waits, since node autoscalers need a pending pod."""
    if basis.granted is not None and decision.replicas > basis.granted:
        why = limited(decision.reason, decision.replicas, f"the quota allows {basis.granted}")
        decision = replace(decision, replicas=basis.granted, reason=why, cause=f"{decision.cause}, quota")
    if basis.placeable is not None and decision.replicas > (room := max(basis.placeable + 1, min(basis.ready, decision.replicas))):
        why = limited(decision.reason, decision.replicas, f"{basis.placeable} can be placed now, and one more waits for capacity")
        decision = replace(decision, replicas=room, reason=why, cause=f"{decision.cause}, room")
    return decision


def _remembered(basis: Basis, found: Decision, memory: Memory, moment: Moment) -> tuple[Decision, Memory]:
    """With the reason for the status: a new one if the number changes, else rarely and only if its cause changes."""
    behavior, changed = behavior_of(basis.spec), found.replicas - basis.current
    # Changes count at least as long as a start takes: else a model that loads for 5 min is ordered twice.
    oldest = moment.steady - max(behavior.memory_s, capacity_of(basis, memory, moment).start_s + QUANTILE_S)
    due = found.cause != memory.reported_cause and moment.steady - memory.reported_at >= REASON_EVERY_S
    changes = (*memory.changes, Change(moment.steady, changed)) if changed else memory.changes
    remembered = replace(
        memory,
        wanted=found.replicas,
        recommendations=_recent(memory.recommendations, found.recommendation, behavior, moment.steady),
        changes=tuple(change for change in changes if change.at > oldest),
    )
    if changed or not memory.reported or due:
        remembered = replace(remembered, reported=found.reason, reported_cause=found.cause, reported_at=moment.steady)
    elif not memory.reported_cause:  # the previous leader's reason for the same number
        remembered = replace(remembered, reported_cause=found.cause, reported_at=moment.steady)
    return replace(found, reason=remembered.reported), remembered


def _recent(past: Sequence[Recommendation], new: Recommendation, behavior: Behavior, now: float) -> tuple[Recommendation, ...]:
    """Without old ones and, unless a scaleUp window needs the least, without those that the new one exceeds: it lasts longer as well."""
    recent = (old for old in past if old.at > now - behavior.memory_s)
    if not behavior.up.stabilization_window_seconds:
        recent = (old for old in recent if old.replicas > new.replicas or old.load > new.load)
    return (*recent, new)


def next_decision_s(
    basis: Basis, signals: ServiceSignals | None, memory: Memory, decision: Decision | None, moment: Moment
) -> float | None:
    """Returns in how many seconds time alone may change a decision: a schedule begins or ends, the idle timer runs out, the forecast moves.
    None if only an event can. Windows and policies end while measures come, and each measure is an event."""
    waits, spec = [], basis.spec
    if signals is not None and signals.fresh and decision is not None and decision.replicas and _may_end(spec, signals, moment):
        waits.append(history_of(signals, memory).quiet_since + idle_after_s(spec) - moment.steady)
    if spec.mode == "Auto":
        edge = next_edge(spec.schedules, moment.wall)
        waits += [edge - moment.wall] if edge is not None else []
        waits += [PREDICTED_EVERY_S] if spec.predictive is not None and spec.predictive.enabled and memory.learned.days else []
    return max(_SOONEST_S, min(waits)) if waits else None


def _may_end(spec: ScalingSpec, signals: ServiceSignals, moment: Moment) -> bool:
    """Whether the last replica goes without requests."""
    return spec.mode == "External" or _bounds(spec, signals, moment).least == 0


def _bounds(spec: ScalingSpec, signals: ServiceSignals | None, moment: Moment) -> Bounds:
    bounds = bounds_of(spec, moment.wall)
    return bounds if signals is None or signals.wakes else bounds.awake()
