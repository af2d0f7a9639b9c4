"""What every form of a listed file has in common on its way to the disk: its bytes come in order, and neither too few nor too many."""

from __future__ import annotations

from pagoda_fetch.core.errors import Mismatch, Unreachable
from pagoda_fetch.core.listing import RemoteFile


class Arriving:
    """`offset`: how many of its bytes are here."""

    def __init__(self, file: RemoteFile) -> None:
        self._file = file
        self.offset = 0

    @property
    def whole(self) -> bool:
        """Whether all bytes are there."""
        return self.offset == self._file.size

    def _expect(self, more: int) -> None:
        """Mismatch if so many bytes more would be too many."""
        if self.offset + more > self._file.size:
            raise Mismatch(f"{self._file.label}: more than the {self._file.size} bytes that were listed")

    def _expect_whole(self) -> None:
        if not self.whole:
            raise Unreachable(f"{self._file.label}: ended after {self.offset} of {self._file.size} bytes")
