"""The volume: finished trees by digest, half-fetched ones in staging, and what is known of both. Plain files, so that pods can share it.

    sha256-<hex>/            a model; appears by one rename, complete and verified
    .staging/<address>-<listing>/   files under way: <name> done, <name>.partial not yet
    .index/<address>.json    which digest a listing of this address had
    .index/sha256-<hex>.json the tree's files and sizes
    .locks/                  lock.py

Nothing here knows a network. All of it blocks: `job` calls it from threads where it takes long.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from pagoda_fetch.core.errors import ConfigRejected, FetchError, NoRoom, Unreachable
from pagoda_fetch.core.listing import folder, size_text, tree_digest

PARTIAL: Final = ".partial"
_FULL: Final = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
_CLOSED: Final = frozenset((errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR))
Free = Callable[[Path], int]


def free_bytes(path: Path) -> int:
    """What the volume still takes from us."""
    return shutil.disk_usage(path).free


class Store:
    """One volume."""

    def __init__(self, root: Path, reserve: int, free: Free = free_bytes) -> None:
        self.root = root
        self._reserve = reserve
        self._free = free

    def prepare(self) -> None:
        """The folders, made where they are missing."""
        try:
            for name in (".staging", ".index", ".locks"):
                (self.root / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise disk_error(error, self.root) from None

    @property
    def locks(self) -> Path:
        """Where locks are."""
        return self.root / ".locks"

    def place(self, digest: str) -> Path:
        """Where a finished tree is, or would be."""
        return self.root / folder(digest)

    def holds(self, digest: str) -> bool:
        """Whether a tree is there, with all files at their sizes."""
        sizes = read_json(self._index(folder(digest)))
        place = self.place(digest)
        return bool(sizes) and all(size_of(place / name) == size for name, size in sizes.items())

    def known(self, address: str, listing: str = "") -> str:
        """The digest that this listing of an address had (any listing where none is given), if its tree is here; else empty."""
        entry = read_json(self._index(address))
        digest = str(entry.get("digest", ""))
        return digest if digest and (not listing or entry.get("listing") == listing) and self.holds(digest) else ""

    def remember(self, address: str, listing: str, digest: str) -> None:
        """Notes which digest a listing has."""
        write_json(self._index(address), {"listing": listing, "digest": digest})

    def staging(self, address: str, listing: str) -> Path:
        """The folder for what is under way; what an older listing of the address left is removed. Under the address's lock only."""
        mine = self.root / ".staging" / f"{address}-{listing}"
        for other in mine.parent.glob(f"{address}-*"):
            if other != mine:
                shutil.rmtree(other, ignore_errors=True)
        mine.mkdir(exist_ok=True)
        return mine

    def check_room(self, needed: int, note: str = "") -> None:
        """NoRoom where so many bytes more do not fit; `note` says what they are."""
        free = max(0, self._free(self.root) - self._reserve)
        if needed > free:
            kept = f" (keeping {size_text(self._reserve)})" if self._reserve else ""
            raise NoRoom(f"{self.root}: needs {size_text(needed)} more, {size_text(free)} are free{kept}{note}")

    def publish(self, staging: Path, files: Mapping[str, tuple[int, str]], address: str, listing: str) -> str:
        """The staged files as a finished tree: all of it at once, or nothing. Index first: it means nothing without the tree."""
        digest = tree_digest({name: sha256 for name, (_, sha256) in files.items()})
        place = self.place(digest)
        write_json(self._index(folder(digest)), {name: size for name, (size, _) in files.items()})
        self.remember(address, listing, digest)
        if self.holds(digest):  # another address had the same content
            shutil.rmtree(staging, ignore_errors=True)
            return digest
        if place.exists():  # files were removed from it
            damaged = place.rename(staging.with_name(f"{staging.name}-damaged"))
            shutil.rmtree(damaged, ignore_errors=True)
        staging.rename(place)
        _sync(self.root)
        return digest

    def _index(self, name: str) -> Path:
        return self.root / ".index" / f"{name}.json"


def discard(staging: Path) -> None:
    """Removes what was fetched so far."""
    shutil.rmtree(staging, ignore_errors=True)


def staged_bytes(staging: Path) -> int:
    """What is there already."""
    return sum(size_of(path) or 0 for path in staging.rglob("*") if not path.is_dir())


def point(link: Path, target: Path) -> None:
    """A stable name for a tree, as a relative link that changes at once."""
    link.parent.mkdir(parents=True, exist_ok=True)
    fresh = link.with_name(f".{link.name}.new")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(os.path.relpath(target, link.parent))
    fresh.replace(link)


def disk_error(error: OSError, where: Path) -> FetchError:
    """What the file system said, as an error of the tree."""
    text = f"{where}: {error.strerror or type(error).__name__}"
    if error.errno in _FULL:
        return NoRoom(f"{text}; {size_text(free_bytes(where)) if where.exists() else 'nothing'} free")
    return ConfigRejected(f"{text}: the volume must be writable") if error.errno in _CLOSED else Unreachable(text)


def size_of(path: Path) -> int | None:
    """A file's length; None where there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return None


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file; empty where there is none."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """All of it at once, and on the disk."""
    fresh = path.with_suffix(".new")
    with fresh.open("w") as stream:
        json.dump(value, stream)
        stream.flush()
        os.fsync(stream.fileno())
    fresh.replace(path)


def _sync(place: Path) -> None:
    handle = os.open(place, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
