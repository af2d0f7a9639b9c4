"""ChatTemplate: a model's own chat template, rendered by processes that can be killed (`template_worker`). Called by `tokens`.

Blocks for as long as a rendering takes, a fraction of a millisecond for a sane template: not to be called on an event loop. What a
template does wrong, looping and growing included, is a BadRequest; the next request gets a fresh process.
"""

from __future__ import annotations

import os
import queue
import select
import subprocess
import sys
import time
import weakref
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import jinja2
import msgspec

from pagoda_daemon.core.errors import BadRequest, ModelRejected, Overloaded
from pagoda_daemon.text.template_worker import HEADER, MAX_CPU_S, Done, Job, environment

_WORKERS: Final = 2
_PATIENCE_S: Final = 10.0  # by the clock: CPU time is what is limited, a busy machine is not the template's fault
# Made before there are threads: see api.openai.fields.learn.
_DONE: Final = msgspec.msgpack.Decoder(Done)
_START_PATIENCE_S: Final = 60.0
FAILED: Final = "chat_template_failed"


class _Stuck(Exception):
    """The worker gave no answer in time, or died of what it rendered."""


class _Worker:
    """One process, started when made."""

    def __init__(self, source: str) -> None:
        argv = [sys.executable, "-P", "-m", "pagoda_daemon.text.template_worker"]
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, start_new_session=True)
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("a process was started without pipes")
        self._to, self._from = self._process.stdin.fileno(), self._process.stdout.fileno()
        for end in (self._to, self._from):
            os.set_blocking(end, False)
        self._patience = _START_PATIENCE_S
        self._first = source.encode()

    def ask(self, job: Job) -> Done:
        """Raises _Stuck; the worker is of no use any more then."""
        deadline, self._patience = time.monotonic() + self._patience, _PATIENCE_S
        frames = [msgspec.msgpack.encode(job)]
        if self._first:
            frames.insert(0, self._first)
            self._first = b""
        try:
            for frame in frames:
                self._write(HEADER.pack(len(frame)) + frame, deadline)
            (size,) = HEADER.unpack(self._read(HEADER.size, deadline))
            return _DONE.decode(self._read(size, deadline))
        except OSError as error:
            raise _Stuck from error

    def _write(self, data: bytes, deadline: float) -> None:
        rest = memoryview(data)
        while rest:
            self._wait(self._to, select.POLLOUT, deadline)
            rest = rest[os.write(self._to, rest) :]

    def _read(self, size: int, deadline: float) -> bytes:
        parts: list[bytes] = []
        while size:
            self._wait(self._from, select.POLLIN, deadline)
            part = os.read(self._from, min(size, 1 << 20))
            if not part:
                raise _Stuck
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def _wait(self, end: int, event: int, deadline: float) -> None:
        poll = select.poll()
        poll.register(end, event)
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise _Stuck

    def close(self) -> None:
        """Idempotent."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


class ChatTemplate:
    """Thread-safe. Its processes are started with the first rendering and end with it."""

    def __init__(self, source: str, directory: object) -> None:
        try:
            environment().parse(source)  # no more: compiling computes constants, which may be huge
        except (jinja2.TemplateError, RecursionError) as error:
            raise ModelRejected(f"the chat template in {directory} is not valid: {error}") from error
        self._source = source
        self._directory = directory
        self._workers: list[_Worker] = []
        self._free: queue.LifoQueue[_Worker | None] = queue.LifoQueue()
        for _ in range(_WORKERS):
            self._free.put(None)
        self.close = weakref.finalize(self, _close, self._workers)

    def check(self) -> None:
        """Compiles it; ModelRejected where that fails."""
        try:
            done = self._ask(Job(None))
        except _Stuck as error:
            raise ModelRejected(f"the chat template in {self._directory} does not compile within {MAX_CPU_S} s") from error
        if done.error is not None:
            raise ModelRejected(f"the chat template in {self._directory} is not valid: {done.error}")

    def render(self, variables: Mapping[str, Any], most: int) -> str | None:
        """The text; None where it has more than `most` characters."""
        try:
            done = self._ask(Job(dict(variables), most))
        except _Stuck as error:
            said = f"the model's chat template did not finish within {MAX_CPU_S} s"
            raise BadRequest(said, "messages", FAILED) from error
        if done.error is not None:
            raise BadRequest(f"the model's chat template refuses these messages: {done.error}", "messages")
        return None if done.too_long else done.text

    def _ask(self, job: Job) -> Done:
        try:
            worker = self._free.get(timeout=_PATIENCE_S)
        except queue.Empty as error:
            raise Overloaded("too many conversations wait for the model's chat template") from error
        try:
            if worker is None:
                self._workers.append(worker := _Worker(self._source))
            return worker.ask(job)
        except BaseException:
            if worker is not None:
                self._workers.remove(worker)
                worker.close()
                worker = None
            raise
        finally:
            self._free.put(worker)


def _close(workers: list[_Worker]) -> None:
    for worker in workers:
        with suppress(OSError):
            worker.close()
