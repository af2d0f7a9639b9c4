"""watcher: what the operator would have seen of a replayed fleet, and its decision. Called by `replay.run` every LOOK_S seconds.

The deciding code is the operator's own, memory, schedules and forecast included; only signals and pods are made up, from the model.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from pagoda_contracts.resources.scaling import ScalingSpec

from pagoda_operator.api.scaling import BIN_S, Decision, Measure
from pagoda_operator.api.signals import ServiceSignals
from pagoda_operator.decide.scale.demand import Level, amended
from pagoda_operator.decide.scale.inputs import Basis, Memory, Moment
from pagoda_operator.decide.scale.learned import DAY_S, Learned
from pagoda_operator.decide.scale.scaling import decide
from pagoda_operator.replay import fleet as model

LOOK_S: Final = 1.0
_KEPT: Final = 120
_ACCELERATOR: Final = "replayed"


@dataclass(frozen=True, slots=True)
class Calendar:
    """When the trace's zero was, in seconds of Unix time, and how long a day is in it."""

    origin: float = 0.0
    day_s: float = DAY_S


class Watcher:
    """Measures the fleet, remembers, asks `scaling.decide`."""

    def __init__(self, kind: model.Replica, spec: ScalingSpec, calendar: Calendar) -> None:
        self._kind, self._spec, self._calendar = kind, spec, calendar
        self._measures: deque[Measure] = deque(maxlen=_KEPT)
        self._memory = Memory(0.0, 0, learned=Learned(starts={_ACCELERATOR: (kind.start_s,)}))
        self._arrived = self._inside = 0
        self._level = Level()
        self._sorted: list[float] = []
        self._sorted_of = 0
        self.last: Decision | None = None

    def __call__(self, fleet: model.Fleet) -> int:
        """Replicas wanted."""
        if not self._measure(fleet):
            return len(fleet.wanted)
        signals = ServiceSignals(tuple(self._measures), fresh=True, held=len(fleet.held))
        moment = Moment(fleet.now, self._calendar.origin + fleet.now)
        self.last, self._memory = decide(self._basis(fleet), signals, self._memory, moment)
        return len(fleet.wanted) if self.last is None else self.last.replicas

    def _basis(self, fleet: model.Fleet) -> Basis:
        members, there = fleet.wanted, len(fleet.wanted)
        starting = tuple(self._calendar.origin + m.born for m in members if m.ready_at > fleet.now)
        ready = there - len(starting)
        kind: dict[str, Any] = {"rows": self._kind.rows, "accelerator": _ACCELERATOR, "day_s": self._calendar.day_s}
        return Basis(self._spec, there, there, ready, starting, **kind)

    def _measure(self, fleet: model.Fleet) -> bool:
        """Whether there is anything to decide by: a bin's end, or a look that is worse than the last."""
        running, waiting = sum(m.running for m in fleet.members), sum(len(m.queue) for m in fleet.members)
        kv = sum(m.blocks for m in fleet.members) / (self._kind.blocks * max(1, len(fleet.members)))
        level = Level(running, waiting, len(fleet.held), kv, self._p95(fleet))
        if fleet.now % BIN_S:
            if not self._measures or not level.worse(self._level):
                return False
            self._measures[-1] = amended(self._measures[-1], level)
        else:
            self._measures.append(self._bin(fleet, level))
        self._level = level
        return True

    def _bin(self, fleet: model.Fleet, level: Level) -> Measure:
        arrived, inside = fleet.arrived - self._arrived, level.running + level.waiting + level.held
        ended = arrived - (inside - self._inside)
        self._arrived, self._inside = fleet.arrived, inside
        return Measure(fleet.now, arrived, ended, *level)

    def _p95(self, fleet: model.Fleet) -> float:
        """Returns the p95 of the last minute's first tokens. They are kept in order, because sorting them took most of a replay."""
        for _, ttft in islice(fleet.ttfts, self._sorted_of, None):
            insort(self._sorted, ttft)
        while fleet.ttfts and fleet.ttfts[0][0] < fleet.now - 60:
            del self._sorted[bisect_left(self._sorted, fleet.ttfts.popleft()[1])]
        self._sorted_of = len(fleet.ttfts)
        return self._sorted[int(0.95 * (len(self._sorted) - 1))] if self._sorted else 0.0
