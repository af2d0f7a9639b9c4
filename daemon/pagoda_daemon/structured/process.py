"""One worker process as its pool sees it: started by exec, jobs out, answers in, and how it ended. Never blocks.

Jobs are sent only to a worker that has answered all it was sent, a packet at a time, so that a busy one has nothing to fill its channel
with; what is not yet sent waits here.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from pagoda_daemon.structured import limits
from pagoda_daemon.structured.protocol import Advance, Answer, Close, Job, Open

_MAX_PACKET: Final = 1 << 18
_PACKET_BYTES: Final = 96 * 2**10  # less than half of what Linux buffers for a socket


@dataclass(frozen=True, slots=True)
class Birth:
    """What every worker of a pool is started with."""

    tokenizer: Path
    vocab_size: int
    memory_fd: int


class WorkerProcess:
    """`ready` once it said Hello. `pending` are the jobs whose answers are due, in order."""

    def __init__(self, birth: Birth) -> None:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, ExitStack() as failed:
            failed.callback(self._channel.close)
            given = {
                "tokenizer": birth.tokenizer,
                "vocab-size": birth.vocab_size,
                "channel": theirs.fileno(),
                "memory": birth.memory_fd,
            }
            options = [word for name, value in given.items() for word in (f"--{name}", str(value))]
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "pagoda_daemon.structured.worker", *options],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # a panic prints the grammar
                pass_fds=(theirs.fileno(), birth.memory_fd),
                env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
            )
            failed.pop_all()
        self._channel.setblocking(False)
        self.ready = False
        self.waiting: deque[Job] = deque()
        self.pending: deque[Open | Advance] = deque()
        self._due_ms = float("inf")
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)

    def fileno(self) -> int:
        return self._channel.fileno()

    @property
    def pid(self) -> int:
        return self._process.pid

    def give(self, job: Job) -> None:
        self.waiting.append(job)

    def push(self, now_ms: float) -> None:
        """Send what waits, if the worker has nothing to do."""
        if not self.ready or self.pending or not self.waiting:
            return
        packet: list[Job] = []
        size = 0
        while self.waiting and (not packet or size + _size(self.waiting[0]) < _PACKET_BYTES):
            packet.append(job := self.waiting.popleft())
            size += _size(job)
        self.pending.extend(job for job in packet if not isinstance(job, Close))
        self.patient(now_ms)
        with suppress(OSError):  # it has just died: reading shows it
            self._channel.send(self._encoder.encode(packet))

    def answers(self, now_ms: float) -> Iterator[Answer | None]:
        """Everything said since the last call; None at last, once the worker has hung up."""
        while True:
            try:
                packet = self._channel.recv(_MAX_PACKET)
            except BlockingIOError:
                return
            except OSError:
                packet = b""
            if not packet:
                yield None
                return
            answer = self._decoder.decode(packet)
            self.patient(now_ms)
            yield answer

    def patient(self, now_ms: float) -> None:
        """It moved: the clock starts anew."""
        self._due_ms = now_ms + limits.PATIENCE_S * 1000

    def overdue(self, now_ms: float) -> bool:
        """Has work, and has not moved for longer than any limit on CPU time explains."""
        return bool(self.pending or not self.ready) and now_ms > self._due_ms

    def kill(self) -> None:
        self._process.kill()

    def bury(self) -> int:
        """The exit code of one that hung up, or is to."""
        self._channel.close()
        try:
            return self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


def _size(job: Job) -> int:
    return len(job.text.encode()) if isinstance(job, Open) else 5 * len(job.tokens) if isinstance(job, Advance) else 16
