"""Scripted replicas: a raw HTTP server whose answers a test writes, and a WatchState pusher beside it, both in the test's loop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
from pagoda_contracts.names import GRPC_DAEMON, GRPC_WATCH_STATE
from pagoda_contracts.pb.daemon_pb2 import Phase, State, WatchStateRequest

EVENT = b'data: {"n": %d}\n\n'
DONE = b"data: [DONE]\n\n"
SSE_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"


@dataclass
class Exchange:
    """One request as the replica got it, and its side of the connection."""

    replica: Replica
    head: bytes
    body: bytes
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @property
    def headers(self) -> dict[str, str]:
        lines = self.head.decode().split("\r\n")[1:]
        return {name.lower(): value for name, _, value in (line.partition(": ") for line in lines if line)}

    async def answer(self, status: int, document: object, headers: bytes = b"") -> None:
        body = json.dumps(document).encode()
        self.writer.write(
            b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\n%scontent-length: %d\r\n\r\n%s" % (status, headers, len(body), body)
        )
        await self.writer.drain()

    async def refuse(self, code: str, status: int = 503) -> None:
        await self.answer(status, {"error": {"message": code, "type": "server_error", "param": None, "code": code}})

    async def chunk(self, data: bytes) -> None:
        self.writer.write(b"%x\r\n%s\r\n" % (len(data), data))
        await self.writer.drain()

    async def begin_stream(self, headers: bytes = b"") -> None:
        self.writer.write(SSE_HEAD.removesuffix(b"\r\n") + headers + b"\r\n")
        await self.writer.drain()

    async def stream(self, events: int, pause_s: float = 0.0) -> None:
        """With pauses it lasts long enough to be under way at any moment."""
        await self.begin_stream()
        for number in range(events):
            await self.chunk(EVENT % number)
            await asyncio.sleep(pause_s)
        await self.chunk(DONE)
        self.writer.write(b"0\r\n\r\n")
        await self.writer.drain()

    async def closed_by_peer(self) -> None:
        """Returns when the gateway closed the connection."""
        assert await self.reader.read() == b""

    def die(self) -> None:
        """RST: as a killed process."""
        self.writer.transport.abort()


Script = Callable[[Exchange], Awaitable[None]]


async def say_ok(exchange: Exchange) -> None:
    """The default: an answer that names the replica."""
    await exchange.answer(200, {"replica": exchange.replica.name})


@dataclass
class Replica:
    """`script` answers each request; `push` sends a frame to every watcher."""

    name: str
    script: Script = say_ok
    seen: list[Exchange] = field(default_factory=list)
    state: State = field(default_factory=lambda: State(phase=Phase.PHASE_READY, served_names=["m"]))
    silent: bool = False
    _watchers: set[asyncio.Queue[State]] = field(default_factory=set)
    http: str = ""
    grpc: str = ""
    _listener: asyncio.Server | None = None
    _connections: dict[asyncio.Task[Any], asyncio.StreamWriter] = field(default_factory=dict)

    def hang_up(self) -> None:
        """Refuses connections from now on."""
        assert self._listener is not None
        self._listener.close()

    def entry(self) -> dict[str, str]:
        return {"http": self.http, "grpc": self.grpc}

    def say(self, **fields: object) -> None:
        """Changes the state and pushes it."""
        self.state = State(**({"phase": self.state.phase, "served_names": ["m"]} | fields))
        for queue in self._watchers:
            queue.put_nowait(self.state)

    async def frames(self, _request: WatchStateRequest, _context: object) -> AsyncIterator[State]:
        queue: asyncio.Queue[State] = asyncio.Queue()
        self._watchers.add(queue)
        try:
            sequence, state = 0, self.state
            while True:
                sequence += 1
                frame = State(sequence=sequence, sent_at_ms=int(asyncio.get_running_loop().time() * 1000))
                frame.MergeFrom(state)
                if not self.silent:
                    yield frame
                state = await _next(queue, 0.5) or self.state
        finally:
            self._watchers.discard(queue)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections[task] = writer
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                exchange = Exchange(self, head, await _body(head, reader), reader, writer)
                self.seen.append(exchange)
                await self.script(exchange)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # the client left, or the test is over
        finally:
            del self._connections[task]
            writer.close()

    async def cut(self) -> None:
        """Ends every connection: the loop that closes next warns of each socket that is open."""
        connections = dict(self._connections)
        for task, writer in connections.items():
            writer.transport.abort()
            task.cancel()
        if connections:
            await asyncio.wait(connections)
            await asyncio.sleep(0)  # transports close in the loop's next turn


async def _body(head: bytes, reader: asyncio.StreamReader) -> bytes:
    """By its length, or in chunks as Envoy sends it. Trailers stand as lines at its end, after an empty one."""
    lengths = [int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")]
    if lengths:
        return await reader.readexactly(lengths[0])
    if head.startswith(b"GET "):
        return b""
    assert b"transfer-encoding: chunked" in head.lower()
    body = b""
    while size := int((await reader.readline()).strip(), 16):
        body += (await reader.readexactly(size + 2))[:-2]
    while (line := await reader.readline()).strip():
        body += b"\n\n" + line.strip()
    return body


async def _next(queue: asyncio.Queue[State], seconds: float) -> State | None:
    try:
        async with asyncio.timeout(seconds):
            return await queue.get()
    except TimeoutError:
        return None


@asynccontextmanager
async def running(replica: Replica, host: str = "127.0.0.1", http: int = 0, grpc_port: int = 0) -> AsyncIterator[Replica]:
    """Listens; port 0 lets the kernel choose."""
    replica._listener = listener = await asyncio.start_server(replica.serve, host, http)
    replica.http = f"{host}:{listener.sockets[0].getsockname()[1]}"
    server = grpc.aio.server()
    method = grpc.unary_stream_rpc_method_handler(
        replica.frames, request_deserializer=WatchStateRequest.FromString, response_serializer=State.SerializeToString
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(GRPC_DAEMON, {GRPC_WATCH_STATE.rsplit("/", 1)[1]: method}),))
    replica.grpc = f"{host}:{server.add_insecure_port(f'{host}:{grpc_port}')}"
    await server.start()
    try:
        yield replica
    finally:
        listener.close()
        await replica.cut()
        await server.stop(None)
