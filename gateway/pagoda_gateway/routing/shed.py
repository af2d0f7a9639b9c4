"""Shed: whether a request that would have to wait is refused instead, because too many wait. Pure; called by requests/hold_queue.py.

A growing share of requests is refused before the limit is reached: of the batch tier first, then of low priorities, then of all others. A
larger priority than 0 is refused at the limit only. The batch tier and low priorities go by how full the queue is. The others go by what
their own tenant holds beside the room that is left, so a tenant that floods the queue is refused and leaves room for others.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from pagoda_gateway.routing.turns import PER_TIER

# From this fill of the queue on, requests are refused, and at that one all are.
_BATCH: Final = (0.5, 0.8)
_LOW: Final = (0.65, 0.9)
_OTHERS: Final = (0.8, 1.0)
# One place of so many is for tenants that hold nothing yet.
_KEPT: Final = 20


class Fill(NamedTuple):
    """How full a queue is: requests of the tenant itself, of all, and the limit."""

    own: int
    total: int
    limit: int


def shed_share(rank: int, fill: Fill) -> float:
    """Returns which share of such requests is refused now, 0 to 1."""
    if fill.total >= fill.limit:
        return 1.0
    if rank > PER_TIER // 2:
        return _ramp(fill.total / fill.limit, *_BATCH)
    if rank > 0:
        return _ramp(fill.total / fill.limit, *_LOW)
    return _ramp(_own_part(fill), *_OTHERS) if rank == 0 else 0.0


def _own_part(fill: Fill) -> float:
    """What the tenant holds, beside what it could hold if nobody else came."""
    left = fill.limit - fill.total - fill.limit // _KEPT
    return fill.own / (fill.own + max(0, left)) if fill.own else 0.0


def _ramp(part: float, least: float, most: float) -> float:
    return min(1.0, max(0.0, (part - least) / (most - least)))
