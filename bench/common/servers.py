"""Servers for bench/serve.py: ours and a peer's as processes, the client that loads them, and what CPU each has used. Not a peer's code:
it runs in an environment of its own and is talked to over HTTP like ours."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from engine_models import CONTEXT
from pagoda_contracts.launch import DaemonConfig

NAME: Final = "m"
_PATIENCE_S: Final = 900
_TICKS: Final = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far; the kernel counts nanoseconds and shows hundredths."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def children(pid: int) -> list[int]:
    """Of any thread of it, and theirs."""
    found = [int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()]
    return [one for child in found for one in (child, *children(child))]


class Server(Protocol):
    """Answers /v1/completions on `port`; `parts` are its processes by what they do."""

    port: int

    def parts(self) -> Mapping[str, Sequence[int]]: ...
    def stop(self, number: signal.Signals) -> None: ...
    def close(self) -> None: ...


class _Process:
    def __init__(self, argv: Sequence[str], port: int, environment: Mapping[str, str]) -> None:
        self.port = port
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  closed with the process
        out = {"stdout": self._log, "stderr": self._log, "start_new_session": True}
        self.process = subprocess.Popen(argv, env={**os.environ, **environment}, **out)
        begun = time.perf_counter()
        try:
            self._wait()
        except BaseException:
            self.close()
            raise
        self.start_s = time.perf_counter() - begun

    def _wait(self) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while not _healthy(self.port):
            if self.process.poll() is not None or time.monotonic() > deadline:
                self._log.seek(0)
                raise RuntimeError(f"it ended with {self.process.poll()}: {self._log.read()[-3000:].decode(errors='replace')}")
            time.sleep(0.1)

    def _all(self) -> list[int]:
        return [self.process.pid, *children(self.process.pid)]

    def stop(self, number: signal.Signals) -> None:
        for pid in self._all():
            os.kill(pid, number)

    def close(self) -> None:
        for pid in self._all() if self.process.poll() is None else []:
            os.kill(pid, signal.SIGKILL)
        self.process.wait()
        self._log.close()


class Pagoda(_Process):
    """`pagoda-daemon`, with a model or a simulated device."""

    def __init__(self, directory: Path, **changes: Any) -> None:
        port, run_dir = free_port(), tempfile.mkdtemp(prefix="pagoda-bench-")
        engine = {"maxModelLen": CONTEXT, "maxConcurrency": 64, "prefixCaching": False, **changes.pop("engine", {})}
        listen = {"host": "127.0.0.1", "http": port, "grpc": 0, "probes": 0, "runDir": run_dir}
        model = {"path": str(directory), "servedNames": [NAME]}
        config = DaemonConfig.model_validate({"model": model, "engine": engine, "listen": listen, **changes})
        path = Path(run_dir) / "daemon.json"
        path.write_text(config.model_dump_json(by_alias=True, exclude_none=True))
        super().__init__([sys.executable, "-P", "-m", "pagoda_daemon", "--config", str(path)], port, {})

    def parts(self) -> dict[str, list[int]]:
        return {"front": [self.process.pid], "engine": children(self.process.pid)}


class Vllm(_Process):
    """vLLM's own OpenAI server; `python` has it installed."""

    def __init__(self, python: str, directory: Path) -> None:
        port = free_port()
        options = ["--max-model-len", str(CONTEXT), "--max-num-seqs", "64", "--dtype", "bfloat16", "--no-enable-prefix-caching"]
        quiet = ["--disable-log-stats", "--disable-uvicorn-access-log", "--host", "127.0.0.1", "--port", str(port)]
        argv = [
            python,
            "-m",
            "vllm.entrypoints.openai.api_server",
            "--model",
            str(directory),
            "--served-model-name",
            NAME,
            *options,
            *quiet,
        ]
        super().__init__(argv, port, {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_CPU_KVCACHE_SPACE": "2"})

    def parts(self) -> dict[str, list[int]]:
        return {"all": self._all()}


def free_port() -> int:
    """Of the kernel's choice."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def _healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
