"""gumbel: the randomness of sampling, a hash of (seed, position, token id). Called by `draw`. Nothing else is random in the engine.

So a row gets the same noise whatever else is in the batch, however its prompt was cut and however often it was preempted, and a
candidate gets the same noise alone as in the whole vocabulary. Integers only up to the last step: the same bits on every device.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pagoda_daemon.core.arrays import Ints, Seeds

# splitmix64 for the few keys, murmur3's finaliser with a second key between its rounds for the many ids: all as torch's signed int32,
# whose products wrap.
_STEP, _FIRST, _SECOND = (np.uint64(n) for n in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
_SPREAD, _MIX_A, _MIX_B = -1640531535, -2048144789, -1028477387  # 0x9E3779B1, 0x85EBCA6B, 0xC2B2AE35
# 31 random bits as a number in (0, 1): the factor keeps the largest below 1, of which the logarithm would be 0.
_UNIT = 2.0**-31 * (1 - 2.0**-23)


def gumbel(ids: Tensor, seeds: Seeds, positions: Ints) -> Tensor:
    """Standard Gumbel noise, float32 [rows, n], for `ids` int32 [n] or [rows, n]. Largest 22, smallest -2.8."""
    first, second = (torch.from_numpy(key)[:, None].to(ids.device) for key in _keys(seeds, positions))
    bits = (ids * _SPREAD) ^ first
    _fold(bits, 16)
    bits.mul_(_MIX_A).bitwise_xor_(second)
    _fold(bits, 13)
    bits.mul_(_MIX_B)
    _fold(bits, 16)
    uniform = bits.bitwise_and_(0x7FFFFFFF).float().add_(0.5).mul_(_UNIT)
    # -log(-log1p(-u)) keeps its precision where u is small, and these are the ones that win.
    return uniform.neg_().log1p_().neg_().log_().neg_()


def _fold(bits: Tensor, by: int) -> None:
    """bits ^= bits >> by, the shift unsigned."""
    bits.bitwise_xor_((bits >> by).bitwise_and_((1 << (32 - by)) - 1))


def _keys(seeds: Seeds, positions: Ints) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Two 32-bit keys per row."""
    mixed = seeds + _STEP * (positions.astype(np.uint64) + np.uint64(1))
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _FIRST
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _SECOND
    halves = (mixed ^ (mixed >> np.uint64(31))).view(np.uint32).reshape(-1, 2)
    return halves[:, 0].copy().view(np.int32), halves[:, 1].copy().view(np.int32)
