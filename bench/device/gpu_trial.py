"""One measurement of a kernel: ours and its baselines on the same buffers, each proven right before it is timed. Called by gpu_kernels."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from gpu_device import Call, Machine
from gpu_numbers import Ceilings, Cost, floor, reached, verdict
from torch import Tensor

OURS = "pagoda"
BASELINE_LIMIT = 1e-2  # of a baseline's error, whose roundings are its own
_WORST_ROW = 4  # one row's error may be so often the limit: a norm over thousands of rows hides a wrong one
_MESSAGE = 300


class Errors(NamedTuple):
    """Relative: of the whole result, and of its worst row. NaN where the result has one."""

    norm: float
    worst_row: float

    def document(self) -> dict[str, float | None]:
        """JSON has no NaN."""
        return {name: value if math.isfinite(value) else None for name, value in (("error", self.norm), ("worst_row", self.worst_row))}

    def within(self, limit: float) -> bool:
        """False where NaN."""
        return self.norm <= limit and self.worst_row <= _WORST_ROW * limit


@dataclass(frozen=True, slots=True)
class Side:
    """`calls`: one per set of buffers. `seen`: what the judge compares, of what a call returned. `judge`: in place of the trial's.
    `captured` False: it waits for the device, and no graph can hold it."""

    calls: Sequence[Call]
    seen: Callable[[Any], Any] = lambda found: found
    judge: Callable[[Any], Errors] | None = None
    captured: bool = True


@dataclass(frozen=True, slots=True)
class Trial:
    """`sides`: by name, ours first, each made when it is its turn: a baseline may be missing. `poison` spoils what ours is to write, and
    puts inputs back that it changes. `judge` looks at what the first set's call returned; above `limit` ours is wrong."""

    cost: Cost
    l2_resident: bool
    sides: dict[str, Callable[[], Side]]
    poison: Call
    judge: Callable[[Any], Errors]
    limit: float


def measure(trial: Trial, machine: Machine, ceilings: Ceilings) -> dict[str, Any]:
    """Times are there for the sides that are right, and only if ours is one of them."""
    least = floor(trial.cost, ceilings)
    sides: dict[str, dict[str, Any]] = {}
    right: dict[str, Sequence[Call]] = {}
    waiting: dict[str, Sequence[Call]] = {}
    for name, make in trial.sides.items():
        sides[name], side = _proven(name, make, trial, machine)
        if side is not None:
            (right if side.captured else waiting)[name] = side.calls
    result = {"bytes": trial.cost.bytes, "flops": trial.cost.flops, "floor_us": round(least.us, 3), "limit": least.limit}
    result |= {"l2_resident": trial.l2_resident, "sets": len(right.get(OURS, ())), "sides": sides}
    if OURS not in right:
        return result
    times = machine.time(right, least.us) | machine.time_called(waiting)
    for name, found in times.items():
        sides[name] |= reached(trial.cost, ceilings, found.us) | {"spread_percent": round(100 * found.spread, 1)}
        if name != OURS:
            sides[name] |= verdict(times[OURS], found)
    return result


def _proven(name: str, make: Callable[[], Side], trial: Trial, machine: Machine) -> tuple[dict[str, Any], Side | None]:
    """What is known of a side, and the side itself if its result is right, both called and replayed from a graph."""
    found: dict[str, Any] = {}
    limit = trial.limit if name == OURS else BASELINE_LIMIT
    try:
        side = make()
        for how in (_called, machine.prove) if side.captured else (_called,):
            begun = time.perf_counter()
            returned = how(side.calls[0], trial.poison)
            found.setdefault("first_call_s", round(time.perf_counter() - begun, 2))
            errors = (side.judge or trial.judge)(side.seen(returned))
            found |= errors.document()
            if not errors.within(limit):
                return found | {"failed": f"WRONG ({how.__name__}): relative error {errors.norm:.2e}, at most {limit:.0e} is right"}, None
    except Exception as wrong:  # noqa: BLE001 - a kernel may fail in any way, and the others are measured all the same
        return found | {"failed": message(wrong)}, None
    return found, side


def _called(call: Call, poison: Call) -> Any:
    poison()
    return call()


def message(wrong: BaseException) -> str:
    """The beginning of an error, in one line."""
    return f"{type(wrong).__name__}: {' '.join(str(wrong).split())}"[:_MESSAGE]


def frobenius(out: Tensor, reference: Tensor) -> Errors:
    """[rows, ...]: the norm of the difference over the norm of the reference, float64."""
    apart, right = (_row_norms(tensor) for tensor in (out.double() - reference.double(), reference.double()))
    rows = apart / right.clamp(min=1e-30)
    return Errors(float(apart.norm() / right.norm().clamp(min=1e-30)), float(rows.max()))


def _row_norms(tensor: Tensor) -> Tensor:
    return torch.linalg.vector_norm(tensor.flatten(1), dim=1)


def against(reference: Callable[[], Tensor]) -> Callable[[Any], Errors]:
    """A judge by the Frobenius error; the reference is computed once, when first asked."""
    kept: list[Tensor] = []

    def judge(found: Any) -> Errors:
        if not kept:
            kept.append(reference())
        return frobenius(found, kept[0])

    return judge


def spoil(*tensors: Tensor) -> None:
    """So that what a call does not write is seen."""
    for tensor in tensors:
        tensor.fill_(torch.nan if tensor.is_floating_point() else -1)
