"""A layer that is an archive, as its compressed bytes come: unpacked within bounds, its digest before compression counted. Pure."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator
from typing import Final

from pagoda_fetch.core.errors import Mismatch, Refused
from pagoda_fetch.core.listing import Layer, RemoteFile, size_text
from pagoda_fetch.core.tar import Tar, Visitor

_PIECE: Final = 2**20
# Of a member that is smaller than what it comes with, the rest is copied: small, so that very many members cost no more than large ones.
_CHUNK: Final = 2**14
_GZIP: Final = 31  # zlib's word for a window of 32 KiB and gzip's header
# Weights in bf16 shrink to three quarters, text to a tenth, zeros to a thousandth. Small layers may hold more.
_RATIO: Final = 100
_SMALL: Final = 64 * 2**20


class Archive:
    """Takes a layer's bytes in order and tells the visitor of its entries."""

    def __init__(self, file: RemoteFile, layer: Layer, visitor: Visitor, max_bytes: int) -> None:
        self._label = file.label
        self._gunzip = Gunzip(file.label) if layer.form == "gzip" else None
        self._diff_id, self._hash = layer.diff_id, hashlib.sha256()
        self._cap = max_bytes
        self._most = self._left = min(max_bytes, most(file.size) if self._gunzip else file.size)
        self.tar = Tar(file.label, visitor)

    def feed(self, data: bytes) -> None:
        """Mismatch for what is no archive, Refused for one that grows without measure."""
        for piece in self._gunzip.feed(data) if self._gunzip else (data,):
            self._left -= len(piece)
            if self._left < 0:
                raise self._too_much()
            if self._diff_id and self._gunzip:
                self._hash.update(piece)
            self.tar.feed(piece)

    def _too_much(self) -> Refused:
        if self._most == self._cap:
            return Refused(f"{self._label} unpacks to more than {size_text(self._cap)}, which is the most that a fetch takes")
        return Refused(f"{self._label} unpacks to much more than its size lets expect; it may be made to fill the disk")

    def room_for(self, size: int) -> None:
        """Refused for a file that is announced larger than the layer can be."""
        if size > self._most:
            raise Refused(f"{self._label} announces a file of {size_text(size)}, which is more than the layer can hold")

    def leap(self, least: int) -> int:
        """Leaves out the next bytes, which nobody wants: how many. None of a compressed layer, or if they are fewer than `least`."""
        if self._gunzip or self.tar.skip < least:
            return 0
        count, self.tar.skip = self.tar.skip, 0
        return count

    def finish(self) -> None:
        """Mismatch where it is cut, or is not what its image's config promises."""
        if self._gunzip and not self._gunzip.whole:
            raise Mismatch(f"{self._label} is not a whole gzip stream")
        self.tar.finish()
        found = f"sha256:{self._hash.hexdigest()}"
        if self._diff_id and self._gunzip and found != self._diff_id:
            raise Mismatch(f"{self._label} unpacks to digest {found}, promised is {self._diff_id}")


class Gunzip:
    """gzip as a stream, in pieces of bounded length. Several members are one stream, as in what parallel compressors write."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._member = zlib.decompressobj(_GZIP)

    @property
    def whole(self) -> bool:
        """Whether the last member has ended, its checksum right."""
        return self._member.eof

    def feed(self, data: bytes) -> Iterator[bytes]:
        """What comes out of it."""
        for start in range(0, len(data), _CHUNK):
            yield from self._feed(data[start : start + _CHUNK])

    def _feed(self, data: bytes) -> Iterator[bytes]:
        more = True
        while data or more:
            if self._member.eof:
                data = data.lstrip(b"\0")
                if not data:
                    return
                self._member = zlib.decompressobj(_GZIP)
            try:
                piece = self._member.decompress(data, _PIECE)
            except zlib.error as error:
                raise Mismatch(f"{self._label} is not a gzip stream: {error}") from None
            data = self._member.unused_data if self._member.eof else self._member.unconsumed_tail
            more = len(piece) == _PIECE
            if piece:
                yield piece


def most(size: int) -> int:
    """Bytes that a compressed layer of this size may unpack to."""
    return _RATIO * size + _SMALL
