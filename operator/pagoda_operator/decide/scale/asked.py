"""asked: what autoscale is asked about: targets, bounds, the fleet that there is, what was measured and decided before. Types; made by
`scaling`, read by `autoscale` and `next_look`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from pagoda_operator.api.scaling import BIN_S, Asked, Measure
from pagoda_operator.decide.scale.behavior import Behavior, Change


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
class Fleet:
    """What there is: replicas that serve, and for each on its way the seconds until it probably will. `start_s` is what a start takes."""

    ready: int
    starting: tuple[float, ...] = ()
    start_s: float = 60.0

    @property
    def wanted(self) -> int:
        return self.ready + len(self.starting)


@dataclass(frozen=True, slots=True)
class History:
    """Measures, what was asked for and what was changed, oldest first, watched without a gap since `since`; when last a request was there,
    where that is longer ago than the measures go back, and how many are held this moment."""

    measures: Sequence[Measure]
    asked: Sequence[Asked]
    since: float
    changes: Sequence[Change] = ()
    busy_at: float = -math.inf
    held: int = 0

    @property
    def quiet_since(self) -> float:
        """Since when no request was there, as far as it was watched."""
        seen = (m.at for m in reversed(self.measures) if m.arrived or m.running or m.waiting or m.held)
        return max(self.since, self.busy_at, next(seen, -math.inf))

    def fresh(self, now: float) -> bool:
        """Whether anything was measured within three bins."""
        return bool(self.measures) and now - self.measures[-1].at <= 3 * BIN_S
