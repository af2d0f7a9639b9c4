"""Rows as 8-bit levels and a scale each: what `linear_w8a8` multiplies. The device function is called by each op that writes such rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

LARGEST: Final = {torch.float8_e4m3fn: 448.0, torch.int8: 127.0}
"""The types of levels, and the largest number of each that is used."""


@dataclass(frozen=True, slots=True)
class ScaledRows:
    """Row r is levels[r] * scales[r]: levels [rows, width] in one of the types of LARGEST, scales float32 [rows]."""

    levels: Tensor
    scales: Tensor

    @classmethod
    def empty(cls, rows: int, width: int, dtype: torch.dtype, device: torch.device) -> ScaledRows:
        """Room for so many rows."""
        return cls(
            torch.empty(rows, width, dtype=dtype, device=device),
            torch.empty(rows, dtype=torch.float32, device=device),
        )


@triton.jit
def quantised(row, LARGEST: tl.constexpr, dtype: tl.constexpr):  # noqa: ANN201 - of Triton's types
    """The levels of a row [BLOCK] of float32, zeros in its padding, and its scale.

    A row with a NaN or an infinity has the scale NaN and levels of 0, so that all it is multiplied with becomes NaN. One below 1e-30 is 0.
    """
    odd = tl.sum(row * 0.0, axis=0)  # NaN if any is: a maximum passes over NaN
    scale = tl.max(tl.abs(row), axis=0) * (1.0 / LARGEST) + odd
    known = scale > 1e-30
    steps = tl.where(known, row * (1.0 / tl.where(known, scale, 1.0)), 0.0)
    if dtype == tl.int8:
        steps = tl.floor(steps + 0.5)
    return steps.to(dtype), scale
