"""A service's demand in bins of BIN_S, and its rate, its trend and the time per request. Pure.

`signals` closes the bins, `autoscale` reads the measures. Ten minutes of bins are kept, and of older ones the last with a request, so that
the beginning of an idle time is never lost. 500 services take 9 MB.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from pagoda_operator.api.signals import BIN_S, Measure

KEPT: Final = 120
# A gap of so many bins is bridged: a gateway that restarts is away for some seconds. After a longer gap a new record begins.
BRIDGED: Final = 3
# KV in use changes with each frame. Deciding early at any such step cost 1.7 % more GPU hours on the diurnal trace and gained nothing.
_KV_FROM: Final = 0.7
_KV_STEP: Final = 0.05
# The 95th percentile of the last minute changes by some per cent with each frame, and no target is below _TTFT_FROM_S.
_TTFT_STEP: Final = 1.25
_TTFT_FROM_S: Final = 0.05

_SHORT: Final = 4  # bins: the rate now
_LONG: Final = 24  # bins: the recent rate; its mean counts unless the short one differs by more than chance
_TREND: Final = 60  # bins
_SURPRISE: Final = 3.0  # standard deviations of a Poisson count


class Level(NamedTuple):
    """The state at a bin's end: requests that run, wait in replicas, are held; share of KV in use; time to first token."""

    running: int = 0
    waiting: int = 0
    held: int = 0
    kv_utilization: float = 0.0
    ttft_p95_s: float = 0.0

    def worse(self, before: Level) -> bool:
        """Whether it is worth a decision before its bin ends: more requests wait, the KV fills up, or the first token takes much longer."""
        full = self.kv_utilization > max(_KV_FROM, before.kv_utilization + _KV_STEP)
        late = self.ttft_p95_s > max(_TTFT_FROM_S, before.ttft_p95_s * _TTFT_STEP)
        return full or late or self.waiting + self.held > before.waiting + before.held


def amended(measure: Measure, level: Level) -> Measure:
    """Returns the last bin with this level. Requests that came and went since count in the next bin."""
    return replace(measure, **level._asdict())


class Bins:
    """One service's bins, by the clock of the caller."""

    def __init__(self, since: float) -> None:
        self.since = since
        self._elder: Measure | None = None
        self._recent: deque[Measure] = deque(maxlen=KEPT)
        self._arrived = self._ended = 0
        self.level = Level()
        self._quiet = 0

    @property
    def idle(self) -> bool:
        """Whether the record is full and no recent bin had a request."""
        return self._quiet >= KEPT

    def count(self, arrived: int, ended: int) -> None:
        """Adds requests that came and ended since the last call."""
        self._arrived += arrived
        self._ended += ended

    def close(self, at: float, level: Level) -> None:
        """Ends a bin. If ends were missed, requests are spread over them; after too many a new record begins."""
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
        """Replaces the last bin's level; False if there is no bin."""
        if not self._recent:
            return False
        self.level = level
        self._recent[-1] = amended(self._recent[-1], level)
        if self._recent[-1].active:
            self._quiet = 0
        return True

    def measures(self, shift: float) -> tuple[Measure, ...]:
        """Returns the bins, oldest first, with `shift` added to their times."""
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
    """Requests per second now and their change per second, seconds that a request runs, requests that wait."""

    rate: float
    slope: float
    request_s: float
    backlog: int


def demand_of(measures: Sequence[Measure]) -> Demand:
    """Returns the demand now."""
    last = measures[-1]
    return Demand(_rate(measures), _slope(measures), _request_s(measures), last.waiting + last.held)


def _rate(measures: Sequence[Measure]) -> float:
    """Arrivals per second: the mean of two minutes, unless the last 20 s differ from it by more than chance. Then they count alone, and
    if they grow, they are projected by 20 s."""
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


def _request_s(measures: Sequence[Measure]) -> float:
    """Seconds that a request runs: rows in use over requests ended, of five minutes."""
    window = measures[-_TREND:]
    ended = sum(m.ended for m in window)
    return sum(m.running for m in window) * BIN_S / ended if ended else BIN_S


def offered(measures: Sequence[Measure]) -> float:
    """Returns the load now, in rows."""
    return _rate(measures) * _request_s(measures) if measures else 0.0
