"""What moe_grouped ships, for the gate: Qwen3-30B-A3B's experts (hidden 2048, width 768) at few and at many rows for each."""

from __future__ import annotations

from dataclasses import replace

import torch

from pagoda_kernels.exports import ARCHS, Bands, Export
from pagoda_kernels.gpu.experts.moe_config import Config, choose_config
from pagoda_kernels.gpu.experts.moe_grouped import _LEAST_FETCHED, _SUMMED, _down_kernel, _gate_up_kernel, _sum_kernel
from pagoda_kernels.gpu.experts.moe_route import LINE

_HIDDEN, _WIDTH, _TOP_K = 2048, 768, 8
_FEW, _SOME, _MANY = 4, 64, 512  # rows of an expert
_ARCH = {"sm_80": 80, "sm_89": 89, "sm_90": 90, "sm_100": 100, "gfx942": 0}


def _mma(config: Config, width: int) -> dict[str, str]:
    """Hopper's own products take 64 lines on the left side, those of Blackwell 128 and more."""
    left = width if config.swap else config.block_m
    return {"sm_80": "HMMA", "sm_89": "HMMA", "sm_90": "HGMMA" if left >= 64 else "HMMA", "gfx942": "MFMA"}


def _exports(name: str, config: Config, archs: tuple[str, ...]) -> tuple[Export, ...]:
    lists = {"order": "*i32", "tiles": "*i32"}
    common = {"HIDDEN": _HIDDEN, "WIDTH": _WIDTH, "LINE": LINE, "BLOCK_M": config.block_m, "SWAP": config.swap}
    fetched = config.descriptors and config.block_m >= _LEAST_FETCHED
    depth = None if config.stages < 3 else config.stages - 2
    gates, g = _descriptors({"blocks": (config.descriptors, config.block_n, config.block_k)})
    downs, d = _descriptors(
        {"row_blocks": (fetched, config.block_m, config.down_k), "blocks": (config.descriptors, config.down_n, config.down_k)}
    )
    return (
        Export(
            name=f"moe_gate_up_{name}",
            kernel=_gate_up_kernel,
            signature={"hidden": "*bf16", "weights": "*bf16", "inner": "*bf16"} | lists | gates,
            constants=common
            | g
            | {"TOP_K": _TOP_K, "BLOCK_N": config.block_n, "BLOCK_K": config.block_k, "DESCRIPTORS": config.descriptors},
            options={"num_warps": config.warps, "num_stages": config.stages},
            bands=Bands(registers=255, mma=_mma(config, config.block_n), depth=depth),
            archs=archs,
        ),
        Export(
            name=f"moe_down_{name}",
            kernel=_down_kernel,
            signature={"inner": "*bf16", "weights": "*bf16", "parts": "*bf16"} | lists | downs,
            constants=common
            | d
            | {"BLOCK_N": config.down_n, "BLOCK_K": config.down_k, "DESCRIPTORS": config.descriptors, "FETCHED": fetched},
            options={"num_warps": config.down_warps, "num_stages": config.down_stages},
            bands=Bands(registers=255, mma=_mma(config, config.down_n), depth=depth),
            archs=archs,
        ),
    )


def _descriptors(wanted: dict[str, tuple[bool, int, int]]) -> tuple[dict[str, str], dict[str, None]]:
    """Types of the descriptors that there are, and constants for those that there are not."""
    types = {name: f"tensordesc<bf16[{rows}, {columns}]>" for name, (there, rows, columns) in wanted.items() if there}
    return types, {name: None for name, (there, *_) in wanted.items() if not there}


def _of(name: str, rows: int, arch: str) -> tuple[Export, ...]:
    return _exports(f"{name}_{arch}", choose_config(rows, torch.bfloat16, _ARCH[arch], amd=arch == "gfx942"), (arch,))


EXPORTS = (
    *(one for arch in ARCHS for name, rows in (("few", _FEW), ("many", _MANY)) for one in _of(name, rows, arch)),
    *_of("some", _SOME, "sm_90"),
    *_exports("few_swapped", replace(choose_config(_FEW), block_n=64, swap=True), ("sm_90",)),
    Export(
        name="moe_sum_2048",
        kernel=_sum_kernel,
        signature={"parts": "*bf16", "weights": "*fp32", "out": "*bf16", "live": "*i64"},
        constants={"TOP_K": _TOP_K, "HIDDEN": _HIDDEN, "BLOCK": _SUMMED, "LIVE": True},
        options={"num_warps": 4},
        bands=Bands(registers=64),
    ),
)
