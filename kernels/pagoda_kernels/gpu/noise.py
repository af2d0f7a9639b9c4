# ruff: noqa: ANN201  (what a device function returns has no type in Python)
"""Device functions of the randomness of sampling: a hash of (seed, position, id), the one of the daemon's `runner/noise.py`.

Called inside kernels that draw. Integers only up to the last step: the same 31 random bits on every device and in every batch.
"""

import triton
import triton.language as tl

# splitmix64 for the two keys of a row.
_STEP: tl.constexpr = tl.constexpr(0x9E3779B97F4A7C15)
_FIRST: tl.constexpr = tl.constexpr(0xBF58476D1CE4E5B9)
_SECOND: tl.constexpr = tl.constexpr(0x94D049BB133111EB)
# murmur3's finaliser for the ids, with the second key between its rounds.
_SPREAD: tl.constexpr = tl.constexpr(0x9E3779B1)
_MIX_A: tl.constexpr = tl.constexpr(0x85EBCA6B)
_MIX_B: tl.constexpr = tl.constexpr(0xC2B2AE35)
# 31 bits as a number in (0, 1): the factor keeps the largest below 1.
_UNIT: tl.constexpr = tl.constexpr(2.0**-31 * (1 - 2.0**-23))
# Up to here the series of log(1 - u) is used: its first term left out is 1e-9 of the whole.
_SMALL: tl.constexpr = tl.constexpr(0.0625)


@triton.jit
def row_keys(seed, position):
    """Returns two uint32 keys for a row. `seed` int64 (any bits), `position` int32 of the token to draw."""
    mixed = seed.to(tl.uint64, bitcast=True) + (position.to(tl.uint64) + 1) * _STEP
    mixed = (mixed ^ (mixed >> 30)) * _FIRST
    mixed = (mixed ^ (mixed >> 27)) * _SECOND
    mixed = mixed ^ (mixed >> 31)
    return (mixed & 0xFFFFFFFF).to(tl.uint32), (mixed >> 32).to(tl.uint32)


@triton.jit
def gumbel(ids, first, second):
    """Returns standard Gumbel noise, float32, in the shape of `ids` int32. Largest 22, smallest -2.8."""
    bits = (ids.to(tl.uint32, bitcast=True) * _SPREAD) ^ first
    bits = (bits ^ (bits >> 16)) * _MIX_A ^ second
    bits = (bits ^ (bits >> 13)) * _MIX_B
    bits = (bits ^ (bits >> 16)) & 0x7FFFFFFF
    u = (bits.to(tl.int32, bitcast=True).to(tl.float32) + 0.5) * _UNIT
    # The small u win, and 1 - u has lost their digits.
    series = u * (1 + u * (1 / 2 + u * (1 / 3 + u * (1 / 4 + u * (1 / 5 + u * (1 / 6 + u / 7))))))
    return -tl.log(tl.where(u < _SMALL, series, -tl.log(1 - u)))
