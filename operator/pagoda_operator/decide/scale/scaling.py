"""scaling: how many replicas a service shall have, by its mode. Pure; called by `scaler`, and by `replay` on recorded demand.

Auto asks `autoscale`. External is somebody else's (an HPA, KEDA) through the scale subresource, and spec.replicas is the answer; but an HPA
at 0 is off, so at 0 a held request starts one replica, which goes when nobody asked for `idleAfter`. Manual is a person's: no decision.
Nothing here writes spec.replicas. Two clocks: a steady one for windows, the wall's for schedules, days and pods' ages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from pagoda_contracts.resources.scaling import ScalingRules, ScalingSpec, ScalingTargets
from pagoda_contracts.units import parse_duration

from pagoda_operator.api.scaling import Asked, Decision
from pagoda_operator.api.signals import ServiceSignals
from pagoda_operator.decide.scale.asked import Bounds, Fleet, History, Targets
from pagoda_operator.decide.scale.autoscale import QUANTILE_S, UNHEARD, autoscale, limited
from pagoda_operator.decide.scale.behavior import Behavior, Change, Direction, Limit
from pagoda_operator.decide.scale.learned import DAY_S, Learned, forecast, loaded
from pagoda_operator.decide.scale.load import offered
from pagoda_operator.decide.scale.schedules import limits

IDLE_AFTER_S: Final = 300.0
KV_TARGET: Final = 0.9
REASON_EVERY_S: Final = 60.0
"""How often at most a reason is told anew while the number stays: each is a write."""

_OVERDUE: Final = 1.5
_LONGEST_START_S: Final = 900.0  # a pod that is stuck for hours tells nothing of the next start


class Moment(NamedTuple):
    """Now, by a clock that never jumps and by the wall's, in seconds."""

    steady: float
    wall: float


@dataclass(frozen=True, slots=True)
class Basis:
    """What one look at the API server found. `current` is what was wanted until now; `starting` are the births (wall) of replicas that do
    not serve yet, `serving` the names of those that do; `rows` what a replica runs at a time; `granted` and `placeable` what quota and
    room allow, where they are known. A day of `day_s` seconds is a replayed trace's."""

    spec: ScalingSpec
    replicas: int
    current: int
    ready: int
    starting: tuple[float, ...] = ()
    serving: tuple[str, ...] = ()
    rows: int = 64
    accelerator: str = ""
    granted: int | None = None
    placeable: int | None = None
    day_s: float = DAY_S


@dataclass(frozen=True, slots=True)
class Memory:
    """What was decided for a service by this process. `since` and `began` are when it started to, steady and by
    the wall; `told_*` is the reason in its status."""

    since: float
    wanted: int
    asked: tuple[Asked, ...] = ()
    changes: tuple[Change, ...] = ()
    busy_at: float = float("-inf")
    learned: Learned = field(default=Learned())
    told: str = ""
    told_cause: str = ""
    told_at: float = 0.0
    began: float = 0.0


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
    history, fleet = history_of(signals, memory), fleet_of(basis, memory, moment)
    bounds, expected = bounds_of(basis.spec, moment.wall), _forecast(basis, memory, moment)
    found = autoscale(history, fleet, targets_of(basis), bounds, moment.steady, expected)
    return _remembered(basis, _clamped(found, basis), memory, moment)


def history_of(signals: ServiceSignals | None, memory: Memory) -> History:
    """What autoscale may believe: nothing of signals that are not fresh, but who is held is held."""
    if signals is None:
        return History((), memory.asked, memory.since, memory.changes)
    since = max(memory.since, signals.watched_since)
    measures = signals.measures if signals.fresh else ()
    return History(measures, memory.asked, since, memory.changes, memory.busy_at, max(signals.held, int(signals.wake)))


def fleet_of(basis: Basis, memory: Memory, moment: Moment) -> Fleet:
    """As many as were wanted until now, whatever a rollout has beside them: those that serve, those that start, those to be made yet."""
    born = sorted(basis.starting)
    oldest = min(_LONGEST_START_S, moment.wall - born[0]) if born else 0.0
    known = memory.learned.start_s(basis.accelerator)
    start_s = _OVERDUE * oldest if oldest > known else known  # who is late comes in half as long again, as far as anybody can tell
    ready = min(basis.ready, basis.current)
    waits = [min(start_s, max(0.0, start_s - (moment.wall - birth))) for birth in born]
    missing = basis.current - ready
    starting = [*waits, *([start_s] * missing)][:missing]
    return Fleet(ready, tuple(starting), start_s)


def targets_of(basis: Basis) -> Targets:
    """What a replica should bear."""
    wished = basis.spec.targets or ScalingTargets()
    ttft_s = parse_duration(wished.ttft_p95) if wished.ttft_p95 else 0.0
    return Targets(basis.rows, wished.queue_depth or 0, wished.kv_utilization or KV_TARGET, ttft_s)


def bounds_of(spec: ScalingSpec, wall: float) -> Bounds:
    """Fewest and most at that time, and how fast."""
    found = limits(spec, wall)
    return Bounds(found.least, found.most, idle_after_s(spec), behavior_of(spec), found.least_by, found.most_by)


def idle_after_s(spec: ScalingSpec) -> float:
    """Without requests for so long, zero is enough."""
    return parse_duration(spec.idle_after) if spec.idle_after else IDLE_AFTER_S


def behavior_of(spec: ScalingSpec) -> Behavior:
    """How fast, as autoscale takes it."""
    wished = spec.behavior
    return Behavior(_direction(wished.scale_up), _direction(wished.scale_down)) if wished else Behavior()


def _direction(rules: ScalingRules | None) -> Direction:
    if rules is None:
        return Direction()
    kept = tuple(Limit(policy.type, policy.value, policy.period_seconds) for policy in rules.policies)
    window = rules.stabilization_window_seconds
    return Direction(None if window is None else float(window), kept, rules.select_policy)


def _forecast(basis: Basis, memory: Memory, moment: Moment) -> float:
    """The load of previous days when a replica ordered now would serve."""
    wished = basis.spec.predictive
    if wished is None or not wished.enabled:
        return 0.0
    learned = memory.learned
    ahead = learned.start_s(basis.accelerator) if wished.horizon == "startupTime" else parse_duration(wished.horizon)
    load = learned.open.total / learned.open.count if learned.open.count else 0.0
    return forecast(learned, load, moment.wall, ahead, basis.day_s)


def _watched(basis: Basis, signals: ServiceSignals | None, memory: Memory, moment: Moment) -> Memory:
    """When last a request was there, and what the load is, go into the memory."""
    if signals is None or not signals.fresh:
        return memory
    busy = signals.held or signals.wake or any(m.arrived or m.running or m.waiting or m.held for m in signals.measures[-1:])
    learned = loaded(memory.learned, offered(signals.measures), moment.wall, basis.day_s) if signals.measures else memory.learned
    return replace(memory, busy_at=moment.steady if busy else memory.busy_at, learned=learned)


def _external(basis: Basis, signals: ServiceSignals | None, memory: Memory, moment: Moment) -> Decision | None:
    """Only at 0, and only while somebody asks. Whom we woke stays until gateways are heard, which a restarted operator has to wait for; who
    was scaled to 0 from above goes: where no gateway is, nobody would ever end it."""
    if basis.replicas > 0:
        return None
    asked = Asked(moment.steady, 1, 1)
    if signals is None:
        woken = basis.current > 0 and memory.told
        return Decision(1, asked, UNHEARD, "unheard") if woken else None
    if signals.held or signals.wake:
        return Decision(1, asked, "Requests are held and spec.replicas is 0.", "held")
    if not basis.current:
        return None
    if not signals.fresh:
        return Decision(1, asked, UNHEARD, "unheard")
    idle_s = idle_after_s(basis.spec)
    quiet = moment.steady - history_of(signals, memory).quiet_since
    why = f"Requests arrived within the last {idle_s:.0f} s and spec.replicas is 0."
    return None if quiet >= idle_s else Decision(1, asked, why, "last")


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
    oldest = moment.steady - max(behavior.memory_s, fleet_of(basis, memory, moment).start_s + QUANTILE_S)
    anew = changed != 0 or not memory.told or (found.cause != memory.told_cause and moment.steady - memory.told_at >= REASON_EVERY_S)
    changes = (*memory.changes, Change(moment.steady, changed)) if changed else memory.changes
    remembered = replace(
        memory,
        wanted=found.replicas,
        asked=_asked(memory.asked, found.asked, behavior, moment.steady),
        changes=tuple(change for change in changes if change.at > oldest),
    )
    if anew:
        remembered = replace(remembered, told=found.reason, told_cause=found.cause, told_at=moment.steady)
    elif not memory.told_cause:  # a predecessor's words for the same number
        remembered = replace(remembered, told_cause=found.cause, told_at=moment.steady)
    return replace(found, reason=remembered.told), remembered


def _asked(past: Sequence[Asked], new: Asked, behavior: Behavior, now: float) -> tuple[Asked, ...]:
    """Without what is too old, and, where no window looks for the least, without what a later one outdoes: it would outlast it too."""
    oldest, least_counts = now - behavior.memory_s, bool(behavior.up.window_s)

    def counts(asked: Asked) -> bool:
        return asked.at > oldest and (least_counts or asked.replicas > new.replicas or asked.load > new.load)

    return (*(asked for asked in past if counts(asked)), new)
