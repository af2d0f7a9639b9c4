"""What the ops over rows ask of their tensors, and how one program takes a whole row. Called by the ops of this folder."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
import triton
from torch import Tensor

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
