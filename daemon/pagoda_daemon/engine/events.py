"""KvEvents: publishes what becomes of KV blocks over ZMQ, in vLLM's wire format. Opened with an engine, fed by its loop.

PUB: [topic, sequence as 8 bytes big-endian, msgpack]. The msgpack is an array [time, [event, …], rank], an event an array that begins with
its kind: ["BlockStored", hashes, parent, token ids, block size, adapter id, medium, adapter digest], ["BlockRemoved", hashes, medium],
["AllBlocksCleared"]. ROUTER: a reader that sends a sequence number gets every batch kept from there on as [sequence, msgpack], and then
[-1, nothing].

No reader can slow the engine: one that does not read loses batches, sees the gap in the sequence, and asks for them. What is kept is
bounded. Events hold token ids of tenants; nothing is published unless the configuration asks for it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, Final, NamedTuple

import msgspec
import structlog
import zmq
from pagoda_contracts.launch import DaemonConfig, KvEventsConfig

from pagoda_daemon.core.errors import ConfigRejected
from pagoda_daemon.kv.ledger import BlockLedger, Removed, Stored
from pagoda_daemon.scheduler.state import State


class Cleared(NamedTuple):
    """The cache is empty."""


CLEARED: Final = Cleared()
Event = Stored | Removed | Cleared

log = structlog.get_logger()

_MEDIUM: Final = "GPU"  # vLLM's word for the device's own memory, whichever device it is
_RANK: Final = 0
_END: Final = (-1).to_bytes(8, "big", signed=True)
_QUEUED: Final = 1000  # batches that wait for one reader
_PATIENCE_MS: Final = 1000  # for a reader who asked for old batches and does not read them
_AT_A_TIME: Final = 256


class KvEvents:
    """Listens from its making to `close`. `publish` is the loop's; replays run on a thread of their own."""

    def __init__(self, host: str, config: KvEventsConfig) -> None:
        self._topic = config.topic.encode()
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=config.buffer_batches)
        self._lock = threading.Lock()
        self._next = 0
        self._encoder = msgspec.msgpack.Encoder()
        self._context: zmq.Context[Any] = zmq.Context()
        try:
            self._pub, self.port = self._open(zmq.PUB, host, config.port, "kvEvents.port")
            self._replay, self.replay_port = self._open(zmq.ROUTER, host, config.replay_port, "kvEvents.replayPort")
        except ConfigRejected:
            self._context.destroy(linger=0)
            raise
        self._replay.setsockopt(zmq.ROUTER_MANDATORY, 1)  # a full queue is waited for, not skipped silently
        self._replay.sndtimeo = _PATIENCE_MS
        self._thread = threading.Thread(target=self._serve, name="kv-replay", daemon=True)
        self._thread.start()
        log.info("kv_events", host=host, port=self.port, replay_port=self.replay_port)

    def _open(self, kind: int, host: str, port: int, what: str) -> tuple[zmq.Socket[bytes], int]:
        socket = self._context.socket(kind)
        socket.set_hwm(_QUEUED)
        socket.linger = 0
        try:
            socket.bind(f"tcp://{host}:{port or '*'}")
        except zmq.ZMQError as error:
            raise ConfigRejected(f"{what}: cannot listen on {host}:{port}: {error}") from error
        return socket, int(socket.getsockopt(zmq.LAST_ENDPOINT).rpartition(b":")[2].rstrip(b"\0"))

    def begin(self, state: State) -> None:
        """The cache is empty: a reader of an earlier one forgets it."""
        state.kv.ledger = BlockLedger(state.kv.block_size)
        self.publish([CLEARED], state.kv.block_size, time.time())

    def publish_changes(self, state: State) -> None:
        """What the ledger wrote down since it was last read."""
        events = state.kv.ledger.take() if state.kv.ledger is not None else []
        if events:
            self.publish(events, state.kv.block_size, time.time())

    def publish(self, events: Sequence[Event], block_size: int, now_s: float) -> None:
        """One batch; never blocks."""
        payload = self._encoder.encode([now_s, [_encoded(event, block_size) for event in events], _RANK])
        with self._lock:
            number, self._next = self._next, self._next + 1
            self._kept.append((number, payload))
        self._pub.send_multipart((self._topic, number.to_bytes(8, "big"), payload), zmq.NOBLOCK)

    def close(self) -> None:
        """Ends the thread by ending its context."""
        self._pub.close()
        self._context.term()
        self._thread.join()

    def _serve(self) -> None:
        try:
            while True:
                self._answer(self._replay.recv_multipart())
        except zmq.ContextTerminated:
            self._replay.close()

    def _answer(self, frames: list[bytes]) -> None:
        if len(frames) != 3 or len(frames[2]) != 8:
            log.warning("kv_replay_refused", reason="a request is an empty frame and 8 bytes of a sequence number", frames=len(frames))
            return
        reader, _, begin = frames
        try:
            self._send_from(reader, int.from_bytes(begin, "big"))
        except zmq.ContextTerminated:
            raise
        except zmq.ZMQError as error:  # gone, or not reading
            log.info("kv_replay_cut", reason=str(error))

    def _send_from(self, reader: bytes, begin: int) -> None:
        while batches := self._from(begin):
            for number, payload in batches:
                self._replay.send_multipart((reader, b"", number.to_bytes(8, "big"), payload))
            begin = batches[-1][0] + 1
        self._replay.send_multipart((reader, b"", _END, b""))

    def _from(self, begin: int) -> list[tuple[int, bytes]]:
        """Some of the kept ones: the loop shall not wait for a long copy."""
        with self._lock:
            oldest = self._next - len(self._kept)
            start = max(0, begin - oldest)
            return list(islice(self._kept, start, start + _AT_A_TIME)) if start < len(self._kept) else []


def _encoded(event: Event, block_size: int) -> list[Any]:
    if isinstance(event, Cleared):
        return ["AllBlocksCleared"]
    if isinstance(event, Stored):
        return ["BlockStored", event.hashes, event.parent, event.token_ids, block_size, None, _MEDIUM, event.adapter or None]
    return ["BlockRemoved", event.hashes, _MEDIUM]


@contextmanager
def kv_events(config: DaemonConfig) -> Iterator[KvEvents | None]:
    """Open while an engine runs; None where the configuration wants none."""
    if config.kv_events is None:
        yield None
        return
    made = KvEvents(config.listen.host, config.kv_events)
    try:
        yield made
    finally:
        made.close()
