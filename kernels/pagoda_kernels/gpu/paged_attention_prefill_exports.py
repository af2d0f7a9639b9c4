"""What paged_attention_prefill ships, for the gate: heads of three sizes, a window, blocks of 64, and these by descriptors."""

from __future__ import annotations

import torch

from pagoda_kernels.exports import Bands, Export
from pagoda_kernels.gpu.paged_attention_prefill import _paged_attention_prefill_kernel
from pagoda_kernels.gpu.prefill_config import Config, choose_config, quantised_config

_HEADS, _KV_HEADS = 32, 8
_LARGE, _SMALL = ("sm_80", "sm_90", "sm_100"), ("sm_89",)  # by shared memory
_MMA = {"sm_80": "HMMA", "sm_89": "HMMA", "sm_90": "HGMMA", "sm_100": "UTCHMMA"}
_MAIN = ("sm_80", "sm_90")


def _kept(kept: str) -> tuple[dict[str, str], dict[str, object]]:
    """Types and constants of keys and values."""
    pointers, scales = dict.fromkeys(("keys", "values"), f"*{kept}"), ("key_scales", "value_scales")
    if kept == "bf16":
        return pointers, {**dict.fromkeys(scales), "SCALED": False}
    return pointers | dict.fromkeys(scales, "*fp32"), {"SCALED": True}


def _export(name: str, head_dim: int, block_size: int, archs: tuple[str, ...], *, window: bool = False, kept: str = "bf16") -> Export:
    arch = 89 if archs == _SMALL else 90
    config = choose_config(head_dim, torch.bfloat16, arch) if kept == "bf16" else quantised_config(head_dim, arch)
    pointers, constants = _kept(kept)
    lists = dict.fromkeys(("tables", "table_starts", "lengths", "starts", "work"), "*i32")
    numbers = {"window": "i32", "slots": "i32", "scale": "fp32"}
    return Export(
        name=f"paged_attention_prefill_{name}",
        kernel=_paged_attention_prefill_kernel,
        signature=pointers | {"query": "*bf16", "out": "*bf16"} | lists | numbers,
        constants=constants
        | {"key_blocks": None, "value_blocks": None}
        | {"HEADS": _HEADS, "KV_HEADS": _KV_HEADS, "HEAD_DIM": head_dim, "BLOCK_SIZE": block_size, "BLOCK_M": config.block_m}
        | {"BLOCK_N": config.block_n, "WINDOW": window, "DESCRIPTORS": False},
        options={"num_warps": config.num_warps, "num_stages": config.num_stages},
        bands=Bands(registers=255, mma=_MMA, depth=config.num_stages - 2),
        archs=archs,
    )


def _fetched(name: str, head_dim: int, config: Config) -> Export:
    """By descriptor. sm_90 alone: its tiles and stages are chosen for that, and so are the products that run on their own."""
    block = f"tensordesc<bf16[{config.block_n}, {head_dim}]>"
    pointers, constants = _kept("bf16")
    lists = dict.fromkeys(("tables", "table_starts", "lengths", "starts", "work"), "*i32")
    numbers = {"window": "i32", "slots": "i32", "scale": "fp32"}
    return Export(
        name=f"paged_attention_prefill_{name}",
        kernel=_paged_attention_prefill_kernel,
        signature=pointers | {"query": "*bf16", "out": "*bf16", "key_blocks": block, "value_blocks": block} | lists | numbers,
        constants=constants
        | {"HEADS": _HEADS, "KV_HEADS": _KV_HEADS, "HEAD_DIM": head_dim, "BLOCK_SIZE": config.block_n, "BLOCK_M": config.block_m}
        | {"BLOCK_N": config.block_n, "WINDOW": False, "DESCRIPTORS": True},
        options={"num_warps": config.num_warps, "num_stages": config.num_stages},
        bands=Bands(registers=255, mma=_MMA, depth=2),
        archs=("sm_90",),
    )


_FETCHED = Config(128, 64, 8, 3, descriptors=True)
EXPORTS = (
    _export("64_block_16", 64, 16, _LARGE),
    _export("64_block_16_small", 64, 16, _SMALL),
    _export("128_block_16_small", 128, 16, _SMALL),
    _export("128_block_16", 128, 16, _LARGE),
    _export("128_block_64", 128, 64, _MAIN),
    _export("128_block_16_window", 128, 16, _MAIN, window=True),
    _export("256_block_16", 256, 16, _MAIN),
    _fetched("128_fetched", 128, _FETCHED),
    _export("128_block_64_fp8", 128, 64, ("sm_90",), kept="fp8e4nv"),
    _export("128_block_64_fp8_small", 128, 64, _SMALL, kept="fp8e4nv"),
    _export("128_block_16_fp8", 128, 16, ("sm_90",), kept="fp8e4nv"),
    _export("128_block_16_int8", 128, 16, ("sm_80", "sm_90"), kept="i8"),
)
