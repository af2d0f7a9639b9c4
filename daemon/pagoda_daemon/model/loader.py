"""load_tensors: safetensors files → preallocated tensors, one at a time. Called by the model worker. Knows no architecture.

Everything is judged from the files' headers before the first byte of weights is read, so a wrong directory is refused in
milliseconds. Weights are in memory once. Never unpickles: `.bin` and `.pt` files are refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from itertools import groupby
from pathlib import Path
from typing import Final

from torch import Tensor

from pagoda_daemon.core.errors import ModelRejected
from pagoda_daemon.model.files import DTYPES, Stored, read_header, read_into, staging_buffer

SINGLE: Final = "model.safetensors"
INDEX: Final = "model.safetensors.index.json"

# Buffers that old exports carry and a copy of the embedding that tied models may carry.
_SUPERFLUOUS: Final = (".rotary_emb.inv_freq", "lm_head.weight")


def _nothing(_name: str) -> None:
    return None


def load_tensors(
    directory: Path, places: Mapping[str, Tensor], progress: Callable[[float], None], filled: Callable[[str], None] = _nothing
) -> None:
    """Fill every one of `places`; ModelRejected names the file or tensor that is missing, unknown or of a wrong shape. `filled` hears of
    each place that is: it may take the bytes away."""
    stored = _headers(weight_files(directory))
    _check_names(directory, stored.keys(), places.keys())
    wanted = [stored[name] for name in places]
    for tensor in wanted:
        _check(tensor, places[tensor.name])
    total, done = sum(place.nbytes for place in places.values()), 0
    staging = staging_buffer()
    for file, tensors in groupby(sorted(wanted, key=lambda tensor: (tensor.file, tensor.start)), key=lambda tensor: tensor.file):
        with file.open("rb", buffering=0) as handle:
            for tensor in tensors:
                read_into(places[tensor.name], tensor, handle, staging)
                done += places[tensor.name].nbytes
                filled(tensor.name)
                progress(done / total)


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


def _check_names(directory: Path, present: AbstractSet[str], expected: AbstractSet[str]) -> None:
    missing = sorted(expected - present)
    if missing:
        raise ModelRejected(f"{directory} lacks {len(missing)} tensors, such as {', '.join(missing[:3])}")
    unknown = sorted(name for name in present - expected if not name.endswith(_SUPERFLUOUS))
    if unknown:
        raise ModelRejected(f"{directory} has {len(unknown)} tensors that config.json does not call for, such as {', '.join(unknown[:3])}")


def _check(stored: Stored, place: Tensor) -> None:
    shape, wanted = list(stored.shape), list(place.shape)
    if shape != wanted:
        raise ModelRejected(f"{stored.file.name}: {stored.name} has shape {shape}, config.json calls for {wanted}")
    if stored.dtype not in DTYPES:
        raise ModelRejected(f"{stored.file.name}: {stored.name} is stored as {stored.dtype}; it must be one of {', '.join(DTYPES)}")
