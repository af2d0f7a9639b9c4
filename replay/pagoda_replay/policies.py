"""The two policies that `replay` compares: an HPA with its defaults, and the operator's own scaling.

The HPA is the v2 algorithm of Kubernetes ("Horizontal Pod Autoscaling", algorithm details and `behavior` defaults), every 15 s. A ratio
within 10 % of 1 changes nothing. It scales up at once, by at most 4 pods or a doubling per 15 s, and down to the highest recommendation of
the last 300 s. Pods that are not ready count as idle when scaling up. Ours is the operator's code with its memory, schedules and forecast;
only signals and pods come from the model.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from pagoda_contracts.resources.scaling import ScalingSpec
from pagoda_operator.api.signals import BIN_S, Decision, Measure, ServiceSignals
from pagoda_operator.decide.scale.demand import KEPT, Level, amended
from pagoda_operator.decide.scale.inputs import Basis, Memory, Moment
from pagoda_operator.decide.scale.learned import DAY_S, Learned
from pagoda_operator.decide.scale.scaling import decide

from pagoda_replay.simulation import Bounds, Policy, Replica, SimulatedService

PERIOD_S: Final = 15.0
_FILL: Final = 0.8  # of a replica's rows, which the HPA aims at
_TOLERANCE: Final = 0.1
_DOWN_WINDOW_S: Final = 300.0
_UP_PODS: Final = 4


@dataclass(slots=True)
class Hpa:
    """`target` is a replica's queue, running and waiting: the sum of `vllm:num_requests_running` and `vllm:num_requests_waiting`."""

    target: float
    least: int
    most: int
    past: deque[tuple[float, int]] = field(default_factory=deque)

    def decide(self, now: float, wanted: int, ready: int, queue: float) -> int:
        """Returns the replicas wanted from now on, if `wanted` were until now and `ready` of them have `queue` requests."""
        proposed = self._proposed(wanted, ready, queue)
        self.past.append((now, proposed))
        while self.past and self.past[0][0] <= now - _DOWN_WINDOW_S:
            self.past.popleft()
        stable = max(count for _, count in self.past) if proposed < wanted else proposed
        if stable < wanted:
            return max(self.least, stable)
        return min(self.most, max(self.least, min(stable, max(wanted + _UP_PODS, 2 * wanted))))

    def _proposed(self, wanted: int, ready: int, queue: float) -> int:
        if not ready:
            return wanted
        ratio = queue / ready / self.target
        if abs(ratio - 1) <= _TOLERANCE:
            return wanted
        if ratio > 1 and wanted > ready:  # those that are not ready count as idle
            ratio = queue / wanted / self.target
            return max(wanted, math.ceil(ratio * wanted)) if ratio > 1 + _TOLERANCE else wanted
        return math.ceil(ratio * ready)


DECIDE_EVERY_S: Final = 1.0
_ACCELERATOR: Final = "replayed"


@dataclass(frozen=True, slots=True)
class Calendar:
    """The Unix time of the trace's beginning, and the length of a day in it."""

    origin: float = 0.0
    day_s: float = DAY_S


class Watcher:
    """Measures the service and calls `scaling.decide` with what it remembers."""

    def __init__(self, kind: Replica, spec: ScalingSpec, calendar: Calendar) -> None:
        self._kind, self._spec, self._calendar = kind, spec, calendar
        self._measures: deque[Measure] = deque(maxlen=KEPT)
        self._memory = Memory(0.0, 0, learned=Learned(starts={_ACCELERATOR: (kind.start_s,)}))
        self._arrived = self._inside = 0
        self._level = Level()
        self._sorted: list[float] = []
        self._sorted_of = 0
        self.last: Decision | None = None

    def __call__(self, service: SimulatedService) -> int:
        """Returns the replicas wanted."""
        if not self._measure(service):
            return len(service.wanted)
        signals = ServiceSignals(tuple(self._measures), fresh=True, held=len(service.held))
        moment = Moment(service.now, self._calendar.origin + service.now)
        self.last, self._memory = decide(self._basis(service), signals, self._memory, moment)
        return len(service.wanted) if self.last is None else self.last.replicas

    def _basis(self, service: SimulatedService) -> Basis:
        members, count = service.wanted, len(service.wanted)
        return Basis(
            spec=self._spec,
            replicas=count,
            current=count,
            ready=len(service.ready),
            starting=tuple(self._calendar.origin + member.born for member in members if member.ready_at > service.now),
            rows=self._kind.rows,
            accelerator=_ACCELERATOR,
            day_s=self._calendar.day_s,
        )

    def _measure(self, service: SimulatedService) -> bool:
        """Measures; whether a decision is due: at a bin's end, or if the level is worse than at the last decision."""
        running, waiting = sum(m.running for m in service.members), sum(len(m.queue) for m in service.members)
        kv = sum(m.blocks for m in service.members) / (self._kind.blocks * max(1, len(service.members)))
        level = Level(running, waiting, len(service.held), kv, self._p95(service))
        if service.now % BIN_S:
            if not self._measures or not level.worse(self._level):
                return False
            self._measures[-1] = amended(self._measures[-1], level)
        else:
            self._measures.append(self._bin(service, level))
        self._level = level
        return True

    def _bin(self, service: SimulatedService, level: Level) -> Measure:
        arrived, inside = service.arrived - self._arrived, level.running + level.waiting + level.held
        ended = arrived - (inside - self._inside)
        self._arrived, self._inside = service.arrived, inside
        return Measure(service.now, arrived, ended, *level)

    def _p95(self, service: SimulatedService) -> float:
        """Returns the p95 of the last minute's first tokens. They are kept in order, because sorting them took most of a replay."""
        for _, ttft in islice(service.ttfts, self._sorted_of, None):
            insort(self._sorted, ttft)
        while service.ttfts and service.ttfts[0][0] < service.now - 60:
            del self._sorted[bisect_left(self._sorted, service.ttfts.popleft()[1])]
        self._sorted_of = len(service.ttfts)
        return self._sorted[int(0.95 * (len(self._sorted) - 1))] if self._sorted else 0.0


def hpa(kind: Replica, bounds: Bounds) -> Policy:
    """Returns an HPA on the requests per replica, which fills four fifths of its rows."""
    state = Hpa(_FILL * kind.rows, bounds.least, bounds.most)

    def decide(service: SimulatedService) -> int:
        ready = service.ready
        return state.decide(service.now, len(service.wanted), len(ready), sum(member.load for member in ready) + len(service.held))

    return Policy("hpa", decide, PERIOD_S)


def pagoda(kind: Replica, bounds: Bounds, spec: ScalingSpec | None = None, calendar: Calendar | None = None) -> Policy:
    """Returns the operator's own scaling, with the signals that gateways would have sent."""
    return Policy("pagoda", Watcher(kind, spec or plain(bounds), calendar or Calendar()), DECIDE_EVERY_S, BIN_S)


def plain(bounds: Bounds) -> ScalingSpec:
    """Returns mode Auto with only these bounds and their time to the first token."""
    targets = {"queueDepth": 1, "ttftP95": f"{bounds.ttft_s:g}s"}
    return ScalingSpec.model_validate({"mode": "Auto", "min": bounds.least, "max": bounds.most, "targets": targets})
