"""A program beside a benchmark that reads a JSON job per line and answers with one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any


class Worker:
    """In a session of its own. `hello` is what it says first."""

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "start_new_session": True}
        self._process = subprocess.Popen(argv, env={**os.environ, **(environment or {})}, **pipes)
        self.hello = self._answer()

    def do(self, job: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def signal(self, number: signal.Signals) -> None:
        """To it and whatever it has started."""
        os.killpg(self._process.pid, number)

    def close(self) -> None:
        self.signal(signal.SIGKILL)
        self._process.wait()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._process.args} ended with code {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer
