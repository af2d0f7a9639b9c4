"""The config.json of a model in layers that are archives: as little of them is read as tells it. Nothing is written.

Small layers first. Uncompressed ones are left out where a file's bytes are not wanted: the next request begins behind them.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import Final

from pagoda_fetch.core.archive import Archive
from pagoda_fetch.core.errors import Refused
from pagoda_fetch.core.layers import clean, depth, root_of, wanted
from pagoda_fetch.core.listing import Layer, Listing, RemoteFile, size_text
from pagoda_fetch.core.names import CONFIGS, WEIGHTS
from pagoda_fetch.core.tar import Entry
from pagoda_fetch.download.job import read_small
from pagoda_fetch.sources.base import Source

# So many bytes are worth a request of their own.
_LEAP: Final = 4 * 2**20
# What configs, and names that are kept, may take: the pod of an inspection has 256 MiB.
_MOST: Final = 16 * 2**20


class Seen:
    """The visitor of all layers: configs by their paths, and the folders that have weights."""

    def __init__(self, max_config: int) -> None:
        self._max, self._left = max_config, _MOST
        self.configs: dict[str, bytes] = {}
        self._weights: set[str] = set()
        self._path, self._held = "", bytearray()
        self.within = ""

    @property
    def enough(self) -> bool:
        """Whether no other config could be the model's: one at the top, or one beside weights."""
        folders = {path.rpartition("/")[0] for path in self.configs}
        return any(folder in self._weights or depth(folder) == depth(self.within) for folder in folders)

    def note(self, path: str, size: int) -> bool:
        """Whether the file is a config."""
        folder, _, name = path.rpartition("/")
        if name.endswith(WEIGHTS):
            self._weights.add(folder)
        if name in CONFIGS and size > self._max:
            raise Refused(f"{path[:200]!r} has {size} bytes; at most {self._max}")
        if name in CONFIGS or name.endswith(WEIGHTS):
            self._left -= len(path) + (size if name in CONFIGS else 0)
        if self._left < 0:
            raise Refused(f"the layers hold more than {size_text(_MOST)} of config.json files; one artifact must hold one model")
        return name in CONFIGS

    def begin(self, entry: Entry) -> bool:
        """Takes configs."""
        self._path, self._held = clean(entry.name), bytearray()
        return wanted(self._path, self.within, entry) and self.note(self._path, entry.size)

    def data(self, data: memoryview) -> None:
        """Of a config."""
        self._held += data

    def end(self) -> None:
        """Of a config. Of two, the one that was seen first counts."""
        self.configs.setdefault(self._path, bytes(self._held))


async def peek(origin: Source, listing: Listing, max_config: int, max_bytes: int) -> tuple[str, bytes]:
    """The path and content of the model's config.json."""
    seen = Seen(max_config)
    for file in sorted(listing.files, key=lambda file: file.size):
        layer = file.layer or Layer("raw", file.name)
        if layer.form == "raw":
            if seen.note(layer.path, file.size):
                seen.configs[layer.path] = await read_small(origin, file, max_config)
        else:
            seen.within = layer.within
            await _scan(origin, file, Archive(file, layer, seen, max_bytes), seen)
        if seen.enough:
            break
    if not seen.configs:
        where = f" below {seen.within}/" if seen.within else ""
        raise Refused(f"the source has no config.json{where}")
    root = root_of(seen.configs)
    return next((path, body) for path, body in seen.configs.items() if path.rpartition("/")[0] == root)


async def _scan(origin: Source, file: RemoteFile, archive: Archive, seen: Seen) -> None:
    """One archive, as far as it is needed."""
    offset = 0
    while offset < file.size and not (archive.tar.ended or seen.enough):
        offset = await _read_on(origin, file, offset, archive, seen)


async def _read_on(origin: Source, file: RemoteFile, offset: int, archive: Archive, seen: Seen) -> int:
    """One request; where the next one begins."""
    async with aclosing(origin.read(file, offset)) as chunks:
        async for chunk in chunks:
            archive.feed(chunk)
            offset += len(chunk)
            if archive.tar.ended or seen.enough:
                return offset
            if count := archive.leap(_LEAP):
                return offset + count
    return file.size
