"""Scorers: a new one is one function and one line of a table, and its weight says how many requests of load it is worth."""

import pytest
from pagoda_gateway.routing.endpoint import Endpoint, Frame
from pagoda_gateway.routing.pick import pick
from pagoda_gateway.routing.request import RoutingRequest
from pagoda_gateway.routing.scorers import SCORERS, Weighted, score

REQUEST = RoutingRequest("m", adapter="a")


def endpoint(name, running):
    frame = Frame(1, "ready", running, 0, 0, frozenset({"m"}))
    return Endpoint(name, "ns/s", f"{name}:8000", frame=frame, connected=True)


def has_adapter(endpoint, request):
    """One for the endpoint that has a request's adapter."""
    return float(endpoint.name == request.adapter)


def test_without_a_session_or_a_cached_beginning_the_least_loaded_one_wins():
    assert [score(endpoint("a", running), REQUEST) for running in (0, 1, 7)] == [0, -1, -7]
    assert pick([endpoint("a", 2), endpoint("b", 1)], REQUEST, {}, 0).endpoint.name == "b"


@pytest.mark.parametrize(("more", "chosen"), [(0, "a"), (1, "a"), (2, "b"), (3, "b")])
def test_a_scorer_is_worth_its_weight_in_requests(more, chosen):
    table = (*SCORERS, Weighted(has_adapter, 2.0))
    loaded, idle = endpoint("a", more), endpoint("b", 0)
    idle.last_pick, loaded.last_pick = 0, 1  # at equal scores the one that was picked longest ago
    assert pick([loaded, idle], REQUEST, {}, 0, table).endpoint.name == chosen
