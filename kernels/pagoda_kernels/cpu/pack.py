"""Weights in the order in which the CPU's ops read them. Called by the daemon's loader, one matrix at a time.

bf16: [panel of 64 outputs][input / 2][64][2]. int8: [panel][input / 4][64][4] with a scale per output. Outputs are padded to whole
panels with zeros. See src/linear.h for why.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

PANEL = 64
BF16, INT8 = 0, 1
_LINE = 64


class Arena:
    """Memory of one mapping that asks for huge pages: 12.2 instead of 11.8 GB/s at one row, 15.5 instead of 14.7 with prefetching."""

    def __init__(self, size: int) -> None:
        self._map = mmap.mmap(-1, max(size, mmap.PAGESIZE))
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self._map.madvise(mmap.MADV_HUGEPAGE)
        self._bytes = np.frombuffer(self._map, np.uint8)
        self._used = 0

    def take(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Zeros, aligned to a cache line; MemoryError when the arena is smaller than what was announced."""
        size = int(np.prod(shape)) * dtype.itemsize
        if self._used + size > self._bytes.size:
            raise MemoryError(f"the arena of {self._bytes.size} bytes has {self._bytes.size - self._used} left, {size} are wanted")
        part = self._bytes[self._used : self._used + size]
        self._used += -(-size // _LINE) * _LINE
        return torch.from_numpy(part).view(dtype).view(shape)


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """One matrix [outputs, inputs]; arrays are kept alive by this object."""

    kind: int
    outputs: int
    inputs: int
    weight: Tensor
    scale: NDArray[np.float32] | None = None
    sums: NDArray[np.int32] | None = None
    bias: NDArray[np.float32] | None = None


def packed_bytes(outputs: int, inputs: int, kind: int) -> int:
    """Arena bytes of one matrix."""
    return -(-outputs // PANEL) * PANEL * inputs * (2 if kind == BF16 else 1)


def pack(weight: Tensor, bias: Tensor | None, kind: int, arena: Arena) -> Packed:
    """`weight` [outputs, inputs] bf16 → its packed twin. ValueError where the inputs do not fill whole instructions."""
    outputs, inputs = weight.shape
    if inputs % 16:
        raise ValueError(f"a matrix with {inputs} inputs cannot be packed: accepted are multiples of 16")
    padded_bias = None if bias is None else _padded(bias.float(), outputs).numpy()
    if kind == BF16:
        place = arena.take((-(-outputs // PANEL), inputs // 2, PANEL, 2), torch.bfloat16)
        _fill(place, weight)
        return Packed(kind, outputs, inputs, place, bias=padded_bias)
    values, scale = quantise(weight)
    place = arena.take((-(-outputs // PANEL), inputs // 4, PANEL, 4), torch.int8)
    _fill(place, values)
    sums = (values.sum(dim=1, dtype=torch.int32) * 128).to(torch.int32)
    return Packed(kind, outputs, inputs, place, _padded(scale, outputs).numpy(), _padded(sums, outputs).numpy(), padded_bias)


def interleave(gate: Tensor, up: Tensor) -> Tensor:
    """32 gate rows, 32 up rows, and so on: a panel then holds both factors of 32 activations. Rows must be a multiple of 32."""
    half = PANEL // 2
    if gate.shape[0] % half:
        raise ValueError(f"a gate of {gate.shape[0]} outputs cannot be packed: accepted are multiples of {half}")
    return torch.stack([part.reshape(-1, half, part.shape[1]) for part in (gate, up)], dim=1).flatten(0, 2)


def quantise(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Symmetric per output: int8 [outputs, inputs] and fp32 scales [outputs]; weight ≈ int8 * scale."""
    wide = weight.float()
    scale = wide.abs().amax(dim=1).clamp_min(torch.finfo(torch.float32).tiny) / 127
    return (wide / scale[:, None]).round().clamp(-127, 127).to(torch.int8), scale


def unpack(packed: Packed) -> Tensor:
    """The [outputs, inputs] matrix back, int8 ones as fp32 values; for tests and for other runners."""
    rows = packed.weight.permute(0, 2, 1, 3).flatten(2).flatten(0, 1)[: packed.outputs]
    return rows if packed.scale is None else rows.float() * torch.from_numpy(packed.scale)[: packed.outputs, None]


def _fill(place: Tensor, rows: Tensor) -> None:
    panels, _, _, together = place.shape
    whole = rows.shape[0] // PANEL
    place[:whole] = rows[: whole * PANEL].reshape(whole, PANEL, -1, together).transpose(1, 2)
    if whole < panels:
        rest = rows[whole * PANEL :]
        place[whole, :, : rest.shape[0]] = rest.reshape(rest.shape[0], -1, together).transpose(0, 1)


def _padded(values: Tensor, outputs: int) -> Tensor:
    wide = torch.zeros(-(-outputs // PANEL) * PANEL, dtype=values.dtype)
    wide[:outputs] = values
    return wide
