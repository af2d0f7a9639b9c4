"""What the ops over rows ask of their tensors. Called by the ops of this folder."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def check_rows(tensors: Sequence[Tensor], shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """ValueError unless each of `tensors` is contiguous, of `shape` and of `dtype`: kernels compute addresses from the shape alone."""
    for tensor in tensors:
        if tensor.shape != shape or tensor.dtype != dtype or not tensor.is_contiguous():
            raise ValueError(
                f"expected a contiguous {dtype} tensor of shape {tuple(shape)}, "
                f"got {tensor.dtype} {tuple(tensor.shape)} with strides {tensor.stride()}"
            )
