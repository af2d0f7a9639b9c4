"""Door of `pagoda-operator`: command line → settings → serve.py. Names the extra where a package is missing."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys

from pagoda_operator.api.errors import SettingsError
from pagoda_operator.run.settings import load
from pagoda_operator.serve import logs


def main() -> None:
    """Console script."""
    logs.configure()
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
        logs.configure(logging.DEBUG)
    from pagoda_operator.serve import process as serve

    # Until Kopf takes the signals: the first process of a container dies of none that it does not handle.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    return asyncio.run(serve.run(settings))


if __name__ == "__main__":
    main()
