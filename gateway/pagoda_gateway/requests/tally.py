"""Tally: counts of requests per service and revision, for the demand that operators watch. Written by lifecycle.py, read by demand/.

Counters since the start, and a minute in slices of five seconds. Time is a parameter; nothing here decides.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Final, NamedTuple

SLICE_MS: Final = 5_000
SLICES: Final = 12
# Times are kept as counts of buckets that grow by a tenth: a minute of any load is some hundred numbers, and a percentile 10 % exact.
_STEP: Final = math.log(1.1)


class Minute(NamedTuple):
    """The last minute: requests that came, that ended with an answer or an error, those of them that failed, and the 95th percentile of
    the time to first token (0 if there was none)."""

    arrived: int
    ended: int
    failed: int
    ttft_p95_ms: int


@dataclass(slots=True)
class _Slice:
    number: int
    arrived: int = 0
    ended: int = 0
    failed: int = 0
    first_tokens: Counter[int] = field(default_factory=Counter)


class Window:
    """A sliding minute."""

    def __init__(self) -> None:
        self._slices: deque[_Slice] = deque(maxlen=SLICES)

    def now(self, now_ms: float) -> _Slice:
        """Returns the slice that counts now."""
        number = int(now_ms // SLICE_MS)
        if not self._slices or self._slices[-1].number < number:
            self._slices.append(_Slice(number))
        return self._slices[-1]

    def first_token(self, took_ms: float, now_ms: float) -> None:
        """Records the time to a first token."""
        self.now(now_ms).first_tokens[round(math.log(max(1.0, took_ms)) / _STEP)] += 1

    def minute(self, now_ms: float) -> Minute:
        """Returns the sums of all slices that are not older than a minute."""
        recent = [one for one in self._slices if one.number > now_ms // SLICE_MS - SLICES]
        arrived, ended, failed = (sum(getattr(one, name) for one in recent) for name in ("arrived", "ended", "failed"))
        return Minute(arrived, ended, failed, _p95(recent))


def _p95(slices: list[_Slice]) -> int:
    counts: Counter[int] = Counter()
    for one in slices:
        counts.update(one.first_tokens)
    left = math.ceil(counts.total() * 0.95)
    for bucket in sorted(counts):
        left -= counts[bucket]
        if left <= 0:
            return round(math.exp(bucket * _STEP))
    return 0


@dataclass(slots=True)
class ServiceTally:
    """One service since the start: `changed_ms` is when its last request came or ended."""

    arrived: int = 0
    ended: int = 0
    changed_ms: float = 0.0
    window: Window = field(default_factory=Window)
    revisions: dict[str, Window] = field(default_factory=dict)

    @property
    def under_way(self) -> int:
        """Requests under way, held ones included."""
        return self.arrived - self.ended


class Tally:
    """All services. A service without any request counts as changed at `began_ms`."""

    def __init__(self, began_ms: float = 0.0) -> None:
        self._services: dict[str, ServiceTally] = {}
        self._began_ms = began_ms

    def of(self, service: str) -> ServiceTally:
        """Returns a service's counts, zeros if it had no request."""
        if service not in self._services:
            self._services[service] = ServiceTally(changed_ms=self._began_ms)
        return self._services[service]

    def keep(self, services: set[str]) -> None:
        """Drops services that are deleted, once their last request has ended."""
        for key in [key for key, tally in self._services.items() if key not in services and not tally.under_way]:
            del self._services[key]

    def arrived(self, service: str, now_ms: float) -> None:
        """A request came, or its name moved here from another service."""
        tally = self.of(service)
        tally.arrived += 1
        tally.changed_ms = now_ms
        tally.window.now(now_ms).arrived += 1

    def ended(self, service: str, now_ms: float, *, failed: bool | None) -> None:
        """A request ended. `failed` is None if that says nothing about the service: the client left, or the name moved."""
        tally = self.of(service)
        tally.ended += 1
        tally.changed_ms = now_ms
        if failed is not None:
            _count(tally.window, now_ms, failed=failed)

    def tried(self, service: str, revision: str, now_ms: float, *, failed: bool) -> None:
        """A replica of this revision answered or failed."""
        _count(self._revision(service, revision), now_ms, failed=failed)

    def first_token(self, service: str, revision: str, waited_ms: float, now_ms: float) -> None:
        """A replica of this revision sent its first token so long after it was asked."""
        self._revision(service, revision).first_token(waited_ms, now_ms)

    def waited(self, service: str, waited_ms: float, now_ms: float) -> None:
        """A client waited so long for its first token, the time in the hold queue included."""
        self.of(service).window.first_token(waited_ms, now_ms)

    def _revision(self, service: str, revision: str) -> Window:
        return self.of(service).revisions.setdefault(revision, Window())


def _count(window: Window, now_ms: float, *, failed: bool) -> None:
    current = window.now(now_ms)
    current.ended += 1
    current.failed += failed
