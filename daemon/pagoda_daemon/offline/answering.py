"""Prompts through the engine, as many at a time as it decodes together. Called by `engine`, runs in the session's loop."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, TypeVar

from pagoda_daemon.api.routes.generation import Delta, Generator, Submission
from pagoda_daemon.core.errors import DaemonError, EngineDied, Overloaded
from pagoda_daemon.core.messages import Ready
from pagoda_daemon.engine.client import EngineLink
from pagoda_daemon.metrics import Counts
from pagoda_daemon.offline.sampling import Ask
from pagoda_daemon.text.tokens import ModelText

R = TypeVar("R")
_AGAIN_S: Final = 0.1  # after the engine refused for lack of room: what holds it ends within some steps
_END_S: Final = 5.0  # for the end of a process whose wire broke


class Answered(NamedTuple):
    """A prompt as the engine took it, and the deltas of each choice."""

    job: Submission
    deltas: tuple[list[Delta], ...]


class Core:
    """The engine as prompts see it: made when it has loaded, and asked in the session's loop only."""

    def __init__(self, link: EngineLink, text: ModelText, limits: Ready) -> None:
        self.text, self.limits = text, limits
        self._link = link
        self._generator = Generator(link, text, Counts(link.meter))
        self._numbers = itertools.count()
        self._in_flight = 0
        self._over: DaemonError | None = None
        self._ended = asyncio.Event()

    def check(self) -> None:
        """Raises why the engine ended, where it has."""
        if self._over is not None:
            raise self._over

    def end(self, why: DaemonError) -> None:
        """Fails all that is asked, now and later."""
        self._over = why
        self._ended.set()
        self._link.fail_streams(why)

    async def answer(self, ask: Ask) -> Answered:
        """Of one prompt. The prompt is made ready on a thread: a template or a long text would hold up the loop."""
        # Without a dash: records of ids that differ behind one alone count as those of one request, which is never forgotten.
        job = await asyncio.to_thread(ask, f"offline{next(self._numbers)}", self.text, self.limits)
        self._in_flight += 1
        try:
            while True:
                try:
                    return await self._collected(job)
                except Overloaded:
                    if self._in_flight == 1:  # it holds no place itself, so nothing will change
                        raise
                    await asyncio.sleep(_AGAIN_S)
                except EngineDied:
                    await self._know_why()
                    raise
        finally:
            self._in_flight -= 1

    async def _know_why(self) -> None:
        """A wire breaks a moment before it is known how the process behind it ended."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_END_S):
                await self._ended.wait()
        self.check()

    async def _collected(self, job: Submission) -> Answered:
        found: tuple[list[Delta], ...] = tuple([] for _ in range(job.message.n))
        self.check()  # no await from here to the submission: an engine that ends after it fails the stream
        async with self._generator.answering((job,), time.monotonic()) as answers:
            async for several in answers:
                for delta in several:
                    found[delta.choice].append(delta)
        return Answered(job, found)


async def answer_all(core: Core, asks: Sequence[Ask], made: Callable[[Answered], R], done: Callable[[], None]) -> list[R]:
    """In the order of `asks`; `done` is called after each. The first error ends all of them, with a note on whose it is."""
    found: dict[int, R] = {}
    left = iter(enumerate(asks))

    async def work() -> None:
        for at, ask in left:
            try:
                found[at] = made(await core.answer(ask))
            except DaemonError as error:
                if len(asks) > 1:
                    error.add_note(f"This is prompt {at} of {len(asks)}, counted from 0.")
                raise
            done()

    workers = [asyncio.ensure_future(work()) for _ in range(min(len(asks), core.limits.max_concurrency))]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    return [found[at] for at in range(len(asks))]
