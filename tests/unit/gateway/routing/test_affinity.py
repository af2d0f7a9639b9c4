"""Sessions stay where they are, load stays even, and cached prompts are found: by properties, and by the picks that follow."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pagoda_contracts.route import REASON_LEAST_LOADED, REASON_PREFIX, REASON_SESSION
from pagoda_gateway.routing.affinity import owner, resident_share, within_bound
from pagoda_gateway.routing.endpoint import Endpoint, Frame, load
from pagoda_gateway.routing.pick import pick
from pagoda_gateway.routing.request import RoutingRequest
from pagoda_gateway.routing.scorers import LEAST_LOAD

NAMES = tuple("abcdefgh")
SESSIONS = [f"s{number}" for number in range(400)]
CHAIN = tuple(bytes([number]) * 16 for number in range(8))


def endpoint(name: str, running: int = 0, resident: int = 0) -> Endpoint:
    frame = Frame(1, "ready", running, 0, 0, frozenset("m"))
    return Endpoint(name, "ns/s", f"{name}:8000", frame=frame, connected=True, resident=set(CHAIN[:resident]))


ENDPOINTS = st.dictionaries(st.sampled_from(NAMES), st.integers(0, 40), min_size=1).map(
    lambda loads: [endpoint(name, running) for name, running in loads.items()]
)


@given(ENDPOINTS, st.text(max_size=80))
def test_a_session_has_one_owner_whatever_the_order_and_only_its_end_moves_it(endpoints, session):
    name = owner(endpoints, session)
    assert owner(reversed(endpoints), session) == name
    others = [one for one in endpoints if one.name != name]
    for gone in others:
        assert owner([one for one in endpoints if one is not gone], session) == name


def test_sessions_are_spread_evenly_and_alike_ones_are_not_neighbours():
    counts = [sum(owner(map(endpoint, NAMES), session) == name for session in SESSIONS) for name in NAMES]
    mean = len(SESSIONS) / len(NAMES)
    assert all(abs(count - mean) < 4 * math.sqrt(mean) for count in counts)
    assert len({owner(map(endpoint, NAMES), f"session-{number}") for number in range(1, 30)}) > 4


@given(ENDPOINTS)
def test_the_bound_never_leaves_nothing_and_never_lets_one_far_above_the_mean_take_more(endpoints):
    bounded = within_bound(endpoints)
    mean = (sum(map(load, endpoints)) + 1) / len(endpoints)
    assert min(endpoints, key=load) in bounded
    for one in bounded:
        assert load(one) + 1 <= max(4, math.ceil(1.25 * mean)) or load(one) == min(map(load, endpoints))


@pytest.mark.parametrize(("resident", "share"), [(0, 0.0), (4, 0.5), (8, 1.0)])
def test_the_share_counts_from_the_beginning(resident, share):
    one = endpoint("a", resident=resident)
    assert resident_share(one, CHAIN) == share
    one.resident.discard(CHAIN[0])
    assert resident_share(one, CHAIN) == 0.0
    assert resident_share(one, ()) == 0.0


def chosen(endpoints, *scorers, **fields):
    choice = pick(endpoints, RoutingRequest("m", **fields), {}, 0.0, *scorers)
    return choice.endpoint.name, choice.reason


def test_a_session_goes_to_its_owner_until_that_is_over_the_bound_and_comes_back():
    endpoints = [endpoint(name) for name in NAMES]
    mine = owner(endpoints, "s")
    assert chosen(endpoints, session="s") == (mine, REASON_SESSION)
    busy = [endpoint(name, running=12 if name == mine else 8) for name in NAMES]
    assert chosen(busy, session="s")[0] != mine
    assert chosen(busy, session="s") == chosen(list(reversed(busy)), session="s")
    calmer = [endpoint(name, running=10 if name == mine else 8) for name in NAMES]
    assert chosen(calmer, session="s") == (mine, REASON_SESSION)


def test_a_cached_beginning_counts_as_much_as_four_requests_and_not_for_sessions():
    endpoints = [endpoint("a", running=3, resident=8), endpoint("b")]
    assert chosen(endpoints, prefix_hashes=CHAIN) == ("a", REASON_PREFIX)
    assert chosen([endpoint("a", running=2, resident=4), endpoint("b", running=1)], prefix_hashes=CHAIN) == ("a", REASON_PREFIX)
    assert chosen([endpoint("a", running=3, resident=4), endpoint("b")], prefix_hashes=CHAIN) == ("b", REASON_LEAST_LOADED)
    sessions = {chosen(endpoints, prefix_hashes=CHAIN, session=session)[0] for session in SESSIONS[:20]}
    assert sessions == {"a", "b"}


def test_a_service_may_ask_for_the_least_loaded_one_alone():
    endpoints = [endpoint("a", running=1, resident=8), endpoint("b")]
    for session in SESSIONS[:20]:
        assert chosen(endpoints, LEAST_LOAD, prefix_hashes=CHAIN, session=session) == ("b", REASON_LEAST_LOADED)


def test_a_suspect_owner_is_no_owner_while_a_trusted_one_is_there():
    endpoints = [endpoint("a"), endpoint("b")]
    mine = next(one for one in endpoints if one.name == owner(endpoints, "s"))
    mine.connected = False
    assert chosen(endpoints, session="s")[0] != mine.name
