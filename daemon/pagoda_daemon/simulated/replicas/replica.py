"""One simulated replica: a real front on an address of its own, over an engine in this process. Made by `fronts.py`."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog
from pagoda_contracts.launch import DaemonConfig, SimulatedWorker, TestingConfig
from pagoda_contracts.pb.daemon_pb2 import Phase
from pagoda_contracts.units import parse_duration

from pagoda_daemon.api.front.front import Backing, Front
from pagoda_daemon.core.errors import DaemonError
from pagoda_daemon.health.replica import Limits, ProbeServer, Replica, ready
from pagoda_daemon.process.settings import Settings
from pagoda_daemon.simulated.replicas.engine import LocalEngine
from pagoda_daemon.simulated.replicas.text import VOCAB
from pagoda_daemon.text.tokens import ModelText

log = structlog.get_logger()

STEP_MS: Final = 20.0  # as long as a decode step of a mid-sized model on a data-centre GPU


@dataclass(frozen=True)
class Wanted:
    """What one replica is started with."""

    address: str
    config: DaemonConfig
    load_s: float


def simulated(config: DaemonConfig, address: str) -> DaemonConfig:
    """The configuration on that address. Its model's files are not there, so the vocabulary is that of `text.py`."""
    given = config.testing.simulated if config.testing and config.testing.simulated else SimulatedWorker(step_ms=STEP_MS)
    testing = TestingConfig(simulated=given.model_copy(update={"vocab_size": VOCAB}))
    return config.model_copy(update={"testing": testing, "listen": config.listen.model_copy(update={"host": address})})


class _Probes:
    """A probe server that is closed off the event loop: closing waits up to 0.5 s for its thread."""

    def __init__(self, replica: Replica, host: str, port: int, limits: Limits) -> None:
        self._server = ProbeServer(replica, host, port, limits)

    @property
    def port(self) -> int:
        return self._server.port

    def close(self) -> None:
        """The front's wish; `end` does it."""

    async def end(self) -> None:
        await asyncio.to_thread(self._server.close)


class SimulatedReplica:
    """Started when made, in the running loop; ConfigRejected where it cannot be. `ended` once nothing of it listens any more."""

    def __init__(self, wanted: Wanted, text: ModelText) -> None:
        self.wanted = wanted
        config = simulated(wanted.config, wanted.address)
        settings = Settings(config, Path(), parse_duration(config.drain_timeout))
        backing = Backing(lambda replica: LocalEngine(config, wanted.load_s, replica), lambda: text, self._probe)
        self._front = Front(settings, backing)
        self._task = asyncio.ensure_future(self._live())
        self.failure = ""
        self._over = False
        self._killed = False

    def _probe(self, replica: Replica, host: str, port: int, limits: Limits) -> _Probes:
        self._probes = _Probes(replica, host, port, limits)
        return self._probes

    @property
    def ended(self) -> bool:
        return self._task.done()

    @property
    def phase(self) -> str:
        return Phase.Name(self._front.replica.phase).removeprefix("PHASE_").lower()

    @property
    def ready(self) -> tuple[bool, str]:
        """What /readyz answers now; of one whose front is over, that: its engine may have loaded meanwhile."""
        if self._over:
            return False, "ended"
        return ready(self._front.replica, time.monotonic(), Limits())

    def stop(self) -> None:
        """As SIGTERM: drain, then end. Again: nothing more, since a second signal would end the whole process."""
        if not self._front.replica.drain.final:
            self._front.stop()

    def kill(self) -> None:
        """As SIGKILL: its streams break off."""
        self._front.drop_connections()
        # Cancelled twice, or where it ends by itself, the clean-up would break off and leave a listener on an address that is given away.
        if not (self._killed or self._over or self._front.ending):
            self._killed = True
            self._task.cancel()

    async def wait(self) -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.wait([self._task])

    async def _live(self) -> None:
        """A failure is reported once nothing listens any more: its reader may give the address to another replica."""
        failure = ""
        try:
            await self._front.run(lambda _: None)
        except DaemonError as error:
            failure = str(error)
            log.warning("replica_failed", address=self.wanted.address, reason=type(error).__name__, message=str(error))
        finally:
            self._over = True
            await asyncio.shield(self._probes.end())
        self.failure = failure
