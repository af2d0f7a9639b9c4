"""A real gateway process for tests: started on free ports with a static fleet file or a kubeconfig, stopped by the context manager."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class GatewayProcess:
    """Its ports, as it printed them. `log` has its last lines since then."""

    process: subprocess.Popen[str]
    http: int
    metrics: int
    probes: int
    demand: int
    ext_proc: int | None = None
    log: deque[str] = field(default_factory=lambda: deque(maxlen=10_000))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http}"

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def wait(self, seconds: float = 300) -> int:
        return self.process.wait(seconds)

    def probe(self, path: str) -> int:
        """The status a kubelet would see; 0 without a connection."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.probes}{path}", timeout=60) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:  # also one that ended in the middle of it
            return 0

    def scrape(self) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics}/metrics", timeout=300) as answer:
            return answer.read().decode()  # type: ignore[no-any-return]


def write_fleet(path: Path, services: Sequence[dict[str, Any]]) -> None:
    """Replaces the fleet file in one step, as a careful admin does."""
    scratch = path.with_suffix(".new")
    scratch.write_text(json.dumps({"services": list(services)}))
    scratch.replace(path)


@contextmanager
def start_gateway(*options: str, program: Sequence[str] = ("-m", "pagoda_gateway")) -> Iterator[GatewayProcess]:
    """Runs `pagoda-gateway` (or a test's variant of it) on free ports. Its log is read to the end: a full pipe would hold it up. Clients
    need no API key, unless the options name keys."""
    if not any(option.startswith("--keys") for option in options):
        options = ("--anonymous", "true", *options)
    ports = [word for name in ("http", "metrics", "probes", "demand") for word in (f"--{name}-port", "0")]
    command = [sys.executable, "-P", *program, "--host", "127.0.0.1", *ports, *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    reader = threading.Thread()
    try:
        gateway = _listening(process)
        reader = threading.Thread(target=gateway.log.extend, args=(process.stdout,), daemon=True)
        reader.start()
        if "--kubeconfig" in options:  # before it has listed the cluster it refuses requests, and no Service would send it any
            _until_ready(gateway)
        yield gateway
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        if reader.ident is not None:
            reader.join()
        if process.stdout:
            process.stdout.close()


def _until_ready(gateway: GatewayProcess) -> None:
    deadline = time.monotonic() + 240
    while gateway.probe("/readyz") != 200:
        assert time.monotonic() < deadline, "the gateway was not ready within 240 s"
        time.sleep(0.05)


def _listening(process: subprocess.Popen[str]) -> GatewayProcess:
    assert process.stdout is not None
    for line in process.stdout:
        entry = json.loads(line)
        if entry["event"] == "listening":
            return GatewayProcess(process, entry["http"], entry["metrics"], entry["probes"], entry["demand"], entry["ext_proc"])
    raise AssertionError(f"the gateway ended with {process.wait()} before it listened")
