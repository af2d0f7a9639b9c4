"""load_tensors: safetensors files → preallocated tensors, one at a time. Called by the torch worker. Knows no architecture.

Everything is judged from the files' headers before the first byte of weights is read, so a wrong directory is refused in
milliseconds. Files are mapped, so a tensor is in memory once (plus page cache that the kernel may drop). Never unpickles: `.bin` and
`.pt` files are refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from pagoda_daemon.errors import ModelRejected

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"

# Buffers that old exports carry and a copy of the embedding that tied models may carry.
_SUPERFLUOUS = (".rotary_emb.inv_freq", "lm_head.weight")


def load_tensors(directory: Path, places: Mapping[str, Tensor], progress: Callable[[float], None]) -> None:
    """Fill every one of `places`; ModelRejected names the file or tensor that is missing, unknown or of a wrong shape."""
    files = weight_files(directory)
    present = {name: file for file in files for name in _names(file)}
    _check_names(directory, present.keys(), places.keys())
    for file in files:
        _check_shapes(file, places)
    total, done = sum(place.nbytes for place in places.values()), 0
    for file in files:
        with _opened(file) as handle:
            for name in filter(places.__contains__, handle.keys()):
                places[name].copy_(handle.get_tensor(name))
                done += places[name].nbytes
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
        weight_map = json.loads((directory / INDEX).read_text())["weight_map"]
        names = sorted(set(weight_map.values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelRejected(f"{INDEX} cannot be read: {error!r}") from error
    for name in names:
        if not isinstance(name, str) or Path(name).name != name or not (directory / name).is_file():
            raise ModelRejected(f"{INDEX} names {name!r}, which is no file in {directory}")
    return [directory / name for name in names]


def _check_names(directory: Path, present: AbstractSet[str], expected: AbstractSet[str]) -> None:
    missing = sorted(expected - present)
    if missing:
        raise ModelRejected(f"{directory} lacks {len(missing)} tensors, such as {', '.join(missing[:3])}")
    unknown = sorted(name for name in present - expected if not name.endswith(_SUPERFLUOUS))
    if unknown:
        raise ModelRejected(f"{directory} has {len(unknown)} tensors that config.json does not call for, such as {', '.join(unknown[:3])}")


def _check_shapes(file: Path, places: Mapping[str, Tensor]) -> None:
    with _opened(file) as handle:
        for name in filter(places.__contains__, handle.keys()):
            shape, wanted = list(handle.get_slice(name).get_shape()), list(places[name].shape)
            if shape != wanted:
                raise ModelRejected(f"{file.name}: {name} has shape {shape}, config.json calls for {wanted}")


def _names(file: Path) -> list[str]:
    with _opened(file) as handle:
        return list(handle.keys())


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    try:
        with safe_open(file, framework="pt", device="cpu") as handle:
            yield handle
    except (SafetensorError, OSError) as error:
        raise ModelRejected(f"{file.name} cannot be read: {error}") from error
