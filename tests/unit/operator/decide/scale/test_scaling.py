"""Who decides in which mode, what holds always, and what is told of it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pagoda_contracts.resources.scaling import ScalingSpec
from pagoda_operator.api.signals import BIN_S, Decision, EndpointSignal, Measure, Recommendation, Seen, ServiceSignals
from pagoda_operator.decide.scale.inputs import Basis, Memory, Moment
from pagoda_operator.decide.scale.learned import BINS, DAY_S, Learned
from pagoda_operator.decide.scale.scaling import decide, next_decision_s
from support.suite.profiles import examples

HOLD_S = 8.0
ROWS = 16
NOW = Moment(10_000.0, 1_780_000_650.0)  # the middle of a bin of the day


def auto(**fields: Any) -> ScalingSpec:
    return ScalingSpec.model_validate({"mode": "Auto", "max": 32} | fields)


def external(**fields: Any) -> ScalingSpec:
    return ScalingSpec.model_validate({"mode": "External"} | fields)


def based(spec: ScalingSpec, current: int, **fields: Any) -> Basis:
    defaults: dict[str, Any] = {"replicas": 1, "ready": current, "rows": ROWS, "accelerator": "cpu"}
    return Basis(spec=spec, current=current, **defaults | fields)


def reported(rate: float, *, seconds: float = 600.0, until: float = NOW.steady, waiting: int = 0, **fields: Any) -> ServiceSignals:
    """`rate` requests per second of HOLD_S seconds each, for so long."""
    count = round(rate * BIN_S)
    times = [until - i * BIN_S for i in reversed(range(int(seconds / BIN_S)))]
    measures = tuple(Measure(at, count, count, round(rate * HOLD_S), waiting, fields.get("held", 0)) for at in times)
    return ServiceSignals(measures, **{"watched_since": until - seconds, "fresh": True} | fields)


def remembered(wanted: int, *, since: float = 0.0, **fields: Any) -> Memory:
    return Memory(since, wanted, **fields)


def number(basis: Basis, signals: ServiceSignals | None, memory: Memory | None = None) -> int | None:
    decision, _ = decide(basis, signals, memory or remembered(basis.current), NOW)
    return None if decision is None else decision.replicas


def decided(basis: Basis, signals: ServiceSignals | None, memory: Memory | None = None) -> Decision:
    decision, _ = decide(basis, signals, memory or remembered(basis.current), NOW)
    assert decision is not None
    return decision


# Modes


def test_manual_mode_makes_no_decision() -> None:
    held = reported(0.0, held=9, wake=True)
    assert number(based(ScalingSpec(), 0, replicas=0), held) is None
    assert number(based(ScalingSpec(), 3, replicas=3), reported(50.0)) is None


def test_external_mode_makes_no_decision_above_zero() -> None:
    for signals in (None, reported(0.0), reported(50.0, held=9, wake=True)):
        assert number(based(external(), 3, replicas=3), signals) is None


def test_external_at_zero_a_held_request_starts_one_and_idleness_removes_it() -> None:
    """An HPA at 0 is off: 0→1 stays with the gateway's demand."""
    asleep = based(external(), 0, replicas=0)
    assert number(asleep, reported(0.0)) is None
    assert number(asleep, None) is None
    for demand in ({"held": 1}, {"wake": True}):
        found = decided(asleep, reported(0.0, **demand))
        assert (found.replicas, found.reason) == (1, "Requests are held and spec.replicas is 0.")
    awake = based(external(min=0, idleAfter="2m"), 1, replicas=0)
    assert number(awake, reported(1.0)) == 1
    assert number(awake, reported(0.0, seconds=110.0)) == 1, "not yet seen idle for so long"
    assert number(awake, reported(0.0)) is None, "back to spec.replicas"
    assert number(awake, replace(reported(0.0), fresh=False)) == 1, "never down without fresh signals"


def test_external_at_zero_a_started_replica_stays_until_a_gateway_reports() -> None:
    """A restarted operator has heard none yet; its predecessor's reason in the status says that it was a wake."""
    awake = based(external(min=0, idleAfter="2m"), 1, replicas=0)
    found = decided(awake, None, remembered(1, reported="Requests are held and spec.replicas is 0."))
    assert (found.replicas, found.cause) == (1, "unheard")
    assert number(awake, None) is None, "somebody else scaled it to 0: where no gateway is, nobody would ever end it"


def test_auto_begins_at_spec_replicas_and_stays_without_gateways() -> None:
    assert number(based(auto(), 5), None) == 5
    assert number(based(auto(min=7), 5), None) == 7
    assert number(based(auto(max=3), 5), None) == 3


# Zero and one


def test_without_a_gateway_the_last_replica_stays_since_no_request_would_start_one() -> None:
    sleepy, quiet = auto(min=0, idleAfter="20m"), replace(reported(0.0, seconds=2000.0), wakes=False)
    found = decided(based(sleepy, 1), quiet)
    assert (found.replicas, "The least without a gateway is 1." in found.reason) == (1, True)
    assert decided(based(sleepy, 0), quiet).replicas == 1
    assert next_decision_s(based(sleepy, 1), quiet, remembered(1), found, NOW) is None, "time alone changes nothing"
    assert decided(based(auto(min=0, max=0), 0), quiet).replicas == 0


def test_only_idleness_scales_to_zero() -> None:
    sleepy = auto(min=0, idleAfter="20m")
    assert number(based(sleepy, 1), reported(0.0, seconds=900.0)) == 1, "the last replica does not go by the window"
    assert number(based(sleepy, 1), reported(0.0, seconds=1230.0)) == 0
    assert number(based(sleepy, 1), reported(0.0), remembered(1, busy_at=NOW.steady - 1190.0)) == 1, "longer ago than the measures go back"
    assert number(based(auto(min=0), 1), reported(0.0, seconds=310.0)) == 0, "five minutes where nobody says"
    assert number(based(auto(min=1), 1), reported(0.0, seconds=3000.0)) == 1


def test_nothing_starts_at_zero_without_a_request() -> None:
    assert number(based(auto(min=0), 0, replicas=0), reported(0.0, seconds=60.0)) == 0
    assert number(based(auto(min=0), 0, replicas=0), reported(0.0, seconds=3000.0)) == 0


@pytest.mark.parametrize("demand", [{"held": 1}, {"wake": True}])
@pytest.mark.parametrize("measures", [True, False], ids=["measured", "not yet measured"])
def test_the_first_held_request_starts_one_at_once(demand: dict[str, Any], measures: bool) -> None:
    signals = reported(0.0, seconds=600.0 if measures else 0.0, **demand)
    for spec in (auto(min=0), auto(min=0, behavior={"scaleUp": {"selectPolicy": "Disabled", "stabilizationWindowSeconds": 600}})):
        found = decided(based(spec, 0), signals)
        assert found.replicas == 1
        assert decided(based(spec, 0), replace(signals, fresh=False)).replicas == 1, "held is held, whoever else is silent"


# Clamps, each named


def test_max_is_named() -> None:
    found = decided(based(auto(max=5), 4), reported(40.0))
    assert found.replicas == 5
    assert ", but max is 5." in found.reason


def test_a_schedule_is_named() -> None:
    weekly = [{"name": "office", "start": "0 0 * * *", "duration": "24h", "min": 6, "max": 8}]
    low = decided(based(auto(schedules=weekly), 1), reported(0.0))
    assert (low.replicas, low.reason) == (6, "0 replicas are enough. The min of schedule office is 6.")
    assert "max of schedule office is 8" in decided(based(auto(schedules=weekly), 8), reported(40.0)).reason


def test_quota_is_named_and_drains() -> None:
    found = decided(based(auto(), 4, granted=5), reported(40.0))
    assert found.replicas == 5
    assert found.reason.endswith("the quota allows 5.")
    assert decided(based(auto(), 4, granted=2), reported(12.0)).replicas == 2, "a quota that shrank"


def test_room_is_named_keeps_ready_replicas_and_one_that_waits() -> None:
    found = decided(based(auto(), 4, placeable=6), reported(40.0))
    assert found.replicas == 7
    assert found.reason.endswith(", but 6 can be placed now, and one more waits for capacity.")
    assert number(based(auto(), 4, placeable=2), reported(12.0)) == 4
    assert number(based(auto(min=0), 0, placeable=0), reported(0.0, held=3)) == 1


# What holds always

rates = st.sampled_from([0.0, 0.2, 1.0, 5.0, 20.0])
specs = st.builds(
    lambda low, extra, behavior: auto(min=low, max=low + extra + 1, behavior=behavior),
    st.integers(0, 4),
    st.integers(0, 20),
    st.none()
    | st.fixed_dictionaries(
        {
            "scaleDown": st.fixed_dictionaries(
                {
                    "stabilizationWindowSeconds": st.sampled_from([60, 300]),
                    "policies": st.just([{"type": "Pods", "value": 2, "periodSeconds": 60}]),
                }
            )
        }
    ),
)


@st.composite
def courses(draw: st.DrawFn) -> tuple[ScalingSpec, list[tuple[float, int, str]]]:
    """A spec and a course of things: rate, replicas that serve (of those wanted), and whether signals come, are stale, or are missing."""
    steps = st.tuples(rates, st.integers(0, 30), st.sampled_from(["fresh", "fresh", "fresh", "stale", "none"]))
    return draw(specs), draw(st.lists(steps, min_size=2, max_size=40))


@settings(max_examples=examples(150), deadline=None)
@given(courses())
def test_bounds_apply_and_scale_down_needs_a_window_of_fresh_metrics(
    course: tuple[ScalingSpec, list[tuple[float, int, str]]],
) -> None:
    spec, steps = course
    window = 300.0 if spec.behavior is None or spec.behavior.scale_down is None else 60.0
    window = (
        float(spec.behavior.scale_down.stabilization_window_seconds or window) if spec.behavior and spec.behavior.scale_down else window
    )
    start = NOW.steady - 4000.0
    memory, current, wishes, measures = remembered(3, since=start), 3, [], []
    for step, (rate, ready, kind) in enumerate(steps):
        moment = Moment(start + 20.0 * step, NOW.wall + 20.0 * step)
        for part in (3, 2, 1, 0):
            count = round(rate * BIN_S)
            measures.append(Measure(moment.steady - part * BIN_S, count, count, round(rate * HOLD_S), 0, 0))
        signals = None if kind == "none" else ServiceSignals(tuple(measures[-120:]), start, fresh=kind == "fresh")
        before, basis = current, based(spec, current, ready=min(ready, current))
        found, memory = decide(basis, signals, memory, moment)
        assert found is not None
        current = found.replicas
        assert spec.min <= max(spec.min, current) == current or spec.min == 0
        assert current <= (spec.max or 0)
        wishes.append((moment.steady, found.recommendation.load if kind == "fresh" else before))
        if current < min(before, spec.max or 0):
            assert kind == "fresh"
            idle = current == 0
            assert moment.steady - start >= window or idle
            recent = [wish for at, wish in wishes if at > moment.steady - window]
            assert current >= max(recent) or idle


@settings(max_examples=examples(80), deadline=None)
@given(st.floats(0.1, 30.0), st.floats(1.0, 3.0), st.integers(1, 12))
def test_more_load_never_asks_for_fewer(rate: float, factor: float, current: int) -> None:
    low, high = (number(based(auto(), current), reported(r)) for r in (rate, rate * factor))
    assert low is not None
    assert high is not None
    assert high >= low


@settings(max_examples=examples(60), deadline=None)
@given(rates, st.integers(1, 20), st.floats(0.0, 299.0))
def test_a_restart_removes_nothing_for_a_window(rate: float, current: int, age: float) -> None:
    """The new process remembers nothing; how long gateways were watched before does not count for it."""
    fresh = Memory(NOW.steady - age, current)
    found = number(based(auto(min=1), current), reported(rate), fresh)
    assert found is not None
    assert found >= current
    recently_watched = reported(rate, seconds=age)
    assert (number(based(auto(min=1), current), recently_watched, remembered(current)) or 0) >= current


def test_without_fresh_metrics_nothing_is_removed() -> None:
    for signals in (
        None,
        replace(reported(0.0, seconds=3000.0), fresh=False),
        reported(0.0, seconds=3000.0, until=NOW.steady - 60.0),
        reported(0.0, seconds=0.0),
    ):
        found = decided(based(auto(min=0), 5), signals)
        assert found.replicas == 5
        assert found.reason == "No recent metrics from the gateway; keeping the current replica count."


def test_a_silent_replica_blocks_scale_down_for_a_minute() -> None:
    heard = EndpointSignal(Seen.FRESH)
    silent, unhealthy = EndpointSignal(Seen.DEAD, bad_s=20.0), EndpointSignal(Seen.DEAD, bad_s=61.0)
    for other, expected in ((heard, 1), (silent, 2), (unhealthy, 1), (None, 2)):
        endpoints = {"a": heard} | ({"b": other} if other else {})
        signals = reported(0.1, endpoints=endpoints)
        assert number(based(auto(), 2, serving=("a", "b")), signals) == expected, other


def test_replicas_that_start_slowly_are_ordered_once() -> None:
    """2, 4, 8, 16 is what happens where pending ones do not count: here nothing is known of how long a start takes."""
    spec, current, memory, orders = auto(max=100), 2, remembered(2), []
    for second in range(0, 400, 5):
        moment = Moment(NOW.steady + second, NOW.wall + second)
        signals = reported(12.0, until=moment.steady, waiting=10 + 3 * second)
        births = (NOW.wall,) * (current - 2)
        found, memory = decide(based(spec, current, ready=2, starting=births), signals, memory, moment)
        assert found is not None
        if found.replicas != current:
            orders.append(found.replicas)
            current = found.replicas
    assert orders[0] > 2
    assert max(orders) == orders[0] <= 16, orders


def test_a_rollouts_surge_is_not_demand() -> None:
    """Six pods serve while three are wanted: nothing is taken from the three, nothing is added to them."""
    assert number(based(auto(min=3), 3, ready=6), reported(0.0), Memory(NOW.steady - 10.0, 3)) == 3


# Prediction


def wise(load: float) -> Learned:
    """Previous days with that load from now on, and little before."""
    first = math.floor(NOW.wall / DAY_S * BINS)
    day, index = divmod(first + 1, BINS)
    loads = tuple(load if place >= index else 2.0 for place in range(BINS))
    return Learned(starts={"cpu": (1200.0,)}, days={day - 1: loads, day - 2: loads})


def test_the_forecast_is_ordered_in_time() -> None:
    predictive = auto(predictive={"enabled": True})
    memory = remembered(1, learned=wise(90.0))
    found = decided(based(predictive, 1), reported(0.2), memory)
    assert found.replicas == math.ceil((90.0 + 2 * 2.5 * math.sqrt(90.0)) / ROWS)
    assert "On previous days the load was 90 rows" in found.reason
    assert number(based(auto(), 1), reported(0.2), memory) == 1, "only where it is asked for"
    soon = auto(predictive={"enabled": True, "horizon": "1m"})
    assert (number(based(soon, 1), reported(0.2), memory) or 0) < found.replicas, "a horizon of its own"


def test_a_forecast_starts_replicas_from_zero() -> None:
    predictive = auto(min=0, predictive={"enabled": True})
    assert (number(based(predictive, 0), reported(0.0, seconds=3000.0), remembered(0, learned=wise(40.0))) or 0) > 0
    assert number(based(predictive, 0), reported(0.0, seconds=3000.0), remembered(0, learned=wise(0.2))) == 0


# What is told


def test_the_reason_changes_at_most_once_a_minute() -> None:
    memory, texts = remembered(3), []
    for second in range(0, 600, 5):
        moment = Moment(NOW.steady + second, NOW.wall + second)
        noisy = reported(3.0 + 0.2 * (second % 3), until=moment.steady)
        found, memory = decide(based(auto(min=3), 3), noisy, memory, moment)
        assert found is not None
        assert found.replicas == 3
        texts.append((second, found.reason))
    changes = [second for (second, text), (_, last) in zip(texts[1:], texts, strict=False) if text != last]
    assert len(changes) <= 600 / 60


def test_the_previous_leaders_reason_stays_while_the_number_stays() -> None:
    memory = remembered(1, reported="0 replicas are enough. The min is 1.", reported_at=NOW.steady)
    found, memory = decide(based(auto(), 1), reported(0.0), memory, NOW)
    assert found is not None
    assert found.reason == "0 replicas are enough. The min is 1."
    assert memory.reported_cause == "min"


def test_memory_is_bounded_and_keeps_what_counts() -> None:
    memory = remembered(4)
    for second in range(0, 7200, 5):
        moment = Moment(NOW.steady + second, NOW.wall + second)
        _, memory = decide(based(auto(), memory.wanted), reported(4.0 - second / 3600, until=moment.steady), memory, moment)
    assert len(memory.recommendations) <= 61
    assert [asked.replicas for asked in memory.recommendations] == sorted(
        (asked.replicas for asked in memory.recommendations), reverse=True
    )
    assert len(memory.changes) <= 1
    one = Recommendation(NOW.steady, 9, 9)
    kept, _ = decide(based(auto(), 9), reported(0.5), remembered(9, recommendations=(replace(one, at=NOW.steady - 299.0),)), NOW)
    assert kept is not None
    assert kept.replicas == 9
