"""The front's end of the engine's wire, for tests: binds both sockets, sends, and waits for what the engine says."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import zmq
from pagoda_contracts.launch import DaemonConfig
from pagoda_daemon.core.messages import FromEngine, RowOutput, Shutdown, StepOutput, ToEngine

T = TypeVar("T", bound=msgspec.Struct)

# A dead engine must fail the test, a busy machine must not.
PATIENCE_MS = 300_000


class Front:
    """`heard` keeps every message in order."""

    def __init__(self, folder: Path) -> None:
        self.inbox, self.outbox = f"ipc://{folder}/to", f"ipc://{folder}/from"
        self._context: zmq.Context[Any] = zmq.Context()
        self._push, self._pull = self._context.socket(zmq.PUSH), self._context.socket(zmq.PULL)
        self._push.sndtimeo = PATIENCE_MS
        self._push.bind(self.inbox)
        self._pull.bind(self.outbox)
        self._decoder: msgspec.msgpack.Decoder[FromEngine] = msgspec.msgpack.Decoder(FromEngine)
        self.heard: list[FromEngine] = []

    def send(self, *messages: ToEngine) -> None:
        for message in messages:
            self._push.send(msgspec.msgpack.encode(message))

    def shut_down(self) -> None:
        """Tell the engine to exit. Lost where no engine is connected (yet, or any more)."""
        with contextlib.suppress(zmq.Again):
            self._push.send(msgspec.msgpack.encode(Shutdown()), zmq.NOBLOCK)

    def until(self, kind: type[T], holds: Callable[[T], bool] = lambda _: True) -> T:
        """The next message of `kind` for which `holds`; everything on the way is kept in `heard`."""
        while True:
            if not self._pull.poll(PATIENCE_MS):
                raise AssertionError(f"no {kind.__name__} came; the last ones heard: {self.heard[-5:]}")
            message = self._decoder.decode(self._pull.recv())
            self.heard.append(message)
            if isinstance(message, kind) and holds(message):
                return message

    def end_of(self, request_id: str) -> RowOutput:
        """Wait until the request ended; its last output."""
        ended = self.until(StepOutput, lambda m: any(o.request_id == request_id and o.finish_reason for o in m.outputs))
        return next(o for o in ended.outputs if o.request_id == request_id)

    def ends_of(self, *request_ids: str) -> dict[str, RowOutput]:
        """Wait until all have ended; the last output of each."""
        while True:
            steps = (message for message in self.heard if isinstance(message, StepOutput))
            each = [output for step in steps for output in step.outputs if output.finish_reason]
            assert len({(output.request_id, output.index) for output in each}) == len(each), f"an answer ended twice: {each}"
            ends = {output.request_id: output for output in each}
            if ends.keys() >= set(request_ids):
                return ends
            self.until(StepOutput)

    def tokens(self, request_id: str) -> tuple[int, ...]:
        """All tokens heard so far."""
        steps = (m for m in self.heard if isinstance(m, StepOutput))
        return tuple(t for step in steps for o in step.outputs if o.request_id == request_id for t in o.token_ids)

    def close(self) -> None:
        self._push.close(linger=0)
        self._pull.close(linger=0)
        self._context.term()


@contextlib.contextmanager
def front(folder: Path) -> Iterator[Front]:
    opened = Front(folder)
    try:
        yield opened
    finally:
        opened.close()


def engine_argv(folder: Path, config: DaemonConfig, end: Front) -> list[str]:
    """How the front starts the engine."""
    path = folder / "daemon.json"
    path.write_text(config.model_dump_json(by_alias=True, exclude_none=True))
    options = {"config": str(path), "inbox": end.inbox, "outbox": end.outbox, "parent": str(os.getpid())}
    return [sys.executable, "-P", "-m", "pagoda_daemon.engine", *(word for name, value in options.items() for word in (f"--{name}", value))]


@contextlib.contextmanager
def engine_process(folder: Path, config: DaemonConfig) -> Iterator[tuple[Front, subprocess.Popen[bytes]]]:
    """A real engine process and the front's end of its wire."""
    with front(folder) as end, subprocess.Popen(engine_argv(folder, config, end)) as process:
        try:
            yield end, process
        finally:
            process.kill()
