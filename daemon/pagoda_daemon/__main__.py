"""Door of `pagoda-daemon`: command line → settings → engine process → front, or the simulator. Maps errors to exit codes, decides
nothing else.

Exit codes: 0 drained; 1 the engine died; 78 no restart can cure it. The termination message has the reason for any code but 0.
"""

from __future__ import annotations

import logging
import signal
import sys

import structlog
from pagoda_contracts.names import EXIT_PERMANENT

from pagoda_daemon.core.errors import DaemonError, PermanentError
from pagoda_daemon.process.logs import SteadyLoggerFactory

log = structlog.get_logger()


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
    try:
        if sys.argv[1:2] == [settings.SIMULATE_FRONTS]:
            from pagoda_daemon.simulated.replicas import fronts

            fronts.run(sys.argv[2:])
            return
        process.run(settings.resolve(sys.argv[1:]))
    except PermanentError as error:
        log.error("permanent_fault", reason=error.reason, message=str(error))
        settings.leave_reason(f"{error.reason}: {error}")
        sys.exit(EXIT_PERMANENT)
    except DaemonError as error:
        log.error("stopped", reason=type(error).__name__, message=str(error))
        settings.leave_reason(f"{type(error).__name__}: {error}")
        sys.exit(1)
    except Exception as error:
        settings.leave_reason(f"{type(error).__name__}: {error}")
        raise


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


if __name__ == "__main__":
    main()
