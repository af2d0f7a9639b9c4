"""What bench/gpu.py computes from its measurements: floors, percentages, how often to call, summaries of rounds. Pure, without torch."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

LAUNCH_US = 2.0  # no kernel of a CUDA graph is shorter, whatever it does
_ROTATED = 4  # caches' sizes that the calls of a graph touch, so that none finds its operands in the L2
_MOST_SETS = 512
_GRAPH_US, _LEAST_CALLS, _MOST_CALLS = 400.0, 16, 512
_SAMPLE_US, _MOST_REPLAYS = 1500.0, 50


@dataclass(frozen=True, slots=True)
class Cost:
    """What one call must do at least: each input read once, each output written once; multiplications and additions; kernels. `narrow`:
    how many of them the device does in the time of one in bf16."""

    bytes: int
    flops: int = 0
    launches: int = 1
    narrow: int = 1


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What this process has measured on this device; `extra` holds those that no kernel here is divided by."""

    copy_gb_s: float
    bf16_tflop_s: float
    extra: dict[str, float | str]

    def document(self) -> dict[str, Any]:
        return {"copy_gb_s": round(self.copy_gb_s, 1), "bf16_tflop_s": round(self.bf16_tflop_s, 1)} | self.extra


class Floor(NamedTuple):
    """The least time of a call, and what sets it: bytes, flops or launches."""

    us: float
    limit: str


def floor(cost: Cost, ceilings: Ceilings) -> Floor:
    times = {
        "bytes": cost.bytes / ceilings.copy_gb_s / 1e3,
        "flops": cost.flops / cost.narrow / ceilings.bf16_tflop_s / 1e6,
        "launches": cost.launches * LAUNCH_US,
    }
    limit = max(times, key=lambda name: times[name])
    return Floor(times[limit], limit)


class Sets(NamedTuple):
    """How many sets of buffers the calls go through in turn, and whether they fit into the L2 all the same."""

    number: int
    resident: bool


def buffer_sets(touched: int, l2: int, room: int) -> Sets:
    """So that calls that touch `touched` bytes go through four L2s of `l2` bytes, if `room` bytes allow it."""
    needed = max(1, math.ceil(_ROTATED * l2 / max(1, touched)))
    if needed > _MOST_SETS:
        return Sets(1, resident=True)
    count = max(1, min(needed, room // max(1, touched)))
    return Sets(count, resident=count < needed)


def graph_calls(sets: int, floor_us: float, called_us: float) -> int:
    """Calls in one graph: each set at least once, whole turns, and long enough that its launch is small beside it.

    `called_us`: of a call without a graph. It counts where it is long: of short ones the host's part is the longer one."""
    expected = called_us if called_us > _GRAPH_US else max(floor_us, LAUNCH_US)
    wanted = max(_LEAST_CALLS if expected < _GRAPH_US else 1, math.ceil(_GRAPH_US / expected))
    return sets * math.ceil(min(_MOST_CALLS, wanted) / sets)


def replays(graph_us: float) -> int:
    """Replays between two events, long enough for their resolution."""
    return max(1, min(_MOST_REPLAYS, math.ceil(_SAMPLE_US / max(graph_us, 1.0))))


class Timed(NamedTuple):
    """Microseconds per call: the median of the rounds, and the distance of the extremes as a share of it."""

    us: float
    spread: float


def timed(rounds: Sequence[float]) -> Timed:
    middle = statistics.median(rounds)
    return Timed(middle, (max(rounds) - min(rounds)) / middle)


def reached(cost: Cost, ceilings: Ceilings, us: float) -> dict[str, float]:
    """Rates of one call and the percentage of the floor: 100 is the ceiling."""
    found = {"us": round(us, 3), "percent": round(100 * floor(cost, ceilings).us / us, 1), "gb_s": round(cost.bytes / us / 1e3, 1)}
    return found | ({"tflop_s": round(cost.flops / us / 1e6, 2)} if cost.flops else {})


def verdict(ours: Timed, other: Timed) -> dict[str, float | str]:
    """How often ours runs while the other runs once; it is faster or slower only beyond twice the larger spread."""
    ratio = other.us / ours.us
    doubt = 2 * max(ours.spread, other.spread)
    word = "ours is faster" if ratio - 1 > doubt else "ours is slower" if 1 / ratio - 1 > doubt else "equal"
    return {"speed": round(ratio, 3), "verdict": word}
