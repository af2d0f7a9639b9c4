"""Windows and policies: beside a reference of HorizontalPodAutoscaler's own, step by step over whole courses."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pagoda_contracts.resources.scaling import ScalingPolicy, ScalingRules
from pagoda_operator.api.signals import Measure, Recommendation
from pagoda_operator.decide.scale.autoscale import autoscale
from pagoda_operator.decide.scale.bounds import Behavior, Bounds, Change, paced
from pagoda_operator.decide.scale.inputs import Capacity, History, Targets
from support.judges.hpa_reference import Reference, Rules
from support.suite.profiles import examples

STEP_S = 15.0
# One row per replica, nothing to spare, a queue that never matters: the load is the recommendation.
TARGETS = Targets(rows=1, queue_depth=1e9, spare=0.0)
LEAST, MOST = 1, 60


def measured(now: float, load: int) -> list[Measure]:
    return [Measure(now - i * 5.0, 5, 5, load, 0, 0) for i in reversed(range(4))]


def course(behavior: Behavior, loads: list[int], start: int) -> list[int]:
    """What autoscale makes of a load after the other."""
    current, asked, changes, found = start, [Recommendation(0.0, start, start)], [], []
    for step, load in enumerate(loads, 1):
        now = step * STEP_S
        history = History(measured(now, load), tuple(asked), -1e9, tuple(changes))
        decision = autoscale(history, Capacity(current), TARGETS, Bounds(LEAST, MOST, behavior=behavior), now)
        if decision.replicas != current:
            changes.append(Change(now, decision.replicas - current))
        asked.append(decision.recommendation)
        current = decision.replicas
        found.append(current)
    return found


def expected(behavior: Behavior, loads: list[int], start: int) -> list[int]:
    up, down = (
        Rules(
            float(way.stabilization_window_seconds or 0),
            [(policy.type, policy.value, float(policy.period_seconds)) for policy in way.policies],
            way.select_policy,
        )
        for way in (behavior.up, behavior.down)
    )
    reference = Reference(up, down, LEAST, MOST, [(0.0, start)])
    current, found = start, []
    for step, load in enumerate(loads, 1):
        current = reference.decide(step * STEP_S, current, max(LEAST, load))
        found.append(current)
    return found


def policy(kind: str, value: int, seconds: int) -> ScalingPolicy:
    return ScalingPolicy.model_validate({"type": kind, "value": value, "periodSeconds": seconds})


def rules(window: int, *policies: ScalingPolicy, select: str = "Max") -> ScalingRules:
    return ScalingRules.model_validate({"stabilizationWindowSeconds": window, "selectPolicy": select, "policies": policies})


policies = st.builds(
    policy, st.sampled_from(["Pods", "Percent"]), st.integers(1, 20) | st.integers(50, 200), st.sampled_from([15, 30, 60, 180])
)
directions = st.builds(
    lambda window, some, select: rules(window, *some, select=select),
    st.sampled_from([0, 15, 60, 120, 300]),
    st.lists(policies, max_size=3),
    st.sampled_from(["Max", "Max", "Min", "Disabled"]),
)


@settings(max_examples=examples(150), deadline=None)
@given(st.builds(Behavior, directions, directions), st.lists(st.integers(1, 70), min_size=1, max_size=30), st.integers(LEAST, MOST))
def test_behavior_equals_the_hpa_reference(behavior: Behavior, loads: list[int], start: int) -> None:
    assert course(behavior, loads, start) == expected(behavior, loads, start)


def test_both_stabilization_windows() -> None:
    """Down to the highest of five minutes, up to the lowest of one."""
    behavior = Behavior(rules(60), rules(300))
    loads = [10] * 4 + [20] * 3 + [30] * 6 + [2] * 30
    found = course(behavior, loads, 10)
    assert found[:8] == [10] * 7 + [20], "a minute of 20 and more before 20"
    assert max(found) == 30
    last_high = 4 + 3 + 6
    assert found[last_high : last_high + 19] == [30] * 19, "a dip of less than five minutes takes nothing away"
    assert found[last_high + 20] == 2


def test_policies_count_from_the_beginning_of_the_period() -> None:
    behavior = Behavior(rules(0, policy("Pods", 4, 60), policy("Percent", 50, 60)), rules(0, policy("Percent", 10, 60)))
    assert course(behavior, [60] * 9, 10) == [15, 15, 15, 15, 23, 23, 23, 23, 35]
    assert course(behavior, [1] * 9, 40) == [36, 36, 36, 36, 32, 32, 32, 32, 28]


def test_the_first_replica_is_always_allowed() -> None:
    nothing_up = Behavior(rules(0, policy("Percent", 100, 60), select="Disabled"))
    assert paced(3, 0, (), nothing_up, 0.0) == 1


@pytest.mark.parametrize(("wish", "current"), [(9, 2), (1, 7)])
def test_disabled_changes_nothing(wish: int, current: int) -> None:
    still = Behavior(rules(0, select="Disabled"), rules(0, select="Disabled"))
    assert paced(wish, current, (), still, 0.0) == current
