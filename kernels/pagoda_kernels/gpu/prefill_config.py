"""How paged_attention_prefill is cut, by heads, dtype and device. Read by the op, and by whoever makes its work list."""

from __future__ import annotations

from dataclasses import dataclass

import torch

HEAD_DIMS = (16, 32, 64, 128, 256)
_HOPPER = 90
_SMALL = (86, 89, 120, 121)  # compute capabilities with less than 100 KiB of shared memory for a program


@dataclass(frozen=True, slots=True)
class Config:
    """How the kernel is cut: rows (tokens x heads) and keys of a tile, warps, and tiles of keys on their way from memory."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    descriptors: bool = False
    """Fetch a tile of keys by one copy of a block (TMA), where a tile is a block; elsewhere by a load per key, as without."""


def choose_config(head_dim: int, dtype: torch.dtype, arch: int = _HOPPER) -> Config:
    """Return how the kernel is cut for these heads on a device of compute capability `arch` / 10.

    Chosen by compiled code (no spills, and loads at least one tile ahead), and for heads up to 128 on sm_90 by measurement on an H200:
    blocks of 64 by descriptors take 4 to 5 % less time; tiles of 128 keys, 2 stages or 4 warps 20 % more. sm_86, sm_89 and sm_12x have
    101,376 bytes of shared memory; three stages take 115,200. A tile has whole blocks, of 64 tokens at most. Heads over 128 do not fit
    there.
    """
    if dtype.itemsize == 4:  # fp32 has no tensor core: for comparison, not for speed
        return Config(32, 64, 4, 1)
    if head_dim > 128:
        return Config(64, 64, 8, 2)
    if arch in _SMALL:
        return Config(128, 64, 8, 2)
    return Config(128, 64, 8, 3, descriptors=arch == _HOPPER)


def quantised_config(head_dim: int, arch: int = _HOPPER) -> Config:
    """Return the same for keys and values of 8 bits.

    Chosen by compiled code alone: tiles of 64 keys spill registers, with descriptors too (Triton 3.9), those of 32 do not; on sm_89 with
    128 rows these do as well (Triton 3.7).
    """
    if arch in _SMALL:
        return Config(64, 32, 8, 3)
    return Config(64, 32, 8, 2) if head_dim > 128 else Config(128, 32, 8, 3)


def arch_of(device: torch.device) -> int:
    """Return the compute capability of a CUDA device times 10; on a CPU that of the interpreter's part, an H100."""
    if device.type != "cuda":
        return _HOPPER
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


def query_tile(heads: int, kv_heads: int, config: Config) -> int:
    """Return how many queries of a row make a tile: prefill_work's `tile`."""
    return config.block_m // (heads // kv_heads)
