"""The front process: the engine first, then the front beside its watchdog, and nothing left behind. Called by `__main__` alone."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import structlog
import uvloop
from pagoda_contracts.launch import Listen

from pagoda_daemon.api.front.faulty import faulty_parts
from pagoda_daemon.api.front.front import Backing, Front, Ports
from pagoda_daemon.api.front.startup_text import StartupText
from pagoda_daemon.api.routes.preparing import THREAD
from pagoda_daemon.core.errors import ConfigRejected, EngineDied
from pagoda_daemon.engine.client import EngineClient, EngineLink
from pagoda_daemon.engine.start import Wires, start_engine, wires
from pagoda_daemon.health.replica import Limits, Replica
from pagoda_daemon.health.watchdog import EXIT_STUCK, Ends, Watchdog
from pagoda_daemon.process.logs import SteadyLogger
from pagoda_daemon.process.settings import Settings, leave_reason

log = structlog.get_logger()
_STOPS: Final = (signal.SIGTERM, signal.SIGINT)


def run(settings: Settings) -> None:
    """Serves in the calling (main) thread until drained. The engine starts first: see `start_engine`."""
    if unknown := settings.config.unknown_fields():
        log.warning("unknown_config_fields", fields=unknown)
    run_dir = Path(settings.config.listen.run_dir)
    if not os.access(run_dir, os.W_OK):
        raise ConfigRejected(f"listen.runDir: {run_dir} is not a writable directory")
    addresses = wires(run_dir)
    early = _keep_signals()
    process = start_engine(settings.config_path, addresses)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(settings, process, addresses, early))
    finally:
        _tidy(settings, process)
    _leave_threads()


def _leave_threads() -> None:
    """Ends with 0 past a thread that still tokenizes for a client that left. If the interpreter ended first, it would stop that thread in
    the tokenizer's Rust code, which aborts the process."""
    if any(thread.name == THREAD for thread in threading.enumerate()):
        os._exit(0)


def _keep_signals() -> list[int]:
    """Signals from here on until the loop takes them: one that raised between the two ended in uvloop's stack, with code 1."""
    early: list[int] = []
    for number in _STOPS:
        signal.signal(number, lambda number, _frame: early.append(number))
    return early


def _tidy(settings: Settings, process: subprocess.Popen[bytes]) -> None:
    """No process and no socket is left."""
    if process.poll() is None:
        process.kill()
    process.wait()
    run_dir = Path(settings.config.listen.run_dir)
    if settings.human:  # a stand-alone start made its own; in a pod it is the emptyDir
        shutil.rmtree(run_dir, ignore_errors=True)
    for address in wires(run_dir):
        Path(address.removeprefix("ipc://")).unlink(missing_ok=True)


async def _serve(settings: Settings, process: subprocess.Popen[bytes], addresses: Wires, early: list[int]) -> None:
    config, loop = settings.config, asyncio.get_running_loop()
    client, text = faulty_parts(config.testing)
    engines: list[EngineClient] = []

    def engine(replica: Replica) -> EngineLink:
        engines.append(client(process, addresses, replica))
        return engines[0]

    template = None if config.model.chat_template is None else Path(config.model.chat_template)
    parsers = config.engine.tool_parser, template, config.engine.reasoning_parser
    read_text = partial(text, Path(config.model.path), *parsers)
    front = Front(settings, Backing(engine, read_text, tidy=lambda: _tidy(settings, process)))
    for number in _STOPS:
        loop.add_signal_handler(number, front.stop)
    for _ in early:
        front.stop()

    def abrupt(why: str) -> None:
        sent = front.send_final_errors(EngineDied("this replica stands still and ends"))
        log.error("ended_abruptly", why=why, clients_answered=sent)
        leave_reason(f"{EngineDied.__name__}: {why}")
        _tidy(settings, process)
        os._exit(EXIT_STUCK)

    ends = Ends(lambda why: _ask(loop, engines[0].condemn, why), abrupt)
    watchdog = Watchdog(front.replica, Limits.of(config.health), ends)
    try:
        await front.run(lambda ports: _announce(settings, front.replica, ports))
    finally:
        watchdog.close()


def _ask(loop: asyncio.AbstractEventLoop, what: Callable[[str], None], why: str) -> None:
    with suppress(RuntimeError):  # the loop is closed: the end has come
        loop.call_soon_threadsafe(what, why)


def _announce(settings: Settings, replica: Replica, ports: Ports) -> None:
    host = settings.config.listen.host
    log.info("listening", host=host, http=ports.http, grpc=ports.grpc, probes=ports.probes, model=settings.config.model.served_names[0])
    if settings.human:
        write = SteadyLogger(sys.stderr.fileno()).write  # `sys.stderr.write` raises when the reader of a pipe has gone
        listen, name = settings.config.listen, settings.config.model.served_names[0]
        trust = None if listen.tls is None else listen.tls.cert_file
        StartupText(replica, _url(listen, ports.http), name, write, trust=trust).begin()


def _url(listen: Listen, port: int) -> str:
    """As this machine reaches it."""
    scheme, host = "http" if listen.tls is None else "https", f"[{listen.host}]" if ":" in listen.host else listen.host
    return f"{scheme}://{host}:{port}{listen.root_path or ''}"
