"""Console script `pagoda-operator`: command line → settings → process.py. If a package is missing, it names the extra to install."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys

import structlog

from pagoda_operator.api.errors import SettingsError
from pagoda_operator.run.settings import load

_STAMPS: tuple[structlog.typing.Processor, ...] = (
    structlog.processors.add_log_level,
    structlog.processors.TimeStamper(fmt="iso"),
    structlog.processors.format_exc_info,
)


def main() -> None:
    """Console script."""
    configure_logs()
    try:
        sys.exit(_operate(sys.argv[1:]))
    except ModuleNotFoundError as missing:
        sys.exit(f"pagoda-operator: {missing.name} is not installed; in a checkout: pip install '.[operator]'")


def _operate(argv: list[str]) -> int:
    try:
        settings = load(argv, os.environ)
    except SettingsError as error:
        sys.exit(f"pagoda-operator: {error}")
    if settings.debug:
        configure_logs(logging.DEBUG)
    from pagoda_operator.serve import process

    # Until Kopf handles signals: the kernel delivers none to the first process of a container that has no handler for it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    return asyncio.run(process.run(settings))


def configure_logs(least: int = logging.INFO) -> None:
    """Logs go to stderr as JSON, one object per line: ours from `least`, the libraries' from WARNING.

    A line and its end are one write: with two writes a line of Kopf's thread once came between them.
    """
    structlog.configure(
        processors=[*_STAMPS, structlog.processors.JSONRenderer()],
        wrapper_class=structlog.make_filtering_bound_logger(least),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_STAMPS, structlog.processors.JSONRenderer()],
        )
    )
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)


if __name__ == "__main__":
    main()
