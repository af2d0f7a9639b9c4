"""A whole front in the test's own loop, over a simulated engine: every wire is real, no process is started."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio
from pagoda_contracts.launch import DaemonConfig, EngineConfig, Listen, ModelConfig, SimulatedWorker, TestingConfig
from pagoda_contracts.units import parse_duration
from pagoda_daemon.api.front.front import Backing, Front, Ports, Probes
from pagoda_daemon.core.errors import EngineDied
from pagoda_daemon.engine.build import Progress
from pagoda_daemon.health.nvml import load_nvml
from pagoda_daemon.process.settings import Settings
from pagoda_daemon.runner.faulty import FaultyWorker
from pagoda_daemon.runner.worker import Worker
from pagoda_daemon.simulated.replicas.engine import LocalEngine
from support.engine.toy_model import VOCAB, toy_text

NAME = "toy"
PATIENCE_S = 300.0


@dataclass
class LocalFront:
    """`http` and `grpc` are "127.0.0.1:port"."""

    front: Front
    engine: _Engine
    ports: Ports
    task: asyncio.Task[None]

    @property
    def http(self) -> str:
        return f"127.0.0.1:{self.ports.http}"

    @property
    def grpc(self) -> str:
        return f"127.0.0.1:{self.ports.grpc}"

    def channel(self) -> Any:
        return grpc.aio.insecure_channel(self.grpc)

    async def until(self, holds: Any) -> None:
        """Looked at after each change of the replica's state."""
        changed = asyncio.Event()
        self.front.replica.listeners.append(changed.set)
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not holds():
                    changed.clear()
                    await changed.wait()
        finally:
            self.front.replica.listeners.remove(changed.set)


def local_config(folder: Path, *, step_ms: float = 1.0, **changes: Any) -> DaemonConfig:
    """`changes` are fields of DaemonConfig, `engine` a dict of EngineConfig's."""
    engine = {"max_model_len": 512, "max_concurrency": 16, "kv_bytes": 2**20, **changes.pop("engine", {})}
    return DaemonConfig(
        model=ModelConfig(path="/nowhere", served_names=(NAME,)),
        engine=EngineConfig(**engine),
        listen=Listen(host="127.0.0.1", http=0, grpc=0, probes=0, run_dir=str(folder)),
        testing=TestingConfig(simulated=SimulatedWorker(step_ms=step_ms, vocab_size=VOCAB)),
        **changes,
    )


class _Engine(LocalEngine):
    """With the configuration's faults. `worker` is there once it has loaded."""

    worker: Worker

    def _load(self, progress: Progress) -> Worker:
        worker, faults = super()._load(progress), self._config.testing.faults if self._config.testing else ()
        self.worker = FaultyWorker(worker, faults) if faults else worker
        return self.worker


class NoProbes:
    """In the place of the probe server, whose thread takes half a second to end."""

    port = 0

    def __init__(self, *_: Any) -> None: ...

    def close(self) -> None: ...


@asynccontextmanager
async def local_front(
    config: DaemonConfig, probes: Callable[..., Probes] = NoProbes, nvml: Callable[[], Any] = load_nvml
) -> AsyncIterator[LocalFront]:
    """Listening and loaded; killed at the end."""
    engines: list[_Engine] = []

    def engine(replica: Any) -> _Engine:
        engines.append(_Engine(config, 0.0, replica))
        return engines[0]

    front = Front(Settings(config, Path(), parse_duration(config.drain_timeout)), Backing(engine, toy_text, probes, nvml=nvml))
    listening: asyncio.Future[Ports] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(front.run(listening.set_result))
    try:
        await asyncio.wait({task, listening}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
        made = LocalFront(front, engines[0], listening.result(), task)
        await made.until(lambda: front.replica.accepting)
        yield made
    finally:
        front.drop_connections()
        task.cancel()
        with suppress(asyncio.CancelledError, EngineDied):
            await task
