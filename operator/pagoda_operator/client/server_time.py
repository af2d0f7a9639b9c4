"""What time it is at the API server, from the `Date` of its answers. Pure; fed by cluster.py, made by parts.py for all that writes a time
into an object or reads one from it.

Two leaders with clocks of their own read each other's times wrongly by as much as these differ. The API server's clock is one for both, and
by it creationTimestamp is written. An answer's Date is the server's clock at some moment between question and answer, cut to seconds, so
that the middle of both is wrong by half a second and half the way at most (Cristian, "Probabilistic clock synchronization", 1989): two
leaders agree within 2 s. It is kept as an offset to a clock that nobody sets: whoever sets the machine's own changes nothing.

The own clock counts before the first answer, where there is no Date, and where it is no clock: the last of them, seconds apart, do not
agree with each other (a cache's, or several servers with different clocks), or are a day away from ours. A server's clock that is set is
followed after three measures: 15 s, three minutes at rest. A proxy that writes a Date of its own, as it may not, is taken for the server.

Time goes back only with the server's clock: what a better measure takes off (2 s at most) it stands still for. What compares times must
bear such a step as it bears one of its own clock; waits do (ages.py, lacking.py), they take no difference below 0 and run on a steady one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

import structlog

# Between question and answer: within the first two leaders agree within 2 s; the second is better than a clock minutes away.
_QUICK: Final = 1.0
_SLOW: Final = 10.0
# Between two measures; so many are kept, an odd number, and so far from the middle one they agree with it.
_APART: Final = 5.0
_KEPT: Final = 5
_AGREE: Final = 2.0
_STILL: Final = 2.0
# A clock in the wrong time zone is ours, a Date of another year nobody's.
_FAR: Final = 86_400.0
# What is worth a line to the machine's owner.
_TOLD: Final = 5.0


class ServerTime:
    """`steady`: a clock that nobody sets; `wall`: the machine's own."""

    def __init__(self, steady: Callable[[], float], wall: Callable[[], float]) -> None:
        self._steady, self._wall = steady, wall
        # When measured, and what the server's clock was ahead of the steady one; the second of those that count.
        self._measures: deque[tuple[float, float]] = deque(maxlen=_KEPT)
        self._ahead: float | None = None
        self._last = float("-inf")

    def told(self, date: str | None, asked: float, answered: float) -> None:
        """A good answer's Date; when its question was sent and it came, by the steady clock."""
        if answered - asked > (_SLOW if self._ahead is None else _QUICK):
            return
        if self._measures and answered - self._measures[-1][0] < _APART:
            return
        if (server := _unix(date)) is None:
            return
        self._measures.append((answered, server + 0.5 - (asked + answered) / 2))
        self._judge()

    def now(self) -> float:
        """In Unix seconds."""
        found = self._found()
        if found < self._last <= found + _STILL:
            return self._last
        self._last = found
        return found

    def utc(self) -> datetime:
        """The same."""
        return datetime.fromtimestamp(self.now(), UTC)

    def _found(self) -> float:
        wall = self._wall()
        found = wall if self._ahead is None else self._steady() + self._ahead
        return found if abs(found - wall) <= _FAR else wall

    def _judge(self) -> None:
        """Most of them must agree with the middle one; until all that are kept are of no use together, what counted goes on to count."""
        found = sorted(ahead for _, ahead in self._measures)
        middle, first = found[len(found) // 2], self._ahead is None
        if 2 * sum(abs(ahead - middle) <= _AGREE for ahead in found) > len(found):
            self._ahead = middle
        elif len(found) == _KEPT:
            self._ahead = None
        if first and self._ahead is not None and abs(off := self._wall() - self._steady() - self._ahead) >= _TOLD:
            structlog.get_logger().warning("own_clock_differs_from_the_api_server_s", ahead_s=round(off, 1))


def _unix(date: str | None) -> float | None:
    try:
        return parsedate_to_datetime(date).timestamp() if date else None
    except (ValueError, OverflowError):
        return None
