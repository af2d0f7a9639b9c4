"""OwnToken: the ServiceAccount token that this gateway shows to replicas and peers. Made by serve.py, asked by forward.py and streams.py.

Kubelet renews the file; it is looked at once a second at most, when somebody asks. One that cannot be read leaves the last one in use.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog
from pagoda_contracts.bearer import AUTHORIZATION, first

log = structlog.get_logger()

_LOOK_EVERY_S: Final = 1.0


class OwnToken:
    """OSError or ValueError at the start where the file holds no token: a gateway that cannot show one serves nobody."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._path, self._clock = path, clock
        self._looked = clock()
        self._shown = first(path.read_text().strip(), self._looked)

    def header(self) -> str:
        """The value of `authorization`."""
        now = self._clock()
        if not 0 <= now - self._looked < _LOOK_EVERY_S:
            self._looked = now
            try:
                self._shown = self._shown.seen(self._path.read_text().strip(), now)
            except (OSError, ValueError) as error:
                log.warning("own token unreadable, the last one stays", file=str(self._path), why=type(error).__name__)
        return self._shown.used.header


def metadata(own: OwnToken | None) -> tuple[tuple[str, str], ...]:
    """For a gRPC call."""
    return ((AUTHORIZATION, own.header()),) if own is not None else ()
