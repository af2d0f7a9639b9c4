"""The kinds of fault that a replica of real processes is struck with, and clients on it while it is. Used by the fault table's tests, which
say what must come of each, and by bench/faults.py, which says how soon."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from pagoda_contracts.launch import DaemonConfig, Fault, HealthConfig
from pagoda_contracts.names import ERROR_OVERLOADED, PATH_READY
from support.clients.outcomes import MixedClients, Outcome
from support.servers.replica import NAME, PATIENCE_S, Replica, replica_config

BODY = {"model": NAME, "max_tokens": 400, "ignore_eos": True, "temperature": 0}
_LISTEN = "0A"  # in /proc/net/tcp
ANSWER = 150  # tokens of a stream that goes on beside a request that ends


@dataclass(frozen=True)
class Fatal:
    """Ends the process. Injected by the configuration, or a signal to the engine; `why` is a part of what the watchdog says, where it is it
    that notices."""

    name: str
    fault: Fault | None = None
    number: signal.Signals | None = None
    why: str = ""

    @property
    def faults(self) -> tuple[Fault, ...]:
        return (self.fault,) if self.fault else ()


FATAL = (
    Fatal("step hang", Fault(kind="hang", at_step=20), why="has run for"),
    Fatal("engine kill -9", number=signal.SIGKILL),
    Fatal("engine SIGSTOP", number=signal.SIGSTOP, why="engine's heartbeat"),
    Fatal("front loop blocked", Fault(kind="block", at_step=20), why="front's loop"),
    Fatal("detokeniser stalled", Fault(kind="stall", at_step=60), why="front's loop"),
    Fatal("device broken for good", Fault(kind="fatal", at_step=20)),
)
# No thread of Python runs any more: nobody notices in words, and nobody is told in words.
FROZEN = Fatal("interpreter stuck", Fault(kind="freeze", at_step=20))


@dataclass(frozen=True)
class Local:
    """Ends one request, which is answered with this status where its answer has not begun yet."""

    name: str
    fault: Fault
    status: int
    code: str


LOCAL = (
    Local("NaN logits", Fault(kind="nan", at_step=50), 500, "internal_error"),
    Local("worker exception", Fault(kind="poison", at_step=50), 500, "internal_error"),
    Local("out of memory at a request", Fault(kind="oom", at_step=50), 503, ERROR_OVERLOADED),
)


def config(folder: Path, threshold_s: float, *faults: Fault) -> DaemonConfig:
    return replica_config(folder, step_ms=10.0, faults=faults, health=HealthConfig(progress_timeout=f"{threshold_s:g}s"))


async def strike(replica: Replica, case: Fatal) -> tuple[list[Outcome], float]:
    """What each client was told, and when a signal struck; a fault of the configuration came at the latest then."""
    clients = MixedClients(replica.http, BODY)
    await clients.streaming()
    struck = time.monotonic()
    if case.number is not None:
        os.kill(replica.engine_pid(), case.number)
    return await clients.ended(), struck


async def one_of_many(replica: Replica) -> list[Outcome]:
    """Streams of ANSWER tokens, and, when the fault is due, one who comes late."""
    streams = MixedClients(replica.http, {**BODY, "max_tokens": ANSWER})
    await streams.streaming()
    while any(client.stream and not client.ended and len(client.events) < 60 for client in streams.outcomes):
        await asyncio.sleep(0.01)
    late = MixedClients(replica.http, {**BODY, "max_tokens": 20}, streams=0, wholes=1)
    return await streams.ended() + await late.ended()


@contextmanager
def full_disk(made: DaemonConfig) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A replica, ready, that can write neither a log line nor a termination message; the process and its address."""
    path = Path(made.listen.run_dir) / "daemon.json"
    path.write_text(made.model_dump_json(by_alias=True, exclude_none=True))
    argv = [sys.executable, "-P", "-m", "pagoda_daemon", "--config", str(path)]
    with Path("/dev/full").open("w") as full:
        process = subprocess.Popen(argv, stdout=full, stderr=full, env={**os.environ, "PAGODA_TERMINATION_LOG": "/dev/full"})
    try:
        _until(lambda: _answers(process.pid, PATH_READY) and _answers(process.pid, "/v1/models"), process)
        yield process, _answers(process.pid, "/v1/models")[0]
    finally:
        process.kill()
        process.wait()


def _answers(pid: int, path: str) -> list[str]:
    """Of a process that cannot say where it listens, the addresses that have a good answer at this path."""
    return [address for address in listening(pid) if reachable(f"http://{address}{path}")]


def listening(pid: int) -> list[str]:
    """Where a process accepts connections, as the kernel has it."""
    mine = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            mine.add(str(link.readlink()))
    rows = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    ports = [int(row[1].partition(":")[2], 16) for row in rows if row[3] == _LISTEN and f"socket:[{row[9]}]" in mine]
    return [f"127.0.0.1:{port}" for port in ports]


def _until(come: Callable[[], Any], process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not come():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)


def reachable(url: str) -> bool:
    try:
        return httpx.get(url, timeout=60).status_code == 200
    except httpx.HTTPError:
        return False
