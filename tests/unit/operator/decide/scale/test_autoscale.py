"""The scaling policy, decision by decision."""

from __future__ import annotations

import math

import pytest
from pagoda_operator.api.signals import BIN_S, Decision, Measure, Recommendation
from pagoda_operator.decide.scale.autoscale import autoscale
from pagoda_operator.decide.scale.bounds import Bounds
from pagoda_operator.decide.scale.inputs import Capacity, History, Targets

TARGETS = Targets(rows=16)
BOUNDS = Bounds(least=1, most=32)
HOLD_S = 8.0


def steady(rate: float, seconds: float = 600.0, *, until: float = 1000.0, waiting: int = 0, held: int = 0) -> list[Measure]:
    """Measures of a service with `rate` requests per second of HOLD_S seconds each."""
    count = round(rate * BIN_S)
    times = [until - i * BIN_S for i in reversed(range(int(seconds / BIN_S)))]
    return [Measure(at, count, count, round(rate * HOLD_S), waiting, held) for at in times]


def decide(measures: list[Measure], capacity: Capacity, *, bounds: Bounds = BOUNDS, now: float = 1000.0, since: float = 0.0) -> Decision:
    asked = [Recommendation(now - 1.0, 1, 1)]
    return autoscale(History(measures, asked, since), capacity, TARGETS, bounds, now)


@pytest.mark.parametrize("rate", [1.0, 4.0, 12.0, 30.0])
def test_the_spare_is_the_square_root_of_the_load(rate: float) -> None:
    load = rate * HOLD_S
    for start_s, more in ((0.0, 1.0), (90.0, 1.1), (360.0, 1.4), (3600.0, 2.0)):
        expected = math.ceil((load + more * TARGETS.spare * math.sqrt(load)) / TARGETS.rows)
        assert decide(steady(rate), Capacity(ready=expected, start_s=start_s)).replicas == expected


def test_growth_is_projected_to_when_a_replica_would_serve() -> None:
    growing = [Measure(700 + i * BIN_S, 20 + 2 * i, 20 + 2 * i, 32 + 3 * i, 0, 0) for i in range(61)]
    soon, late = (decide(growing, Capacity(ready=2, start_s=start)).replicas for start in (10.0, 300.0))
    assert late > soon


def test_noise_does_not_change_the_number() -> None:
    noisy = [Measure(405 + i * BIN_S, 20 + (-4, 3, 1, -2, 4, -1)[i % 6], 20, 32, 0, 0) for i in range(120)]
    assert {decide(noisy[: i + 1], Capacity(ready=3), now=405 + i * BIN_S).replicas for i in range(60, 120)} == {3}


def test_a_slow_start_is_not_ordered_twice() -> None:
    """Pending replicas count: 2, 4, 8, 16 is what happens where they do not."""
    wanted, orders = 2, []
    for second in range(0, 300, 5):
        rate, waiting = 12.0, 10 + 4 * second
        measures = steady(rate, waiting=waiting, until=1000.0 + second)
        starting = tuple(max(1.0, 300.0 - second) for _ in range(wanted - 2))
        decision = autoscale(History(measures, [], 0.0), Capacity(2, starting, 300.0), TARGETS, Bounds(1, 1000), 1000.0 + second)
        if decision.replicas > wanted:
            orders.append(decision.replicas)
            wanted = decision.replicas
    assert orders[0] > 2
    assert wanted <= 1.6 * orders[0], orders


def test_scale_down_goes_to_the_most_needed_within_the_window() -> None:
    measures = steady(1.0)
    history = History(measures, [Recommendation(790.0, 9, 6), Recommendation(900.0, 5, 4), Recommendation(995.0, 1, 1)], 0.0)
    decision = autoscale(history, Capacity(ready=8), TARGETS, BOUNDS, 1000.0)
    assert decision.replicas == 6
    assert "were needed within" in decision.reason


def test_replicas_for_a_backlog_go_before_the_window_ends() -> None:
    recent = History(steady(1.0), [Recommendation(950.0, 9, 2)], 0.0)
    older = History(steady(1.0), [Recommendation(800.0, 9, 2)], 0.0)
    capacity = Capacity(ready=9, start_s=60.0)
    assert autoscale(recent, capacity, TARGETS, BOUNDS, 1000.0).replicas == 9
    assert autoscale(older, capacity, TARGETS, BOUNDS, 1000.0).replicas == 2


def test_a_restart_removes_nothing_for_a_window() -> None:
    young = decide(steady(1.0, 60.0), Capacity(ready=8), since=990.0)
    assert young.replicas == 8
    assert "until the metrics cover" in young.reason
    assert decide(steady(1.0), Capacity(ready=8), since=0.0).replicas < 8


@pytest.mark.parametrize("measures", [[], steady(1.0, until=900.0)], ids=["missing", "old"])
def test_without_fresh_metrics_nothing_is_removed(measures: list[Measure]) -> None:
    assert decide(measures, Capacity(ready=7)).replicas == 7
    assert decide(measures, Capacity(ready=0)).replicas == 1, "the least is the least"


def test_bounds_apply_and_are_named() -> None:
    decision = decide(steady(100.0), Capacity(ready=4), bounds=Bounds(1, 5))
    assert decision.replicas == 5
    assert decision.reason.endswith(", but max is 5.")


def test_idleness_scales_to_zero_and_a_held_request_to_one() -> None:
    bounds = Bounds(0, 8, idle_after_s=300.0)
    assert decide(steady(0.0), Capacity(ready=1), bounds=bounds).replicas == 0
    assert decide(steady(0.0, 100.0), Capacity(ready=1), bounds=bounds, since=900.0).replicas == 1, "not yet seen idle for so long"
    assert decide(steady(0.0, held=1), Capacity(ready=0), bounds=bounds).replicas >= 1
    assert decide(steady(0.0), Capacity(ready=0), bounds=bounds).replicas == 0


def test_kv_use_above_its_target_adds_replicas() -> None:
    measures = [*steady(1.0, until=995.0), Measure(1000.0, 5, 5, 8, 0, 0, kv_utilization=0.95)]
    targets = Targets(rows=16, kv_utilization=0.8)
    decision = autoscale(History(measures, [], 0.0), Capacity(ready=6), targets, BOUNDS, 1000.0)
    assert decision.replicas == math.ceil(6 * 0.95 / 0.8)
    assert "95 % of the KV cache is in use" in decision.reason


def test_a_late_first_token_adds_one_replica_while_requests_wait() -> None:
    targets = Targets(rows=16, ttft_p95_s=1.0)
    for waiting, running, wanted in ((2, 8, 7), (2, 6, 7), (0, 6, 6)):  # while nobody waits: test_ttft_target.py
        measures = [*steady(1.0, until=995.0), Measure(1000.0, 5, 5, running, waiting, 0, ttft_p95_s=3.0)]
        found = autoscale(History(measures, [Recommendation(900.0, 6, 6)], 0.0), Capacity(ready=6), targets, BOUNDS, 1000.0)
        assert found.replicas == wanted
