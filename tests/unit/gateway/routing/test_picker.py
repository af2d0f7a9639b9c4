"""The picker by properties and by the table of verdicts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pagoda_contracts.names import STATE_DEAD_MS, STATE_SUSPECT_MS
from pagoda_contracts.route import REASON_LEAST_LOADED, REASON_ONLY_ENDPOINT, REASON_ONLY_SUSPECT, REASON_ONLY_UNSOUND
from pagoda_gateway.routing.picker import Endpoint, Frame, NoPick, Pick, Verdict, any_able, load, pick, verdict
from pagoda_gateway.watch.fleet import Fleet, Member, Service

NOW = 100_000.0
ABLE = (Verdict.READY, Verdict.SUSPECT)


def endpoint(
    name="a", phase="ready", age=0, engine_age=0, running=0, waiting=0, names=("m",), step=(0, 0), deep=False, **fields
) -> Endpoint:
    frame = Frame(1, phase, running, waiting, engine_age, frozenset(names), *step, deep_failed=deep)
    return Endpoint(name, "ns/s", f"{name}:8000", frame=frame, made_at_ms=NOW - age, **({"connected": True} | fields))


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
        leaving=st.booleans(),
        refused=st.booleans(),
        connected=st.booleans(),
        own=st.integers(0, 4),
        own_at_frame=st.integers(0, 4),
        last_turn=st.integers(0, 9),
    ),
    max_size=6,
    unique_by=lambda e: e.name,
)


@given(ENDPOINTS, st.sets(st.sampled_from("abcdefgh")))
def test_the_pick_is_able_untried_and_nobody_as_trusted_is_less_loaded(endpoints, tried):
    choice = pick(endpoints, "m", dict.fromkeys(tried, 1), NOW)
    able = {
        e.name: e
        for e in endpoints
        if verdict(e, NOW) in ABLE and e.name not in tried and (not e.frame.served_names or "m" in e.frame.served_names)
    }
    if isinstance(choice, NoPick):
        assert able == {}
        assert choice.reason not in ABLE
        return
    assert choice.endpoint.name in able
    trusted = [e for e in able.values() if verdict(e, NOW) is Verdict.READY]
    assert verdict(choice.endpoint, NOW) is Verdict.READY or not trusted
    assert load(choice.endpoint) == min(load(e) for e in trusted or able.values())


@given(ENDPOINTS, st.randoms())
def test_order_of_endpoints_changes_nothing(endpoints, random):
    shuffled = list(endpoints)
    random.shuffle(shuffled)
    assert pick(endpoints, "m", {}, NOW) == pick(shuffled, "m", {}, NOW)


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
        ({"leaving": True}, Verdict.DRAINING),
        ({"phase": "loading"}, Verdict.LOADING),
        ({"phase": "loading", "age": STATE_DEAD_MS + 1}, Verdict.SILENT),
        ({"phase": "draining"}, Verdict.DRAINING),
        ({"phase": "degraded"}, Verdict.DEGRADED),
        ({"deep": True}, Verdict.DEEP_CHECK),
        ({"deep": True, "connected": False}, Verdict.DEEP_CHECK),
        ({"deep": True, "engine_age": STATE_DEAD_MS + 1}, Verdict.STUCK),
        ({"deep": True, "phase": "loading"}, Verdict.LOADING),
        ({"sick": "Xid 79"}, Verdict.DEVICE_FAULT),
        ({"sick": "Xid 79", "leaving": True}, Verdict.DRAINING),
    ],
)
def test_verdicts(state, expected):
    assert verdict(endpoint(**state), NOW) is expected


def test_an_endpoint_never_heard_takes_nothing():
    assert verdict(Endpoint("a", "ns/s", "a:8000", connected=True), NOW) is Verdict.UNHEARD


def test_reasons_name_the_choice():
    assert pick([endpoint()], "m", {}, NOW).reason == REASON_ONLY_ENDPOINT
    assert pick([endpoint(), endpoint("b")], "m", {}, NOW).reason == REASON_LEAST_LOADED
    assert pick([endpoint(connected=False)], "m", {}, NOW).reason == REASON_ONLY_SUSPECT
    assert pick([], "m", {}, NOW) == NoPick(Verdict.NO_REPLICA)


def test_unsound_ones_serve_only_where_there_are_several_and_nobody_is_sound():
    failing, other = endpoint(deep=True), endpoint("b", deep=True)
    assert pick([failing], "m", {}, NOW) == NoPick(Verdict.DEEP_CHECK)
    assert pick([failing, other], "m", {}, NOW).reason == REASON_ONLY_UNSOUND
    assert any_able([failing, other], NOW)
    assert not any_able([failing], NOW)
    assert pick([failing, other, endpoint("c", connected=False)], "m", {}, NOW).reason == REASON_ONLY_SUSPECT


def test_one_on_a_faulty_device_serves_while_its_canary_is_right_and_nobody_else_is_sound():
    sick, failing = endpoint(sick="Xid 79"), endpoint("b", deep=True)
    assert pick([sick], "m", {}, NOW) == (sick, REASON_ONLY_UNSOUND)
    assert any_able([sick], NOW)
    loading = endpoint("c", phase="loading")
    assert pick([sick, loading, failing], "m", {}, NOW) == (sick, REASON_ONLY_UNSOUND)
    well = endpoint("d")
    assert pick([sick, well], "m", {}, NOW) == (well, REASON_ONLY_ENDPOINT)
    both = endpoint(sick="Xid 79", deep=True)
    assert pick([both], "m", {}, NOW) == NoPick(Verdict.DEEP_CHECK)
    assert pick([endpoint(sick="Xid 79", engine_age=STATE_DEAD_MS + 1)], "m", {}, NOW) == NoPick(Verdict.STUCK)


def test_a_sound_one_that_cannot_take_this_request_now_is_waited_for():
    failing, sick = endpoint(deep=True), endpoint("b", sick="Xid 79")
    assert pick([failing, sick, endpoint("c", refused=True)], "m", {}, NOW) == NoPick(Verdict.REFUSED)
    assert pick([failing, sick, endpoint("c")], "m", {"c": 1}, NOW) == NoPick(Verdict.TRIED)


def test_an_unsound_one_that_refused_is_not_asked_again_before_it_speaks():
    failing, sick = endpoint(deep=True, refused=True), endpoint("b", sick="Xid 79", refused=True)
    assert pick([failing, sick], "m", {}, NOW) == NoPick(Verdict.DEEP_CHECK)


def test_no_pick_tells_of_the_most_hopeful():
    assert pick([endpoint(phase="draining"), endpoint("b", phase="loading")], "m", {}, NOW) == NoPick(Verdict.LOADING)


def test_what_failed_a_request_is_passed_over_until_it_speaks_again():
    one = endpoint()
    assert pick([one], "m", {"a": 1}, NOW) == NoPick(Verdict.TRIED)
    one.frame = one.frame._replace(sequence=2)
    assert isinstance(pick([one], "m", {"a": 1}, NOW), Pick)


def test_what_failed_a_request_and_spoke_again_is_the_last_choice_even_behind_a_suspect():
    spoke, busy, suspect = endpoint(), endpoint("b", running=9), endpoint("c", connected=False)
    assert pick([spoke, busy, suspect], "m", {"a": 0}, NOW).endpoint is busy
    assert pick([spoke, suspect], "m", {"a": 0}, NOW).endpoint is suspect


HOPELESS = {Verdict.READY: 0, Verdict.SUSPECT: 1, Verdict.STUCK: 2}


@given(st.integers(0, 100_000), st.integers(0, 10_000), st.integers(0, 10_000), st.integers(0, 10_000))
def test_an_older_step_is_never_more_trusted_and_a_longer_prediction_never_less(age, predicted, older, longer):
    def rank(step: tuple[int, int]) -> int:
        return HOPELESS[verdict(endpoint(step=step), NOW)]

    assert rank((age, predicted + longer)) <= rank((age, predicted)) <= rank((age + older, predicted))


def test_own_requests_count_before_a_frame_shows_them_and_not_twice_after():
    one = endpoint(running=2, own=0, own_at_frame=0)
    one.own = 3
    assert load(one) == 5
    one.frame, one.own_at_frame = one.frame._replace(running=5), 3
    assert load(one) == 5
    one.own = 0
    assert load(one) == 2


def fleet_of(count: int) -> tuple[Fleet, Service]:
    fleet, service = Fleet(), Service("ns/s", "u", "2026-01-01T00:00:00Z", ("m",))
    fleet.put_service(service)
    for number in range(count):
        name = f"ns/{number}"
        fleet.put_member(Member(name, "ns/s", "u", f"{number}:8000", f"{number}:9000", leaving=False))
        fleet.hear(name, Frame(1, "ready", 0, 0, 0, frozenset({"m"})), NOW, NOW)
    return fleet, service


@given(st.integers(1, 7), st.integers(1, 5), st.booleans())
def test_equals_take_turns(count, rounds, instant):
    """Whether requests last or end at once, each of n equal endpoints gets one of every n."""
    fleet, service = fleet_of(count)
    picked = []
    for _ in range(count * rounds):
        choice = pick(fleet.endpoints(service), "m", {}, NOW).endpoint
        fleet.begin(choice)
        picked.append(choice.name)
        if instant:
            fleet.end(choice)
    for start in range(0, len(picked), count):
        assert len(set(picked[start : start + count])) == count
