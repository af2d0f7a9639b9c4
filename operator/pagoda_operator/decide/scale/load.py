"""load: what measures say of a service's demand: what arrives, how that changes, how long a request stays. Pure; called by `autoscale`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pagoda_operator.api.scaling import BIN_S, Measure

_SHORT: Final = 4  # bins: what arrives now
_LONG: Final = 24  # bins: what arrived lately; its mean is believed unless the short one contradicts it
_TREND: Final = 60  # bins
_SURPRISE: Final = 3.0  # standard deviations of a Poisson count


@dataclass(frozen=True, slots=True)
class Demand:
    """Requests per second now and their change per second, seconds that a request holds a row, requests that wait."""

    rate: float
    slope: float
    hold_s: float
    backlog: int


def demand_of(measures: Sequence[Measure]) -> Demand:
    last = measures[-1]
    return Demand(_rate(measures), _slope(measures), _hold(measures), last.waiting + last.held)


def _rate(measures: Sequence[Measure]) -> float:
    """Arrivals per second: the mean of two minutes, unless the last 20 s are no chance deviation from it. Then they count alone, and where
    they grow, what they will be in as long again: a crowd that comes within a minute is half there when it is seen."""
    short, long = [m.arrived for m in measures[-_SHORT:]], measures[-_LONG:]
    mean, size = sum(m.arrived for m in long) / len(long), len(short)
    expected = mean * size
    if abs(sum(short) - expected) <= _SURPRISE * math.sqrt(max(expected, 1.0)):
        return mean / BIN_S
    growth = (sum(short[size // 2 :]) - sum(short[: size // 2])) / max(1, size // 2) ** 2 if size > 1 else 0.0
    return (sum(short) / size + max(0.0, growth) * size) / BIN_S


def _slope(measures: Sequence[Measure]) -> float:
    """Change of the rate per second: least squares over five minutes, 0 unless it is twice its standard error."""
    counts = [m.arrived for m in measures[-_TREND:]]
    size = len(counts)
    if size < _LONG:
        return 0.0
    middle, mean = (size - 1) / 2, sum(counts) / size
    spread = size * (size * size - 1) / 12
    slope = sum((i - middle) * count for i, count in enumerate(counts)) / spread
    return slope / BIN_S / BIN_S if abs(slope) > 2 * math.sqrt(max(mean, 1.0) / spread) else 0.0


def _hold(measures: Sequence[Measure]) -> float:
    """Seconds that a request holds a row: rows in use over requests ended, of five minutes."""
    window = measures[-_TREND:]
    ended = sum(m.ended for m in window)
    return sum(m.running for m in window) * BIN_S / ended if ended else BIN_S


def offered(measures: Sequence[Measure]) -> float:
    """The load now, in rows."""
    return _rate(measures) * _hold(measures) if measures else 0.0
