"""Scorers: a new one is one function and one line of a table, and its weight says how many seconds it is worth."""

from dataclasses import replace

import pytest
from pagoda_gateway.routing.endpoint import Endpoint, Frame
from pagoda_gateway.routing.pick import pick
from pagoda_gateway.routing.predict import missed_tokens, ttft_s
from pagoda_gateway.routing.request import RoutingRequest
from pagoda_gateway.routing.scorers import SCORERS, Weighted, kv_headroom, score

REQUEST = RoutingRequest("m", tenant="a")


def endpoint(name, running=0, sent=0, **frame):
    state = Frame(1, "ready", running, 0, 0, frozenset({"m"}), **frame)
    return Endpoint(name, "ns/s", f"{name}:8000", frame=state, connected=True, sent_tokens=sent)


def is_namesake(endpoint, request):
    """One for the endpoint that is called like a request's tenant."""
    return float(endpoint.name == request.tenant)


def test_without_a_session_or_a_cached_beginning_the_least_loaded_one_wins():
    assert [score(endpoint("a", running), REQUEST) for running in (0, 1, 7)] == pytest.approx([0, -0.01, -0.07])
    assert pick([endpoint("a", 2), endpoint("b", 1)], REQUEST, {}, 0).endpoint.name == "b"


@pytest.mark.parametrize(("more", "chosen"), [(0, "a"), (1, "a"), (2, "b"), (3, "b")])
def test_a_scorer_is_worth_its_weight_in_requests(more, chosen):
    table = (*SCORERS, Weighted(is_namesake, 0.02))
    loaded, idle = endpoint("a", more), endpoint("b", 0)
    idle.last_pick, loaded.last_pick = 0, 1  # at equal scores the one that was picked longest ago
    assert pick([loaded, idle], REQUEST, {}, 0, table).endpoint.name == chosen


CHAIN = tuple(bytes([number]) * 16 for number in range(8))
LONG = RoutingRequest("m", prefix_hashes=CHAIN, prompt_tokens=1_200)


@pytest.mark.parametrize(
    ("state", "seconds"),
    [
        ({}, 0.0),  # an older daemon does not say how long its steps take
        ({"step_token_us": 100.0}, 0.12),
        ({"step_token_us": 100.0, "step_base_us": 5_000.0}, 0.125),
        ({"step_token_us": 100.0, "step_row_us": 500.0, "running": 10}, 0.125),
        ({"step_token_us": 100.0, "prefill_tokens": 700, "waiting_tokens": 100}, 0.2),
        ({"step_token_us": 100.0, "sent": 800}, 0.2),
        # Two answers of 64 tokens have to end first, and one of four ends each 16 steps of 10 ms.
        ({"step_token_us": 100.0, "step_base_us": 10_000.0, "running": 5, "max_concurrency": 4}, 0.13 + 2 * 16 * 0.01),
    ],
)
def test_the_predicted_time_is_the_queue_and_the_prompt_by_the_endpoints_own_pace(state, seconds):
    assert ttft_s(endpoint("a", **state), LONG) == pytest.approx(seconds)


def test_what_is_cached_is_not_computed_but_a_crowded_endpoint_gets_no_credit_for_it():
    one = endpoint("a", step_token_us=100.0)
    one.resident.update(CHAIN[:4])
    assert (missed_tokens(one, LONG), ttft_s(one, LONG)) == (1_200 - 4 * 128, pytest.approx(0.0688))
    assert ttft_s(one, replace(LONG, crowded=frozenset("a"))) == pytest.approx(0.12)


def chosen(endpoints, request=LONG):
    return pick(endpoints, request, {}, 0).endpoint.name


def test_a_slow_replica_gets_a_request_only_when_the_fast_ones_queue_is_longer():
    slow = endpoint("slow", step_token_us=200.0)
    assert chosen([slow, endpoint("fast", step_token_us=100.0, sent=1_000)]) == "fast"
    assert chosen([slow, endpoint("fast", step_token_us=100.0, sent=1_400)]) == "slow"


def test_queued_tokens_count_and_not_the_number_of_requests():
    one_long = endpoint("a", running=1, step_token_us=100.0, prefill_tokens=20_000)
    assert chosen([one_long, endpoint("b", running=3, step_token_us=100.0, prefill_tokens=300)]) == "b"


def test_a_prompt_without_free_blocks_goes_elsewhere():
    full = endpoint("a", block_size=16, blocks_total=100, blocks_used=90)
    assert kv_headroom(full, LONG) == pytest.approx(160 / 1_200 - 1)
    assert kv_headroom(endpoint("b", block_size=16, blocks_total=100), LONG) == 0.0
    assert kv_headroom(endpoint("b"), LONG) == 0.0
    assert chosen([full, endpoint("b", running=3, block_size=16, blocks_total=100)]) == "b"
