"""HorizontalPodAutoscaler v2's behaviour as Kubernetes documents it, written down naively: the yardstick of behavior.py.

From "Horizontal Pod Autoscaling, configurable scaling behavior": recommendations of the window, policies per period, selectPolicy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass
class Rules:
    window_s: float
    policies: list[tuple[str, int, float]]
    select: str = "Max"


@dataclass
class Reference:
    """Asked in the order of time; remembers what it recommended and did."""

    up: Rules
    down: Rules
    least: int
    most: int
    recommended: list[tuple[float, int]] = field(default_factory=list)
    events: list[tuple[float, int]] = field(default_factory=list)

    def decide(self, now: float, current: int, desired: int) -> int:
        self.recommended.append((now, desired))
        settled = self._stabilize(now, current)
        if settled > current:
            result = min(settled, self.most, max(current, self._up_limit(now, current)))
        elif settled < current:
            result = max(settled, self.least, min(current, self._down_limit(now, current)))
        else:
            result = current
        if result != current:
            self.events.append((now, result - current))
        return result

    def _stabilize(self, now: float, current: int) -> int:
        desired = self.recommended[-1][1]
        lowest = min([desired] + [count for at, count in self.recommended if at > now - self.up.window_s])
        highest = max([desired] + [count for at, count in self.recommended if at > now - self.down.window_s])
        return lowest if current < lowest else min(current, highest)

    def _added_since(self, since: float) -> int:
        return sum(by for at, by in self.events if at > since)

    def _up_limit(self, now: float, current: int) -> int:
        if self.up.select == "Disabled":
            return current
        reached = []
        for kind, value, period in self.up.policies:
            before = current - self._added_since(now - period)
            reached.append(before + value if kind == "Pods" else math.ceil(before * (1 + value / 100)))
        if not reached:
            return 10**9
        return min(reached) if self.up.select == "Min" else max(reached)

    def _down_limit(self, now: float, current: int) -> int:
        if self.down.select == "Disabled":
            return current
        reached = []
        for kind, value, period in self.down.policies:
            before = current - self._added_since(now - period)
            reached.append(before - value if kind == "Pods" else int(before * (1 - value / 100)))
        if not reached:
            return -(10**9)
        return max(reached) if self.down.select == "Min" else min(reached)
