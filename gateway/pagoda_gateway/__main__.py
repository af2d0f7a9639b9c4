"""The entry point of `pagoda-gateway`: command line → settings → serve/process.py. Decides nothing else."""

from __future__ import annotations

import sys

import structlog

from pagoda_gateway.serve import settings
from pagoda_gateway.serve.steady_log import SteadyLogger


def main(argv: list[str] | None = None) -> None:
    """Runs until SIGTERM or SIGINT; exits 0 when all requests are finished."""
    configure_log()
    chosen = settings.load(argv)
    try:
        from pagoda_gateway.serve import process
    except ModuleNotFoundError as error:
        sys.exit(f"{error.name} is missing; in a checkout: pip install '.[gateway]'")
    process.main(chosen)


def configure_log() -> None:
    """Lines of JSON, or colours for a person."""
    structlog.configure(
        processors=[structlog.processors.TimeStamper(fmt="iso"), structlog.processors.add_log_level, *_renderers()],
        logger_factory=lambda *_names: SteadyLogger(),
    )


def _renderers() -> list[structlog.typing.Processor]:
    if sys.stdout.isatty():
        return [structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]  # no locals: they hold keys and prompts
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]


if __name__ == "__main__":
    main()
