"""Steps that took much longer than predicted: which ones are told, what they held, and how often."""

from __future__ import annotations

import pytest
from pagoda_daemon.core.batch import StepPlan, WorkerLimits
from pagoda_daemon.core.messages import Submit
from pagoda_daemon.core.sampling import Sampling
from pagoda_daemon.scheduler.admission import Arrival, submit
from pagoda_daemon.scheduler.commit import commit
from pagoda_daemon.scheduler.limits import Limits
from pagoda_daemon.scheduler.plan import plan
from pagoda_daemon.scheduler.slow import EVERY_MS, SlowStep, SlowSteps
from pagoda_daemon.scheduler.state import State
from pagoda_daemon.simulated.device.worker import SimulatedWorker

WORKER = WorkerLimits(64, 4, 97, 64)


def step(took_ms, predicted_ms=10.0, rows=3):
    return SlowStep(took_ms, predicted_ms, rows, 1, 20, 40, deep_check=False)


@pytest.mark.parametrize(
    ("took", "predicted", "logged"), [(249.0, 1.0, False), (250.0, 1.0, True), (1000.0, 300.0, False), (1500.0, 300.0, True)]
)
def test_a_step_is_slow_by_its_prediction_and_never_below_a_quarter_of_a_second(took, predicted, logged):
    slow = SlowSteps()
    slow.add(step(took, predicted))
    assert (slow.take(0.0) is not None) is logged


def test_the_slowest_step_is_logged_with_the_number_of_slow_steps_and_then_nothing_for_ten_seconds():
    slow = SlowSteps()
    assert slow.take(0.0) is None
    slow.add(step(400.0))
    assert slow.take(0.0)["slow_steps"] == 1
    for took in (500.0, 900.04, 600.0):
        slow.add(step(took, rows=int(took)))
        assert slow.take(EVERY_MS - 1) is None
    assert slow.take(EVERY_MS) == {
        "took_ms": 900.0,
        "predicted_ms": 10.0,
        "rows": 900,
        "prompts": 1,
        "prompt_tokens": 20,
        "context": 40,
        "deep_check": False,
        "slow_steps": 3,
    }
    assert slow.take(10 * EVERY_MS) is None


def test_a_step_of_the_scheduler_says_what_it_held():
    state, device, now = State(Limits.of(WORKER, 4, 16)), SimulatedWorker(WORKER), 0.0

    def one(took):
        nonlocal now
        made = plan(state, now)
        assert isinstance(made, StepPlan)
        now += took
        commit(state, device.execute(made), now)

    submit(state, Submit("a", (1,), Sampling(60)), Arrival(now, 1))
    for _ in range(12):
        one(2.0)
    assert state.slow.take(now) is None
    submit(state, Submit("b", tuple(range(1, 10)), Sampling(3)), Arrival(now, 2))
    one(800.0)
    fields = state.slow.take(now)
    assert (fields["took_ms"], fields["rows"], fields["prompts"], fields["prompt_tokens"], fields["slow_steps"]) == (800.0, 2, 1, 9, 1)
    assert fields["context"] >= 9 + 12
    assert 0 < fields["predicted_ms"] < 40
