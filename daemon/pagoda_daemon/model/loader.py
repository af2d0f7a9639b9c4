"""load_tensors: safetensors files → preallocated tensors, one at a time. Called by the model worker. Knows no architecture.

Everything is judged from the files' headers before the first byte of weights is read, so a wrong directory is refused in
milliseconds. Weights are in memory once, and beside them one matrix as a quantised checkpoint stores it. Never unpickles: `.bin` and `.pt`
files are refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

from pagoda_sizing.stored import StoredAs
from torch import Tensor

from pagoda_daemon.core.errors import ModelRejected
from pagoda_daemon.model.files import Stored, read_header, read_into, read_whole, staging_buffer
from pagoda_daemon.model.sources import Shape, Source, sources_of
from pagoda_daemon.model.stored import StoredMatrix, fill

SINGLE: Final = "model.safetensors"
INDEX: Final = "model.safetensors.index.json"


def _nothing(_name: str) -> None:
    return None


@dataclass(frozen=True)
class Reading:
    """How a checkpoint is read: `filled` hears of each place that is: it may take the bytes away. `stored`: what config.json says of its
    matrices. `takes`: who takes a quantised one as it is, so that its place is not filled."""

    filled: Callable[[str], None] = _nothing
    stored: StoredAs | None = None
    takes: Mapping[str, Callable[[StoredMatrix], None]] = field(default_factory=dict)


PLAIN: Final = Reading()


def load_tensors(directory: Path, places: Mapping[str, Tensor], progress: Callable[[float], None], reading: Reading = PLAIN) -> None:
    """Fill every one of `places`; ModelRejected names the file or tensor that is missing, unknown, or of a wrong shape or type."""
    sources = read_sources(directory, {name: tuple(place.shape) for name, place in places.items()}, reading.stored)
    total, done = sum(place.nbytes for place in places.values()), 0
    staging = staging_buffer()
    with ExitStack() as stack:
        files = _Files(stack)
        for name, source in in_order(sources, reading.stored):
            if source.stored is None:
                read_into(places[name], source.first, files.of(source.first), staging)
                reading.filled(name)
            elif (take := reading.takes.get(name)) is not None:
                take(source.matrix(files.read))
            else:
                fill(places[name], source.matrix(files.read))
                reading.filled(name)
            done += places[name].nbytes
            progress(done / total)


def in_order(sources: Mapping[str, Source], stored: StoredAs | None) -> list[tuple[str, Source]]:
    """As they lie in the files. Quantised ones as the model has them: what waits for its neighbour, such as gate for up, is in memory."""
    if stored is not None:
        return list(sources.items())
    return sorted(sources.items(), key=lambda item: (item[1].first.file, item[1].first.start))


def read_sources(directory: Path, shapes: Mapping[str, Shape], stored: StoredAs | None) -> dict[str, Source]:
    """What makes each place of such a shape, from the files' headers alone; refused as by `load_tensors`."""
    return sources_of(directory, _headers(weight_files(directory)), shapes, stored)


class _Files:
    """Each file opened once: the parts of a matrix may lie in two."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._open: dict[Path, BinaryIO] = {}

    def of(self, stored: Stored) -> BinaryIO:
        if stored.file not in self._open:
            self._open[stored.file] = self._stack.enter_context(stored.file.open("rb", buffering=0))
        return self._open[stored.file]

    def read(self, stored: Stored) -> Tensor:
        return read_whole(stored, self.of(stored))


def weight_files(directory: Path) -> list[Path]:
    """The files that hold the weights: one, or those that the index names."""
    if (directory / INDEX).is_file():
        return _indexed(directory)
    if (directory / SINGLE).is_file():
        return [directory / SINGLE]
    others = sorted(path.name for path in directory.glob("*") if path.suffix in {".bin", ".pt", ".pth", ".gguf"})
    found = f"; {', '.join(others)} cannot be loaded, only safetensors can" if others else ""
    raise ModelRejected(f"{directory} has neither {SINGLE} nor {INDEX}{found}")


def _indexed(directory: Path) -> list[Path]:
    try:
        weight_map = json.loads((directory / INDEX).read_text(encoding="utf-8"))["weight_map"]
        names = sorted(set(weight_map.values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ModelRejected(f"{INDEX} cannot be read: {error!r}") from error
    for name in names:
        if not isinstance(name, str) or Path(name).name != name or not (directory / name).is_file():
            raise ModelRejected(f"{INDEX} names {name!r}, which is not a file in {directory}")
    return [directory / name for name in names]


def _headers(files: Iterable[Path]) -> dict[str, Stored]:
    stored: dict[str, Stored] = {}
    for file in files:
        found = read_header(file)
        twice = sorted(stored.keys() & found.keys())
        if twice:
            raise ModelRejected(f"{twice[0]} is both in {stored[twice[0]].file.name} and in {file.name}")
        stored |= found
    return stored
