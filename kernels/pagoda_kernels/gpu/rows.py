"""What the ops over rows ask of their tensors, how one program takes a whole row, and descriptors, by which a kernel copies whole blocks
(TMA). Called by the ops of this folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

_WARP = 32
_PER_THREAD = 16  # elements: two 128-bit loads of bf16 per tensor, at 40 registers (sm_90)
_MOST_WARPS = 32


def check_rows(tensors: Sequence[Tensor], shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """ValueError unless each of `tensors` is contiguous, of `shape` and of `dtype`: kernels compute addresses from the shape alone."""
    for tensor in tensors:
        if tensor.shape != shape or tensor.dtype != dtype or not tensor.is_contiguous():
            raise ValueError(
                f"expected a contiguous {dtype} tensor of shape {tuple(shape)}, "
                f"got {tensor.dtype} {tuple(tensor.shape)} with strides {tensor.stride()}"
            )


@cache
def whole_row(width: int) -> tuple[int, int]:
    """Lanes of a row, and warps."""
    block = triton.next_power_of_2(width)
    return block, min(max(block // (_WARP * _PER_THREAD), 1), _MOST_WARPS)


@dataclass(frozen=True, slots=True)
class _Place:
    """What a descriptor asks of a tensor. It holds no memory, so that descriptors may be kept."""

    address: int
    dtype: torch.dtype

    def data_ptr(self) -> int:
        return self.address


def blocks_of(matrix: Tensor, rows: int, columns: int) -> TensorDescriptor:
    """Return the descriptor of `matrix` [.., width] as one of lines, of which a copy takes `rows` lines and `columns` of their numbers."""
    width = matrix.shape[-1]
    lines = matrix.numel() // width
    if matrix.is_cuda:
        return _kept(_Place(matrix.data_ptr(), matrix.dtype), lines, width, rows, columns)
    return TensorDescriptor(matrix, [lines, width], [width, 1], [rows, columns])


@lru_cache(maxsize=4096)  # two matrices of experts in each layer, cut in four ways, and what lies between
def _kept(place: _Place, lines: int, width: int, rows: int, columns: int) -> TensorDescriptor:
    """Kept, because to make one takes longer than to launch what reads it."""
    return TensorDescriptor(place, [lines, width], [width, 1], [rows, columns])
