"""A service's demand: kept in bins of BIN_S, and what the bins say of it: what arrives, how that changes, how long a request stays. Pure.

`signals` knows when a bin ends and keeps Bins, `autoscale` reads the measures. Ten minutes of bins are kept. What is older is one Measure:
the last bin with a request in it, so that however long a service may idle before it goes to zero, the beginning of its idleness is there.
500 services take 9 MB.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from pagoda_operator.api.scaling import BIN_S, Measure

KEPT: Final = 120
# A gap of so many bins is bridged: a gateway that restarts or is replaced is away for some seconds. A longer one begins the record anew.
BRIDGED: Final = 3
# KV in use changes with each frame. With early looks at any step of it, who has much to run was taken for who runs it longer: 1.7 % more
# GPU hours on the diurnal trace, and nothing gained. From here on nothing is lost, and who fills up is seen in time.
_KV_FROM: Final = 0.7
_KV_STEP: Final = 0.05
# The 95th percentile of the last minute wanders by some per cent with each frame; nobody's target is below the other.
_TTFT_STEP: Final = 1.25
_TTFT_FROM_S: Final = 0.05

_SHORT: Final = 4  # bins: what arrives now
_LONG: Final = 24  # bins: what arrived lately; its mean is believed unless the short one contradicts it
_TREND: Final = 60  # bins
_SURPRISE: Final = 3.0  # standard deviations of a Poisson count


class Level(NamedTuple):
    """What is there at a bin's end: requests that run, wait in replicas, are held; share of KV in use; time to first token."""

    running: int = 0
    waiting: int = 0
    held: int = 0
    kv_utilization: float = 0.0
    ttft_p95_s: float = 0.0

    def worse(self, seen: Level) -> bool:
        """Whether what it shows, beside `seen`, is worth a decision before its bin ends: more wait, the KV is filling up, or the first
        token takes much longer."""
        full = self.kv_utilization > max(_KV_FROM, seen.kv_utilization + _KV_STEP)
        late = self.ttft_p95_s > max(_TTFT_FROM_S, seen.ttft_p95_s * _TTFT_STEP)
        return full or late or self.waiting + self.held > seen.waiting + seen.held


def amended(measure: Measure, level: Level) -> Measure:
    """The last bin, as it ends now: what came and went is counted on in the next."""
    return replace(measure, **level._asdict())


class Bins:
    """One service's, by the clock of whoever closes them."""

    def __init__(self, since: float) -> None:
        self.since = since
        self._elder: Measure | None = None
        self._recent: deque[Measure] = deque(maxlen=KEPT)
        self._arrived = self._ended = 0
        self.level = Level()
        self._quiet = 0

    @property
    def idle(self) -> bool:
        """Whether nothing was there in any bin of the record but the eldest, and that record is full."""
        return self._quiet >= KEPT

    def count(self, arrived: int, ended: int) -> None:
        """Requests that came and ended since the last word."""
        self._arrived += arrived
        self._ended += ended

    def close(self, at: float, level: Level) -> None:
        """A bin ends. Where ends were missed, what came and went meanwhile is spread over them; too many, and a new record begins."""
        self.level = level
        last = self._recent[-1].at if self._recent else self.since
        missed = max(1, round((at - last) / BIN_S))
        if missed > BRIDGED + 1:
            self._begin_anew(at)
            missed = 1
        arrived, ended = self._arrived, self._ended
        self._arrived = self._ended = 0
        for left in range(missed, 0, -1):
            came, went = arrived // left, ended // left
            arrived, ended = arrived - came, ended - went
            self._append(Measure(at - (left - 1) * BIN_S, came, went, *level))

    def amend(self, level: Level) -> bool:
        """Before its end: worse than at the last decision; whether there is a bin that says so."""
        if not self._recent:
            return False
        self.level = level
        self._recent[-1] = amended(self._recent[-1], level)
        if self._recent[-1].active:
            self._quiet = 0
        return True

    def measures(self, shift: float) -> tuple[Measure, ...]:
        """Oldest first, with `shift` added to their times."""
        elder = (self._elder,) if self._elder else ()
        return tuple(replace(measure, at=measure.at + shift) for measure in (*elder, *self._recent))

    def _begin_anew(self, at: float) -> None:
        self.since = at - BIN_S
        self._elder = None
        self._recent.clear()
        self._quiet = 0

    def _append(self, measure: Measure) -> None:
        if len(self._recent) == KEPT:
            oldest = self._recent[0]
            if self._elder is None or oldest.active:
                self._elder = oldest
        self._recent.append(measure)
        self._quiet = 0 if measure.active or measure.ended else self._quiet + 1


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
