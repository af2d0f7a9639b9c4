"""Scorers: how much better one endpoint is than another for a request. Pure.

A new scorer is one function of this file and one line of SCORERS. The larger sum wins. The unit of the sum is one second until the first
token: a scorer from 0 to 1 with weight 0.5 makes up for half a second more at that endpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from pagoda_gateway.routing.affinity import resident_share
from pagoda_gateway.routing.endpoint import Endpoint, load
from pagoda_gateway.routing.predict import ttft_s
from pagoda_gateway.routing.request import RoutingRequest

Scorer = Callable[[Endpoint, RoutingRequest], float]


class Weighted(NamedTuple):
    """A line of the table."""

    scorer: Scorer
    weight: float


def predicted_ttft(endpoint: Endpoint, request: RoutingRequest) -> float:
    """Minus the predicted seconds until the first token. What the endpoint has in its cache counts as computed."""
    return -ttft_s(endpoint, request)


def least_load(endpoint: Endpoint, _request: RoutingRequest) -> float:
    """Minus one for each request that the endpoint has."""
    return -float(load(endpoint))


def session(endpoint: Endpoint, request: RoutingRequest) -> float:
    """1 for the endpoint that has the request's session."""
    return float(endpoint.name == request.owner)


def prefix(endpoint: Endpoint, request: RoutingRequest) -> float:
    """The part of the prompt's beginning that the endpoint has in its cache, while it has not said how long its steps take: later,
    `predicted_ttft` knows what that is worth."""
    reported = endpoint.frame is not None and endpoint.frame.step_token_us > 0
    return 0.0 if reported else cached_share(endpoint, request)


def cached_share(endpoint: Endpoint, request: RoutingRequest) -> float:
    """The part of the prompt's beginning that counts for the endpoint. A session goes by its owner instead: agents that share a long
    system prompt would all meet where it was cached first."""
    return 0.0 if request.session or endpoint.name in request.crowded else resident_share(endpoint, request.prefix_hashes)


def fair_share(endpoint: Endpoint, request: RoutingRequest) -> float:
    """Minus 1 for an endpoint that had more than its share of the last requests."""
    return -float(endpoint.name in request.crowded)


def adapter_load(endpoint: Endpoint, request: RoutingRequest) -> float:
    """Minus 1 for an endpoint that would have to load the request's adapter first."""
    return -float(endpoint.must_load(request.model))


def kv_headroom(endpoint: Endpoint, request: RoutingRequest) -> float:
    """Minus the part of the prompt for which no KV block is free: the request would wait, or make others compute again."""
    frame = endpoint.frame
    if frame is None or not frame.block_size or not request.prompt_tokens:
        return 0.0
    free = (frame.blocks_total - frame.blocks_used) * frame.block_size
    return -max(0.0, 1.0 - free / request.prompt_tokens)


LEAST_LOAD: Final = (Weighted(least_load, 0.01),)
SCORERS: Final = (
    Weighted(predicted_ttft, 1.0),
    # Each request also slows the others' tokens. Beside it, a whole prompt in the cache makes up for four requests more, which decides
    # while replicas have not said how long their steps take.
    *LEAST_LOAD,
    Weighted(prefix, 0.04),
    Weighted(kv_headroom, 1.0),
    Weighted(fair_share, 0.5),
    # Seconds that a load takes, roughly. Less than a crowded endpoint is worth, so that a burst on one adapter spreads.
    Weighted(adapter_load, 0.3),
    # No load within the bounds (affinity.py, share.py) outweighs a session.
    Weighted(session, 1_000_000.0),
)


def score(endpoint: Endpoint, request: RoutingRequest, scorers: Sequence[Weighted] = SCORERS) -> float:
    """Returns the weighted sum of all scorers."""
    total = 0.0
    for scorer, weight in scorers:  # no generator, because this runs for each endpoint of each request
        total += weight * scorer(endpoint, request)
    return total
