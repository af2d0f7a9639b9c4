"""Weights in the order in which the CPU's ops read them. Called by the daemon's loader, one matrix at a time.

bf16: [panel of 64 outputs][input / 2][64][2]. int8: [panel][input / 4][64][4] as value + 128, with a bf16 scale per output and group of 32
inputs, [panel][input / 32][64]. Outputs are padded to whole panels. See src/linear.h and src/linear_int8.h for why.
"""

from __future__ import annotations

import ctypes
import mmap
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

PANEL = 64
GROUP = 32
BF16, INT8 = 0, 1
CACHE_LINE = 64


class Arena:
    """Memory of one mapping that asks for huge pages: 12.2 instead of 11.8 GB/s at one row, 15.5 instead of 14.7 with prefetching."""

    def __init__(self, size: int) -> None:
        # Private: Python's own choice is shared memory, which gets no huge pages unless a machine was set up for that.
        self._map = mmap.mmap(-1, max(size, mmap.PAGESIZE), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with suppress(OSError):  # a kernel built without huge pages says EINVAL: slower by a twentieth, not broken
                self._map.madvise(mmap.MADV_HUGEPAGE)
        self._bytes = np.frombuffer(self._map, np.uint8)
        self._used = 0

    def take(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Zeros, aligned to a cache line; MemoryError when the arena is smaller than what was announced."""
        size = int(np.prod(shape)) * dtype.itemsize
        if self._used + size > self._bytes.size:
            raise MemoryError(f"the arena of {self._bytes.size} bytes has {self._bytes.size - self._used} left, {size} are wanted")
        part = self._bytes[self._used : self._used + size]
        self._used += _lines(size)
        return torch.from_numpy(part).view(dtype).view(shape)


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """One matrix [outputs, inputs]; arrays are kept alive by this object."""

    kind: int
    outputs: int
    inputs: int
    weight: Tensor
    scale: Tensor | None = None
    bias: NDArray[np.float32] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes that one use of the matrix reads."""
        return self.weight.nbytes + (0 if self.scale is None else self.scale.nbytes)


def forget(tensor: Tensor) -> None:
    """Give the tensor's pages back although others still hold it; its values are zeros or as they were from now on. A storage that
    numpy has looked at cannot be resized, so the kernel is asked instead."""
    page, begin = mmap.PAGESIZE, tensor.data_ptr()
    first, last = -(-begin // page) * page, (begin + tensor.nbytes) // page * page
    if last <= first:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), mmap.MADV_DONTNEED):
        raise OSError(ctypes.get_errno(), "madvise")


def packed_bytes(outputs: int, inputs: int, kind: int) -> int:
    """Arena bytes of one matrix."""
    elements = -(-outputs // PANEL) * PANEL * inputs
    return _lines(elements * 2) if kind == BF16 else _lines(elements) + _lines(elements // GROUP * 2)


def pack(weight: Tensor, bias: Tensor | None, kind: int, arena: Arena) -> Packed:
    """`weight` [outputs, inputs] bf16 → its packed twin. ValueError where the inputs do not fill whole groups."""
    outputs, inputs = weight.shape
    panels = -(-outputs // PANEL)
    if inputs % GROUP:
        raise ValueError(f"a matrix must have a multiple of {GROUP} inputs to be packed, got {inputs}")
    padded_bias = None if bias is None else _padded(bias.float(), outputs).numpy()
    if kind == BF16:
        place = arena.take((panels, inputs // 2, PANEL, 2), torch.bfloat16)
        _fill(place, weight)
        return Packed(kind, outputs, inputs, place, bias=padded_bias)
    values, scales = quantise(weight)
    place = arena.take((panels, inputs // 4, PANEL, 4), torch.uint8)
    _fill(place, (values.int() + 128).to(torch.uint8))
    scale_place = arena.take((panels, inputs // GROUP, PANEL, 1), torch.bfloat16)
    _fill(scale_place, scales)
    return Packed(kind, outputs, inputs, place, scale_place, padded_bias)


def interleave(gate: Tensor, up: Tensor) -> Tensor:
    """32 gate rows, 32 up rows, and so on: a panel then holds both factors of 32 activations. Rows must be a multiple of 32."""
    half = PANEL // 2
    if gate.shape[0] % half:
        raise ValueError(f"a gate must have a multiple of {half} outputs to be packed, got {gate.shape[0]}")
    return torch.stack([part.reshape(-1, half, part.shape[1]) for part in (gate, up)], dim=1).flatten(0, 2)


def quantise(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Symmetric by groups of 32 inputs: int8 [outputs, inputs] and bf16 scales [outputs, inputs / 32]; weight ≈ int8 * scale."""
    grouped = weight.float().reshape(weight.shape[0], -1, GROUP)
    # The scale is rounded first, up by less than 2^-7, and the values to it: rounded down, it would clip the largest of the group.
    exact = grouped.abs().amax(dim=2) / 127
    scales = ((exact.view(torch.int32) + 0xFFFF) & ~0xFFFF).view(torch.float32).to(torch.bfloat16)
    steps = scales.float().clamp_min(torch.finfo(torch.float32).tiny)[:, :, None]
    return (grouped / steps).round().clamp(-127, 127).to(torch.int8).reshape(weight.shape), scales


def unpack(packed: Packed) -> Tensor:
    """The [outputs, inputs] matrix back, int8 ones as fp32 values; for tests."""
    values = _rows(packed.weight)[: packed.outputs]
    if packed.scale is None:
        return values
    return (values.float() - 128) * _rows(packed.scale)[: packed.outputs].float().repeat_interleave(GROUP, dim=1)


def _rows(place: Tensor) -> Tensor:
    return place.permute(0, 2, 1, 3).flatten(2).flatten(0, 1)


def _lines(size: int) -> int:
    return -(-size // CACHE_LINE) * CACHE_LINE


def _fill(place: Tensor, rows: Tensor) -> None:
    panels, steps, _, together = place.shape
    whole = rows.shape[0] // PANEL
    place[:whole] = rows[: whole * PANEL].reshape(whole, PANEL, steps, together).transpose(1, 2)
    if whole < panels:
        rest = rows[whole * PANEL :]
        place[whole, :, : rest.shape[0]] = rest.reshape(rest.shape[0], steps, together).transpose(0, 1)


def _padded(values: Tensor, outputs: int) -> Tensor:
    wide = torch.zeros(-(-outputs // PANEL) * PANEL, dtype=values.dtype)
    wide[:outputs] = values
    return wide
