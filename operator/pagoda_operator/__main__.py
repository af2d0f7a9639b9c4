"""Door of `pagoda-operator`: command line → settings → serve.py. Names the extra where a package is missing."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys

import structlog

from pagoda_operator.errors import SettingsError
from pagoda_operator.settings import load


def _log(least: int = logging.INFO) -> None:
    """Ours as JSON lines on stderr; libraries from WARNING."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(least),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


def main() -> None:
    """Console script."""
    _log()
    try:
        sys.exit(_replay(sys.argv[2:]) if sys.argv[1:2] == ["replay"] else _operate(sys.argv[1:]))
    except ModuleNotFoundError as missing:
        sys.exit(f"pagoda-operator: {missing.name} is not installed: pip install 'pagoda[operator]'")


def _replay(argv: list[str]) -> int:
    from pagoda_operator.replay.command import main as replay

    return replay(argv)


def _operate(argv: list[str]) -> int:
    try:
        settings = load(argv, os.environ)
    except SettingsError as error:
        sys.exit(f"pagoda-operator: {error}")
    if settings.debug:
        _log(logging.DEBUG)
    from pagoda_operator import serve

    # Until Kopf takes the signals: the first process of a container dies of none that it does not handle.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    return asyncio.run(serve.run(settings))


if __name__ == "__main__":
    main()
