"""One file on its way to the disk: continues what is there, hashes what passes, becomes visible when it is whole and right.

Blocks; `pull` calls it from threads.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

from pagoda_fetch.core.errors import Mismatch
from pagoda_fetch.core.listing import RemoteFile
from pagoda_fetch.volume.arriving import Arriving
from pagoda_fetch.volume.store import PARTIAL, disk_error

_BLOCK: Final = 1024 * 1024


class Sink(Arriving):
    """Takes a file's bytes in order. A write that failed is repeated at its place, so it is never `torn`."""

    torn: Final = False

    def __init__(self, folder: Path, file: RemoteFile) -> None:
        super().__init__(file)
        self._final = folder / file.name
        self._partial = folder / (file.name + PARTIAL)
        self._stream: BinaryIO | None = None
        self._hashes: tuple[Any, ...] = ()

    def begin(self) -> int:
        """Opens it; where bytes are there already, they are hashed and fetching goes on after them."""
        try:
            if self._final.exists():
                self._final.rename(self._partial)
            self._stream = os.fdopen(os.open(self._partial, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644), "r+b")
            self._hashes = self._fresh()
            self.offset = 0
            for block in self._kept():
                self._feed(block)
            self._stream.truncate(self.offset)
        except OSError as error:
            raise disk_error(error, self._partial.parent) from None
        return self.offset

    def _kept(self) -> Iterator[bytes]:
        stream = self._opened
        if os.fstat(stream.fileno()).st_size > self._file.size:
            return
        while block := stream.read(_BLOCK):
            yield block

    @property
    def _opened(self) -> BinaryIO:
        if self._stream is None:
            raise RuntimeError("written to before begin()")
        return self._stream

    def _fresh(self) -> tuple[Any, ...]:
        sha256 = hashlib.sha256()
        if self._file.checksum is None or self._file.checksum.kind == "sha256":
            return (sha256,)
        git = hashlib.sha1(f"blob {self._file.size}\0".encode(), usedforsecurity=False)
        return sha256, git

    def _feed(self, data: bytes) -> None:
        for state in self._hashes:
            state.update(data)
        self.offset += len(data)

    def write(self, data: bytes) -> None:
        """Bytes at their place: two writers that both believe to be the only one write the same there."""
        self._expect(len(data))
        try:
            written = 0
            while written < len(data):
                written += os.pwrite(self._opened.fileno(), data[written:], self.offset + written)
        except OSError as error:
            raise disk_error(error, self._partial.parent) from None
        self._feed(data)

    def finish(self) -> str:
        """The file under its own name, and its SHA-256; Mismatch, and the file gone, where it is not what was promised."""
        self._expect_whole()
        promised = self._file.checksum
        found = self._hashes[-1].hexdigest()
        if promised is not None and found != promised.value:
            self.drop()
            raise Mismatch(f"{self._file.label}: {promised.kind} digest {found}, promised is {promised.value}")
        try:
            os.fchmod(self._opened.fileno(), 0o644)
            os.fsync(self._opened.fileno())
            self._partial.rename(self._final)
        except OSError as error:
            raise disk_error(error, self._partial.parent) from None
        self.close()
        return str(self._hashes[0].hexdigest())

    def drop(self) -> None:
        """Removes what is there."""
        self.close()
        self._partial.unlink(missing_ok=True)

    def close(self) -> None:
        """Lets go of the file; it stays."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None
