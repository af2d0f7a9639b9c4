"""Safetensors files: what their headers say, and reading one tensor's bytes straight into memory that waits for them.

Called by `model.loader`. Reads instead of mapping: mapped pages count as the process's own until they are dropped, which doubles what a
model of one file seems to need, and faulting them in one by one is slower. What must be cast passes through one buffer of 8 MiB.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import torch
from torch import Tensor

from pagoda_daemon.core.errors import ModelRejected

DTYPES: Final = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
LEVELS: Final = {"F8_E4M3": torch.float8_e4m3fn, "I8": torch.int8}
_TYPES: Final = {**DTYPES, **LEVELS, "I32": torch.int32, "I64": torch.int64}
"""Whatever a quantised checkpoint has a use for."""
_LENGTH_BYTES: Final = 8
_LARGEST_HEADER: Final = 100 * 2**20  # the format's own bound
_STAGING: Final = 8 * 2**20


@dataclass(frozen=True, slots=True)
class Stored:
    """One tensor in a file: its bytes lie in [start, end)."""

    file: Path
    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


def read_header(file: Path) -> dict[str, Stored]:
    """Name → tensor; ModelRejected names the file, and the tensor where one is wrong."""
    try:
        with file.open("rb") as handle:
            return header_of(file, handle, os.fstat(handle.fileno()).st_size)
    except OSError as error:
        raise ModelRejected(f"{file.name} cannot be read: {error.strerror}") from error


def header_of(file: Path, handle: BinaryIO, size: int) -> dict[str, Stored]:
    """As `read_header`, of what is open already and has `size` bytes."""
    header, start = _header(file, handle)
    stored = {name: _stored(file, name, entry, start) for name, entry in header.items() if name != "__metadata__"}
    for tensor in stored.values():
        if tensor.end > size:
            raise ModelRejected(f"{file.name} cannot be read: it ends at byte {size}, {tensor.name} at {tensor.end}")
    return stored


def read_into(place: Tensor, stored: Stored, handle: BinaryIO, staging: Tensor) -> None:
    """Fill the contiguous `place`, which has the tensor's shape, from the open file."""
    handle.seek(stored.start)
    flat, dtype = place.view(-1), _TYPES[stored.dtype]
    if place.dtype == dtype and place.device.type == "cpu":
        _fill(flat, stored, handle)
        return
    chunk = staging.view(dtype)
    for start in range(0, flat.numel(), chunk.numel()):
        part = flat[start : start + chunk.numel()]
        _fill(chunk[: part.numel()], stored, handle)
        part.copy_(chunk[: part.numel()])


def read_whole(stored: Stored, handle: BinaryIO) -> Tensor:
    """The tensor in the type that it is stored in, which the caller has checked, as its shape."""
    handle.seek(stored.start)
    place = torch.empty(stored.shape, dtype=_TYPES[stored.dtype])
    _fill(place.view(-1), stored, handle)
    return place


def staging_buffer() -> Tensor:
    """What `read_into` casts in."""
    return torch.empty(_STAGING, dtype=torch.uint8)


def _fill(flat: Tensor, stored: Stored, handle: BinaryIO) -> None:
    wanted = memoryview(flat.view(torch.uint8).numpy())  # type: ignore[arg-type]  # numpy arrays are buffers from 3.12 on for mypy
    done = 0
    while done < len(wanted):
        try:
            count = handle.readinto(wanted[done:])  # type: ignore[attr-defined]  # BinaryIO lacks it, io.FileIO has it
        except OSError as error:
            raise ModelRejected(f"{stored.file.name} cannot be read: {error.strerror}") from error
        if not count:
            raise ModelRejected(f"{stored.file.name} cannot be read: it ends inside {stored.name}")
        done += count


def _header(file: Path, handle: BinaryIO) -> tuple[Mapping[str, Any], int]:
    """The parsed header and where the data starts."""
    length = int.from_bytes(handle.read(_LENGTH_BYTES), "little")
    if not 0 < length <= _LARGEST_HEADER:
        raise ModelRejected(f"{file.name} is not a safetensors file: its header claims {length} bytes")
    text = handle.read(length)
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelRejected(f"{file.name} is not a safetensors file: its header is not JSON: {error}") from error
    if len(text) < length or not isinstance(header, dict):
        raise ModelRejected(f"{file.name} is not a safetensors file: its header is not a JSON object of {length} bytes")
    return header, _LENGTH_BYTES + length


def _stored(file: Path, name: str, entry: Any, start: int) -> Stored:
    try:
        dtype, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
    except (TypeError, KeyError, ValueError) as error:
        raise ModelRejected(f"{file.name}: {name} has the entry {entry!r:.120}") from error
    numbers = (*shape, begin, end)
    if not isinstance(dtype, str) or not all(type(number) is int and number >= 0 for number in numbers) or begin > end:
        raise ModelRejected(f"{file.name}: {name} has the entry {entry!r:.120}")
    if dtype in _TYPES and end - begin != math.prod(shape) * _TYPES[dtype].itemsize:
        raise ModelRejected(f"{file.name}: {name} has {end - begin} bytes, {dtype} {list(shape)} has another number")
    return Stored(file, name, dtype, shape, start + begin, start + end)
