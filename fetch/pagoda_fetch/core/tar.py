"""A tar archive, told entry by entry while its bytes come. Pure: it writes nothing, and a name in it is only text.

tarfile reads the fields of one header here, and no more. Its own extraction opens what an archive names, and its filters resolve links on
the disk, where they were wrong before (CVE-2025-4517). It also pulls from a file, so it cannot stay between two requests.
"""

from __future__ import annotations

import tarfile
from typing import Final, Literal, NamedTuple, Protocol

from pagoda_fetch.core.errors import Mismatch, Refused

BLOCK: Final = 512
_ZERO: Final = bytes(BLOCK)
# A base image has up to 50,000 entries.
_MAX_ENTRIES: Final = 200_000
# Extended headers: long names, and extended attributes of at most 64 KiB each.
_MAX_EXTENDED: Final = 2**20
_MAX_NAME: Final = 4096
_MAX_DIGITS: Final = 19
_EXTENDED: Final = frozenset(
    (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
)
_FILES: Final = frozenset((tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE))
# Their size is not that of any bytes in the archive.
_BODILESS: Final = frozenset((tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE))


class Entry(NamedTuple):
    """One entry, its name as the archive has it. `other`: a link, a device, or what nobody knows."""

    name: str
    kind: Literal["file", "folder", "other"]
    size: int


class Visitor(Protocol):
    """Who hears of the entries."""

    def begin(self, entry: Entry) -> bool:
        """Whether the bytes of the entry are wanted: then `data` gets them, and `end` is called after the last."""

    def data(self, data: memoryview) -> None:
        """Bytes of the entry, in order."""

    def end(self) -> None:
        """The entry is whole."""


class Tar:
    """Takes an archive's bytes in pieces of any length. `skip`: so many of the next bytes nobody wants."""

    def __init__(self, label: str, visitor: Visitor) -> None:
        self._label, self._visitor = label, visitor
        self._held, self._need = bytearray(), BLOCK
        self._extended: tuple[bytes, int] | None = None
        self._words: dict[str, str] = {}
        self._body = self.skip = self._entries = 0
        self.ended = False

    def feed(self, data: bytes) -> None:
        """Mismatch for what is no archive, Refused for one that goes beyond the bounds."""
        view = memoryview(data)
        while view and not self.ended:
            view = view[self._take(view) :]

    def finish(self) -> None:
        """Mismatch if the archive is cut. An archive may lack its last, empty blocks."""
        if not self.ended and (self._held or self._extended or self._words or self._body or self.skip or not self._entries):
            raise self._malformed("it ends in the middle of an entry")

    def _take(self, view: memoryview) -> int:
        """Takes some bytes for what is due; how many."""
        if self._body:
            count = min(self._body, len(view))
            self._visitor.data(view[:count])
            self._body -= count
            if not self._body:
                self._visitor.end()
        elif self.skip:
            count = min(self.skip, len(view))
            self.skip -= count
        else:
            count = min(self._need - len(self._held), len(view))
            self._held += view[:count]
            if len(self._held) == self._need:
                self._collected()
        return count

    def _collected(self) -> None:
        block, self._held, self._need = bytes(self._held), bytearray(), BLOCK
        if self._extended is not None:
            (kind, size), self._extended = self._extended, None
            self._words |= self._read(kind, block[:size])
        elif block == _ZERO:
            self.ended = True
        else:
            self._header(block)

    def _header(self, block: bytes) -> None:
        self._entries += 1
        if self._entries > _MAX_ENTRIES:
            raise Refused(f"{self._label}: more than {_MAX_ENTRIES} entries")
        try:
            found = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except (tarfile.HeaderError, ValueError) as error:
            raise self._malformed(f"a header is not one ({error})") from None
        if found.type in _EXTENDED:
            self._expect(found.type, found.size)
        else:
            self._entry(found)

    def _expect(self, kind: bytes, size: int) -> None:
        if not 0 <= size <= _MAX_EXTENDED:
            raise Refused(f"{self._label}: an extended header of {size} bytes; at most {_MAX_EXTENDED}")
        if size:
            self._extended, self._need = (kind, size), size + -size % BLOCK

    def _read(self, kind: bytes, body: bytes) -> dict[str, str]:
        """What an extended header says of the next entry. One for all entries says nothing that counts here."""
        if kind == tarfile.GNUTYPE_LONGNAME:
            return {"path": body.split(b"\0")[0].decode(errors="surrogateescape")}
        if kind in (tarfile.XGLTYPE, tarfile.GNUTYPE_LONGLINK):
            return {}
        words = _records(body)
        if words is None:
            raise self._malformed("an extended header is not one")
        return words

    def _entry(self, found: tarfile.TarInfo) -> None:
        words, self._words = self._words, {}
        if found.type == tarfile.GNUTYPE_SPARSE or any(word.startswith("GNU.sparse") for word in words):
            raise Refused(f"{self._label}: {found.name[:200]!r} is a sparse file; pack it without holes")
        name, size = words.get("path", found.name), self._size(words.get("size"), found)
        if len(name) > _MAX_NAME:
            raise Refused(f"{self._label}: a name of {len(name)} characters; at most {_MAX_NAME}")
        kind: Literal["file", "folder", "other"] = "folder" if found.isdir() else "file" if found.type in _FILES else "other"
        wanted = self._visitor.begin(Entry(name, kind, size)) and kind == "file"
        self._body, self.skip = (size, -size % BLOCK) if wanted else (0, size + -size % BLOCK)
        if wanted and not size:
            self._visitor.end()

    def _size(self, said: str | None, found: tarfile.TarInfo) -> int:
        if said is not None and not (said.isascii() and said.isdecimal() and len(said) <= _MAX_DIGITS):
            raise self._malformed(f"a size of {said[:40]!r}")
        size = 0 if found.type in _BODILESS else found.size if said is None else int(said)
        if size < 0:
            raise self._malformed(f"a size of {size}")
        return size

    def _malformed(self, why: str) -> Mismatch:
        return Mismatch(f"{self._label} is not a tar archive: {why}")


def _records(body: bytes) -> dict[str, str] | None:
    """The records `length key=value` of a pax header; None if they are none."""
    found, at = {}, 0
    while at < len(body):
        blank = body.find(b" ", at, at + len(str(_MAX_EXTENDED)) + 1)
        length = int(body[at:blank]) if blank > at and body[at:blank].isdigit() else 0
        end = at + length
        if end <= blank + 1 or end > len(body) or body[end - 1 : end] != b"\n":
            return None
        key, equals, value = body[blank + 1 : end - 1].partition(b"=")
        if not equals:
            return None
        found[key.decode(errors="surrogateescape")] = value.decode(errors="surrogateescape")
        at = end
    return found
