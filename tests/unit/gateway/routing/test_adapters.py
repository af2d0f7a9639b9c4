"""Requests for adapters go where the adapter is, and spread one replica at a time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pagoda_gateway.routing.adapters import candidates
from pagoda_gateway.routing.endpoint import Endpoint, Frame
from pagoda_gateway.routing.pick import NoPick, pick
from pagoda_gateway.routing.request import RoutingRequest
from pagoda_gateway.routing.verdict import Verdict

REQUEST = RoutingRequest("pirate")


def endpoint(name, *, loaded=False, running=0, known=True, picks=0.0):
    adapters = frozenset({"pirate"} if known else ())
    frame = Frame(1, "ready", running, 0, 0, frozenset({"m"}), adapters=adapters, loaded=adapters if loaded else frozenset())
    return Endpoint(name, "ns/s", f"{name}:8000", frame=frame, connected=True, picks=picks)


def chosen(*endpoints, request=REQUEST):
    return pick(endpoints, request, {}, 0).endpoint.name


REPLICAS = st.lists(
    st.builds(endpoint, st.sampled_from("abcdefgh"), loaded=st.booleans(), running=st.integers(0, 9), known=st.booleans()),
    min_size=1,
    unique_by=lambda one: one.name,
)


@given(REPLICAS, st.sets(st.sampled_from("abcdefgh")))
def test_candidates_are_those_that_have_it_and_at_most_one_more(replicas, crowded):
    found = candidates(replicas, "pirate", crowded)
    loaded = [one for one in replicas if one.has_loaded("pirate")]
    assert found
    assert [one for one in found if one in loaded] == loaded
    if any(one.adapter("pirate") for one in replicas):
        assert len(found) <= len(loaded) + 1
    assert candidates(replicas, "m", crowded) == replicas


def test_a_replica_that_has_it_is_chosen_over_an_idle_one_until_it_has_clearly_more():
    idle = [endpoint(name) for name in "bcdefgh"]
    assert chosen(endpoint("a", loaded=True, running=3), *idle) == "a"
    assert chosen(endpoint("a", loaded=True, running=40), *idle) != "a"


def test_a_burst_spreads_to_one_more_replica_and_all_gateways_name_the_same_one():
    crowded = endpoint("a", loaded=True, picks=60.0)
    others = [endpoint(name, picks=10.0) for name in "bcdefgh"]
    second = chosen(crowded, *others)
    assert second != "a"
    assert chosen(crowded, *reversed(others)) == second


def test_adapters_that_no_replica_has_loaded_are_spread():
    names = [f"adapter-{number}" for number in range(200)]
    firsts = []
    for name in names:
        replicas = [endpoint(one, known=False) for one in "abcd"]
        for one in replicas:
            one.frame = one.frame._replace(adapters=frozenset(names))
        firsts.append(chosen(*replicas, request=RoutingRequest(name)))
    assert all(30 <= firsts.count(one) <= 70 for one in "abcd")


@pytest.mark.parametrize("session", ["s1", "s2", "s3", "s4", "s5"])
def test_a_session_stays_among_the_replicas_that_have_its_adapter(session):
    replicas = [endpoint("a", loaded=True), endpoint("b", loaded=True), *(endpoint(name) for name in "cdefgh")]
    assert chosen(*replicas, request=RoutingRequest("pirate", session=session)) in {"a", "b"}


def test_a_replica_without_the_adapter_is_never_chosen():
    assert pick([endpoint("a", known=False)], REQUEST, {}, 0) == NoPick(Verdict.OTHER_NAME)


def test_a_replica_without_a_place_for_another_adapter_gets_all_other_requests():
    full = endpoint("a")
    full.no_place = True
    assert pick([full], REQUEST, {}, 0) == NoPick(Verdict.REFUSED)
    assert chosen(full, request=RoutingRequest("m")) == "a"
    full.frame = full.frame._replace(loaded=frozenset({"pirate"}))
    assert chosen(full) == "a"
