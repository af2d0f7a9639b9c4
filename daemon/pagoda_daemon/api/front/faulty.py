"""faulty_parts: the front's own injected faults. Called by `process.py`; without `DaemonConfig.testing.faults` it gives the real parts.

Shows from the outside that a loop that stands still is noticed, and its clients get an error, from another thread.
"""

from __future__ import annotations

import ctypes
import itertools
import subprocess
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

import structlog
from pagoda_contracts.launch import TestingConfig

from pagoda_daemon.core.messages import FromEngine, StepOutput
from pagoda_daemon.engine.client import EngineClient
from pagoda_daemon.engine.start import Wires
from pagoda_daemon.health.replica import Replica
from pagoda_daemon.text.detokenize import Detokenizer
from pagoda_daemon.text.tokens import ModelText

log = structlog.get_logger()

MakeClient = Callable[[subprocess.Popen[bytes], Wires, Replica], EngineClient]
MakeText = Callable[[Path, str | None, Path | None, str | None], ModelText]


def faulty_parts(testing: TestingConfig | None) -> tuple[MakeClient, MakeText]:
    """What makes the engine's client and the text side."""
    faults = testing.faults if testing is not None else ()
    blocks = {fault.at_step: fault.kind for fault in faults if fault.kind in ("block", "freeze")}
    stalls = {fault.at_step for fault in faults if fault.kind == "stall"}
    client: MakeClient = (lambda process, wires, replica: FaultyClient(process, wires, replica, blocks)) if blocks else EngineClient
    text: MakeText = partial(StallingText, at=stalls) if stalls else ModelText
    return client, text


class FaultyClient(EngineClient):
    """Takes the outputs of a marked step, and then its loop does nothing any more."""

    def __init__(self, process: subprocess.Popen[bytes], addresses: Wires, replica: Replica, at: Mapping[int, str]) -> None:
        super().__init__(process, addresses, replica)
        self._at = at
        self._outputs = 0

    def _take(self, message: FromEngine) -> None:
        super()._take(message)
        if not isinstance(message, StepOutput):
            return
        kind = self._at.get(self._outputs)
        self._outputs += 1
        if kind is not None:
            log.warning("fault_injected", kind=kind)  # the line's time is when it struck
        if kind == "block":
            threading.Event().wait()
        if kind == "freeze":
            while True:  # a PyDLL's functions are called with the interpreter's lock held
                ctypes.PyDLL(None).sleep(3600)


class StallingText(ModelText):
    """Its detokenisers read so many tokens, all answers counted together, and at a marked one never return."""

    def __init__(
        self, directory: Path, tool_parser: str | None, chat_template: Path | None, reasoning_parser: str | None, *, at: Iterable[int]
    ) -> None:
        super().__init__(directory, tool_parser, chat_template, reasoning_parser)
        self._at = frozenset(at)
        self._read = itertools.count()

    def detokenizer(self, *, skip_special: bool = True) -> Detokenizer:
        return StallingDetokenizer(super().detokenizer(skip_special=skip_special), self._count)

    def _count(self) -> None:
        if next(self._read) in self._at:
            log.warning("fault_injected", kind="stall")
            threading.Event().wait()


class StallingDetokenizer:
    """Another one's text, after each token was counted."""

    def __init__(self, real: Detokenizer, count: Callable[[], None]) -> None:
        self._real = real
        self._count = count

    def push(self, ids: Iterable[int]) -> str:
        text = ""
        for token in ids:
            self._count()
            text += self._real.push((token,))
        return text

    def flush(self) -> str:
        return self._real.flush()
