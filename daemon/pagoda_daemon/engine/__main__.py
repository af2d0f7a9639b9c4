"""The engine process's entry: `python -P -m pagoda_daemon.engine --config F --inbox ADDR --outbox ADDR --parent PID`, exec'd by the front.

Sets up what belongs to the process (death with the parent, signals, priority, compute threads' spinning), then runs `engine.loop`.
Exits 0 after Shutdown, 78 when no restart can help, 1 otherwise; the reason went to the front before.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from pagoda_daemon.process.logs import SteadyLoggerFactory
from pagoda_daemon.process.parent import belong_to_parent, dump_stacks_on_signal

if TYPE_CHECKING:
    from pagoda_contracts.launch import DaemonConfig

_NICE = 5


def main(argv: Sequence[str] | None = None) -> None:
    """Run until told to stop; never returns."""
    parser = argparse.ArgumentParser(prog="pagoda-engine")
    for name in ("config", "inbox", "outbox"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--parent", type=int, required=True)
    arguments = parser.parse_args(argv)
    parent = belong_to_parent(arguments.parent)
    _own_process()
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            structlog.dev.ConsoleRenderer() if sys.stderr.isatty() else structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=SteadyLoggerFactory(sys.stderr.fileno()),
    )
    code = _run(Path(arguments.config), arguments.inbox, arguments.outbox, parent)
    # A device thread that hangs or still loads would be torn down in the middle of native code by a normal exit.
    sys.stderr.flush()
    os._exit(code)


def _own_process() -> None:
    """Show its stacks when asked, and yield to the front's heartbeat: on two cores compute threads that spin or outrank it starve a
    500 ms beat. libgomp reads its variable when torch is imported, which has not happened yet."""
    dump_stacks_on_signal()
    os.nice(_NICE)
    os.environ["GOMP_SPINCOUNT"] = "1000"


def _run(config_path: Path, inbox: str, outbox: str, parent: int) -> int:
    from pagoda_daemon.engine.exits import exit_code, failure
    from pagoda_daemon.engine.loop import Engine
    from pagoda_daemon.engine.wire import Wire

    wire = Wire(inbox, outbox)
    try:
        config = _read_config(config_path)
        from pagoda_daemon.engine.build import build_worker
        from pagoda_daemon.engine.events import kv_events
        from pagoda_daemon.engine.grammars import pool_maker
        from pagoda_daemon.runner.host import Host

        pools = pool_maker(Path(config.model.path) / "tokenizer.json", Host().cores())
        engine = Engine(wire, config.engine, lambda progress: build_worker(config, progress), lambda: time.monotonic() * 1000, pools)
        with kv_events(config) as events:
            engine.publish(events)
            return engine.run(lambda: os.getppid() != parent)
    except Exception as error:  # noqa: BLE001  the last word goes to the front
        structlog.get_logger(__name__).exception("engine failed")
        message = failure(error)
        wire.send(message)
        return exit_code(message)
    finally:
        wire.close()


def _read_config(path: Path) -> DaemonConfig:
    from pagoda_contracts.launch import DaemonConfig

    from pagoda_daemon.core.errors import ConfigRejected

    try:
        return DaemonConfig.model_validate_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigRejected(f"{path} is not a valid DaemonConfig: {error}") from error


if __name__ == "__main__":
    main()
