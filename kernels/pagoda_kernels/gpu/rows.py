"""What the ops over rows ask of their tensors, and descriptors of matrices, by which a kernel copies whole blocks (TMA). Called by the
ops of this folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor


def check_rows(tensors: Sequence[Tensor], shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """ValueError unless each of `tensors` is contiguous, of `shape` and of `dtype`: kernels compute addresses from the shape alone."""
    for tensor in tensors:
        if tensor.shape != shape or tensor.dtype != dtype or not tensor.is_contiguous():
            raise ValueError(
                f"expected a contiguous {dtype} tensor of shape {tuple(shape)}, "
                f"got {tensor.dtype} {tuple(tensor.shape)} with strides {tensor.stride()}"
            )


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
