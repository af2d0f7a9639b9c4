"""The 95th percentile of a request's gaps, from few counters."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pagoda_daemon.metrics.gaps import Gaps
from pagoda_daemon.metrics.seldom import Seldom

SECONDS = st.floats(min_value=0.0, max_value=500.0, allow_nan=False)


def heard(gaps, answer=0):
    found, now = Gaps(), 0.0
    found.hear(answer, now)
    for gap in gaps:
        now += gap
        found.hear(answer, now)
    return found


def exact(gaps):
    return sorted(gaps)[math.ceil(0.95 * len(gaps)) - 1]


@given(st.lists(SECONDS, min_size=1, max_size=200))
def test_it_is_never_below_and_at_most_a_fifth_above(gaps):
    estimate = heard(gaps).p95()
    least = exact(gaps) * (1 - 1e-9) - 1e-9
    assert least <= estimate <= max(max(gaps) if exact(gaps) > 100 else 1.19 * exact(gaps), 0.0005) + 1e-9


def test_equal_gaps_are_counted_exactly():
    assert heard([0.25] * 40).p95() == pytest.approx(0.25)


def test_one_output_has_no_gap():
    assert heard([]).p95() is None
    assert Gaps().p95() is None


def test_answers_have_gaps_of_their_own():
    both = Gaps()
    for at in range(20):
        both.hear(0, at * 1.0)
        both.hear(1, at * 1.0 + 0.5)
    assert both.p95() == 1.0


def test_several_are_counted_together():
    assert Gaps.of([heard([0.01] * 19), heard([3.0])]).p95() == pytest.approx(0.01, rel=0.2)
    assert Gaps.of([heard([0.01] * 18), heard([3.0] * 2)]).p95() == 3.0
    assert Gaps.of([]).p95() is None


def test_it_stays_small():
    found = heard([1.001**at / 1000 for at in range(20_000)])
    assert len(found.counts) <= 73


def test_what_is_seldom_is_due_once_in_its_time():
    line = Seldom(10.0)
    assert [line.due(now) for now in (0.0, 1.0, 9.9, 10.0, 10.1, 30.0)] == [True, False, False, True, False, True]
