"""The front's end of the wire to the engine process: starts it, submits, aborts, and hands out its tokens per request.

Made by `api/front/process.py`. Knows no HTTP and no text. Sends never block and never await, so that an abort can be sent from a
`finally` of a cancelled task.
"""

from __future__ import annotations

import asyncio
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

import msgspec
import structlog
import zmq
from pagoda_contracts.pb.daemon_pb2 import Phase

from pagoda_daemon.core.errors import DaemonError, EngineDied, NotRead
from pagoda_daemon.core.messages import (
    Abort,
    AdapterLoaded,
    DeepCheckAnswer,
    DeepCheckPrompt,
    Failed,
    FromEngine,
    Heartbeat,
    LoadAdapter,
    Loading,
    Prefixes,
    Ready,
    ReleaseAdapter,
    RowOutput,
    Shutdown,
    StepOutput,
    Submit,
    ToEngine,
)
from pagoda_daemon.engine.calls import Calls
from pagoda_daemon.engine.cause import cause_of
from pagoda_daemon.engine.ended import end_of
from pagoda_daemon.engine.start import Wires
from pagoda_daemon.engine.stream import Stream
from pagoda_daemon.health.replica import Replica
from pagoda_daemon.metrics.tokens import TokenMeter
from pagoda_daemon.process.parent import DUMP_STACKS

log = structlog.get_logger()

_A = TypeVar("_A")
_AT_ONCE: Final = 32  # messages: a millisecond or two at 32 rows each
_STACKS_S: Final = 0.1  # for a hung engine to write its stacks: it takes a millisecond, and clients wait
_LAST_WORDS_S: Final = 0.5  # how long a dead engine's last message may still be under way
_MAX_BEHIND: Final = 16_384  # outputs that wait for one request's reader, about 4 MiB: no reader that reads is so late


class EngineLink(ABC):
    """The open streams, and what the engine's messages change in the replica. How they travel is a subclass's business: to a process
    of its own (below), or to a simulated engine in this one."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self.meter = TokenMeter()
        self._streams: dict[str, Stream] = {}
        self._deep_checks: Calls[DeepCheckAnswer] = Calls()
        self._loads: Calls[AdapterLoaded] = Calls()
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

    def submit(self, message: Submit, joined: Stream | None = None) -> Stream:
        """Opens a stream, or sends the outputs down one that is open; EngineDied if no engine reads the wire."""
        stream = self._streams[message.request_id] = joined or Stream(message.request_id)
        if not self._send(message):
            del self._streams[message.request_id]
            raise EngineDied("the engine process does not read its wire")
        return stream

    def deep_check(self, prompt: tuple[int, ...], *, margin: bool = False) -> asyncio.Future[DeepCheckAnswer]:
        """Sends the prompt of a deep check; the future is set when its answer comes. EngineDied if no engine reads the wire."""
        return self._ask(self._deep_checks, lambda call: DeepCheckPrompt(call, prompt, margin))

    def load_adapter(self, path: str, root: str) -> asyncio.Future[AdapterLoaded]:
        """The future is set when the adapter in `path` is held, or cannot be. If it was cancelled by then, the adapter is released."""
        return self._ask(self._loads, lambda call: LoadAdapter(call, path, root))

    def release_adapter(self, digest: str) -> None:
        """Of one hold. An engine that is gone holds nothing."""
        self._send(ReleaseAdapter(digest))

    def _ask(self, calls: Calls[_A], message: Callable[[int], ToEngine]) -> asyncio.Future[_A]:
        call, answer = calls.open()
        if not self._send(message(call)):
            calls.drop(call)
            raise EngineDied("the engine process does not read its wire")
        return answer

    def close_stream(self, request_id: str, *, finished: bool) -> None:
        """Forgets a stream; unless its last token came, the engine is told to free it."""
        if self._streams.pop(request_id, None) is not None and not finished:
            self._send(Abort(request_id))

    def abort_choice(self, request_id: str, index: int) -> None:
        """The engine is told to free one answer of several; the others go on."""
        if request_id in self._streams:
            self._send(Abort(request_id, index))

    def fail_streams(self, error: DaemonError) -> None:
        """Ends every open stream with one error, after what has already come, and every load of an adapter."""
        for stream in self._streams.values():
            stream.put(error)
        self._loads.fail(error)

    def backlog(self, request_id: str) -> int:
        """Outputs that wait for that request's reader; several prompts of one request share a stream."""
        stream = self._streams.get(request_id) or next((one for name, one in self._streams.items() if name.startswith(request_id)), None)
        return stream.behind if stream else 0

    def _hand_out(self, outputs: Sequence[RowOutput]) -> None:
        for row in outputs:
            if stream := self._streams.get(row.request_id):
                stream.put(row)
                if stream.behind > _MAX_BEHIND:
                    self._cut(row.request_id, stream)

    def _cut(self, request_id: str, stream: Stream) -> None:
        log.warning("slow_reader_cut", request_id=request_id, tokens_behind=stream.behind)
        self.close_stream(request_id, finished=False)
        stream.put(NotRead("the answer was not read for too long"))

    def _take(self, message: FromEngine) -> None:
        replica = self._replica
        match message:
            case StepOutput():
                self.meter.step(message.outputs, time.monotonic())
                self._hand_out(message.outputs)
                replica.heard(message.stats, time.monotonic())
            case DeepCheckAnswer():
                self._deep_checks.answer(message.check_id, message)
            case AdapterLoaded():
                self._take_adapter(message)
            case Heartbeat():
                replica.engine_beat = message.sent_at_ms / 1000
                replica.step_started = message.step_started_ms / 1000
                replica.predicted_step_ms, replica.cost_us = message.predicted_step_ms, message.cost_us
                replica.heard(message.stats, replica.engine_beat)
                replica.tally, replica.adapters = message.tally, message.adapters
            case Loading():
                self._take_loading(message)
            case Ready():
                replica.engine_beat = time.monotonic()
                replica.warm_s = replica.engine_beat - replica.load_moved if replica.load_progress >= 1 else 0.0
                replica.limits, replica.load_progress = message, 1.0
                if not replica.leaving:
                    replica.enter(Phase.PHASE_READY)
            case Prefixes():
                replica.prefixes.note(message.resident, message.evicted)
                replica.changed()
            case Failed():
                self._failed = message

    def _take_adapter(self, message: AdapterLoaded) -> None:
        if not self._loads.answer(message.call, message) and message.digest:
            self.release_adapter(message.digest)

    def _take_loading(self, message: Loading) -> None:
        if message.progress > self._replica.load_progress:
            self._replica.load_progress = message.progress
            self._replica.load_moved = time.monotonic()
            self._replica.changed()
        if not self._replica.leaving:
            self._replica.enter(Phase.PHASE_LOADING)


class EngineClient(EngineLink):
    """Owns the engine process and the sockets to it. `run` reads until the engine is gone and raises why."""

    def __init__(self, process: subprocess.Popen[bytes], addresses: Wires, replica: Replica) -> None:
        super().__init__(replica)
        self._process = process
        self._context = zmq.Context()
        self._push = self._context.socket(zmq.PUSH)
        self._pull = self._context.socket(zmq.PULL)
        self._bell = self._pull.fileno()
        self._decoder = msgspec.msgpack.Decoder(FromEngine)
        for socket, address in ((self._push, addresses.inbox), (self._pull, addresses.outbox)):
            socket.set_hwm(0)  # a full queue would block the loop; what is queued is bounded by admission
            socket.linger = 0
            socket.bind(address)

    async def run(self) -> None:
        ended, reading = end_of(self._process), self._listen()
        either: set[asyncio.Future[Any]] = {ended, reading}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                reading.result()
            if self._failed is None:  # a condemned engine has nothing more to say
                with suppress(TimeoutError):
                    await asyncio.wait_for(reading, _LAST_WORDS_S)
        finally:
            asyncio.get_running_loop().remove_reader(self._bell)
            reading.cancel()
        if not self._stopping:
            raise cause_of(await ended, self._failed, self._replica.device.fault)

    def _listen(self) -> asyncio.Future[None]:
        """Takes messages as they come, until cancelled; its exception is what went wrong. Not `zmq.asyncio`: its futures and tasks cost
        40 us a message, which at one row is as much as all else that the front does for a token."""
        loop = asyncio.get_running_loop()
        broken: asyncio.Future[None] = loop.create_future()
        loop.add_reader(self._bell, self._hear, broken)
        self._hear(broken)
        return broken

    def _hear(self, broken: asyncio.Future[None]) -> None:
        """The bell rings once for any number of messages, and not again until all were taken. After some it is others' turn."""
        if broken.done():
            return
        try:
            for _ in range(_AT_ONCE):
                self._take(self._decoder.decode(self._pull.recv(zmq.NOBLOCK)))
        except zmq.Again:
            return
        except Exception as error:  # noqa: BLE001  `run` raises it
            broken.set_exception(error)
        else:
            asyncio.get_running_loop().call_soon(self._hear, broken)

    def condemn(self, why: str) -> None:
        """Ends an engine that makes no progress, after it has written its stacks if it still can; `run` then raises EngineDied."""
        self._failed = self._failed or Failed("NoProgress", why, False)
        self.fail_streams(EngineDied("the engine of this replica makes no progress"))  # now: on a busy machine even its end took 1.2 s
        with suppress(ProcessLookupError):
            self._process.send_signal(DUMP_STACKS)
        asyncio.get_running_loop().call_later(_STACKS_S, self._process.kill)

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
