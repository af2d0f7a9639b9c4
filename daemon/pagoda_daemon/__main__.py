"""Door of `pagoda-daemon`: command line → settings → engine process → front, or the simulator. Maps errors to exit codes, decides
nothing else.

Exit codes: 0 drained; 1 the engine died; 78 no restart can cure it, and the reason is in the termination message.
"""

from __future__ import annotations

import logging
import signal
import sys
from contextlib import suppress
from pathlib import Path

import structlog
from pagoda_contracts.names import EXIT_PERMANENT

from pagoda_daemon.core.errors import DaemonError, PermanentError
from pagoda_daemon.process.logs import SteadyLoggerFactory

log = structlog.get_logger()
_MAX_REASON = 2048  # bytes; kubelet keeps 4096 of a termination message


def main() -> None:
    """Runs until drained."""
    _end_quietly()
    _log_to_stdout()
    if sys.argv[1:2] == ["simulate"]:
        _simulate(sys.argv[2:])
        return
    if sys.argv[1:2] == ["bench"]:
        _bench(sys.argv[2:])
        return
    try:
        from pagoda_daemon.api.front import process
        from pagoda_daemon.process import settings
    except ModuleNotFoundError as missing:
        sys.exit(f"pagoda-daemon: module {missing.name!r} is missing; install it in a checkout: pip install '.[daemon]'")
    reason_file = settings.termination_log()
    try:
        if sys.argv[1:2] == [settings.SIMULATE_FRONTS]:
            from pagoda_daemon.simulated.replicas import fronts

            fronts.run(sys.argv[2:])
            return
        process.run(settings.resolve(sys.argv[1:]))
    except PermanentError as error:
        _explain(error, reason_file)
        sys.exit(EXIT_PERMANENT)
    except DaemonError as error:
        log.error("stopped", reason=type(error).__name__, message=str(error))
        sys.exit(1)


def _end_quietly() -> None:
    """Until the front listens for signals itself: the imports before take seconds."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # as process 1 of a container, the default is to ignore it
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # Ctrl-C would be a traceback out of an import
        signal.signal(signal.SIGINT, lambda *_: sys.exit(130))


def _simulate(argv: list[str]) -> None:
    try:
        from pagoda_daemon.simulated.replay.command import main as simulate
    except ModuleNotFoundError as missing:
        sys.exit(f"pagoda-daemon simulate: module {missing.name!r} is missing; install it in a checkout: pip install '.[daemon]'")
    simulate(argv)


def _bench(argv: list[str]) -> None:
    try:
        from pagoda_daemon.bench.command import main as bench
    except ModuleNotFoundError as missing:
        sys.exit(f"pagoda-daemon bench: module {missing.name!r} is missing; install it in a checkout: pip install '.[bench]'")
    bench(argv)


def _log_to_stdout() -> None:
    renderer = structlog.dev.ConsoleRenderer() if sys.stdout.isatty() else structlog.processors.JSONRenderer()
    stamps: list[structlog.typing.Processor] = [
        structlog.processors.TimeStamper(fmt="iso"),
        structlog.processors.add_log_level,
        structlog.processors.format_exc_info,
    ]
    structlog.configure(processors=[*stamps, renderer], logger_factory=SteadyLoggerFactory(sys.stdout.fileno()))
    logging.basicConfig(level=logging.WARNING, stream=sys.stdout)


def _explain(error: PermanentError, reason_file: Path | None) -> None:
    """One line: to the log, and to where the operator reads it."""
    line = f"{error.reason}: {' '.join(str(error).split())}"
    log.error("permanent_fault", reason=error.reason, message=str(error))
    if reason_file is not None:
        with suppress(OSError):  # a full disk: the exit code still says that no restart will do
            reason_file.write_bytes(line.encode()[:_MAX_REASON] + b"\n")


if __name__ == "__main__":
    main()
