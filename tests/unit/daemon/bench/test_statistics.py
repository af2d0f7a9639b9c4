"""Figures of a run, worked out by hand, and the table that is made of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pagoda_daemon.bench.arrivals import arrivals
from pagoda_daemon.bench.statistics import METRICS, Outcome, Wanted, figures, summary
from pagoda_daemon.bench.table import table

FAST = Outcome(10.0, 11.0, (10.2, 10.6, 11.0), input_tokens=4, output_tokens=5, text="abc")
SLOW = Outcome(10.5, 13.5, (12.5, 13.5), input_tokens=6, output_tokens=2, text="de")
LOST = Outcome(10.0, 10.1, error="HTTP 503: busy")
WANTED = Wanted(tuple(METRICS), (50.0, 99.9), {"ttft": 500.0, "tpot": 300.0})
# What vLLM writes with --save-result: facts of its benchmarks/serve.py.
KEYS = {
    *("duration", "completed", "failed", "total_input_tokens", "total_output_tokens", "request_throughput", "request_goodput"),
    *("output_throughput", "total_token_throughput", "max_output_tokens_per_s", "max_concurrent_requests"),
    *(f"{which}_{name}_ms" for name in ("ttft", "tpot", "itl", "e2el") for which in ("mean", "median", "std", "p50", "p99.9")),
}


@pytest.fixture
def found():
    return figures([FAST, SLOW, LOST], 4.0, WANTED)


def test_keys_are_those_of_vllm(found):
    assert set(summary(found)) == KEYS
    assert set(found) - KEYS == {"input_lens", "output_lens", "ttfts", "itls", "generated_texts", "errors"}


def test_counts_and_rates_are_of_whole_answers(found):
    assert (found["completed"], found["failed"], found["total_input_tokens"], found["total_output_tokens"]) == (2, 1, 10, 7)
    assert (found["request_throughput"], found["output_throughput"], found["total_token_throughput"]) == (0.5, 1.75, 4.25)
    assert (found["output_lens"], found["errors"]) == ([5, 2, 0], ["", "", "HTTP 503: busy"])


def test_latencies_are_milliseconds(found):
    assert found["mean_ttft_ms"] == pytest.approx((200 + 2000) / 2)
    assert found["median_tpot_ms"] == pytest.approx((800 / 4 + 1000 / 1) / 2), "the time after the first token, for each token after it"
    assert found["mean_itl_ms"] == pytest.approx((400 + 400 + 1000) / 3)
    assert found["p50_e2el_ms"] == pytest.approx((1000 + 3000) / 2)
    assert found["std_e2el_ms"] == pytest.approx(1000)


def test_a_good_request_keeps_every_limit(found):
    assert found["request_goodput"] == 1 / 4, "FAST has 200 ms to its first token and 200 ms per token"
    assert figures([FAST, SLOW], 4.0, Wanted(goodput={"e2el": 999.0}))["request_goodput"] == 0
    assert figures([FAST, SLOW], 4.0, Wanted())["request_goodput"] is None


def test_peaks_are_those_of_one_second(found):
    assert found["max_concurrent_requests"] == 2
    assert found["max_output_tokens_per_s"] == pytest.approx(2 / 3 * 5), "two of the three events of FAST; its third came in the next one"


def test_an_answer_of_one_token_has_no_time_between_tokens():
    only = figures([Outcome(0.0, 1.0, (1.0,), 3, 1)], 1.0, Wanted(tuple(METRICS), goodput={"tpot": 1.0}))
    assert (only["mean_tpot_ms"], only["mean_itl_ms"], only["request_goodput"]) == (0.0, 0.0, 1.0)


def test_an_answer_without_text_came_when_it_ended():
    assert Outcome(0.0, 2.0, (), 3, 1).ttft == 2.0


def test_nothing_but_failures_is_zeros():
    found = figures([LOST], 1.0, WANTED)
    assert (found["completed"], found["failed"], found["mean_ttft_ms"], found["max_concurrent_requests"]) == (0, 1, 0.0, 0)


def test_the_table_has_vllms_lines(found):
    lines = table(found, 2.5, 8, (50.0, 99.9)).splitlines()
    assert lines[0] == "============ Serving Benchmark Result ============"
    assert lines[1] == "Successful requests:                     2         "
    assert "Request rate configured (RPS):           2.50      " in lines
    assert "Maximum request concurrency:             8         " in lines
    assert "---------------Time to First Token----------------" in lines
    assert "P99.9 TTFT (ms):                         1998.20   " in lines
    assert "-----Time per Output Token (excl. 1st token)------" in lines
    assert lines[-1] == "=" * 50
    assert "goodput" not in table(figures([FAST], 1.0, Wanted()), math.inf, None, (99.0,))


@given(
    count=st.integers(0, 300),
    rate=st.floats(0.01, 1e4),
    burstiness=st.one_of(st.floats(0.05, 50.0), st.just(math.inf)),
    seed=st.integers(0, 2**32 - 1),
)
def test_requests_are_sent_in_order_and_at_the_rate_that_was_asked_for(count, rate, burstiness, seed):
    times = arrivals(count, rate, burstiness, np.random.default_rng(seed))
    assert len(times) == count
    assert times == sorted(times)
    if count > 1:
        assert times[0] == 0.0
        assert times[-1] == pytest.approx((count - 1) / rate)


def test_times_are_drawn_from_the_seed_and_all_at_once_without_a_rate():
    one, other, third = (arrivals(50, 5.0, 1.0, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert one == other != third
    assert arrivals(3, math.inf, 1.0, np.random.default_rng(0)) == [0.0] * 3


def test_a_poisson_process_is_burstier_than_a_gamma_of_ten():
    spread = [float(np.std(np.diff(arrivals(4000, 1.0, shape, np.random.default_rng(3))))) for shape in (0.25, 1.0, 10.0)]
    assert spread == pytest.approx([2.0, 1.0, 10**-0.5], rel=0.1), "the deviation of a gamma distribution with the mean 1"
