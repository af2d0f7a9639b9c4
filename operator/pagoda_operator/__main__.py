"""Door of `pagoda-operator`: command line → settings → serve.py. Names the extra where a package is missing."""

from __future__ import annotations

import asyncio
import logging
import os
import sys

import structlog

from pagoda_operator.errors import SettingsError
from pagoda_operator.settings import load


def _log() -> None:
    """Ours as JSON lines on stderr; libraries from WARNING."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


def main() -> None:
    """Console script."""
    _log()
    try:
        settings = load(sys.argv[1:], os.environ)
    except SettingsError as error:
        sys.exit(f"pagoda-operator: {error}")
    try:
        from pagoda_operator import serve
    except ModuleNotFoundError as missing:
        sys.exit(f"pagoda-operator: {missing.name} is not installed: pip install 'pagoda[operator]'")
    sys.exit(asyncio.run(serve.run(settings)))


if __name__ == "__main__":
    main()
