"""How moe_grouped is cut, by the rows of an expert, dtype and device. Read by the op, and by whoever compiles it beforehand."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import torch

from pagoda_kernels.gpu.prefill_config import _HOPPER, _SMALL


@dataclass(frozen=True, slots=True)
class Config:
    """How both products are cut. block_m: rows of a tile.

    block_n, block_k, warps, stages: of the first product, whose tile has block_n columns of the gate and as many of the other half;
    down_*: of the second. swap: weights are the left side, for which Hopper's products need 64 columns and more. descriptors: fetch
    weights by one copy of a block (TMA), and so the rows of the second product where there are 64 and more.
    """

    block_m: int = 16
    block_n: int = 32
    block_k: int = 128
    warps: int = 4
    stages: int = 4
    down_n: int = 64
    down_k: int = 128
    down_warps: int = 4
    down_stages: int = 4
    swap: bool = False
    descriptors: bool = True


_BY_ROWS: Final = (
    (8, Config()),
    (24, Config(block_m=32)),
    (96, Config(64, 64, 64, 4, 4, 128, 64, 4, 4)),
    (None, Config(128, 128, 64, 8, 4, 128, 64, 4, 3)),
)
"""For an expert of so many rows in the mean; the last for all above. Weights are all that counts in the first two."""


def choose_config(
    rows: float, dtype: torch.dtype = torch.bfloat16, arch: int = _HOPPER, *, amd: bool = torch.version.hip is not None
) -> Config:
    """Return the configuration for experts of `rows` rows in the mean on a device of compute capability `arch` / 10.

    Chosen by compiled code (no spills, loads at least one tile ahead), and by nothing else: no time has been measured.
    """
    found = next(config for most, config in _BY_ROWS if most is None or rows <= most)
    if dtype.itemsize == 4:  # fp32 has no tensor core: for comparison, not for speed
        return Config(min(found.block_m, 32), 32, 32, 4, 1, 32, 32, 4, 1, descriptors=False)
    if amd:
        return Config(min(found.block_m, 64), 32, 64, 4, 2, 64, 64, 4, 2, descriptors=False)
    if arch == _HOPPER:
        return found
    if arch in _SMALL or found.block_m < 128:
        return replace(found, stages=3, down_stages=3, block_m=min(found.block_m, 64), descriptors=False)
    return replace(found, block_n=64, block_k=32, stages=3, down_warps=8, descriptors=False)


def all_configs(dtype: torch.dtype, arch: int) -> dict[float, Config]:
    """Return every configuration by a mean of rows that asks for it: what a replica compiles before it is asked."""
    return {rows: choose_config(rows, dtype, arch) for rows in (1, *(most + 1 for most, _ in _BY_ROWS if most is not None))}
