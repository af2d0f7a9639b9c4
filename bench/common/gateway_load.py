"""The load generator of bench/gateway.py: raw HTTP/1.1 over asyncio. It takes little of the cores that it shares with what it loads."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, cast

from gateway_sides import DONE, EVENTS, MODEL, PATH, WHOLE

CONNECTIONS: Final = {"whole": 32, "stream": 64}
_PATIENCE_S: Final = 300.0
MOST: Final = 128


class Target(NamedTuple):
    """Where requests go: `key` is an API key, empty without one."""

    name: str
    host: str
    port: int
    key: str = ""

    def request(self, kind: str, **more: object) -> bytes:
        """Returns a chat of ~1 KB as bytes."""
        document = {"model": MODEL, "stream": kind == "stream", "max_tokens": EVENTS, "messages": [{"role": "user", "content": "x" * 900}]}
        body = json.dumps(document | more).encode()
        key = f"authorization: Bearer {self.key}\r\n" if self.key else ""
        head = f"POST {PATH} HTTP/1.1\r\nhost: bench\r\n{key}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        return head.encode() + body


class Client(asyncio.Protocol):
    """One connection, one request after another."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size, self._wanted, self._tail = 0, -1, b""
        self._done: asyncio.Future[bytes] | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass of it

    def connection_lost(self, exc: Exception | None) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(ConnectionError(f"cut after {b''.join(self._parts)[-300:]!r}: {exc}"))

    async def ask(self, request: bytes) -> bytes:
        """Returns the whole answer, its head too."""
        assert self._transport is not None
        self._parts, self._size, self._wanted, self._tail = [], 0, -1, b""
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._done

    def data_received(self, data: bytes) -> None:
        self._parts.append(data)
        self._size += len(data)
        if self._wanted < 0:
            self._read_head()
        self._tail = (self._tail + data[-8:])[-7:]
        ended = self._tail == b"\r\n0\r\n\r\n" if self._wanted == 0 else self._size >= self._wanted > 0
        if ended and self._done is not None and not self._done.done():
            self._done.set_result(b"".join(self._parts))

    def _read_head(self) -> None:
        head, found, _ = b"".join(self._parts).partition(b"\r\n\r\n")
        if found:
            length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
            self._wanted = len(head) + 4 + int(length) if length else 0

    def close(self) -> None:
        """Closes the connection."""
        if self._transport is not None:
            self._transport.close()


def judged(answer: bytes, kind: str, events: int = EVENTS) -> int:
    """Returns how many answers or chunks it is; RuntimeError if it is not whole."""
    if kind == "whole" and answer.endswith(WHOLE):
        return 1
    if kind == "stream" and answer.startswith(b"HTTP/1.1 200"):
        said = _unchunked(answer.partition(b"\r\n\r\n")[2])
        if said.count(b"\n\n") == events + 1 and said.endswith(DONE):
            return events + 1
    raise RuntimeError(f"not whole: {answer[:300]!r} … {answer[-100:]!r}")


def _unchunked(body: bytes) -> bytes:
    parts, at = [], 0
    while True:
        end = body.index(b"\r\n", at)
        size = int(body[at:end], 16)
        if not size:
            return b"".join(parts)
        parts.append(body[end + 2 : end + 2 + size])
        at = end + 4 + size


async def connect(target: Target) -> Client:
    """Opens a connection."""
    return (await asyncio.get_running_loop().create_connection(Client, target.host, target.port))[1]


async def closed_loop(target: Target, kind: str, seconds: float) -> tuple[int, int]:
    """Returns requests, and answers or chunks, by so many connections as CONNECTIONS says, one request after another on each."""
    loop, request, counts = asyncio.get_running_loop(), target.request(kind), [0, 0]
    end = loop.time() + seconds

    async def one() -> None:
        client = await connect(target)
        while loop.time() < end:
            answer = await client.ask(request)
            counts[0] += 1
            counts[1] += judged(answer, kind)
        client.close()

    await asyncio.gather(*(one() for _ in range(CONNECTIONS[kind])))
    return counts[0], counts[1]


@dataclass
class _Pool:
    """Idle connections to one target, what its requests took, and why some failed."""

    target: Target
    idle: list[Client] = field(default_factory=list)
    took_ms: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    async def ask(self, request: bytes) -> None:
        client = self.idle.pop() if self.idle else await connect(self.target)
        began = time.perf_counter()  # the loop's own time has whole milliseconds
        try:
            judged(await client.ask(request), "whole")
        except (OSError, RuntimeError) as error:
            self.failed.append(str(error))
            return
        self.took_ms.append((time.perf_counter() - began) * 1000)
        self.idle.append(client)


async def paced(targets: Sequence[Target], per_second: float, seconds: float) -> dict[str, list[float]]:
    """Returns ms of each request by target; RuntimeError if one failed. Arrivals at a fixed rate for each, in turn: all targets meet the
    same moments. At most MOST are under way, so that a machine without a free core is not asked for what it cannot do."""
    loop, pools = asyncio.get_running_loop(), [_Pool(target) for target in targets]
    running: set[asyncio.Task[None]] = set()
    requests = [target.request("whole") for target in targets]
    for pool in pools:
        pool.idle.extend([await connect(pool.target) for _ in range(16)])
    begin = loop.time()
    for number in range(round(per_second * seconds) * len(targets)):
        await asyncio.sleep(max(0.0, begin + number / (per_second * len(targets)) - loop.time()))
        while len(running) >= MOST:
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        which = number % len(targets)
        task = loop.create_task(pools[which].ask(requests[which]))
        running.add(task)
        task.add_done_callback(running.discard)
    await asyncio.wait_for(asyncio.gather(*running), _PATIENCE_S)
    for pool in pools:
        for client in pool.idle:
            client.close()
    if failed := {pool.target.name: pool.failed[:3] for pool in pools if pool.failed}:
        raise RuntimeError(f"requests failed: {failed}")
    return {pool.target.name: pool.took_ms for pool in pools}


async def many_streams(target: Target, count: int, events: int) -> int:
    """Returns how many of so many streams at once ended whole; each has an event every 2 s, so all are open together."""
    request, room = target.request("stream", slow=True, events=events), asyncio.Semaphore(200)

    async def one() -> int:
        async with room:
            client = await connect(target)
        answer = await client.ask(request)
        client.close()
        return judged(answer, "stream", events) == events + 1

    return sum(await asyncio.gather(*(one() for _ in range(count))))
