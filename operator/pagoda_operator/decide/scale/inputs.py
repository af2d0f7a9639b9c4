"""The inputs of a scaling decision. Pure.

A Basis is what was observed of a service, Memory what was decided before. Targets, Capacity and History are made of both for `autoscale`.
`replay` makes its own Basis.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from pagoda_contracts.conditions.types import STALLED
from pagoda_contracts.resources.scaling import ScalingSpec, ScalingTargets
from pagoda_contracts.units import parse_duration

from pagoda_operator.api.pods import Pod
from pagoda_operator.api.signals import BIN_S, Measure, Recommendation, ServiceSignals
from pagoda_operator.api.state import DEPLOYMENTS, Observed
from pagoda_operator.decide.scale.bounds import Change
from pagoda_operator.decide.scale.learned import DAY_S, Learned, forecast

KV_TARGET: Final = 0.9
_OVERDUE: Final = 1.5
_LONGEST_START_S: Final = 900.0  # a pod that is stuck for hours says nothing about the next start


@dataclass(frozen=True, slots=True)
class Targets:
    """What a replica should serve. `rows` requests run at a time; 0 if a target is not set. `spare` is beta of the staffing rule."""

    rows: int
    queue_depth: float = 0.0
    kv_utilization: float = 0.0
    ttft_p95_s: float = 0.0
    spare: float = 2.5


@dataclass(frozen=True, slots=True)
class Capacity:
    """Replicas that serve, and for each starting one the seconds until it probably will. `start_s` is what a start takes."""

    ready: int
    starting: tuple[float, ...] = ()
    start_s: float = 60.0

    @property
    def wanted(self) -> int:
        """Both."""
        return self.ready + len(self.starting)


@dataclass(frozen=True, slots=True)
class History:
    """Measures, recommendations and changes, oldest first, without a gap since `since`. `busy_at`: when the last request was there, if that
    is longer ago than the measures go back. `held`: how many requests are held now."""

    measures: Sequence[Measure]
    recommendations: Sequence[Recommendation]
    since: float
    changes: Sequence[Change] = ()
    busy_at: float = -math.inf
    held: int = 0

    @property
    def quiet_since(self) -> float:
        """Since when no request was there, as far as it was measured."""
        seen = (measure.at for measure in reversed(self.measures) if measure.active)
        return max(self.since, self.busy_at, next(seen, -math.inf))

    def fresh(self, now: float) -> bool:
        """Whether anything was measured within three bins."""
        return bool(self.measures) and now - self.measures[-1].at <= 3 * BIN_S


class Moment(NamedTuple):
    """Now, by the monotonic clock and by the wall clock, in seconds."""

    steady: float
    wall: float


@dataclass(frozen=True, slots=True)
class Basis:
    """What was observed of a service. `current`: replicas wanted until now. `starting`: wall times at which the replicas that do not serve
    yet were created. `serving`: names of the others. `rows`: requests that a replica runs at a time. `granted`, `placeable`: replicas that
    quota and free devices allow, None if unknown. `day_s`: a replayed trace may have shorter days. `newest`: the newest
    revision that has pods; `serves`: whether one of them is Ready; `arrives_until`: a wall time, until which that may be awaited."""

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
    newest: str = ""
    serves: bool = False
    arrives_until: float = -math.inf


@dataclass(frozen=True, slots=True)
class Memory:
    """What this process decided for a service. `since` and `began` are when it began to, by the monotonic and the wall clock.
    `reported` is the reason in the status, with its cause and time. `arriving`: replicas were awaited that never served.
    `served`: the newest revision that has been Ready since there were replicas."""

    since: float
    wanted: int
    recommendations: tuple[Recommendation, ...] = ()
    changes: tuple[Change, ...] = ()
    busy_at: float = float("-inf")
    learned: Learned = field(default=Learned())
    reported: str = ""
    reported_cause: str = ""
    reported_at: float = 0.0
    began: float = 0.0
    arriving: bool = False
    served: str = ""


def basis_of(observed: Observed, memory: Memory | None) -> Basis:
    """Returns the basis of a service with a valid spec."""
    if observed.spec is None:
        raise ValueError("a service without a spec is not scaled")
    spec = observed.spec.scaling or ScalingSpec()
    pods = [pod for pod in observed.pods if pod.counts]
    learned = memory.learned if memory else Learned()
    current = _until_now(observed, spec.mode, memory)
    newest = max(pods, key=lambda pod: pod.created).revision if pods else ""
    return Basis(
        spec=spec,
        replicas=observed.spec.replicas,
        current=current,
        ready=sum(pod.ready for pod in pods),
        starting=tuple(pod.created or observed.now for pod in pods if not pod.ready),
        serving=tuple(pod.name for pod in pods if pod.ready),
        rows=observed.spec.engine.max_concurrency,
        accelerator=_accelerator(pods, learned),
        granted=observed.granted,
        placeable=observed.placeable,
        newest=newest,
        serves=any(pod.ready for pod in pods if pod.revision == newest),
        arrives_until=_arrives_until(observed, [pod for pod in pods if pod.revision == newest]),
    )


def _arrives_until(observed: Observed, newest: Sequence[Pod]) -> float:
    """Until when replicas that never served may be awaited. Not while the service waits for a person, and not without end: a bad image or
    a program that crashes would hold its devices for ever."""
    mine = (one for one in observed.status.conditions if one.observed_generation == observed.meta.generation)
    if any(one.type == STALLED.name and one.status == "True" for one in mine):
        return -math.inf
    return min((pod.created or observed.now for pod in newest), default=math.inf) + observed.node_deadline


def _until_now(observed: Observed, mode: str, memory: Memory | None) -> int:
    """Replicas wanted until now: as this process or its predecessor decided, else those of the Deployments, else spec.replicas."""
    last = observed.status.scaling
    if mode == "Auto" and memory is not None:
        return memory.wanted
    if mode == "Auto" and last is not None and last.desired is not None:
        return last.desired
    there = [child.ordered for child in observed.of(DEPLOYMENTS) if not child.deleting]
    return max(there, default=observed.spec.replicas if observed.spec else 0)


def _accelerator(pods: Iterable[Pod], learned: Learned) -> str:
    """The accelerator of most replicas; without any, that of the last start."""
    counted = Counter(pod.accelerator for pod in pods).most_common(1)
    return counted[0][0] if counted else next(reversed(list(learned.starts)), "")


def history_of(signals: ServiceSignals | None, memory: Memory) -> History:
    """Returns the history that counts: signals that are not fresh have no measures, but their held requests count."""
    signals = signals or ServiceSignals()
    since = max(memory.since, signals.watched_since)
    measures = signals.measures if signals.fresh else ()
    return History(measures, memory.recommendations, since, memory.changes, memory.busy_at, max(signals.held, int(signals.wake)))


def capacity_of(basis: Basis, memory: Memory, moment: Moment) -> Capacity:
    """Returns as many replicas as were wanted until now, without a rollout's surge: ready ones, starting ones, those to be created yet."""
    born = sorted(basis.starting)
    oldest = min(_LONGEST_START_S, moment.wall - born[0]) if born else 0.0
    known = memory.learned.start_s(basis.accelerator)
    start_s = _OVERDUE * oldest if oldest > known else known  # a late start is assumed to take half as long again
    ready = min(basis.ready, basis.current)
    waits = [min(start_s, max(0.0, start_s - (moment.wall - birth))) for birth in born]
    missing = basis.current - ready
    starting = [*waits, *([start_s] * missing)][:missing]
    return Capacity(ready, tuple(starting), start_s)


def targets_of(basis: Basis) -> Targets:
    """Returns spec.scaling.targets with their defaults."""
    wished = basis.spec.targets or ScalingTargets()
    ttft_s = parse_duration(wished.ttft_p95) if wished.ttft_p95 else 0.0
    return Targets(basis.rows, wished.queue_depth or 0, wished.kv_utilization or KV_TARGET, ttft_s)


def forecast_of(basis: Basis, memory: Memory, moment: Moment) -> float:
    """Returns the load of previous days, in rows, at the time when a replica ordered now would serve; 0 without prediction."""
    wished = basis.spec.predictive
    if wished is None or not wished.enabled:
        return 0.0
    learned = memory.learned
    ahead = learned.start_s(basis.accelerator) if wished.horizon == "startupTime" else parse_duration(wished.horizon)
    load = learned.open.total / learned.open.count if learned.open.count else 0.0
    return forecast(learned, load, moment.wall, ahead, basis.day_s)
