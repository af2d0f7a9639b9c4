"""The life of the front process: builds its parts, serves, drains on SIGTERM, ends. Called by `__main__` alone.

Drain, in this order: phase DRAINING (readyz, state frames, refusals) → in-flight to zero or the deadline → one clean error for what
is left → listener open and refusing until every watcher was sent the DRAINING frame and a second has passed → servers, engine, exit.
The listener closes last: a gateway that has not yet seen the frame gets a typed refusal and picks again, never a refused connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import grpc.aio
import structlog
import uvicorn
import uvloop
from pagoda_contracts.pb.daemon_pb2 import Phase

from pagoda_daemon.api.app import Parts, application
from pagoda_daemon.api.endpoints import Admission
from pagoda_daemon.api.generation import Generator as TextGenerator
from pagoda_daemon.api.watch import Identity, StateFeed
from pagoda_daemon.engine.client import EngineClient, EngineLink, Wires, start_engine, wires
from pagoda_daemon.errors import ConfigRejected, DaemonError, Draining, EngineDied
from pagoda_daemon.health import Limits, ProbeServer, Replica, keep_beating
from pagoda_daemon.metrics import Counts, Exposition
from pagoda_daemon.settings import Settings
from pagoda_daemon.tokens import ModelText

log = structlog.get_logger()

_REFUSE_AT_LEAST_S: Final = 1.0  # two heartbeats of WatchState: a gateway that just connected has seen DRAINING by then
_FLUSH_S: Final = 2.0  # for last bytes to leave after a stream was ended
_ENGINE_GRACE_S: Final = 5.0
_SECOND_SIGNAL_S: Final = 1.5
_KEEP_ALIVE_S: Final = 75  # longer than any sensible client pool keeps a connection: the client closes first, no race


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


class Front:
    """Everything of one replica's front process. Make it in the running loop."""

    def __init__(self, settings: Settings, backing: Backing) -> None:
        config = settings.config
        self._settings = settings
        self._text = backing.text
        # An engine may be loaded before the tokenizer is read and the ports are open: ready is who can be dialled.
        self.replica = Replica(time.monotonic(), listening=False)
        with _refusing(f"listen.probes: cannot listen on {config.listen.host}:{config.listen.probes}"):
            self._probes = backing.probes(self.replica, config.listen.host, config.listen.probes, Limits())
        self._engine = backing.engine(self.replica)
        self._admission = Admission(self.replica)
        self._feed = StateFeed(self.replica, Identity(config.model.served_names, config.revision, settings.version))
        self._grpc = grpc.aio.server(options=[("grpc.so_reuseport", 0)])  # a port in use is an error
        self._server: UnsignalledServer | None = None
        self._signalled = asyncio.Event()
        self._hurry = asyncio.Event()

    async def run(self, announce: Callable[[Ports], None]) -> None:
        """Serves until `stop` or the engine's end. Returns after a drain; raises PermanentError or EngineDied."""
        beat = asyncio.ensure_future(keep_beating(self.replica))
        engine = asyncio.ensure_future(self._engine.run())
        try:
            await self._serve(engine, announce)
        finally:
            beat.cancel()
            self._probes.close()
            self._engine.close()
            with suppress(asyncio.CancelledError, DaemonError):
                engine.cancel()
                await engine

    async def _serve(self, engine: asyncio.Future[None], announce: Callable[[Ports], None]) -> None:
        server = self._server = UnsignalledServer(_uvicorn_config(self._parts()))
        listener = _bind(self._settings.config.listen.host, self._settings.config.listen.http)
        serving = asyncio.ensure_future(server.serve([listener]))
        try:
            grpc_port = await self._start_grpc()
            self.replica.listening = True
            self.replica.changed()
            announce(Ports(listener.getsockname()[1], grpc_port, self._probes.port))
        except BaseException:
            await self._close(server, serving)  # a front that shares its process leaves no listener to it
            raise
        signalled = asyncio.ensure_future(self._signalled.wait())
        try:
            await asyncio.wait(_futures(signalled, engine, serving), return_when=asyncio.FIRST_COMPLETED)
            if not engine.done():
                await self._drain(engine)
        finally:
            signalled.cancel()
            await self._end(engine, server, serving)
        if engine.done():
            engine.result()

    def _parts(self) -> Parts:
        config = self._settings.config
        text, counts = self._text(), Counts()
        exposition = Exposition(config.model.served_names[0], self.replica, counts)
        generator = TextGenerator(self._engine, text, counts)
        return Parts(self.replica, self._admission, generator, exposition, config.model.served_names, self._settings.version)

    async def _start_grpc(self) -> int:
        listen = self._settings.config.listen
        self._grpc.add_generic_rpc_handlers((self._feed.handler(),))
        with _refusing(f"listen.grpc: cannot listen on {listen.host}:{listen.grpc}"):
            port: int = self._grpc.add_insecure_port(f"{listen.host}:{listen.grpc}")
        await self._grpc.start()
        return port

    def stop(self) -> None:
        """What SIGTERM does: drain, and the second time hurry."""
        if not self._signalled.is_set():
            log.info("draining", in_flight=self.replica.in_flight, timeout_s=self._settings.drain_timeout_s)
            self.replica.enter(Phase.PHASE_DRAINING)
            self._signalled.set()
        elif not self._hurry.is_set():
            log.warning("second_signal", in_flight=self.replica.in_flight)
            self._hurry.set()
            asyncio.get_running_loop().call_later(_SECOND_SIGNAL_S, self._give_up)

    def drop_connections(self) -> None:
        """As the kernel does with a killed process's, its listener too: without a word. For a front that shares its process."""
        if self._server is None:
            return
        for listener in getattr(self._server, "servers", []):  # uvicorn makes the attribute when it starts
            listener.close()
        for connection in list(self._server.server_state.connections):
            connection.transport.abort()

    def _give_up(self) -> None:
        """The last resort of a second signal: whatever still waits, waits no longer."""
        self._engine.close()
        os._exit(1)

    async def _drain(self, engine: asyncio.Future[None]) -> None:
        deadline = asyncio.get_running_loop().time() + self._settings.drain_timeout_s
        refuse_until = min(deadline, asyncio.get_running_loop().time() + _REFUSE_AT_LEAST_S)
        if not await self._until(self._admission.idle.wait(), deadline, engine):
            log.warning("drain_cut", in_flight=self.replica.in_flight, engine_alive=not engine.done())
            if not engine.done():
                await self._fail_streams(Draining("this replica had to stop before the request was finished"))
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
        with suppress(TimeoutError):
            await asyncio.wait_for(self._admission.idle.wait(), _FLUSH_S)

    async def _end(self, engine: asyncio.Future[None], server: uvicorn.Server, serving: asyncio.Future[None]) -> None:
        died = engine.done()
        self.replica.enter(Phase.PHASE_STOPPED)
        if died:
            await self._fail_streams(EngineDied("the engine of this replica ended"))
        await self._close(server, serving)
        if not died:
            await self._engine.shutdown(_ENGINE_GRACE_S)

    async def _close(self, server: uvicorn.Server, serving: asyncio.Future[None]) -> None:
        server.should_exit = True
        with suppress(asyncio.CancelledError):
            await serving
        await self._grpc.stop(0)


def _futures(*futures: asyncio.Future[Any]) -> set[asyncio.Future[Any]]:
    return set(futures)


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    with _refusing(f"listen.http: cannot listen on {host}:{port}"), contextlib.ExitStack() as on_error:
        on_error.callback(listener.close)
        listener.bind((host, port))
        on_error.pop_all()
    return listener


@contextlib.contextmanager
def _refusing(what: str) -> Generator[None]:
    try:
        yield
    except (OSError, RuntimeError) as error:  # gRPC raises RuntimeError
        raise ConfigRejected(f"{what}: {error}") from error


def _uvicorn_config(parts: Parts) -> uvicorn.Config:
    return uvicorn.Config(
        application(parts),
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=int(_FLUSH_S),
    )


def run(settings: Settings) -> None:
    """Serves in the calling (main) thread until drained. The engine starts first: see `start_engine`."""
    if unknown := settings.config.unknown_fields():
        log.warning("unknown_config_fields", fields=unknown)
    run_dir = Path(settings.config.listen.run_dir)
    if not os.access(run_dir, os.W_OK):
        raise ConfigRejected(f"listen.runDir: {run_dir} is not a writable directory")
    addresses = wires(run_dir)
    process = start_engine(settings.config_path, addresses)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(settings, process, addresses))
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        if settings.human:  # a stand-alone start made its own; in a pod it is the emptyDir
            shutil.rmtree(run_dir, ignore_errors=True)


async def _serve(settings: Settings, process: subprocess.Popen[bytes], addresses: Wires) -> None:
    backing = Backing(lambda replica: EngineClient(process, addresses, replica), lambda: ModelText(Path(settings.config.model.path)))
    front = Front(settings, backing)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, front.stop)
    await front.run(lambda ports: _announce(settings, ports))


def _announce(settings: Settings, ports: Ports) -> None:
    host = settings.config.listen.host
    log.info("listening", host=host, http=ports.http, grpc=ports.grpc, probes=ports.probes, model=settings.config.model.served_names[0])
    if settings.human:
        sys.stderr.write(f"OpenAI API on http://{host}:{ports.http}/v1 when loaded (http://{host}:{ports.probes}/readyz)\n")
