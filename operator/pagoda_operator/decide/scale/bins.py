"""A service's demand in bins of `autoscale.BIN_S`, as autoscale reads it. Pure; kept by `signals`, which knows when a bin ends.

Ten minutes of bins. What is older is one Measure: the last bin with a request in it, so that however long a service may idle before it goes
to zero, the beginning of its idleness is there. 500 services take 9 MB.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
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
        """Before its end: worse than it was when it was looked at last; whether there is a bin that says so."""
        if not self._recent:
            return False
        self.level = level
        self._recent[-1] = amended(self._recent[-1], level)
        if _active(self._recent[-1]):
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
            if self._elder is None or _active(oldest):
                self._elder = oldest
        self._recent.append(measure)
        self._quiet = 0 if _active(measure) or measure.ended else self._quiet + 1


def _active(measure: Measure) -> bool:
    return bool(measure.arrived or measure.running or measure.waiting or measure.held)
