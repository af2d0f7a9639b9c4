"""SteadyLogger: log lines straight to a descriptor. Set up by the two entry points, `__main__` and `engine.__main__`.

A line that cannot be written is dropped and counted: a full disk or a closed pipe behind stdout must not end a request, let alone the
process. Nothing is buffered, so nothing fails later, at exit.
"""

from __future__ import annotations

import os
import threading


class SteadyLogger:
    """One line per call of `msg`. `lost` counts the writes that failed."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()
        self.lost = 0

    def msg(self, message: str) -> None:
        self.write(message + "\n")

    def write(self, text: str) -> None:
        """Writes `text` whole. Does not raise: it is also called from a signal's handler, before the drain begins."""
        rest = text.encode(errors="backslashreplace")
        with self._lock:
            try:
                while rest:
                    rest = rest[os.write(self._descriptor, rest) :]
            except OSError:
                self.lost += 1

    log = debug = info = warning = warn = error = critical = exception = fatal = failure = msg


class SteadyLoggerFactory:
    """What structlog asks for loggers: one for all, so that lines of threads do not mix."""

    def __init__(self, descriptor: int) -> None:
        self._logger = SteadyLogger(descriptor)

    def __call__(self, *_names: object) -> SteadyLogger:
        return self._logger
