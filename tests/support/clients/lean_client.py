"""A raw streaming HTTP client that costs little: one epoll loop, non-blocking sockets, no parsing but the count of events.

For load: benchmarks on the same cores as the server, and soaks. Keeps a connection for the next request unless it cut it. An answer's
events are counted and its last bytes kept (all, where it is no stream); whoever wants every delta uses `streams.py`.
"""

from __future__ import annotations

import json
import select
import socket
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

_EVENT = b"data: "
_END = b"0\r\n\r\n"
_TAIL = 4096


class Ask(NamedTuple):
    """One request; `cut_after`: the connection is closed once so many events came (0: once it is sent)."""

    path: str
    body: dict[str, Any]
    cut_after: int | None = None


@dataclass
class Answer:
    """What came of a request: times on `time.perf_counter`, `stamps` those of each read that held events."""

    started: float
    events: int = 0
    stamps: list[float] = field(default_factory=list)
    ended: float = 0.0
    status: int = 0
    cut: bool = False
    tail: bytes = b""  # with the head, where it is no stream

    @property
    def first(self) -> float:
        """Seconds to the first event."""
        return self.stamps[0] - self.started

    @property
    def tokens(self) -> int:
        """The server's own count, where usage was asked for."""
        return int(self.last_json()["usage"]["completion_tokens"])

    def last_json(self) -> dict[str, Any]:
        """The last event that is an object, with usage or the error; of an answer that is no stream, its body."""
        events = [part for part in self.tail.split(_EVENT)[1:] if part.startswith(b"{")]
        content = events[-1].split(b"\n")[0] if events else self.tail.partition(b"\r\n\r\n")[2]
        found: dict[str, Any] = json.loads(content)
        return found


class _Connection:
    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self.answer = Answer(0.0)
        self.cut_after: int | None = None
        self.streamed = False

    def ask(self, ask: Ask, host: str) -> None:
        content = json.dumps(ask.body).encode()
        head = f"POST {ask.path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
        self.answer, self.cut_after = Answer(time.perf_counter()), ask.cut_after
        self.socket.setblocking(True)
        self.socket.sendall(head.encode() + content)
        self.socket.setblocking(False)

    def read(self) -> bool:
        """Whether the answer is complete, or cut as wished."""
        data, answer = self.socket.recv(262144), self.answer
        now = time.perf_counter()
        if not data:
            raise ConnectionError(f"the server closed after {answer.events} events: {answer.tail[-300:]!r}")
        if not answer.status:
            answer.status = int(data[9:12])
            self.streamed = b"transfer-encoding: chunked" in data
        # An event's mark may be split between two reads: what the last read ended with belongs to this one.
        found = (answer.tail[1 - len(_EVENT) :] + data).count(_EVENT)
        if found:
            answer.events += found
            answer.stamps.append(now)
        answer.tail = (answer.tail + data)[-_TAIL:] if self.streamed else answer.tail + data
        answer.cut = self.cut_after is not None and answer.events >= self.cut_after
        done = answer.cut or (answer.tail.endswith(_END) if self.streamed else _whole(answer.tail))
        if done:
            answer.ended = now
        return done


def _whole(content: bytes) -> bool:
    """What is no stream comes with its length."""
    head, blank, body = content.partition(b"\r\n\r\n")
    length = next((line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), None)
    return bool(blank) and length is not None and len(body) >= int(length.partition(b":")[2])


class _Loop:
    """The connections under way."""

    def __init__(self, address: tuple[str, int], asks: Iterable[Ask]) -> None:
        self._address = address
        self._left = iter(asks)
        self._poll = select.epoll()
        self._open: dict[int, _Connection] = {}

    def start(self, kept: _Connection | None = None) -> Iterator[Answer]:
        """The next ask, on the kept connection or a new one; what is cut once it is sent is an answer already."""
        for ask in self._left:
            connection = kept or _Connection(self._address)
            connection.ask(ask, f"{self._address[0]}:{self._address[1]}")
            if ask.cut_after != 0:
                self._open[connection.socket.fileno()] = connection
                self._poll.register(connection.socket, select.EPOLLIN)
                return
            connection.socket.close()
            connection.answer.cut, connection.answer.ended, kept = True, time.perf_counter(), None
            yield connection.answer
        if kept:
            kept.socket.close()

    def answers(self) -> Iterator[Answer]:
        while self._open:
            for number, _ in self._poll.poll():
                if self._open[number].read():
                    yield from self._end(number)

    def _end(self, number: int) -> Iterator[Answer]:
        self._poll.unregister(number)
        connection = self._open.pop(number)
        if connection.answer.cut:
            connection.socket.close()
        yield connection.answer
        yield from self.start(None if connection.answer.cut else connection)

    def close(self) -> None:
        self._poll.close()
        for connection in self._open.values():
            connection.socket.close()


def run(address: tuple[str, int], asks: Iterable[Ask], connections: int) -> Iterator[Answer]:
    """Answers as they end, `connections` at a time, each followed by the next ask."""
    loop = _Loop(address, asks)
    try:
        for _ in range(connections):
            yield from loop.start()
        yield from loop.answers()
    finally:
        loop.close()
