"""hpa: what a HorizontalPodAutoscaler would decide, the yardstick of `replay`: the v2 algorithm with its defaults, every 15 seconds.

Kubernetes, "Horizontal Pod Autoscaling", algorithm details and `behavior` defaults: a ratio within 10 % of 1 changes nothing; up at once,
by at most 4 pods or a doubling per 15 s; down to the highest recommendation of the last 300 s. Pods that are not ready yet count with 0
on the way up, so that they damp it.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Final

PERIOD_S: Final = 15.0
_TOLERANCE: Final = 0.1
_DOWN_WINDOW_S: Final = 300.0
_UP_PODS: Final = 4


@dataclass(slots=True)
class Hpa:
    """`target` is the queue that a replica should have: requests it holds, running and waiting, as `vllm:num_requests_running` and
    `vllm:num_requests_waiting` add up to."""

    target: float
    least: int
    most: int
    past: deque[tuple[float, int]] = field(default_factory=deque)

    def decide(self, now: float, wanted: int, ready: int, queue: float) -> int:
        """Replicas wanted from now on, where `wanted` were and `ready` of them serve `queue` requests."""
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
        if ratio > 1 and wanted > ready:  # the ones that are not ready yet are taken to have nothing to do
            ratio = queue / wanted / self.target
            return max(wanted, math.ceil(ratio * wanted)) if ratio > 1 + _TOLERANCE else wanted
        return math.ceil(ratio * ready)
