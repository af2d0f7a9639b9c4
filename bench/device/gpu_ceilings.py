"""What the device reaches at most, measured with the libraries that come with torch: memory, and matrices in bf16, fp8 and int8."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from gpu_device import Call, Machine
from gpu_numbers import Ceilings
from gpu_trial import message
from torch import Tensor

_SIDE = 8192
_COPIED = 2 << 30  # bytes
_LONG_US = 500.0  # each of these takes at least so long: one per graph


def ceilings(machine: Machine) -> Ceilings:
    """Each from a graph of its own. What this device or version does not have is a sentence instead of a number."""
    extra: dict[str, float | str] = {}
    for name, make in (("fp8_tflop_s", _fp8), ("int8_top_s", _int8)):
        try:
            extra[name] = round(_matmul(machine, make), 1)
        except Exception as wrong:  # noqa: BLE001 - the device may not have it, in any way
            extra[name] = message(wrong)
    extra["read_gb_s"] = round(_read(machine), 1)
    extra["small_kernel_us"] = round(_us(machine, partial(machine.randn(16).add_, 1), 0.0), 3)
    return Ceilings(_copy(machine), _matmul(machine, _bf16), extra)


def assumed() -> Ceilings:
    """Those of an H200, where nothing is timed: for dry runs."""
    return Ceilings(4300.0, 780.0, {})


def _copy(machine: Machine) -> float:
    """GB/s, read and written."""
    source = torch.randint(0, 2**31, (_COPIED // 8,), device=machine.device)
    target = torch.empty_like(source)
    # A copy in a graph goes through the copy engines, which reach 2.7 TB/s on an H200; a kernel reaches 4.2.
    calls = (partial(target.copy_, source), partial(torch.bitwise_not, source, out=target))
    return max(2 * _COPIED / _us(machine, call, _LONG_US) / 1e3 for call in calls)


def _read(machine: Machine) -> float:
    """GB/s, read alone: what attention for decode does is nearer to this than to a copy."""
    numbers = machine.randn(_COPIED // 4, dtype=torch.float32)
    return _COPIED / _us(machine, partial(torch.sum, numbers), _LONG_US) / 1e3


def _matmul(machine: Machine, make: Callable[[Machine], Call]) -> float:
    """TFLOP/s of a square product on random data: on zeros it is a tenth faster."""
    found = 2 * _SIDE**3 / _us(machine, make(machine), _LONG_US) / 1e6
    machine.released()
    return found


def _bf16(machine: Machine) -> Call:
    left, right, out = (machine.randn(_SIDE, _SIDE) for _ in range(3))
    return partial(torch.mm, left, right, out=out)


def _fp8(machine: Machine) -> Call:
    left, right = (machine.randn(_SIDE, _SIDE).to(torch.float8_e4m3fn) for _ in range(2))
    one = torch.ones((), device=machine.device)
    return partial(torch._scaled_mm, left, right.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True)  # noqa: SLF001 - no public name in torch 2.11


def _int8(machine: Machine) -> Call:
    def numbers() -> Tensor:
        return torch.randint(-128, 128, (_SIDE, _SIDE), device=machine.device, dtype=torch.int8)

    left, right = numbers(), numbers()
    return partial(torch._int_mm, left, right.t())  # noqa: SLF001 - no public name in torch 2.11


def _us(machine: Machine, call: Call, floor_us: float) -> float:
    return machine.time({"": [call]}, floor_us)[""].us
