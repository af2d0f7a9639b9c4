"""How an engine process ends: the message that tells the front why, and the exit code. Used by `engine.loop` and `engine.__main__`."""

from __future__ import annotations

from typing import Final

from pagoda_contracts.names import EXIT_PERMANENT

from pagoda_daemon.core.errors import PermanentError
from pagoda_daemon.core.messages import Failed, FromEngine

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1


def failure(error: Exception) -> Failed:
    """The message that tells the front why."""
    if isinstance(error, PermanentError):
        return Failed(error.reason, str(error), True)
    return Failed(type(error).__name__, str(error), False)


def exit_code(message: FromEngine) -> int:
    """What the process exits with after `message`."""
    return EXIT_PERMANENT if isinstance(message, Failed) and message.permanent else EXIT_FAILED
