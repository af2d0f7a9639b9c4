"""Picks by properties, and verdicts by a table."""

from contextlib import ExitStack, nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pagoda_contracts.names import STATE_DEAD_MS, STATE_SUSPECT_MS
from pagoda_contracts.route import REASON_LEAST_LOADED, REASON_ONLY_ENDPOINT, REASON_ONLY_SUSPECT, REASON_ONLY_UNSOUND
from pagoda_gateway.routing.endpoint import Endpoint, Frame, load
from pagoda_gateway.routing.pick import NoPick, Pick, any_routable, pick
from pagoda_gateway.routing.request import RoutingRequest
from pagoda_gateway.routing.verdict import ROUTABLE, Verdict, judge
from pagoda_gateway.watch.cache import EndpointCache
from pagoda_gateway.watch.services import Replica, Service

NOW = 100_000.0
M = RoutingRequest("m")


def endpoint(
    name="a", phase="ready", age=0, engine_age=0, running=0, waiting=0, names=("m",), step=(0, 0), deep=False, own_fault="", **fields
) -> Endpoint:
    frame = Frame(1, phase, running, waiting, engine_age, frozenset(names), *step, deep_check_failed=deep, device_fault=own_fault)
    return Endpoint(name, "ns/s", f"{name}:8000", frame=frame, frame_made_ms=NOW - age, **({"connected": True} | fields))


ENDPOINTS = st.lists(
    st.builds(
        endpoint,
        name=st.text("abcdefgh", min_size=1, max_size=3),
        phase=st.sampled_from(["ready", "ready", "ready", "loading", "draining", "degraded"]),
        age=st.integers(0, 4000),
        engine_age=st.integers(0, 4000),
        running=st.integers(0, 3),
        waiting=st.integers(0, 3),
        names=st.sampled_from([("m",), ("other",), ()]),
        step=st.tuples(st.sampled_from([0, 100, 6_000, 40_000]), st.sampled_from([0, 100, 1_000, 3_000])),
        draining=st.booleans(),
        refused=st.booleans(),
        connected=st.booleans(),
        in_flight=st.integers(0, 4),
        in_flight_at_frame=st.integers(0, 4),
        last_pick=st.integers(0, 9),
    ),
    max_size=6,
    unique_by=lambda e: e.name,
)


@given(ENDPOINTS, st.sets(st.sampled_from("abcdefgh")))
def test_the_pick_is_routable_untried_and_none_as_trusted_is_less_loaded(endpoints, tried):
    choice = pick(endpoints, M, dict.fromkeys(tried, 1), NOW)
    able = {
        e.name: e
        for e in endpoints
        if judge(e, NOW) in ROUTABLE and e.name not in tried and (not e.frame.served_names or "m" in e.frame.served_names)
    }
    if isinstance(choice, NoPick):
        assert able == {}
        assert choice.reason not in ROUTABLE
        return
    assert choice.endpoint.name in able
    trusted = [e for e in able.values() if judge(e, NOW) is Verdict.READY]
    assert judge(choice.endpoint, NOW) is Verdict.READY or not trusted
    assert load(choice.endpoint) == min(load(e) for e in trusted or able.values())


@given(ENDPOINTS, st.randoms())
def test_order_of_endpoints_changes_nothing(endpoints, random):
    shuffled = list(endpoints)
    random.shuffle(shuffled)
    assert pick(endpoints, M, {}, NOW) == pick(shuffled, M, {}, NOW)


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ({}, Verdict.READY),
        ({"age": STATE_SUSPECT_MS}, Verdict.READY),
        ({"age": STATE_SUSPECT_MS + 1}, Verdict.SUSPECT),
        ({"age": STATE_DEAD_MS}, Verdict.SUSPECT),
        ({"age": STATE_DEAD_MS + 1}, Verdict.SILENT),
        ({"engine_age": STATE_SUSPECT_MS + 1}, Verdict.SUSPECT),
        ({"engine_age": STATE_DEAD_MS + 1}, Verdict.STUCK),
        ({"engine_age": STATE_DEAD_MS - 500, "age": 501}, Verdict.STUCK),
        ({"connected": False}, Verdict.SUSPECT),
        ({"step": (5_000, 10)}, Verdict.READY),
        ({"step": (5_001, 10)}, Verdict.SUSPECT),
        ({"step": (10_000, 1_000)}, Verdict.READY),
        ({"step": (10_001, 1_000)}, Verdict.SUSPECT),
        ({"step": (30_000, 10)}, Verdict.SUSPECT),
        ({"step": (30_001, 10)}, Verdict.STUCK),
        ({"step": (60_000, 3_000)}, Verdict.SUSPECT),
        ({"step": (60_001, 3_000)}, Verdict.STUCK),
        ({"step": (5_001, 10), "engine_age": STATE_DEAD_MS + 1}, Verdict.STUCK),
        ({"refused": True}, Verdict.REFUSED),
        ({"draining": True}, Verdict.DRAINING),
        ({"phase": "loading"}, Verdict.LOADING),
        ({"phase": "loading", "age": STATE_DEAD_MS + 1}, Verdict.SILENT),
        ({"phase": "draining"}, Verdict.DRAINING),
        ({"phase": "degraded"}, Verdict.DEGRADED),
        ({"deep": True}, Verdict.DEEP_CHECK),
        ({"deep": True, "connected": False}, Verdict.DEEP_CHECK),
        ({"deep": True, "engine_age": STATE_DEAD_MS + 1}, Verdict.STUCK),
        ({"deep": True, "phase": "loading"}, Verdict.LOADING),
        ({"faulty": True}, Verdict.DEVICE_FAULT),
        ({"faulty": True, "draining": True}, Verdict.DRAINING),
        ({"own_fault": "Xid 79"}, Verdict.DEVICE_FAULT),
        ({"own_fault": "Xid 79", "deep": True}, Verdict.DEEP_CHECK),
    ],
)
def test_verdicts(state, expected):
    assert judge(endpoint(**state), NOW) is expected


def test_an_endpoint_without_a_frame_takes_nothing():
    assert judge(Endpoint("a", "ns/s", "a:8000", connected=True), NOW) is Verdict.UNHEARD


def test_reasons_name_the_choice():
    assert pick([endpoint()], M, {}, NOW).reason == REASON_ONLY_ENDPOINT
    assert pick([endpoint(), endpoint("b")], M, {}, NOW).reason == REASON_LEAST_LOADED
    assert pick([endpoint(connected=False)], M, {}, NOW).reason == REASON_ONLY_SUSPECT
    assert pick([], M, {}, NOW) == NoPick(Verdict.NO_REPLICA)


def test_unsound_ones_serve_only_while_none_is_sound_and_the_last_one_is_one_of_them():
    failing, other = endpoint(deep=True), endpoint("b", deep=True)
    assert pick([failing], M, {}, NOW) == (failing, REASON_ONLY_UNSOUND)
    assert pick([failing, endpoint("c", phase="loading")], M, {}, NOW) == (failing, REASON_ONLY_UNSOUND)
    assert pick([failing, other], M, {}, NOW).reason == REASON_ONLY_UNSOUND
    assert any_routable([failing, other], NOW)
    assert any_routable([failing], NOW)
    assert pick([failing, other, endpoint("c", connected=False)], M, {}, NOW).reason == REASON_ONLY_SUSPECT


def test_one_on_a_faulty_device_serves_while_its_canary_is_right_and_nobody_else_is_sound():
    unhealthy, failing = endpoint(faulty=True), endpoint("b", deep=True)
    assert pick([unhealthy], M, {}, NOW) == (unhealthy, REASON_ONLY_UNSOUND)
    assert any_routable([unhealthy], NOW)
    loading = endpoint("c", phase="loading")
    assert pick([unhealthy, loading, failing], M, {}, NOW) == (unhealthy, REASON_ONLY_UNSOUND)
    well = endpoint("d")
    assert pick([unhealthy, well], M, {}, NOW) == (well, REASON_ONLY_ENDPOINT)
    both = endpoint(faulty=True, deep=True)
    assert pick([both], M, {}, NOW) == (both, REASON_ONLY_UNSOUND)
    assert pick([both, unhealthy], M, {}, NOW) == (unhealthy, REASON_ONLY_UNSOUND)
    assert pick([endpoint(faulty=True, engine_age=STATE_DEAD_MS + 1)], M, {}, NOW) == NoPick(Verdict.STUCK)


def test_a_sound_one_that_cannot_take_this_request_now_is_waited_for():
    failing, unhealthy = endpoint(deep=True), endpoint("b", own_fault="Xid 79")
    assert pick([failing, unhealthy, endpoint("c", refused=True)], M, {}, NOW) == NoPick(Verdict.REFUSED)
    assert pick([failing, unhealthy, endpoint("c")], M, {"c": 1}, NOW) == NoPick(Verdict.TRIED)


def test_an_unsound_one_that_refused_is_not_asked_again_before_it_speaks():
    failing, unhealthy = endpoint(deep=True, refused=True), endpoint("b", faulty=True, refused=True)
    assert pick([failing, unhealthy], M, {}, NOW) == NoPick(Verdict.DEEP_CHECK)


def test_a_failed_pick_names_the_endpoint_closest_to_ready():
    assert pick([endpoint(phase="draining"), endpoint("b", phase="loading")], M, {}, NOW) == NoPick(Verdict.LOADING)


def test_what_failed_a_request_is_passed_over_until_it_speaks_again():
    one = endpoint()
    assert pick([one], M, {"a": 1}, NOW) == NoPick(Verdict.TRIED)
    one.frame = one.frame._replace(sequence=2)
    assert isinstance(pick([one], M, {"a": 1}, NOW), Pick)


def test_what_failed_a_request_and_spoke_again_is_the_last_choice_even_behind_a_suspect():
    spoke, busy, suspect = endpoint(), endpoint("b", running=9), endpoint("c", connected=False)
    assert pick([spoke, busy, suspect], M, {"a": 0}, NOW).endpoint is busy
    assert pick([spoke, suspect], M, {"a": 0}, NOW).endpoint is suspect


HOPELESS = {Verdict.READY: 0, Verdict.SUSPECT: 1, Verdict.STUCK: 2}


@given(st.integers(0, 100_000), st.integers(0, 10_000), st.integers(0, 10_000), st.integers(0, 10_000))
def test_an_older_step_is_never_more_trusted_and_a_longer_prediction_never_less(age, predicted, older, longer):
    def rank(step: tuple[int, int]) -> int:
        return HOPELESS[judge(endpoint(step=step), NOW)]

    assert rank((age, predicted + longer)) <= rank((age, predicted)) <= rank((age + older, predicted))


def test_own_requests_count_before_a_frame_shows_them_and_not_twice_after():
    one = endpoint(running=2, in_flight=0, in_flight_at_frame=0)
    one.in_flight = 3
    assert load(one) == 5
    one.frame, one.in_flight_at_frame = one.frame._replace(running=5), 3
    assert load(one) == 5
    one.in_flight = 0
    assert load(one) == 2


def cache_of(count: int) -> tuple[EndpointCache, Service]:
    cache, service = EndpointCache(), Service("ns/s", "u", "2026-01-01T00:00:00Z", ("m",))
    cache.put_service(service)
    for number in range(count):
        name = f"ns/{number}"
        cache.put_replica(Replica(name, "ns/s", "u", f"{number}:8000", f"{number}:9000", draining=False))
        cache.update_state(name, Frame(1, "ready", 0, 0, 0, frozenset({"m"})), NOW, NOW)
    return cache, service


@given(st.integers(1, 7), st.integers(1, 5), st.booleans())
def test_equals_take_turns(count, rounds, instant):
    """Whether requests last or end at once, each of n equal endpoints gets one of every n."""
    cache, service = cache_of(count)
    picked = []
    with ExitStack() as lasting:
        for _ in range(count * rounds):
            choice = pick(cache.endpoints(service), M, {}, NOW).endpoint
            with ExitStack() if instant else nullcontext(lasting) as stack:
                stack.enter_context(cache.in_flight(choice))
            picked.append(choice.name)
    for start in range(0, len(picked), count):
        assert len(set(picked[start : start + count])) == count
