"""What the operator logs on stderr: whole lines, each one JSON object, ours and the libraries' alike. Not what ends it before it begins: a
wrong option, a kubeconfig that is not there."""

from __future__ import annotations

import logging
import sys

import structlog

_STAMPS: tuple[structlog.typing.Processor, ...] = (
    structlog.processors.add_log_level,
    structlog.processors.TimeStamper(fmt="iso"),
    structlog.processors.format_exc_info,
)


def configure(least: int = logging.INFO) -> None:
    """Ours from `least`, libraries from WARNING.

    A line and its end go out by one write: a line of Kopf's thread once came between the two, and whoever reads line by line had two
    objects in one.
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
