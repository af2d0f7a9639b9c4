"""Descriptors of matrices, by which a kernel copies whole blocks (TMA). Called by the ops that take them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor


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
