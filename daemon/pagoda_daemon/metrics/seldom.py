"""Seldom: whether a line may be logged again. For what anybody can cause as often as he likes. Pure; the clock is the caller's."""

from __future__ import annotations


class Seldom:
    """Once in `every`, in the unit of the clock."""

    def __init__(self, every: float) -> None:
        self._every = every
        self._last = float("-inf")

    def due(self, now: float) -> bool:
        """Asking where the answer is true is what begins the next wait."""
        if now - self._last < self._every:
            return False
        self._last = now
        return True
