"""The operator as a fork of a process that has imported it: a process of its own, with its arguments, environment and pipe, but without the
second of CPU that imports take. Nothing else is imported here, as each operator imports this module."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from multiprocessing import forkserver
from multiprocessing.reduction import DupFd  # type: ignore[attr-defined]
from typing import Any

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["pagoda_operator.__main__", "pagoda_operator.serve.process"])


class _Passed:
    """A descriptor that goes along."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __reduce__(self) -> Any:
        return _taken, (DupFd(self._number),)


def _taken(sent: Any) -> int:
    return int(sent.detach())


class ForkedOperator:
    """What tests ask of a Popen."""

    def __init__(self, options: Sequence[str], environment: dict[str, str]) -> None:
        read, write = os.pipe()
        self.stderr = os.fdopen(read)
        try:
            self._process = _CONTEXT.Process(target=_live, args=(["pagoda-operator", *options], environment, _Passed(write)), daemon=True)
            self._process.start()
        finally:
            os.close(write)
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        code = self._process.exitcode
        if code is None:
            raise subprocess.TimeoutExpired("pagoda-operator", timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def stop_server() -> None:
    """The process that operators are forks of; what it used counts as this process's then."""
    forkserver._forkserver._stop()  # type: ignore[attr-defined]


def _live(argv: list[str], environment: dict[str, str], stderr: int) -> None:
    os.environ.clear()
    os.environ.update(environment)
    os.dup2(stderr, 2)
    sys.argv = argv
    from pagoda_operator.__main__ import main

    main()
