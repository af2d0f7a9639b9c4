"""Affinity makes no hot spot however low the load: properties of the counts, and what the cache does with them."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pagoda_contracts.route import REASON_LEAST_LOADED, REASON_PREFIX, REASON_SESSION
from pagoda_gateway.routing import share
from pagoda_gateway.routing.endpoint import Endpoint, Frame
from pagoda_gateway.routing.pick import pick
from pagoda_gateway.routing.request import RoutingRequest
from pagoda_gateway.watch.cache import EndpointCache
from pagoda_gateway.watch.services import Replica, Service

CHAIN = (b"a" * 16, b"b" * 16)


def endpoint(name, picks=0.0, token_us=0.0):
    return Endpoint(name, "ns/s", name, frame=Frame(1, "ready", 0, 0, 0, step_token_us=token_us), connected=True, picks=picks)


@given(st.lists(st.integers(0, 7), max_size=400))
def test_counts_stay_bounded_and_halving_changes_no_ratio(picks):
    endpoints = [endpoint(str(number)) for number in range(8)]
    for number in picks:
        before = [one.picks for one in endpoints]
        share.count(endpoints[number], endpoints)
        before[number] += 1
        assert [one.picks for one in endpoints] in (before, [has / 2 for has in before])
        assert max(one.picks for one in endpoints) <= 64


@pytest.mark.parametrize(
    ("picks", "names"),
    [
        ((10, 10, 10), ""),
        ((12, 9, 9), ""),  # 1.2 times the mean is allowed
        ((13, 9, 9), "a"),
        ((20, 20, 5), "ab"),
        ((4, 0, 0), ""),  # too few to tell
        ((20,), ""),
    ],
)
def test_crowded_is_what_had_more_than_its_share(picks, names):
    endpoints = [endpoint(name, has) for name, has in zip("abc", picks, strict=False)]
    assert share.crowded(endpoints) == frozenset(names)


def test_a_slow_replicas_share_is_smaller():
    even = [endpoint("fast", 20, token_us=100.0), endpoint("slow", 20, token_us=200.0)]
    assert share.crowded(even) == {"slow"}
    assert share.crowded([endpoint("fast", 30, token_us=100.0), endpoint("slow", 15, token_us=200.0)]) == frozenset()
    unknown = [endpoint("fast", 20, token_us=100.0), endpoint("old", 20)]
    assert share.crowded(unknown) == frozenset()


def test_a_crowded_endpoint_is_taken_neither_for_a_session_nor_for_a_prefix_and_again_later():
    endpoints = [endpoint("a", 10), endpoint("b", 10)]
    endpoints[0].resident.update(CHAIN)
    mine = pick(endpoints, RoutingRequest("m", session="s"), {}, 0)
    first = pick(endpoints, RoutingRequest("m", prefix_hashes=CHAIN), {}, 0)
    assert (mine.reason, first.reason, first.endpoint.name) == (REASON_SESSION, REASON_PREFIX, "a")
    mine.endpoint.picks = 20
    assert pick(endpoints, RoutingRequest("m", session="s"), {}, 0).endpoint is not mine.endpoint
    endpoints[0].picks, endpoints[1].picks = 20, 10
    assert pick(endpoints, RoutingRequest("m", prefix_hashes=CHAIN), {}, 0) == (endpoints[1], REASON_LEAST_LOADED)
    endpoints[1].picks = 18
    assert pick(endpoints, RoutingRequest("m", prefix_hashes=CHAIN), {}, 0).endpoint.name == "a"


def cache_of(count):
    cache, service = EndpointCache(), Service("ns/s", "u", "2026-01-01T00:00:00Z", ("m",))
    cache.put_service(service)
    for number in range(count):
        cache.put_replica(Replica(f"ns/{number}", "ns/s", "u", f"{number}:8000", f"{number}:9000", draining=False))
        cache.update_state(f"ns/{number}", Frame(1, "ready", 0, 0, 0, frozenset("m")), 0, 0)
    return cache, service


def test_a_hundred_sessions_one_request_at_a_time_are_spread_evenly_over_eight_replicas():
    cache, service = cache_of(8)
    counts = Counter()
    for session in [f"agent-{number}" for number in range(100)] * 10:
        chosen = pick(cache.endpoints(service), RoutingRequest("m", session=session), {}, 0).endpoint
        counts[chosen.name] += 1
        with cache.in_flight(chosen):
            assert chosen.in_flight == 1
    assert max(counts.values()) <= 1.25 * sum(counts.values()) / 8


def test_one_that_becomes_ready_begins_with_the_mean_of_the_others():
    cache, service = cache_of(2)
    for one in cache.endpoints(service):
        one.picks = 30
    cache.put_replica(Replica("ns/new", "ns/s", "u", "n:8000", "n:9000", draining=False))
    new = cache.endpoints(service)[-1]
    cache.update_state("ns/new", Frame(1, "loading", 0, 0, 0), 0, 0)
    assert new.picks == 0
    cache.update_state("ns/new", Frame(2, "ready", 0, 0, 0), 0, 0)
    assert new.picks == 30
    new.picks = 31
    cache.update_state("ns/new", Frame(3, "ready", 0, 0, 0), 0, 0)
    assert new.picks == 31
    cache.update_state("ns/new", Frame(4, "ready", 0, 0, 0), 60_000, 60_000)  # it was silent for a minute
    assert new.picks == 30


def test_prompts_that_were_sent_count_until_the_next_frame():
    cache, service = cache_of(1)
    (one,) = cache.endpoints(service)
    with cache.in_flight(one, 300), cache.in_flight(one, 200):
        assert one.sent_tokens == 500
    cache.update_state(one.name, Frame(2, "ready", 0, 0, 0), 0, 0)
    assert one.sent_tokens == 0
