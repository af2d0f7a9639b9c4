"""The engine of one simulated replica: the real loop and scheduler on a thread of this process, with a device that only takes time.

Called by `replica.py`. Where a real front talks to an engine process over zmq, here messages go through memory.
"""

from __future__ import annotations

import asyncio
import math
import os
import queue
import select
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import structlog
from pagoda_contracts.launch import DaemonConfig

from pagoda_daemon.core.messages import FromEngine, Shutdown, ToEngine
from pagoda_daemon.engine.build import Progress
from pagoda_daemon.engine.cause import cause_of
from pagoda_daemon.engine.client import EngineLink
from pagoda_daemon.engine.events import kv_events
from pagoda_daemon.engine.exits import EXIT_FAILED, EXIT_OK, failure
from pagoda_daemon.engine.loop import Engine
from pagoda_daemon.health.replica import Replica
from pagoda_daemon.runner.worker import Worker
from pagoda_daemon.simulated.device.worker import SimulatedWorker

log = structlog.get_logger()

_PROGRESS_EVERY_S = 1.0


class LocalWire:
    """Both directions through memory; `deliver` is called in the engine's thread. Also what a benchmark drives an engine by."""

    def __init__(self, deliver: Callable[[FromEngine], None]) -> None:
        self._deliver = deliver
        self._inbox: queue.SimpleQueue[ToEngine] = queue.SimpleQueue()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._bell, select.POLLIN)

    def put(self, message: ToEngine) -> None:
        """From any thread."""
        self._inbox.put(message)
        os.eventfd_write(self._bell, 1)

    def watch(self, fileno: int) -> None:
        self._poll.register(fileno, select.POLLIN)

    def wait(self, timeout_ms: float) -> None:
        self._poll.poll(max(0, math.ceil(timeout_ms)))

    def received(self) -> Iterator[ToEngine]:
        with suppress(BlockingIOError):
            os.eventfd_read(self._bell)
        while not self._inbox.empty():
            yield self._inbox.get_nowait()

    def send(self, message: FromEngine) -> None:
        self._deliver(message)

    def close(self) -> None:
        os.close(self._bell)


class LocalEngine(EngineLink):
    """Starts when made, in the running loop. Its model "loads" for `load_s` seconds."""

    engine_type = Engine

    def __init__(self, config: DaemonConfig, load_s: float, replica: Replica) -> None:
        super().__init__(replica)
        self._config = config
        self._load_s = load_s
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._stop = threading.Event()
        self._code = EXIT_OK
        self._wire = LocalWire(self._deliver)
        self._thread = threading.Thread(target=self._compute, name="engine", daemon=True)
        self._thread.start()

    def _deliver(self, message: FromEngine) -> None:
        """From the engine's thread to the event loop's."""
        # Closed: the process is ending, and no reader is left.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._take, message)

    async def run(self) -> None:
        await self._ended.wait()
        if not self._stopping:
            raise cause_of(self._code, self._failed, self._replica.device.fault)

    async def shutdown(self, grace_s: float) -> None:
        self._stopping = True
        self.close()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), grace_s)

    def close(self) -> None:
        self._stop.set()
        self._send(Shutdown())

    def _send(self, message: ToEngine) -> bool:
        if self._ended.is_set():
            return False
        self._wire.put(message)
        return True

    def _compute(self) -> None:
        code = EXIT_FAILED
        try:
            engine = self.engine_type(self._wire, self._config.engine, self._load, lambda: time.monotonic() * 1000)
            with kv_events(self._config) as events:
                engine.publish(events)
                code = engine.run(lambda: False)
        except Exception as error:
            log.exception("simulated_engine_failed")
            self._wire.send(failure(error))
        finally:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._end, code)

    def _end(self, code: int) -> None:
        self._code = code
        self._ended.set()
        self._wire.close()

    def _load(self, progress: Progress) -> Worker:
        """On the device's thread, as weights are read on it."""
        begin = time.monotonic()
        while (spent := time.monotonic() - begin) < self._load_s and not self._stop.wait(min(_PROGRESS_EVERY_S, self._load_s - spent)):
            progress(min(1.0, spent / self._load_s))
        return SimulatedWorker.of(self._config)
