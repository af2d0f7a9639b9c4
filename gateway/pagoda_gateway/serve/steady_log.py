"""SteadyLogger: lines on stdout. One that cannot be written is dropped: a full disk behind stdout must not end a request."""

from __future__ import annotations

from contextlib import suppress

import structlog


class SteadyLogger(structlog.PrintLogger):
    """What structlog writes to."""

    def msg(self, message: str) -> None:
        """Writes one line, and does not raise."""
        with suppress(OSError, ValueError):  # ValueError: stdout is closed
            super().msg(message)

    log = debug = info = warn = warning = fatal = failure = err = error = critical = exception = msg
