"""What an op file declares about the kernels it ships: `EXPORTS`, a tuple of these. The gate (aot.py) compiles each and judges it.

EXPORTS = (
    Export(
        name="rms_norm_4096",
        kernel=_rms_norm,
        signature={"x_ptr": "*bf16", "weight_ptr": "*bf16", "out_ptr": "*bf16", "tokens": "i32", "eps": "fp32"},
        constants={"WIDTH": 4096},
        options={"num_warps": 8},
        bands=Bands(registers=64, wide_loads=1.0),
    ),
)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

ARCHS: Final = ("sm_80", "sm_89", "sm_90", "sm_100", "gfx942")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bands:
    """What the binaries must keep to, beside what all must: shared memory within the device's limit, and nothing spilled. None: not asked.

    registers: the most per thread (on gfx942 vector registers). mma: the class of instruction that multiplies matrices, by arch, for
    example {"sm_80": "HMMA", "sm_90": "HGMMA", "gfx942": "MFMA"}. depth: the least number of groups of cp.async that stay in flight
    where the loop waits; 0 asks for cp.async at all; a load by TMA counts as deep enough; on NVIDIA. wide_loads: the least share of loads
    from global memory that are of 128 bits or more, on NVIDIA (cp.async among them, TMA not).
    """

    registers: int | None = None
    mma: Mapping[str, str] = field(default_factory=dict)
    depth: int | None = None
    wide_loads: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """A kernel in one configuration, as it is launched.

    kernel: the @triton.jit function. signature: type of each parameter that is no constant ("*bf16", "*i32", "i32", "fp32", …); pointers
    are taken to be aligned to 16 bytes, and so are the integers named in `aligned` to be multiples of 16. constants: the constexpr
    parameters. options: num_warps, num_stages, and what else the launch says. archs: those it is compiled for.
    """

    name: str
    kernel: Any
    signature: Mapping[str, str]
    constants: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, int] = field(default_factory=dict)
    bands: Bands = field(default_factory=Bands)
    aligned: tuple[str, ...] = ()
    archs: tuple[str, ...] = ARCHS

    @property
    def jit(self) -> Any:
        """The @triton.jit function, without what launches it (gpu/launch.py)."""
        return getattr(self.kernel, "jit", self.kernel)
