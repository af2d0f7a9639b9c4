"""Front: a replica's front from its first listener to its last: builds its parts, serves, drains, ends. Made by `api/front/process.py`, and
many in one process by `simulated`.

Drain, in this order: phase DRAINING (readyz, state frames) → refusals when the watchers know → in-flight to zero or the deadline → one
error for what is left → listener open until every watcher was sent the DRAINING frame and a second has passed → servers, engine, exit.
The listener closes last: a gateway that has not yet seen the frame gets a typed refusal and picks again, never a refused connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import time
from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import structlog
import uvicorn
from pagoda_contracts.launch import HealthConfig
from pagoda_contracts.pb.daemon_pb2 import Phase
from pagoda_contracts.units import parse_duration

from pagoda_daemon.api.access.auth import Guard
from pagoda_daemon.api.front.adapting import adapting
from pagoda_daemon.api.front.methods import methods
from pagoda_daemon.api.grpc import server as grpc_server
from pagoda_daemon.api.grpc.control import CUT, Control
from pagoda_daemon.api.grpc.watch import Identity, StateFeed
from pagoda_daemon.api.http.app import Parts, application
from pagoda_daemon.api.http.connection import Bounds
from pagoda_daemon.api.http.final_errors import send_final_errors
from pagoda_daemon.api.http.lines import report
from pagoda_daemon.api.http.listener import bind, default_bounds, server_config
from pagoda_daemon.api.http.tls import tls_context
from pagoda_daemon.api.http.tracing import tracing
from pagoda_daemon.api.http.web import Web
from pagoda_daemon.api.routes.admission import Admission
from pagoda_daemon.api.routes.generation import Generator as TextGenerator
from pagoda_daemon.core.errors import ConfigRejected, DaemonError, Draining, EngineDied
from pagoda_daemon.engine.client import EngineLink
from pagoda_daemon.health.deep_check import DeepChecks
from pagoda_daemon.health.nvml import DeviceWatch, load_nvml
from pagoda_daemon.health.replica import Limits, ProbeServer, Replica, keep_beating
from pagoda_daemon.metrics import Build, Counts, Exposition, ModelWork, Slo
from pagoda_daemon.process.settings import Settings
from pagoda_daemon.text.files import read_json
from pagoda_daemon.text.tokens import ModelText

log = structlog.get_logger()

_REFUSE_AT_LEAST_S: Final = 1.0  # two heartbeats of WatchState: a gateway that just connected has seen DRAINING by then
_ANOTHER_PORT: Final = "; --port takes another one, 0 a free one"
_FLUSH_S: Final = 2.0  # for last bytes to leave after a stream was ended
_ENGINE_GRACE_S: Final = 5.0
_SECOND_SIGNAL_S: Final = 1.5
_LOOKS: Final = 6


class UnsignalledServer(uvicorn.Server):
    """Without signal handling of its own: the drain decides when to stop listening."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


@dataclass(frozen=True)
class Ports:
    """Where this process listens."""

    http: int
    grpc: int
    probes: int


class Probes(Protocol):
    """What answers probes until closed."""

    @property
    def port(self) -> int: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Backing:
    """What a front stands on. A simulated one has its engine in this process and shares its text with many."""

    engine: Callable[[Replica], EngineLink]
    text: Callable[[], ModelText]
    probes: Callable[[Replica, str, int, Limits], Probes] = ProbeServer
    bounds: Bounds | None = None
    tidy: Callable[[], None] = lambda: None  # before the process exits without coming back from `run`
    nvml: Callable[[], Any] = load_nvml


class Front:
    """Everything of one replica's front process. Make it in the running loop."""

    def __init__(self, settings: Settings, backing: Backing) -> None:
        config = settings.config
        self._settings = settings
        self._guard = Guard(config.auth)
        self._web, self._tls = Web.of(config.listen, closed=self._guard.closed), tls_context(config.listen.tls)
        self._tracing = tracing(settings.tracing, settings.version, wished=config.tracing is not None)
        self._text, self._bounds, self._tidy = backing.text, backing.bounds or default_bounds(), backing.tidy
        # An engine may be loaded before the tokenizer is read and the ports are open: only a replica that can be dialled is ready.
        self.replica = Replica(time.monotonic(), listening=False)
        with _refusing(f"listen.probes: cannot listen on {config.listen.host}:{config.listen.probes}"):
            self._probes = backing.probes(self.replica, config.listen.host, config.listen.probes, Limits.of(config.health))
        self._engine = backing.engine(self.replica)
        self._catalogue, self._orders = adapting(self.replica, self._engine, settings)
        self._admission = Admission(self.replica, adapters=self._catalogue)
        self._device = DeviceWatch(self.replica, backing.nvml)
        identity = Identity(config.model.served_names, config.revision, settings.version)
        self._feed = StateFeed(self.replica, identity, self._orders)
        self._control = Control(self.replica, settings.drain_timeout_s, self._engine.fail_streams, self._feed, uid=settings.pod_uid)
        self._grpc = grpc_server.server()
        self._server: UnsignalledServer | None = None
        self._signalled, self._hurry = asyncio.Event(), asyncio.Event()
        self.ending = False  # it closes what listens, in a few seconds; a cancellation would leave half of it open

    async def run(self, announce: Callable[[Ports], None]) -> None:
        """Serves until `stop` or the engine's end. Returns after a drain; raises PermanentError or EngineDied."""
        beat = asyncio.ensure_future(keep_beating(self.replica))
        engine = asyncio.ensure_future(self._engine.run())
        try:
            await self._serve(engine, announce)
        finally:
            beat.cancel()
            self._orders.close()
            self._device.close()
            self._probes.close()
            self._engine.close()
            with contextlib.suppress(asyncio.CancelledError, DaemonError):
                engine.cancel()
                await engine

    async def _serve(self, engine: asyncio.Future[None], announce: Callable[[Ports], None]) -> None:
        listen = self._settings.config.listen
        parts = self._parts(await asyncio.to_thread(self._read_text))
        configured = server_config(application(parts), self._engine.backlog, _FLUSH_S, self._bounds, self._tls)
        server = self._server = UnsignalledServer(configured)
        with _refusing(f"listen.http: cannot listen on {listen.host}:{listen.http}", _ANOTHER_PORT if self._settings.human else ""):
            listener = bind(listen.host, listen.http, self._bounds.send_buffer)
        serving = asyncio.ensure_future(server.serve([listener]))
        try:
            grpc_port = await self._start_grpc(parts)
            self.replica.listening = True
            self.replica.changed()
            announce(Ports(listener.getsockname()[1], grpc_port, self._probes.port))
        except BaseException:
            await self._close(server, serving)  # a front that shares its process leaves no listener to it
            raise
        signalled = asyncio.ensure_future(self._signalled.wait())
        deep_checks = asyncio.ensure_future(self._deep_checks.run())
        lines = asyncio.ensure_future(report(self.replica, parts.generator.counts))
        try:
            await asyncio.wait(_futures(signalled, engine, serving), return_when=asyncio.FIRST_COMPLETED)
            if not engine.done():
                await self._drain(engine)
        finally:
            signalled.cancel()
            deep_checks.cancel()
            lines.cancel()
            await self._end(engine, server, serving)
        if engine.done():
            engine.result()

    def _read_text(self) -> ModelText:
        """Seconds for a large tokenizer: off the loop, which beats meanwhile."""
        text = self._text()
        text.warm()
        return text

    def _parts(self, text: ModelText) -> Parts:
        config = self._settings.config
        counts = Counts(self._engine.meter, Slo.of(config.slo))
        every_s = parse_duration((config.health or HealthConfig()).deep_probe_every)
        self._deep_checks = DeepChecks(self._engine, text, self.replica, every_s)
        build = Build(self._settings.version, config.revision)
        exposition = Exposition(config.model.served_names[0], self.replica, counts, build, self._work)
        if self._catalogue is not None:
            exposition.more.append(self._catalogue.uses)
        generator = TextGenerator(self._engine, text, counts)
        said = (config.model.served_names, self._settings.version, config.revision, self._guard, self._settings.ping_after_s)
        return Parts(
            *(self.replica, self._admission, generator, exposition, *said, self._web),
            export=None if self._tracing is None else self._tracing.export,
            seed=config.engine.seed,
        )

    def _work(self) -> ModelWork | None:
        config = self._settings.config
        return ModelWork.of(read_json(Path(config.model.path) / "config.json", required=False), config.engine)

    async def _start_grpc(self, parts: Parts) -> int:
        listen = self._settings.config.listen
        self.methods = methods(parts, self._feed, self._control, self._orders)
        with _refusing(f"listen.grpc: cannot listen on {listen.host}:{listen.grpc}"):
            return await grpc_server.start(self._grpc, grpc_server.Methods(self.methods, self._guard), f"{listen.host}:{listen.grpc}")

    def stop(self) -> None:
        """What SIGTERM does: drain, and the second time hurry."""
        if not self._signalled.is_set():
            log.info("draining", in_flight=self.replica.in_flight, timeout_s=self._settings.drain_timeout_s)
            self._control.end()
            self._signalled.set()
        elif not self._hurry.is_set():
            log.warning("second_signal", in_flight=self.replica.in_flight)
            self._hurry.set()
            self._count_down(_LOOKS)

    def drop_connections(self) -> None:
        """As the kernel does with a killed process's, its listener too: without a word. For a front that shares its process."""
        if self._server is None:
            return
        for listener in getattr(self._server, "servers", []):  # uvicorn makes the attribute when it starts
            listener.close()
        for connection in list(self._server.server_state.connections):
            connection.transport.abort()

    def send_final_errors(self, error: DaemonError) -> int:
        """Sends an error to every client that waits, past a loop that stands still: from any thread, right before the process ends."""
        return 0 if self._server is None else send_final_errors(self._server.server_state.connections, error)

    def _count_down(self, looks: int) -> None:
        """In parts: if this process was stopped, at most one part counts, and the waiting clients are answered after it."""
        if looks:
            asyncio.get_running_loop().call_later(_SECOND_SIGNAL_S / _LOOKS, self._count_down, looks - 1)
        else:
            self._give_up()

    def _give_up(self) -> None:
        """The last resort of a second signal: whatever still waits, waits no longer."""
        self._engine.close()
        self._tidy()
        os._exit(1)

    async def _drain(self, engine: asyncio.Future[None]) -> None:
        now = asyncio.get_running_loop().time()
        deadline, refuse_until = now + self._control.left_s(), now + min(self._control.left_s(), _REFUSE_AT_LEAST_S)
        await self._until(self._control.announced(), deadline, engine)
        if not await self._until(self._admission.idle.wait(), deadline, engine):
            log.warning("drain_cut", in_flight=self.replica.in_flight, engine_alive=not engine.done())
            if not engine.done():
                await self._fail_streams(Draining(CUT))
        await self._until(self._feed.all_saw(Phase.PHASE_DRAINING), deadline, engine)
        await self._until(asyncio.Event().wait(), refuse_until, engine)

    async def _until(self, what: Coroutine[Any, Any, Any], deadline: float, engine: asyncio.Future[None]) -> bool:
        """Waits for `what`, at most to the deadline, the engine's end or the second signal. True: it came."""
        wanted: asyncio.Future[Any] = asyncio.ensure_future(what)
        hurry: asyncio.Future[Any] = asyncio.ensure_future(self._hurry.wait())
        left = max(0.0, deadline - asyncio.get_running_loop().time())
        await asyncio.wait({wanted, hurry, engine}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        came = wanted.done()
        for task in (wanted, hurry):
            task.cancel()
        return came

    async def _fail_streams(self, error: DaemonError) -> None:
        self._engine.fail_streams(error)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._admission.idle.wait(), _FLUSH_S)

    async def _end(self, engine: asyncio.Future[None], server: uvicorn.Server, serving: asyncio.Future[None]) -> None:
        died = engine.done()
        self.ending = True
        self.replica.enter(Phase.PHASE_STOPPED)
        if died:
            await self._fail_streams(EngineDied("the engine of this replica ended"))
        await self._close(server, serving)
        if not died:
            await self._engine.shutdown(_ENGINE_GRACE_S)

    async def _close(self, server: uvicorn.Server, serving: asyncio.Future[None]) -> None:
        self.ending = server.should_exit = True
        with contextlib.suppress(asyncio.CancelledError):
            await serving
        await self._grpc.stop(0)
        if self._tracing is not None:
            await self._tracing.close()


def _futures(*futures: asyncio.Future[Any]) -> set[asyncio.Future[Any]]:
    return set(futures)


@contextlib.contextmanager
def _refusing(what: str, taken: str = "") -> Generator[None]:
    """ConfigRejected with `what` before the reason; `taken` follows it where another program has the port."""
    try:
        yield
    except (OSError, OverflowError, RuntimeError) as error:  # a port beyond 65535 is an OverflowError, gRPC raises RuntimeError
        raise ConfigRejected(f"{what}: {error}{taken if getattr(error, 'errno', None) == errno.EADDRINUSE else ''}") from error
