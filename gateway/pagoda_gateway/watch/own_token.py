"""OwnToken: the ServiceAccount token that this gateway shows to replicas. Used by proxy/upstream.py and state_streams.py.

Kubelet renews the file. It is read when the token is needed, at most once a second. If it cannot be read, the last token stays in use.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog
from pagoda_contracts.bearer import AUTHORIZATION, first

log = structlog.get_logger()

_READ_EVERY_S: Final = 1.0


class OwnToken:
    """Raises OSError or ValueError if the file holds no token at the start: no replica would serve this gateway."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._path, self._clock = path, clock
        self._read_at = clock()
        self._shown = first(path.read_text().strip(), self._read_at)

    def header(self) -> str:
        """Returns the value of `authorization`."""
        now = self._clock()
        if not 0 <= now - self._read_at < _READ_EVERY_S:
            self._read_at = now
            try:
                self._shown = self._shown.seen(self._path.read_text().strip(), now)
            except (OSError, ValueError) as error:
                log.warning("own token cannot be read; the last one stays in use", file=str(self._path), why=type(error).__name__)
        return self._shown.used.header


def metadata(own: OwnToken | None) -> tuple[tuple[str, str], ...]:
    """Returns the metadata of a gRPC call."""
    return ((AUTHORIZATION, own.header()),) if own is not None else ()
