"""The configurations of linear_w4a16 that ship, for the ahead-of-time gate."""

from __future__ import annotations

from pagoda_kernels.exports import ARCHS, Bands, Export
from pagoda_kernels.gpu.matrices.linear_w4a16 import WIDTHS, _linear_w4a16_kernel, w4_config


def _export(width: int, *, zeros: bool = False, ptx: bool = False) -> Export:
    config = w4_config(width)
    pointers = {"x": "*bf16", "packed": "*i32", "scales": "*bf16", "zeros": "*u8" if zeros else "*i32", "bias": "*bf16", "out": "*bf16"}
    pointers |= {"partial": "*fp32", "counters": "*i32"}
    constants = {"TILE_N": config.tile_n, "TILE_M": width, "MAGIC": 0x43004300, "ASYMMETRIC": zeros, "BIAS": False, "WHOLE": True}
    constants["PTX"] = ptx
    return Export(
        name=f"linear_w4a16_{width}" + ("_zeros" if zeros else "") + ("_ptx" if ptx else ""),
        kernel=_linear_w4a16_kernel,
        signature=pointers | dict.fromkeys(("rows", "outputs", "inputs", "groups"), "i32"),
        constants=constants,
        options={"num_warps": config.warps, "num_stages": config.stages},
        bands=Bands(
            registers=255 if width > WIDTHS[0] else 208 if zeros else 192,
            mma={"sm_80": "HMMA", "sm_89": "HMMA", "sm_90": "HGMMA", "sm_100": "UTCHMMA", "gfx942": "MFMA"},
            depth=2,
            wide_loads=0.5,
        ),
        aligned=("outputs", "inputs", "groups"),
        archs=ARCHS if width == WIDTHS[0] and not ptx else ARCHS[:4],  # on gfx942 wider sums spill, and there is no PTX
    )


EXPORTS = (*(_export(width) for width in WIDTHS), _export(16, zeros=True), _export(16, ptx=True))
