"""The entry point of `pagoda-gateway`: command line → settings → serve/process.py. Decides nothing else."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import structlog

from pagoda_gateway.serve import settings
from pagoda_gateway.serve.steady_log import Lines, SteadyLogger


def main(argv: list[str] | None = None) -> None:
    """Runs until SIGTERM or SIGINT; exits 0 when all requests are finished."""
    chosen = settings.load(argv)
    try:
        from pagoda_gateway.serve import process
    except ModuleNotFoundError as error:
        sys.exit(f"{error.name} is missing; in a checkout: pip install '.[gateway]'")
    lines = configure_log()
    try:
        process.main(chosen)
    finally:
        lines.flush()


def configure_log() -> Lines:
    """Lines of JSON, or colours for a person."""
    lines = Lines()
    logger = SteadyLogger(lines)
    structlog.configure(
        processors=[structlog.processors.TimeStamper(fmt="iso"), structlog.processors.add_log_level, *_renderers()],
        logger_factory=lambda *_names: logger,
        cache_logger_on_first_use=True,
    )
    return lines


def _renderers() -> list[structlog.typing.Processor]:
    if sys.stdout.isatty():
        return [structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]  # no locals: they hold keys and prompts
    import msgspec  # not installed without the extra, which `main` then names

    def encoded(entry: Any, default: Callable[[Any], Any]) -> str:
        return msgspec.json.encode(entry, enc_hook=default).decode()

    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(encoded)]


if __name__ == "__main__":
    main()
