"""Matrices that a GPU's fused ops hold as a quantised checkpoint stores them. Called by `gpu.load`.

FP8 and INT8 with a scale per output or per matrix, and 4 bits with groups of a multiple of 128, keep every number. FP8 with a scale per
block is rounded again, to a scale per output, because that is what the op for 8 bits multiplies by.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import torch
from pagoda_kernels.gpu.matrices.w4_weights import MIDDLE, Weights4, of_groups, packed_w4, w4_bytes
from pagoda_kernels.gpu.quantise_rows import quantise_rows
from torch import Tensor

from pagoda_daemon.model.config import ModelSpec
from pagoda_daemon.model.loader import Reading, load_tensors, read_sources
from pagoda_daemon.model.quantised import FORMATS, Format, Linear4, Linear8, Quantiser, not_quantised
from pagoda_daemon.model.sources import Source
from pagoda_daemon.model.stored import Stored4, Stored8, StoredMatrix
from pagoda_daemon.model.weights import Linear, Weights, allocate, destinations, linears, weight_bytes

_PART: Final = 2048  # outputs that are unpacked at once, a multiple of the 128 of two slabs

Sources = Mapping[str, Source]


def held_form(spec: ModelSpec, capability: tuple[int, int] | None) -> str | None:
    """What a device of a compute capability (None: in the interpreter) holds a checkpoint's matrices in; None: in the model's dtype."""
    if spec.stored is None or spec.stored.form not in FORMATS:
        return None
    return spec.stored.form if not_quantised(spec, spec.stored.form, capability) is None else None


def stored_sources(directory: Path, spec: ModelSpec) -> Sources:
    """What makes each place of the model, from the headers of its files."""
    with torch.device("meta"):
        places = destinations(spec, allocate(spec, torch.bfloat16))
    return read_sources(directory, {name: tuple(place.shape) for name, place in places.items()}, spec.stored)


def stored_bytes(spec: ModelSpec, dtype: torch.dtype, sources: Sources) -> int:
    """As `weight_bytes`: what is not quantised, or has no form of its own, stays in `dtype`."""
    with torch.device("meta"):
        held = _held(spec, allocate(spec, dtype), sources)
    return weight_bytes(spec, dtype) - sum(linear.weight.nbytes - _bytes(linear, sources[names[0]]) for linear, names in held)


def load_as_stored(directory: Path, spec: ModelSpec, place: torch.device, dtype: torch.dtype, progress: Callable[[float], None]) -> Weights:
    """The weights on the device; ModelRejected as of `load_tensors`. The host holds the parts of the matrices that are not complete."""
    keeper = Keeper(spec, dtype, place, stored_sources(directory, spec))
    load_tensors(directory, keeper.places, progress, Reading(keeper.filled, spec.stored, keeper.takes))
    return keeper.weights()


class Keeper(Quantiser):
    """A Quantiser that changes no matrix which is read in `dtype`; `takes` has those that stay as they are stored."""

    def __init__(self, spec: ModelSpec, dtype: torch.dtype, place: torch.device, sources: Sources) -> None:
        super().__init__(spec, dtype, place, _UNCHANGED)
        self._dtype = dtype
        self._parts: dict[str, StoredMatrix] = {}
        self.takes: dict[str, Callable[[StoredMatrix], None]] = {}
        for linear, names in _held(spec, self._weights, sources):
            self.takes |= {name: partial(self._take, linear, names, name) for name in names}

    def _take(self, linear: Linear, names: Sequence[str], name: str, matrix: StoredMatrix) -> None:
        self._parts[name] = matrix
        if all(one in self._parts for one in names):
            self._made[id(linear)] = _made([self._parts.pop(one) for one in names], self._place, self._dtype)


_UNCHANGED: Final = Format(lambda linear: replace(linear, weight=linear.weight.clone()), lambda out, size: 2 * out * size, (0, 0))


def _held(spec: ModelSpec, weights: Weights, sources: Sources) -> list[tuple[Linear, tuple[str, ...]]]:
    """The linear maps that are held as they are stored, with the names of their parts, in order."""
    names: dict[int, list[str]] = {}
    for name, place in destinations(spec, weights).items():
        names.setdefault(id(place._base), []).append(name)  # noqa: SLF001  tensors on the device meta have no address to tell them by
    every = [(linear, tuple(names[id(linear.weight)])) for layer in weights.layers for linear in linears(layer)]
    return [(linear, parts) for linear, parts in every if all(_holds(sources[part]) for part in parts)]


def _holds(source: Source) -> bool:
    stored = source.stored
    if stored is None or stored.form not in FORMATS:
        return False
    return stored.form != "int4" or stored.group is None or source.shape[1] % stored.group == 0


def _bytes(linear: Linear, source: Source) -> int:
    outputs, inputs = linear.weight.shape
    if source.stored is None or source.stored.form != "int4":
        return FORMATS["fp8"].size(outputs, inputs)
    return w4_bytes(outputs, inputs, zeros=source.stored.zeros)


def _made(matrices: Sequence[StoredMatrix], place: torch.device, dtype: torch.dtype) -> Linear:
    """One linear map of matrices with the same inputs, whose outputs follow each other."""
    eights = [matrix for matrix in matrices if isinstance(matrix, Stored8)]
    if eights:
        return _linear8(eights, place, dtype)
    fours = [matrix for matrix in matrices if isinstance(matrix, Stored4)]
    total = sum(matrix.shape[0] for matrix in fours)
    parts = [_weights4(fours, first, min(first + _PART, total), place) for first in range(0, total, _PART)]
    return Linear4.of(_joined(parts), None, dtype)


def _linear8(matrices: Sequence[Stored8], place: torch.device, dtype: torch.dtype) -> Linear8:
    outputs, inputs = sum(matrix.shape[0] for matrix in matrices), matrices[0].shape[1]
    levels = torch.empty(outputs, inputs, dtype=matrices[0].levels.dtype, device=place)
    scales = torch.empty(outputs, dtype=torch.float32, device=place)
    at = 0
    for matrix in matrices:
        for first in range(0, matrix.shape[0], _PART):
            end = min(first + _PART, matrix.shape[0])
            rows = slice(at + first, at + end)
            if matrix.block is None:
                levels[rows], scales[rows] = matrix.levels[first:end], matrix.scales[first:end, 0]
            else:
                again = quantise_rows(matrix.rows(first, end, place), levels.dtype)
                levels[rows], scales[rows] = again.levels, again.scales
        at += matrix.shape[0]
    return Linear8(levels, None, scales, dtype)


def _weights4(matrices: Sequence[Stored4], first: int, end: int, place: torch.device) -> Weights4:
    """Of the outputs `first` to `end` of all matrices behind each other."""
    found: list[tuple[Tensor, Tensor, Tensor]] = []
    at = 0
    for matrix in matrices:
        begin, stop = max(first - at, 0), min(end - at, matrix.shape[0])
        if begin < stop:
            found.append(matrix.parts(begin, stop, place))
        at += matrix.shape[0]
    levels, zeros, scales = (torch.cat(parts) for parts in zip(*found, strict=True))
    inputs = levels.shape[1]
    return packed_w4(levels, of_groups(scales, inputs), of_groups(zeros, inputs))


def _joined(parts: Sequence[Weights4]) -> Weights4:
    packed, scales = torch.cat([part.packed for part in parts]), torch.cat([part.scales for part in parts])
    zeros = None
    if any(part.zeros is not None for part in parts):
        same = [torch.full(part.scales.shape, MIDDLE, dtype=torch.uint8, device=packed.device) for part in parts]
        zeros = torch.cat([other if part.zeros is None else part.zeros for part, other in zip(parts, same, strict=True)])
    return Weights4(packed, scales, zeros, sum(part.outputs for part in parts), parts[0].inputs)
