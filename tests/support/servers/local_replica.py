"""A replica in the test's own process and loop: the real front on real sockets over the real engine loop, with a device in lock-step.

A step of the device begins when the one before ended and lasts a few turns of the front's loop: however busy the machine is, the front gets
to act between two steps, as it does where a step takes milliseconds. So "within two steps" is a count, not a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio
from pagoda_contracts.launch import DaemonConfig, EngineConfig, Listen, ModelConfig, SimulatedWorker, TestingConfig
from pagoda_contracts.names import GRPC_GENERATE
from pagoda_contracts.pb.inference_pb2 import GenerateRequest, GenerateResponse, Sampling
from pagoda_daemon.api.front.front import Backing, Front, Ports
from pagoda_daemon.api.http.connection import Bounds
from pagoda_daemon.core.messages import Abort, Submit, ToEngine
from pagoda_daemon.engine.loop import Engine
from pagoda_daemon.process.settings import Settings
from pagoda_daemon.simulated.device import worker as simulated
from pagoda_daemon.simulated.replicas.engine import LocalEngine
from pagoda_daemon.text.tokens import ModelText
from support.engine.toy_model import VOCAB, toy_text
from support.servers.local_front import NoProbes

NAME = "toy"
HOST = "127.0.0.1"
# Turns of the loop from a FIN in the kernel to the engine's abort: read, lost, waiting tasks, cancelled ones, clean-up. The step is longer.
TURNS = 24
PATIENCE_S = 300.0


class LockStep(simulated.SimulatedWorker):
    """Counts the steps that began; each waits for the front's loop."""

    started = 0

    def execute(self, plan: Any) -> Any:
        self.started += 1
        return super().execute(plan)


class Recording(Engine):
    """Notes for whom each step computes a token, also where nobody wants it any more when it lands. Its clock may be put forward."""

    def __init__(self, wire: Any, config: Any, build: Any, clock_ms: Any, *more: Any) -> None:
        counted: CountedEngine = wire._deliver.__self__
        super().__init__(wire, config, build, lambda: clock_ms() + counted.clock_ahead_ms, *more)

    def _start(self, state: Any, step: Any) -> None:
        counted: CountedEngine = self._wire._deliver.__self__  # type: ignore[attr-defined]
        counted.planned += 1
        ours = state.in_flight[-1].plan  # without the canary, which has a row that is nobody's
        for row in ours.rows[ours.sample].tolist():
            counted.computed[state.names[row]].append(counted.planned)
        super()._start(state, step)


class CountedEngine(LocalEngine):
    """Keeps what crossed: `submitted` ids in order, and of each request the steps that compute a token for it, counted from 1."""

    engine_type = Recording

    worker: LockStep

    def __init__(self, config: DaemonConfig, replica: Any, turns: int) -> None:
        self.submitted: list[Submit] = []
        self.asked: set[tuple[int, ...]] = set()  # prompts
        self.aborted: list[str] = []
        self.computed: dict[str, list[int]] = defaultdict(list)
        self.planned = 0
        self.clock_ahead_ms = 0.0
        self.round_trip: Callable[[], Awaitable[object]] | None = None  # over a wire with a thread of its own: each step lasts one at least
        self._turns = turns
        self._settings = config
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        super().__init__(config, 0.0, replica)

    def _load(self, _progress: Any) -> LockStep:
        self.worker = LockStep(simulated.simulated_limits(self._settings), step_ms=1.0, pause=self._pause)
        return self.worker

    def _pause(self, _seconds: float) -> None:
        over = threading.Event()
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits for this step
            self._loop.call_soon_threadsafe(self._begin, over)
            over.wait(PATIENCE_S)

    def _begin(self, over: threading.Event) -> None:
        if self.round_trip is None:
            self._turn(self._turns, over)
            return

        def came(trip: asyncio.Future[object]) -> None:
            _ = trip.cancelled() or trip.exception()
            self._turn(self._turns, over)

        asyncio.ensure_future(self.round_trip()).add_done_callback(came)

    def _turn(self, left: int, over: threading.Event) -> None:
        if left:
            self._loop.call_soon(self._turn, left - 1, over)
            return
        for entry in [entry for entry in self._waiting if entry[0] <= self.worker.started]:
            self._waiting.remove(entry)
            if not entry[1].done():
                entry[1].set_result(None)
        over.set()

    async def steps(self, count: int) -> None:
        """Returns in the midst of a step, `count` further on."""
        future = self._loop.create_future()
        self._waiting.append((self.worker.started + count, future))
        await future

    def _send(self, message: ToEngine) -> bool:
        if isinstance(message, Submit):
            self.submitted.append(message)
            self.asked.add(message.prompt)
        elif isinstance(message, Abort):
            self.aborted.append(message.request_id)
        return super()._send(message)


class Held:
    """A device that computes so many steps and then waits: what the client does meanwhile comes before the next token, on any machine."""

    def __init__(self, steps: int) -> None:
        self._left, self.reached, self.go_on = steps, asyncio.Event(), asyncio.Event()

    async def step(self) -> None:
        self._left -= 1
        if self._left < 0:
            self.reached.set()
            await self.go_on.wait()


@dataclass
class LocalReplica:
    """Addresses, and the parts of the front that tests look into."""

    front: Front
    ports: Ports
    engine: CountedEngine
    text: ModelText
    opened: list[asyncio.StreamWriter] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.ports.http}"

    @property
    def admission(self) -> Any:
        return self.front._admission

    @property
    def connections(self) -> int:
        server = self.front._server
        assert server is not None
        return len(server.server_state.connections)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(HOST, self.ports.http, limit=2**24)
        self.opened.append(writer)
        return reader, writer

    async def send(self, raw: bytes) -> bytes:
        """What comes back until the server closes or has answered once."""
        reader, writer = await self.connect()
        writer.write(raw)
        return await read_answer(reader)

    async def post(self, path: str, body: Any, **headers: str) -> tuple[int, Any]:
        """Status and parsed body."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        answer = await self.send(request("POST", path, content, **headers))
        head, _, rest = answer.partition(b"\r\n\r\n")
        return int(head.split()[1]), json.loads(rest) if rest.startswith(b"{") else rest

    async def get(self, path: str) -> tuple[int, bytes]:
        answer = await self.send(request("GET", path))
        return int(answer.split()[1]), answer.partition(b"\r\n\r\n")[2]

    async def until(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < deadline, self.leftovers()
            await asyncio.sleep(0.002)

    async def at_rest(self) -> None:
        """Nothing is left behind by anything that was asked so far: no row, no block, no stream, no place, no byte."""
        await self.until(lambda: not self.leftovers())

    def leftovers(self) -> dict[str, int]:
        stats = self.front.replica.stats
        left = {
            "running": stats.running,
            "waiting": stats.waiting,
            "blocks": stats.blocks_total - stats.blocks_free,
            "in_flight": self.front.replica.in_flight,
            "held_bytes": self.admission.held_bytes,
            "streams": len(self.engine._streams),
        }
        return {name: count for name, count in left.items() if count}


def request(method: str, path: str, body: bytes = b"", **headers: str) -> bytes:
    lines = {"host": HOST, "content-length": str(len(body)), **{name.replace("_", "-"): value for name, value in headers.items()}}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body


async def read_answer(reader: asyncio.StreamReader) -> bytes:
    """One whole answer, or what came before the server closed."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            head = await reader.readuntil(b"\r\n\r\n")
            if b"transfer-encoding: chunked" in head.lower():
                return head + await _chunks(reader)
            lengths = [int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
            assert len(lengths) == 1, f"an answer says how long it is, once: {head!r}"
            return head + await reader.readexactly(lengths[0])
    except asyncio.IncompleteReadError as error:
        return error.partial
    except ConnectionError:
        return b""


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    body = b""
    while size := int(await reader.readuntil(b"\r\n"), 16):
        chunk = await reader.readexactly(size + 2)
        assert chunk.endswith(b"\r\n"), chunk[-80:]
        body += chunk[:-2]
    assert await reader.readexactly(2) == b"\r\n"
    return body


def generate(channel: grpc.aio.Channel, prompt: Sequence[int], tokens: int) -> Any:
    """A call of Generate, begun."""
    call = channel.unary_stream(
        GRPC_GENERATE, request_serializer=GenerateRequest.SerializeToString, response_deserializer=GenerateResponse.FromString
    )
    wanted = Sampling(max_tokens=tokens, ignore_eos=True)  # what is not said stays 0, as a caller of any language sends it
    return call(GenerateRequest(model=NAME, prompt_tokens=prompt, sampling=wanted))


def texts(body: bytes) -> str:
    """What a stream of completions says, joined; it must be whole."""
    assert body.endswith(b"data: [DONE]\n\n"), body[-300:]
    events = [json.loads(part[6:]) for part in body.split(b"\n\n") if part.startswith(b"data: {")]
    return "".join(event["choices"][0]["text"] for event in events if event["choices"])


def local_config(folder: Path, engine: dict[str, Any], **changes: Any) -> DaemonConfig:
    numbers = {"max_model_len": 512, "max_concurrency": 16, "token_budget": 128, **engine}
    return DaemonConfig(
        model=ModelConfig(path=str(folder), served_names=(NAME,)),
        engine=EngineConfig(**numbers),
        listen=Listen(host=HOST, http=0, grpc=0, probes=0, run_dir=str(folder), **changes.pop("listen", {})),
        testing=TestingConfig(simulated=SimulatedWorker(step_ms=0, vocab_size=VOCAB)),
        **changes,
    )


@contextlib.asynccontextmanager
async def local_replica(
    *, turns: int = TURNS, bounds: Bounds | None = None, engine: dict[str, Any] | None = None, **changes: Any
) -> AsyncIterator[LocalReplica]:
    """Ready. `engine`: fields of EngineConfig, `changes`: of DaemonConfig, of which `listen` is a dictionary."""
    with tempfile.TemporaryDirectory(prefix="pagoda-test-") as folder:
        config = local_config(Path(folder), engine or {}, **changes)
        made: list[CountedEngine] = []
        text = toy_text()

        def start(replica: Any) -> CountedEngine:
            made.append(CountedEngine(config, replica, turns))
            return made[0]

        announced: asyncio.Future[Ports] = asyncio.get_running_loop().create_future()
        front = Front(Settings(config, Path(), 1.0, tracing=config.tracing), Backing(start, lambda: text, NoProbes, bounds))
        serving = asyncio.ensure_future(front.run(announced.set_result))
        try:
            await asyncio.wait({serving, announced}, return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                await serving
            replica = LocalReplica(front, announced.result(), made[0], text)
            # With the known answer of the deep check recorded: its steps would count among a test's own.
            await replica.until(lambda: front.replica.accepting and front.replica.deep.good_at > 0)
            yield replica
        finally:
            for writer in replica.opened if announced.done() else ():
                writer.transport.abort()
            front.stop()
            front._hurry.set()
            await serving
