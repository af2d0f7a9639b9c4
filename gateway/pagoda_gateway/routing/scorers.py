"""Scorers: how much better one endpoint is than another for a request. Pure.

A new scorer is one function of this file and one line of SCORERS. The larger sum wins. The unit of the sum is one request of load:
a scorer from 0 to 1 with weight 8 makes up for eight requests more at that endpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from pagoda_gateway.routing.affinity import resident_share
from pagoda_gateway.routing.endpoint import Endpoint, load
from pagoda_gateway.routing.request import RoutingRequest

Scorer = Callable[[Endpoint, RoutingRequest], float]


class Weighted(NamedTuple):
    """A line of the table."""

    scorer: Scorer
    weight: float


def least_load(endpoint: Endpoint, _request: RoutingRequest) -> float:
    """Minus one for each request that the endpoint has."""
    return -float(load(endpoint))


def session(endpoint: Endpoint, request: RoutingRequest) -> float:
    """1 for the endpoint that has the request's session."""
    return float(endpoint.name == request.owner)


def prefix(endpoint: Endpoint, request: RoutingRequest) -> float:
    """The part of the prompt's beginning that the endpoint has in its cache. A session goes by its owner instead: agents that share a long
    system prompt would all meet where it was cached first."""
    return 0.0 if request.session else resident_share(endpoint, request.prefix_hashes)


LEAST_LOAD: Final = (Weighted(least_load, 1.0),)
# No load within the bound (affinity.py) outweighs a session. A whole prompt in the cache makes up for four requests more.
SCORERS: Final = (*LEAST_LOAD, Weighted(session, 1_000_000.0), Weighted(prefix, 4.0))


def score(endpoint: Endpoint, request: RoutingRequest, scorers: Sequence[Weighted] = SCORERS) -> float:
    """Returns the weighted sum of all scorers."""
    total = 0.0
    for scorer, weight in scorers:  # no generator, because this runs for each endpoint of each request
        total += weight * scorer(endpoint, request)
    return total
