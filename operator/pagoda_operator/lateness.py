"""lateness: what first tokens that came too late though nobody waited tell of the replicas needed. Pure; called by `autoscale`, and by
`scaling`, which keeps the marks.

Prompts that share a replica's steps are late while every request has a row: no load in rows says how many replicas help. So one more at a
time is tried, and each number that was too few is marked with the rate of requests that it was too few for. A mark holds one replica more
than its number, at a lower rate its share of that, for half an hour; then one less every five minutes, until the target is broken again
and marked anew. Without it the number fell to the load's with each window and climbed again: in a closed loop whose target holds from five
replicas on it was broken 71 % of two hours, with it 9 %.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

HOLD_S: Final = 1800.0  # each try of one less breaks the target for the minutes of a start and of a quantile: 7 % of this
_EASE_S: Final = 300.0
_SHARE: Final = 4  # of a large service a quarter goes at a time, else one


@dataclass(frozen=True, slots=True)
class Late:
    """So many replicas were too few for `rate` requests per second."""

    at: float
    replicas: int
    rate: float


def lives(late: Late, now: float) -> bool:
    """Whether it still holds anything."""
    return now - late.at < HOLD_S + _EASE_S * late.replicas


def outlives(late: Late | None, newer: Late | None, now: float) -> bool:
    """Whether it is to be kept beside a newer one."""
    return late is not None and lives(late, now) and (newer is None or newer.replicas != late.replicas)


def held(lates: Iterable[Late], rate: float, now: float) -> int:
    """Replicas that the marks leave at this rate; 0 without any."""
    return max((_held(late, rate, now) for late in lates), default=0)


def _held(late: Late, rate: float, now: float) -> int:
    """Rounded, so that a rate that goes up and down by chance moves nothing."""
    too_few = round(late.replicas * min(1.0, rate / late.rate)) if late.rate else 0
    return max(0, too_few + 1 - _eased(late, now))


def _eased(late: Late, now: float) -> int:
    return max(0, 1 + int((now - late.at - HOLD_S) // _EASE_S))


def eases(lates: Iterable[Late], now: float) -> float | None:
    """When next a mark holds one less; None where none is left."""
    return min((late.at + HOLD_S + _EASE_S * _eased(late, now) for late in lates if lives(late, now)), default=None)


def step_down(replicas: int) -> int:
    """What is left when one step was taken away."""
    return replicas - max(1, replicas // _SHARE)
