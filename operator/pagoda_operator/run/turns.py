"""Whose turn it is to write what may be written a little later. Asked by `reconcile`.

An edited profile changes one word in the status of each service that uses it (`outdated`), and moves nothing. Written all at once that
would keep the API server, and the queue with everybody's real changes in it, busy for as long as 500 statuses take.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pagoda_operator.api.state import Key

EVERY_S: Final = 0.25


class Turns:
    """One every quarter of a second, in the order of asking."""

    def __init__(self, steady: Callable[[], float]) -> None:
        self._steady = steady
        self._next = 0.0
        self._turns: dict[Key, float] = {}

    def wait(self, key: Key) -> float:
        """Seconds until its turn; 0 where that is now, and then it is over."""
        now = self._steady()
        if (turn := self._turns.get(key)) is None:
            turn = self._turns[key] = max(now, self._next)
            self._next = turn + EVERY_S
        if turn > now:
            return turn - now
        del self._turns[key]
        return 0.0

    def forget(self, key: Key) -> None:
        """The service is gone."""
        self._turns.pop(key, None)
