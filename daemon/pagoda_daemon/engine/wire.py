"""Wire: the engine's two sockets to the front. PULL what the front pushes, PUSH what the engine says; single msgpack frames.

Used by `engine.loop` and `engine.__main__`. The front binds both ends; the engine connects, in whatever order the two come up.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Protocol

import msgspec
import zmq

from pagoda_daemon.core.messages import FromEngine, ToEngine

# Long enough for a front on a busy machine to take the last word (why the engine failed), short enough not to look hung.
_LINGER_MS = 2000


class EngineWire(Protocol):
    """What the engine's loop needs of a wire: this one between processes, or one in memory (`simulated`)."""

    def watch(self, fileno: int) -> None:
        """Let `wait` also end when `fileno` is readable."""
        ...

    def wait(self, timeout_ms: float) -> None:
        """Block until a message or a watched file is there, or time is up."""
        ...

    def received(self) -> Iterator[ToEngine]:
        """Every message that has arrived."""
        ...

    def send(self, message: FromEngine) -> None:
        """Never blocks."""
        ...


class Wire:
    """Open from construction to `close`. Sending never blocks: what is queued is bounded by the requests that the front admits."""

    def __init__(self, inbox: str, outbox: str) -> None:
        self._context: zmq.Context[Any] = zmq.Context()
        self._inbox = self._context.socket(zmq.PULL)
        self._outbox = self._context.socket(zmq.PUSH)
        for socket in (self._inbox, self._outbox):
            socket.set_hwm(0)
            socket.linger = _LINGER_MS
        self._inbox.connect(inbox)
        self._outbox.connect(outbox)
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(ToEngine)
        self._poller = zmq.Poller()
        self._poller.register(self._inbox, zmq.POLLIN)

    def watch(self, fileno: int) -> None:
        """Let `wait` also end when `fileno` is readable."""
        self._poller.register(fileno, zmq.POLLIN)

    def wait(self, timeout_ms: float) -> None:
        """Block until a message or a watched file is there, or time is up."""
        # Rounded up: a fraction of a millisecond left would otherwise be waited for by spinning.
        self._poller.poll(max(0, math.ceil(timeout_ms)))

    def received(self) -> Iterator[ToEngine]:
        """Every message that has arrived."""
        while True:
            try:
                frame = self._inbox.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            yield self._decoder.decode(frame)

    def send(self, message: FromEngine) -> None:
        self._outbox.send(self._encoder.encode(message))

    def close(self) -> None:
        """Flush and leave."""
        self._inbox.close(linger=0)
        self._outbox.close()
        self._context.term()
