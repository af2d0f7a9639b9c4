"""What one run asked of the API server, and how long it waited for answers. Begun by queue.py, counted by cluster.py.

It goes with the run's context, and with that of whatever the run begins: none of what lies between knows of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final


@dataclass
class Tally:
    """`requests` that were sent for this run, `writes` among them."""

    requests: int = 0
    writes: int = 0
    waits: list[tuple[float, float]] = field(default_factory=list)

    def waited(self) -> float:
        """Seconds with at least one answer outstanding."""
        total, until = 0.0, float("-inf")
        for begin, end in sorted(self.waits):
            total += max(0.0, end - max(begin, until))
            until = max(until, end)
        return total


_RUN: Final[ContextVar[Tally | None]] = ContextVar("run", default=None)


@contextmanager
def counting() -> Iterator[Tally]:
    """Counts until its end."""
    tally = Tally()
    token = _RUN.set(tally)
    try:
        yield tally
    finally:
        _RUN.reset(token)


@contextmanager
def waiting() -> Iterator[None]:
    """An answer is waited for."""
    tally, clock = _RUN.get(), asyncio.get_running_loop().time
    begin = clock()
    try:
        yield
    finally:
        if tally is not None:
            tally.waits.append((begin, clock()))


def sent(*, write: bool) -> None:
    """A request of this run's own."""
    if (tally := _RUN.get()) is not None:
        tally.requests += 1
        tally.writes += write
