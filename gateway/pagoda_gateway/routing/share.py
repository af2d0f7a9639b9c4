"""Share: how much of a gateway's recent requests each endpoint got, so that affinity makes no hot spot, however low the load. Pure.

The bound on requests side by side (affinity.py) is idle while few run. This one counts the picks of late: each endpoint's count is halved
when the largest one reaches _WINDOW, so that the past fades by requests and not by time. If every gateway keeps its own picks
within the bound, their sum is within it too, and gateways need no shared state.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from pagoda_gateway.routing.endpoint import Endpoint

# An endpoint with more than this many times the mean takes no further request for the sake of its cache.
_OVER_MEAN: Final = 1.2
_WINDOW: Final = 64
# Below this mean the counts say nothing yet.
_LEAST: Final = 4


def count(endpoint: Endpoint, siblings: Iterable[Endpoint]) -> None:
    """Counts a pick of the endpoint, one of its siblings."""
    endpoint.picks += 1
    if endpoint.picks >= _WINDOW:
        for one in siblings:
            one.picks /= 2


def join(endpoint: Endpoint, siblings: Iterable[Endpoint]) -> None:
    """Gives an endpoint that begins to serve the mean of the others, so that it is not flooded with what they have in their caches."""
    others = [one.picks for one in siblings if one is not endpoint]
    endpoint.picks = sum(others) / len(others) if others else 0.0


def crowded(endpoints: Sequence[Endpoint]) -> frozenset[str]:
    """Returns the names of the endpoints that had clearly more than their share. A slow endpoint's share is smaller."""
    if len(endpoints) < 2:
        return frozenset()
    known = all(one.frame and one.frame.step_token_us for one in endpoints)
    busy = [one.picks * (one.frame.step_token_us if known and one.frame else 1.0) for one in endpoints]
    if sum(one.picks for one in endpoints) < _LEAST * len(endpoints):
        return frozenset()
    bound = _OVER_MEAN * sum(busy) / len(busy)
    return frozenset(one.name for one, has in zip(endpoints, busy, strict=True) if has > bound)
