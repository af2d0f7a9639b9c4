"""Preparing: what takes longer the more a client sends runs on threads beside the event loop. Used by every endpoint that reads a body.

Small and large pieces of work have places of their own, so a chat of 1 KB does not wait behind bodies of 16 MB. Work whose client leaves
before it began is dropped. A thread cannot be stopped: it keeps its place to its end, but nothing waits for it, also not the exit.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, TypeVar, cast

from pagoda_daemon.core.errors import DeadlineExceeded
from pagoda_daemon.health.replica import Preparations

Made = TypeVar("Made")

# 1 KB of prompt is parsed and tokenised in 0.3 ms; with 32 KB it is 8 ms, in which no stream would move.
INLINE: Final = 1024
_SMALL: Final = 32 * 1024
_SMALL_PLACES: Final = 8  # most of these wait for the process that renders chat templates
_LARGE_PLACES: Final = 2
THREAD: Final = "prepare"


async def in_time(deadline_ms: int | None, work: Awaitable[Made]) -> Made:
    """What `work` gives, or raises; DeadlineExceeded where the request's deadline (of the monotonic clock) passes meanwhile."""
    left = None if deadline_ms is None else max(0.0, deadline_ms / 1000 - time.monotonic())
    try:
        async with asyncio.timeout(left):
            return await work
    except TimeoutError:
        raise DeadlineExceeded("the deadline passed before the request was read and prepared") from None


@dataclass
class Preparing:
    """Work of one event loop, counted in `counts`; running work also after its client has left."""

    counts: Preparations
    _small: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_SMALL_PLACES))
    _large: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_LARGE_PLACES))

    async def run(self, size: int, work: Callable[[], Made], *, blocks: bool = False) -> Made:
        """The result of `work`, or what it raises. Up to INLINE bytes it is done at once, unless it `blocks`."""
        if size <= INLINE and not blocks:
            return work()
        places = self._small if size <= _SMALL else self._large
        self.counts.waiting += 1
        try:
            await places.acquire()
        finally:
            self.counts.waiting -= 1
        return await self._begin(work, places)

    def _begin(self, work: Callable[[], Made], places: asyncio.Semaphore) -> asyncio.Future[Made]:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Made] = loop.create_future()

        def ended(made: Made | None, failed: BaseException | None) -> None:
            self.counts.running -= 1
            places.release()
            if done.done():  # the client left
                return
            done.set_exception(failed) if failed else done.set_result(cast("Made", made))

        self.counts.running += 1
        args = (work, lambda made, failed: loop.call_soon_threadsafe(ended, made, failed))
        threading.Thread(target=_run, args=args, name=THREAD, daemon=True).start()
        return done


def _run(work: Callable[[], Made], deliver: Callable[[Made | None, BaseException | None], object]) -> None:
    made, failed = None, None
    try:
        made = work()
    except BaseException as error:  # noqa: BLE001  it is raised again where the result is waited for
        failed = error
    with suppress(RuntimeError):  # the loop is closed: the process ends
        deliver(made, failed)
