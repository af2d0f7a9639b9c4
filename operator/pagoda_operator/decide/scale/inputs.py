"""inputs: what a decision of scaling is made from: what was observed, and what `autoscale` is asked with. Pure.

A Basis is what was observed of a service, Memory what was decided before. Targets, Bounds, Capacity and History are made of both for
`autoscale`. Made here for `scaler` and `scaling`; `replay` makes its own Basis.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from pagoda_contracts.resources.scaling import ScalingRules, ScalingSpec, ScalingTargets
from pagoda_contracts.units import parse_duration

from pagoda_operator.api.pods import Pod
from pagoda_operator.api.scaling import BIN_S, Measure, Recommendation
from pagoda_operator.api.signals import ServiceSignals
from pagoda_operator.api.state import DEPLOYMENTS, Observed
from pagoda_operator.decide.scale.behavior import Behavior, Change, Direction, Limit
from pagoda_operator.decide.scale.learned import DAY_S, Learned, forecast
from pagoda_operator.decide.scale.schedules import limits

IDLE_AFTER_S: Final = 300.0
KV_TARGET: Final = 0.9
_OVERDUE: Final = 1.5
_LONGEST_START_S: Final = 900.0  # a pod that is stuck for hours tells nothing of the next start


@dataclass(frozen=True, slots=True)
class Targets:
    """What a replica should bear. `rows` requests run at a time; 0 where a target is not set. `spare` is beta of the staffing rule."""

    rows: int
    queue_depth: float = 0.0
    kv_utilization: float = 0.0
    ttft_p95_s: float = 0.0
    spare: float = 2.5


@dataclass(frozen=True, slots=True)
class Bounds:
    """Fewest and most replicas and who says so; `idle_after_s` without requests goes to 0 where `least` is 0; how fast."""

    least: int
    most: int
    idle_after_s: float = math.inf
    behavior: Behavior = field(default=Behavior())
    least_by: str = "min"
    most_by: str = "max"

    def clamp(self, replicas: int) -> int:
        """Within both; the most is the stronger."""
        return min(self.most, max(self.least, replicas))


@dataclass(frozen=True, slots=True)
class Capacity:
    """What there is: replicas that serve, and for each on its way the seconds until it probably will. `start_s` is what a start takes."""

    ready: int
    starting: tuple[float, ...] = ()
    start_s: float = 60.0

    @property
    def wanted(self) -> int:
        return self.ready + len(self.starting)


@dataclass(frozen=True, slots=True)
class History:
    """Measures, recommendations and changes, oldest first, watched without a gap since `since`; when last a request was there,
    where that is longer ago than the measures go back, and how many are held this moment."""

    measures: Sequence[Measure]
    recommendations: Sequence[Recommendation]
    since: float
    changes: Sequence[Change] = ()
    busy_at: float = -math.inf
    held: int = 0

    @property
    def quiet_since(self) -> float:
        """Since when no request was there, as far as it was watched."""
        seen = (measure.at for measure in reversed(self.measures) if measure.active)
        return max(self.since, self.busy_at, next(seen, -math.inf))

    def fresh(self, now: float) -> bool:
        """Whether anything was measured within three bins."""
        return bool(self.measures) and now - self.measures[-1].at <= 3 * BIN_S


class Moment(NamedTuple):
    """Now, by a clock that never jumps and by the wall's, in seconds."""

    steady: float
    wall: float


@dataclass(frozen=True, slots=True)
class Basis:
    """What was observed of a service. `current` is what was wanted until now; `starting` are the births (wall) of replicas that do
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
    recommendations: tuple[Recommendation, ...] = ()
    changes: tuple[Change, ...] = ()
    busy_at: float = float("-inf")
    learned: Learned = field(default=Learned())
    told: str = ""
    told_cause: str = ""
    told_at: float = 0.0
    began: float = 0.0


def basis_of(observed: Observed, memory: Memory | None) -> Basis:
    """Of a service whose spec can be read."""
    if observed.spec is None:
        raise ValueError("a service without a spec is not scaled")
    spec = observed.spec.scaling or ScalingSpec()
    pods = [pod for pod in observed.pods if pod.counts]
    learned = memory.learned if memory else Learned()
    return Basis(
        spec=spec,
        replicas=observed.spec.replicas,
        current=_until_now(observed, spec.mode, memory),
        ready=sum(pod.ready for pod in pods),
        starting=tuple(pod.created or observed.now for pod in pods if not pod.ready),
        serving=tuple(pod.name for pod in pods if pod.ready),
        rows=observed.spec.engine.max_concurrency,
        accelerator=_accelerator(pods, learned),
        granted=observed.granted,
        placeable=observed.placeable,
    )


def _until_now(observed: Observed, mode: str, memory: Memory | None) -> int:
    """What was wanted: as this process or its predecessor decided; else what the Deployments have; else where the spec lets it begin."""
    last = observed.status.scaling
    if mode == "Auto" and memory is not None:
        return memory.wanted
    if mode == "Auto" and last is not None and last.desired is not None:
        return last.desired
    there = [child.ordered for child in observed.of(DEPLOYMENTS) if not child.deleting]
    return max(there, default=observed.spec.replicas if observed.spec else 0)


def _accelerator(pods: Iterable[Pod], learned: Learned) -> str:
    """Where most replicas run; without any, where the last one started."""
    counted = Counter(pod.accelerator for pod in pods).most_common(1)
    return counted[0][0] if counted else next(reversed(list(learned.starts)), "")


def history_of(signals: ServiceSignals | None, memory: Memory) -> History:
    """What autoscale may believe: nothing of signals that are not fresh, but who is held is held."""
    if signals is None:
        return History((), memory.recommendations, memory.since, memory.changes)
    since = max(memory.since, signals.watched_since)
    measures = signals.measures if signals.fresh else ()
    return History(measures, memory.recommendations, since, memory.changes, memory.busy_at, max(signals.held, int(signals.wake)))


def capacity_of(basis: Basis, memory: Memory, moment: Moment) -> Capacity:
    """As many as were wanted until now, whatever a rollout has beside them: those that serve, those that start, those to be made yet."""
    born = sorted(basis.starting)
    oldest = min(_LONGEST_START_S, moment.wall - born[0]) if born else 0.0
    known = memory.learned.start_s(basis.accelerator)
    start_s = _OVERDUE * oldest if oldest > known else known  # who is late comes in half as long again, as far as anybody can tell
    ready = min(basis.ready, basis.current)
    waits = [min(start_s, max(0.0, start_s - (moment.wall - birth))) for birth in born]
    missing = basis.current - ready
    starting = [*waits, *([start_s] * missing)][:missing]
    return Capacity(ready, tuple(starting), start_s)


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


def forecast_of(basis: Basis, memory: Memory, moment: Moment) -> float:
    """The load of previous days when a replica ordered now would serve."""
    wished = basis.spec.predictive
    if wished is None or not wished.enabled:
        return 0.0
    learned = memory.learned
    ahead = learned.start_s(basis.accelerator) if wished.horizon == "startupTime" else parse_duration(wished.horizon)
    load = learned.open.total / learned.open.count if learned.open.count else 0.0
    return forecast(learned, load, moment.wall, ahead, basis.day_s)
