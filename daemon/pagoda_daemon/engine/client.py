"""The front's end of the wire to the engine process: starts it, submits, aborts, and hands out its tokens per request.

Called by `api/front.py`. Knows no HTTP and no text. Sends never block and never await, so that an abort can be sent from a
`finally` of a cancelled task.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import structlog
import zmq
import zmq.asyncio
from pagoda_contracts.names import EXIT_PERMANENT
from pagoda_contracts.pb.daemon_pb2 import Phase

from pagoda_daemon.engine.messages import (
    Abort,
    Failed,
    FromEngine,
    Heartbeat,
    Loading,
    Ready,
    RowOutput,
    Shutdown,
    StepOutput,
    Submit,
    ToEngine,
)
from pagoda_daemon.errors import ConfigRejected, DaemonError, EngineDied, ModelRejected, PermanentError
from pagoda_daemon.health import Replica

log = structlog.get_logger()

_MAX_IPC_PATH: Final = 107  # sun_path of a Unix socket, less its NUL
# Compute threads that spin starve a 500 ms heartbeat on two cores. glibc gives every freed megabyte back to the kernel, on the device's
# thread more eagerly than on the main one, and the next step faults it in page by page: with these, temporaries of up to 32 MiB (the most
# that it takes) stay, and sampling 32 rows of 32k takes 0.7 instead of 2.2 ms of CPU greedily and 2.4 instead of 5.3 with a temperature.
_ENGINE_ENV: Final = {
    "GOMP_SPINCOUNT": "1000",
    "MALLOC_MMAP_THRESHOLD_": str(32 * 2**20),
    "MALLOC_TRIM_THRESHOLD_": str(256 * 2**20),
}
_LAST_WORDS_S: Final = 0.5  # how long a dead engine's last message may still be under way


class Wires(NamedTuple):
    """Socket addresses, named from the engine's side."""

    inbox: str
    outbox: str


def wires(run_dir: Path) -> Wires:
    """Addresses below the run directory; ConfigRejected where the kernel could not bind them."""
    paths = [run_dir / "to-engine.sock", run_dir / "from-engine.sock"]
    too_long = [str(path) for path in paths if len(os.fsencode(path)) > _MAX_IPC_PATH]
    if too_long:
        raise ConfigRejected(f"listen.runDir: {too_long[0]!r} is longer than the {_MAX_IPC_PATH} bytes of a socket path")
    return Wires(*(f"ipc://{path}" for path in paths))


def start_engine(config_path: Path, addresses: Wires) -> subprocess.Popen[bytes]:
    """Starts the engine by exec, in its own session so that Ctrl-C reaches the front alone.

    To be called from the main thread before zmq or gRPC exist: the engine's parent-death signal fires when the *thread* that
    started it ends.
    """
    argv = [sys.executable, "-P", "-m", "pagoda_daemon.engine", "--config", str(config_path)]
    env = {**_ENGINE_ENV, **os.environ}
    return subprocess.Popen([*argv, "--inbox", addresses.inbox, "--outbox", addresses.outbox], env=env, start_new_session=True)


class Stream:
    """One request's outputs in order; what ends it early is raised after them."""

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        self._items: asyncio.Queue[RowOutput | DaemonError] = asyncio.Queue()

    def put(self, item: RowOutput | DaemonError) -> None:
        self._items.put_nowait(item)

    async def get(self) -> RowOutput:
        item = await self._items.get()
        if isinstance(item, DaemonError):
            raise item
        return item


class EngineLink(ABC):
    """The open streams, and what the engine's messages change in the replica. How they travel is a subclass's business: to a process
    of its own (below), or to a simulated engine in this one."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._streams: dict[str, Stream] = {}
        self._failed: Failed | None = None
        self._stopping = False

    @abstractmethod
    async def run(self) -> None:
        """Until the engine ends. Returns after a shutdown; PermanentError or EngineDied otherwise."""

    @abstractmethod
    async def shutdown(self, grace_s: float) -> None:
        """Asks the engine to end, then makes it."""

    @abstractmethod
    def close(self) -> None:
        """Ends the engine where it still runs. Idempotent."""

    @abstractmethod
    def _send(self, message: ToEngine) -> bool:
        """Whether anybody is there to read it. Never blocks."""

    def submit(self, message: Submit) -> Stream:
        """Opens a stream; EngineDied where nobody reads the wire."""
        stream = self._streams[message.request_id] = Stream(message.request_id)
        if not self._send(message):
            del self._streams[message.request_id]
            raise EngineDied("the engine process does not read its wire")
        return stream

    def close_stream(self, request_id: str, *, finished: bool) -> None:
        """Forgets a stream; unless its last token came, the engine is told to free it."""
        if self._streams.pop(request_id, None) is not None and not finished:
            self._send(Abort(request_id))

    def fail_streams(self, error: DaemonError) -> None:
        """Ends every open stream with one error, after what has already come."""
        for stream in self._streams.values():
            stream.put(error)

    def _take(self, message: FromEngine) -> None:
        replica, before = self._replica, self._replica.stats
        match message:
            case StepOutput():
                for row in message.outputs:
                    if stream := self._streams.get(row.request_id):
                        stream.put(row)
                replica.stats = message.stats
            case Heartbeat():
                replica.engine_beat = message.sent_at_ms / 1000
                replica.step_started = message.step_started_ms / 1000
                replica.predicted_step_ms = message.predicted_step_ms
                replica.stats = message.stats
            case Loading():
                self._take_loading(message)
            case Ready():
                replica.limits, replica.load_progress = message, 1.0
                replica.engine_beat = time.monotonic()
                if not replica.leaving:
                    replica.enter(Phase.PHASE_READY)
            case Failed():
                self._failed = message
        if replica.stats != before:
            replica.changed()

    def _take_loading(self, message: Loading) -> None:
        if message.progress > self._replica.load_progress:
            self._replica.load_progress = message.progress
            self._replica.load_moved = time.monotonic()
        if not self._replica.leaving:
            self._replica.enter(Phase.PHASE_LOADING)


class EngineClient(EngineLink):
    """Owns the engine process and the sockets to it. `run` reads until the engine is gone and raises why."""

    def __init__(self, process: subprocess.Popen[bytes], addresses: Wires, replica: Replica) -> None:
        super().__init__(replica)
        self._process = process
        self._context = zmq.Context()
        self._push = self._context.socket(zmq.PUSH)
        self._pull = zmq.asyncio.Context.shadow(self._context).socket(zmq.PULL)
        for socket, address in ((self._push, addresses.inbox), (self._pull, addresses.outbox)):
            socket.set_hwm(0)  # a full queue would block the loop; what is queued is bounded by admission
            socket.linger = 0
            socket.bind(address)

    async def run(self) -> None:
        ended = asyncio.ensure_future(asyncio.to_thread(self._process.wait))
        reading = asyncio.ensure_future(self._read())
        try:
            await asyncio.wait({ended, reading}, return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                reading.result()
            with suppress(TimeoutError):
                await asyncio.wait_for(reading, _LAST_WORDS_S)
        finally:
            reading.cancel()
        if not self._stopping:
            raise cause_of(await ended, self._failed)

    async def _read(self) -> None:
        decoder = msgspec.msgpack.Decoder(FromEngine)
        while True:
            self._take(decoder.decode(await self._pull.recv()))

    def _send(self, message: ToEngine) -> bool:
        try:
            self._push.send(msgspec.msgpack.encode(message), zmq.NOBLOCK)
        except zmq.Again:  # a bound PUSH without a peer: the engine is not there (any more)
            return False
        return True

    async def shutdown(self, grace_s: float) -> None:
        """Asks the engine to end, then makes it: it leaves SIGTERM to the front."""
        self._stopping = True
        if self._send(Shutdown()):
            with suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(self._process.wait, grace_s)
                return
        log.warning("engine_killed", grace_s=grace_s)
        self._process.kill()

    def close(self) -> None:
        """Ends the process where it still runs, and the sockets. Idempotent."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._pull.close()
        self._push.close()
        self._context.term()


def cause_of(code: int, failed: Failed | None) -> DaemonError:
    """Why the engine ended, typed."""
    if code == EXIT_PERMANENT or (failed is not None and failed.permanent):
        if failed is None:
            return PermanentError(f"the engine exited {code} without a reason")
        kinds: dict[str, type[PermanentError]] = {kind.reason: kind for kind in (ModelRejected, ConfigRejected)}
        return kinds.get(failed.reason, PermanentError)(failed.message)
    if failed is not None:
        return EngineDied(f"{failed.reason}: {failed.message}")
    return EngineDied(f"the engine process ended with {'signal ' + str(-code) if code < 0 else 'code ' + str(code)}")
