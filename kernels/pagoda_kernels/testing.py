"""How a GPU op is judged: where it runs, and how far its result may be from the reference. For tests and benchmarks, not for the daemon.

References compute in float64. This is the only table of tolerances: no test has one of its own.
"""

from __future__ import annotations

from typing import Final, Literal

import torch
from torch import Tensor

Kind = Literal["fp32", "fp16", "bf16", "fp8_kv", "dequantised"]
"""`fp8_kv`: fp8 keys and values against the unquantised ones. `dequantised`: any quantised input against what it dequantises to."""

TOLERANCE: Final[dict[Kind, float]] = {"fp32": 1e-5, "fp16": 1e-3, "bf16": 4e-3, "fp8_kv": 3e-2, "dequantised": 4e-3}
"""Frobenius norm of the error as a share of the reference's."""

KIND_OF: Final[dict[torch.dtype, Kind]] = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}

_WORST: Final = 4.0
"""One element may be off by this times the tolerance, as a share of the largest: a norm over a million elements hides a wrong one."""

_ULPS: Final = 2.0
"""What FlashAttention's rule allows beside twice the baseline's error, in last places of the largest value."""


def device() -> torch.device:
    """The GPU where there is one, else the CPU: there Triton's interpreter runs the kernels."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def assert_close(out: Tensor, reference: Tensor, kind: Kind, baseline: Tensor | None = None) -> None:
    """AssertionError, with the figures, where `out` is not `reference` [same shape, float64] within the tolerance of `kind`.

    NaN and infinities must stand where the reference has them. `baseline`: what plain torch computes in the dtype; no element may be
    further from the reference than twice its worst one (hopper/test_flash_attn.py of FlashAttention).
    """
    _same_shape(out, reference)
    right, got = reference.detach().cpu().double(), out.detach().cpu().double()
    finite = torch.isfinite(right)
    odd = ~(finite | (right == got) | (right.isnan() & got.isnan())) | (finite & ~torch.isfinite(got))
    if odd.any():
        at = tuple(int(index) for index in odd.nonzero()[0])
        raise AssertionError(
            f"{int(odd.sum())} values are not finite where they should be, or the reverse; first at {at}: {got[at]} for {right[at]}"
        )
    error, right = (got - right)[finite].abs(), right[finite].abs()
    if error.numel() == 0:
        return
    _bounded("Frobenius norm of the error", error.norm(), TOLERANCE[kind] * right.norm())
    _bounded("worst element", error.max(), _WORST * TOLERANCE[kind] * right.max())
    if baseline is not None:
        _same_shape(baseline, reference)
        theirs = (baseline.detach().cpu().double()[finite] - reference.detach().cpu().double()[finite]).abs().max()
        _bounded("worst element beside the baseline's", error.max(), 2 * theirs + _ULPS * torch.finfo(baseline.dtype).eps * right.max())


def _same_shape(out: Tensor, reference: Tensor) -> None:
    if out.shape != reference.shape:
        raise AssertionError(f"shape {tuple(out.shape)}, the reference has {tuple(reference.shape)}")


def _bounded(what: str, value: Tensor, bound: Tensor) -> None:
    if not value <= bound:
        raise AssertionError(f"{what}: {float(value):.3e}, allowed {float(bound):.3e}")
