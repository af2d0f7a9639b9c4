"""WatchedFile: a small file, parsed, and parsed again when it changed. Used by `keys.py` and `jwks.py`.

kubelet renews a mounted ConfigMap or Secret by swapping a link, which changes the inode; the reader gets no signal. Looking costs one stat,
at most once a second and only when the value is asked for. A file that became unreadable, too large or wrong leaves what was known in
force: a bad roll-out of keys must not lock everybody out.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, TypeVar

import structlog

from pagoda_daemon.core.errors import ConfigRejected

log = structlog.get_logger()

T = TypeVar("T")
_LOOK_EVERY_S: Final = 1.0


class WatchedFile(Generic[T]):
    """`parse` raises ValueError for what it does not take; at the start that is ConfigRejected. `clock` in seconds. `absent`: the value
    while there is no file; without it, a missing file is a fault."""

    def __init__(
        self, path: Path, most_bytes: int, parse: Callable[[bytes], T], clock: Callable[[], float], absent: T | None = None
    ) -> None:
        self._path = path
        self._most_bytes = most_bytes
        self._parse = parse
        self._absent = absent
        self._clock = clock
        self.generation = 0
        self._signature: tuple[int, ...] = ()
        self._looked = clock()
        try:
            self._value = self._read()
        except (OSError, ValueError) as error:
            raise ConfigRejected(f"auth: {path}: {_reason(error)}") from error

    def get(self) -> T:
        """As the file is, or was a second ago."""
        now = self._clock()
        if now - self._looked >= _LOOK_EVERY_S:
            self._looked = now
            self._look()
        return self._value

    def _look(self) -> None:
        before = self._signature
        try:
            if self._stat() != before:
                self._value = self._read()
                self.generation += 1
                log.info("auth_file_read_again", path=str(self._path))
        except (OSError, ValueError) as error:
            if self._signature != before or not isinstance(error, ValueError):
                log.warning("auth_file_unusable", path=str(self._path), reason=_reason(error), kept="what was read before")

    def _read(self) -> T:
        signature = self._stat()
        self._signature = signature  # also of a wrong file, so that it is parsed and logged once
        if not signature and self._absent is not None:
            return self._absent
        with self._path.open("rb") as file:
            data = file.read(self._most_bytes + 1)
        if len(data) > self._most_bytes:
            raise ValueError(f"more than the {self._most_bytes} bytes that are accepted")
        return self._parse(data)

    def _stat(self) -> tuple[int, ...]:
        try:
            found = self._path.stat()
        except FileNotFoundError:
            if self._absent is None:
                raise
            return ()
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _reason(error: Exception) -> str:
    return error.strerror or type(error).__name__ if isinstance(error, OSError) else str(error)
