"""A real replica for tests: `pagoda-daemon --config FILE` with a simulated worker, on ports of the kernel's choice."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pagoda_contracts.launch import DaemonConfig, EngineConfig, Listen, ModelConfig, SimulatedWorker, TestingConfig
from pagoda_contracts.names import PATH_READY
from support.engine.toy_model import VOCAB, tiny_model_dir

# A replica that never comes must fail the test, a busy machine must not.
PATIENCE_S = 300.0
NAME = "toy"


def replica_config(folder: Path, *, step_ms: float = 1.0, names: tuple[str, ...] = (NAME,), **changes: Any) -> DaemonConfig:
    """A configuration for `start_replica`; `changes` are fields of DaemonConfig, `engine` a dict of EngineConfig's."""
    engine = {"max_model_len": 512, "max_concurrency": 64, "kv_bytes": 64 * 2**20, **changes.pop("engine", {})}
    return DaemonConfig(
        model=ModelConfig(path=str(tiny_model_dir(folder / "toy-model")), served_names=names),
        engine=EngineConfig(**engine),
        listen=Listen(host="127.0.0.1", http=0, grpc=0, probes=0, run_dir=tempfile.mkdtemp(prefix="pagoda-test-")),
        testing=TestingConfig(simulated=SimulatedWorker(step_ms=step_ms, vocab_size=VOCAB), faults=changes.pop("faults", ())),
        **changes,
    )


@dataclass
class Replica:
    """`http`, `grpc` and `probes` are "127.0.0.1:port". `lines` are the daemon's log lines so far, parsed."""

    process: subprocess.Popen[str]
    run_dir: Path
    http: str = ""
    grpc: str = ""
    probes: str = ""
    lines: list[dict[str, Any]] = field(default_factory=list)
    _listening: threading.Event = field(default_factory=threading.Event)

    def probe(self, path: str) -> tuple[int, str]:
        """Status and sentence of a probe; 0 where nobody listens."""
        try:
            with urllib.request.urlopen(f"http://{self.probes}{path}", timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    def wait_ready(self) -> None:
        """Until the probe says so; the daemon's own words where it does not."""
        deadline = time.monotonic() + PATIENCE_S
        while self.probe(PATH_READY)[0] != 200:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"not ready, exit code {self.process.poll()}: {self.lines}")
            time.sleep(0.02)

    def engine_pid(self) -> int:
        """The engine process, this front's only child."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(children[0])

    def terminate(self) -> None:
        """SIGTERM, as kubelet sends it; does not wait."""
        self.process.send_signal(signal.SIGTERM)

    def wait(self) -> int:
        """The exit code, once its last line has been read too."""
        code = self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        return code

    def line(self, event: str) -> dict[str, Any]:
        """Its first line of this event, waited for: who logs it may be read later than who answers."""
        deadline = time.monotonic() + PATIENCE_S
        while not (found := [line for line in self.lines.copy() if line.get("event") == event]):
            assert time.monotonic() < deadline, self.lines
            time.sleep(0.02)
        return found[0]

    def close(self) -> None:
        """End it however it is, and leave nothing."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join()
        shutil.rmtree(self.run_dir, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __post_init__(self) -> None:
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self._take(line)
        self._listening.set()

    def _take(self, line: str) -> None:
        try:
            entry = json.loads(line)
        except ValueError:
            entry = {"event": line.rstrip()}
        self.lines.append(entry)
        if entry.get("event") == "listening":
            self.http, self.grpc, self.probes = (f"{entry['host']}:{entry[name]}" for name in ("http", "grpc", "probes"))
            self._listening.set()

    def wait_listening(self) -> None:
        if not self._listening.wait(PATIENCE_S) or not self.http:
            raise AssertionError(f"does not listen, exit code {self.process.poll()}: {self.lines}")


def start_daemon(config: DaemonConfig, env: dict[str, str] | None = None, stderr: int | None = None) -> Replica:
    """Started, whatever comes of it. With stderr=subprocess.STDOUT the engine's lines are among the daemon's."""
    return launch(config.model_dump_json(by_alias=True, exclude_none=True), Path(config.listen.run_dir), env, stderr)


def launch(config: str, run_dir: Path, env: dict[str, str] | None = None, stderr: int | None = None) -> Replica:
    """The same for a DaemonConfig that somebody else has written."""
    path = run_dir / "daemon.json"
    path.write_text(config)
    argv = [sys.executable, "-P", "-m", "pagoda_daemon", "--config", str(path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **(env or {})}
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment)
    return Replica(process, run_dir)


def start_replica(config: DaemonConfig, stderr: int | None = None, env: dict[str, str] | None = None) -> Replica:
    """Started and ready. To be closed: `with start_replica(config) as replica`."""
    replica = start_daemon(config, env, stderr=stderr)
    try:
        replica.wait_listening()
        replica.wait_ready()
    except BaseException:
        replica.close()
        raise
    return replica
