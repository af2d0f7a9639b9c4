"""The event loop's clock in a test's hands: deadlines pass without waiting for them, or not before the test says so.

What is not the loop's goes by the real time: threads, other processes, sockets of other runtimes.
"""

from __future__ import annotations

import asyncio


class LoopClock:
    """Of the loop that runs when it is made, to its end: each test has a loop of its own, and timers that were set by one time must not be
    waited for by another."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._real, self._ahead = loop.time, 0.0
        self._stands: float | None = None
        loop.time = self._time  # type: ignore[method-assign]

    def _time(self) -> float:
        return (self._real() if self._stands is None else self._stands) + self._ahead

    def stop(self) -> None:
        """No timer strikes from now on."""
        self._stands = self._real()

    def go_on(self) -> None:
        """From where it stopped."""
        if self._stands is not None:
            self._ahead += self._stands - self._real()
            self._stands = None

    def skip(self, seconds: float) -> None:
        """What was due within so many seconds is due now."""
        self._ahead += seconds
