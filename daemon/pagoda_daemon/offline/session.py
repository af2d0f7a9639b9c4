"""Session: an event loop on a thread of its own, with the link to an engine. What a caller asks runs there, so that it may have a loop of
its own running, as a notebook has. Made by `engine`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, Protocol, TypeVar

from pagoda_daemon.core.errors import DaemonError, EngineDied
from pagoda_daemon.engine.client import EngineLink
from pagoda_daemon.health.replica import Replica
from pagoda_daemon.offline.answering import Core
from pagoda_daemon.text.tokens import ModelText

T = TypeVar("T")
_GRACE_S: Final = 5.0  # for the engine to finish a step
_LOOK_S: Final = 0.25  # how often it is looked whether the program that made the session still runs


class Backing(Protocol):
    """What a session stands on: an engine process, or in tests an engine of the same process."""

    def connect(self, replica: Replica) -> EngineLink:
        """In the session's loop, before all else."""
        ...

    def text(self) -> ModelText:
        """Of the engine's model."""
        ...

    def tidy(self) -> None:
        """After the link is closed."""
        ...


class Session:
    """Open from construction, which waits until the model is loaded, to `close`. Ends by itself with the program's main thread: a program
    that forgets `close` would otherwise wait for the engine for ever."""

    def __init__(self, backing: Backing) -> None:
        self._backing = backing
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._loop = self._runner.get_loop()
        self._stop = asyncio.Event()
        self._opened: concurrent.futures.Future[Core] = concurrent.futures.Future()
        self._thread = threading.Thread(target=self._run, name="pagoda-offline")
        self._thread.start()
        try:
            self.core = self._opened.result()
        except BaseException:  # Ctrl-C too
            self.close()
            raise

    def call(self, work: Callable[[Core], Coroutine[Any, Any, T]]) -> T:
        """Runs it in the session's loop. Whatever ends the wait for it, as Ctrl-C does, cancels it, and the engine is told to stop."""
        self.core.check()
        running = work(self.core)
        try:
            future = asyncio.run_coroutine_threadsafe(running, self._loop)
        except RuntimeError as error:  # the loop was closed since
            running.close()
            raise _closed() from error
        try:
            return future.result()
        except concurrent.futures.CancelledError as error:
            raise _closed() from error
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """Idempotent, from any thread."""
        with suppress(RuntimeError):  # the loop is closed already
            self._loop.call_soon_threadsafe(self._stop.set)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        try:
            with self._runner as runner:
                runner.run(self._serve())
        except BaseException as error:  # noqa: BLE001  whoever made the session raises it
            if not self._opened.done():
                self._opened.set_exception(error)
        finally:
            self._backing.tidy()

    async def _serve(self) -> None:
        replica = Replica(time.monotonic())
        link = self._backing.connect(replica)
        running, stopped = asyncio.ensure_future(link.run()), asyncio.ensure_future(self._stop.wait())
        core: Core | None = None
        try:
            core = await self._open(link, replica, running, stopped)
            await self._while_alive(running, stopped)
            core.end(_why(running))
            await self._while_alive(stopped)  # whoever asks now gets the reason why there is no engine
        finally:
            stopped.cancel()
            await _end(link, running)
            if core is not None:
                core.text.close()

    async def _open(self, link: EngineLink, replica: Replica, running: asyncio.Future[None], stopped: asyncio.Future[Any]) -> Core:
        """The tokenizer is read while the engine loads the weights."""
        text = await asyncio.to_thread(self._backing.text)
        loaded = asyncio.Event()
        replica.listeners.append(lambda: loaded.set() if replica.limits is not None else None)
        waiting = asyncio.ensure_future(loaded.wait())
        try:
            if replica.limits is None:
                await self._while_alive(running, stopped, waiting)
            if replica.limits is None:
                text.close()
                raise _why(running)
        finally:
            waiting.cancel()
            replica.listeners.clear()
        core = Core(link, text, replica.limits)
        self._opened.set_result(core)
        return core

    async def _while_alive(self, *until: asyncio.Future[Any]) -> None:
        """Until one of them is done, or the main thread has ended."""
        while threading.main_thread().is_alive():
            done, _ = await asyncio.wait(until, timeout=_LOOK_S, return_when=asyncio.FIRST_COMPLETED)
            if done:
                return


async def _end(link: EngineLink, running: asyncio.Future[None]) -> None:
    try:
        if not running.done():
            with suppress(RuntimeError):  # no thread waits for a process while the interpreter ends: it is killed
                await link.shutdown(_GRACE_S)
    finally:
        link.close()
        with suppress(asyncio.CancelledError, DaemonError):
            await running


def _why(running: asyncio.Future[None]) -> DaemonError:
    """Why the engine ended, where it has."""
    error = running.exception() if running.done() and not running.cancelled() else None
    return error if isinstance(error, DaemonError) else _closed() if error is None else EngineDied(str(error))


def _closed() -> EngineDied:
    return EngineDied("the engine was closed")
