"""A layer that is an archive on its way to the disk: unpacked while it comes, kept when its digest is right. And layers made into a model.

    .layer-<n>-<random>/<k>          the k-th file taken of layer n; no name of an archive is ever a name on the disk
    .layer-<n>-<random>/layer.json   what these are: written when the layer is whole and verified
    .model.json                      which of them are the model's: written when all layers are whole
    .model/                          the model's files, under their own names

A record lies in the folder that it speaks of: of two processes that both believe to hold the lock, neither can name the other's files.
Only regular files are written. Blocks; `pull` and `job` call it from threads.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Final

from pagoda_fetch.core.archive import Archive
from pagoda_fetch.core.errors import Mismatch, Refused, Unreachable
from pagoda_fetch.core.layers import Contents, Part, clean, hides, model, wanted
from pagoda_fetch.core.limits import Limits
from pagoda_fetch.core.listing import Layer, Listing, RemoteFile
from pagoda_fetch.core.tar import Entry
from pagoda_fetch.volume.arriving import Arriving
from pagoda_fetch.volume.store import disk_error, read_json, size_of, write_json

TREE: Final = ".model"
_PLAN: Final = ".model.json"
_RECORD: Final = "layer.json"


class Unpacking(Arriving):
    """Takes a layer's bytes in order, as `Sink` takes a file's. A layer that is whole is kept; any other begins from its beginning."""

    def __init__(self, staging: Path, file: RemoteFile, limits: Limits, grew: Callable[[int], None]) -> None:
        super().__init__(file)
        self._staging, self._limits, self._grew = staging, limits, grew
        self._files: _Files | None = None
        self._hash = hashlib.sha256()
        self.torn = False

    def begin(self) -> int:
        """Bytes that need not be fetched again: all or none."""
        try:
            if contents(self._staging, self._file) is not None:
                self.offset = self._file.size
                return self.offset
            self.drop()
            folder = Path(tempfile.mkdtemp(dir=self._staging, prefix=f"{self._file.name}-"))
        except OSError as error:
            raise disk_error(error, self._staging) from None
        self._files = _Files(folder, self._file, self._limits, self._grew)
        self._hash = hashlib.sha256()
        self.offset, self.torn = 0, False
        return 0

    def write(self, data: bytes) -> None:
        """Unpacks them. After a write that failed it is `torn`: only `drop` and `begin` go on."""
        if self.torn:
            raise RuntimeError("written to after a write that failed")
        self._expect(len(data))
        self.torn = True
        try:
            self._opened.archive.feed(data)
        except OSError as error:
            raise disk_error(error, self._staging) from None
        self._hash.update(data)
        self.offset += len(data)
        self.torn = False

    @property
    def _opened(self) -> _Files:
        if self._files is None:
            raise RuntimeError("written to before begin()")
        return self._files

    def finish(self) -> str:
        """The layer's SHA-256, its files kept for good; Mismatch where it is not what was promised."""
        self._expect_whole()
        if self._files is not None:
            try:
                self._verify()
                write_json(self._files.folder / _RECORD, self._files.record())
            except OSError as error:
                raise disk_error(error, self._staging) from None
            self._files = None
        return self._file.sha256

    def _verify(self) -> None:
        found = self._hash.hexdigest()
        if found != self._file.sha256:
            raise Mismatch(f"{self._file.label}: sha256 digest {found}, promised is {self._file.sha256}")
        self._opened.archive.finish()

    def drop(self) -> None:
        """Removes what is there, of this try and of others."""
        self.close()
        for folder in self._staging.glob(f"{self._file.name}-*"):
            shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        """Lets go of the file; what is whole stays."""
        if self._files is not None:
            self._files.close()
            self._files = None


class _Files:
    """The visitor of one archive: writes what is taken."""

    def __init__(self, folder: Path, file: RemoteFile, limits: Limits, grew: Callable[[int], None]) -> None:
        self.folder, self._label, self._limits, self._grew = folder, file.label, limits, grew
        layer = file.layer or Layer("tar")
        self._within = layer.within
        self._parts: dict[str, Part] = {}
        self._hidden: set[str] = set()
        self._stream: BinaryIO | None = None
        self._path, self._hash, self._size = "", hashlib.sha256(), 0
        self.archive = Archive(file, layer, self, limits.max_bytes)

    def begin(self, entry: Entry) -> bool:
        """Opens a file for what is taken."""
        path = clean(entry.name)
        if hidden := hides(path, self._within, entry):
            self._hidden.add(hidden)
        take = wanted(path, self._within, entry)
        if len(self._parts) + len(self._hidden) + take > self._limits.max_files:
            raise Refused(f"{self._label} holds or hides more than {self._limits.max_files} files")
        if not take:
            return False
        if path in self._parts:
            raise Refused(f"{self._label} holds two files called {path[:200]!r}")
        self.archive.room_for(entry.size)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        self._stream = os.fdopen(os.open(self.folder / str(len(self._parts)), flags, 0o644), "wb")
        self._path, self._hash, self._size = path, hashlib.sha256(), entry.size
        return True

    def data(self, data: memoryview) -> None:
        """To the disk."""
        if self._stream is not None:
            self._stream.write(data)
        self._hash.update(data)
        self._grew(len(data))

    def end(self) -> None:
        """The file is whole."""
        if self._stream is not None:
            self._stream.flush()
            os.fchmod(self._stream.fileno(), 0o644)
            os.fsync(self._stream.fileno())
        self.close()
        where = f"{self.folder.name}/{len(self._parts)}"
        self._parts[self._path] = Part(self._path, self._size, self._hash.hexdigest(), where)

    def record(self) -> dict[str, Any]:
        """What is there, for the next process."""
        return {"parts": [list(part) for part in self._parts.values()], "hidden": sorted(self._hidden)}

    def close(self) -> None:
        """Lets go of an open file. What counts was synced before; of any other, a last write that fails says nothing new."""
        if self._stream is not None:
            with suppress(OSError):
                self._stream.close()
            self._stream = None


def contents(staging: Path, file: RemoteFile) -> Contents | None:
    """What a layer that is whole has unpacked to; None where it is not whole."""
    if file.layer is not None and file.layer.form == "raw":
        whole = size_of(staging / file.name) == file.size
        return Contents((Part(file.layer.path, file.size, file.sha256, file.name),)) if whole else None
    for place in staging.glob(f"{file.name}-*/{_RECORD}"):
        record = read_json(place)
        parts = tuple(Part(*part) for part in record.get("parts", ()))
        if record and all(size_of(staging / part.where) == part.size for part in parts):
            return Contents(parts, frozenset(record["hidden"]))
    return None


def assemble(staging: Path, listing: Listing, limits: Limits) -> dict[str, tuple[int, str]]:
    """Layers that are whole as one folder with the model's files and no other, `TREE`; the files' sizes and SHA-256."""
    layers = []
    for file in listing.files:
        layer = contents(staging, file)
        if layer is None:
            raise Unreachable(f"{file.label}: its files are not on the volume any more")
        layers.append(layer)
    write_json(staging / _PLAN, {name: list(part) for name, part in model(layers, limits).items()})
    return assembled(staging)


def assembled(staging: Path) -> dict[str, tuple[int, str]]:
    """The same of an assembly that has begun, which is finished; empty where none has. So a kill in it costs no download."""
    tree, plan = staging / TREE, staging / _PLAN
    files = {name: Part(*part) for name, part in read_json(plan).items()}
    due = {name: part for name, part in files.items() if size_of(tree / name) != part.size}
    if not files or any(size_of(staging / part.where) != part.size for part in due.values()):
        shutil.rmtree(tree, ignore_errors=True)
        plan.unlink(missing_ok=True)
        return {}
    tree.mkdir(exist_ok=True)
    for name, part in due.items():
        (staging / part.where).rename(tree / name)
    for path in staging.iterdir():
        if path.is_dir() and path != tree:
            shutil.rmtree(path)
        elif path not in (tree, plan):
            path.unlink()
    return {name: (part.size, part.sha256) for name, part in files.items()}
