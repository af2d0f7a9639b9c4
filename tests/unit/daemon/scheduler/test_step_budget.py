"""How many tokens a step may have: by time, never none, more for a laxer objective; and what requests see of it."""

from __future__ import annotations

import math
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pagoda_daemon.core.batch import StepPlan, WorkerLimits
from pagoda_daemon.core.messages import Submit
from pagoda_daemon.core.sampling import Sampling
from pagoda_daemon.scheduler.admission import Arrival, submit
from pagoda_daemon.scheduler.commit import commit
from pagoda_daemon.scheduler.cost import BOUNDS, StepBudget, StepCost, Within, Work, step_budget
from pagoda_daemon.scheduler.forecast import first_token_ms
from pagoda_daemon.scheduler.limits import Limits
from pagoda_daemon.scheduler.plan import plan
from pagoda_daemon.scheduler.state import State
from pagoda_daemon.simulated.device.virtual import VirtualWorker
from pagoda_daemon.simulated.replay.run import Simulation
from pagoda_daemon.simulated.replay.trace import Job
from support.suite.profiles import examples

WORKER = WorkerLimits(2048, 16, 97, 8192)
MOST, BLOCK = 512, 16


def milliseconds(plan: StepPlan) -> float:
    """A device like a small CPU: a step of one token takes 9 ms, one of 512 more than half a second."""
    return 5.0 + 1.2 * plan.tokens + 2.8 * int(plan.sample.sum())


def learned(base: float = 5.0, token: float = 1.2, sampled: float = 2.8, pair: float = 0.0, context: float = 0.0) -> StepCost:
    """After steps of decodes, and some with a prompt beside them."""
    cost = StepCost()
    for at in range(60):
        work = Work.decodes(1 + at % 7, 300 * (at % 5)).with_prompt((0, 0, 16, 64, 512)[at % 5], 100 * (at % 11))
        cost.observe(work, base + token * work.tokens + sampled * work.sampled + context * work.context + pair * work.pairs)
    return cost


costs = st.builds(learned, st.floats(0.1, 30), st.floats(0.001, 5), st.floats(0, 5), st.floats(0, 1e-3), st.floats(0, 1e-3))
decodes = st.builds(Work.decodes, st.integers(1, 64), st.integers(0, 100_000))


@settings(max_examples=examples(40))
@given(costs, decodes, st.integers(0, 8000), st.lists(st.floats(0.1, 5000), min_size=2, max_size=6))
def test_a_laxer_objective_never_makes_a_smaller_step_and_none_is_without_progress(
    cost: StepCost, beside: Work, depth: int, objectives: list[float]
) -> None:
    found = [step_budget(cost, beside, depth, Within(MOST, BLOCK, itl_ms)) for itl_ms in sorted(objectives)]
    assert found == [step_budget(cost, beside, depth, Within(MOST, BLOCK, itl_ms)) for itl_ms in sorted(objectives)]
    assert [one.tokens for one in found] == sorted(one.tokens for one in found)
    for itl_ms, budget in zip(sorted(objectives), found, strict=True):
        prompt = budget.tokens - beside.tokens
        assert BLOCK <= prompt <= MOST - beside.tokens
        took = cost.milliseconds(beside.with_prompt(prompt, depth))
        assert took <= itl_ms or budget.bound == "least"
        assert (budget.bound == "full") is (budget.tokens == MOST and took <= itl_ms)


@pytest.mark.parametrize(
    ("cost", "beside", "within", "expected"),
    [
        (learned(), Work.decodes(0, 0), Within(MOST, BLOCK, 1.0), StepBudget(MOST, "alone")),
        (StepCost(), Work.decodes(4, 100), Within(MOST, BLOCK, 1.0), StepBudget(MOST, "unlearned")),
        (learned(), Work.decodes(4, 100), Within(MOST, BLOCK, math.inf), StepBudget(MOST, "full")),
        (learned(), Work.decodes(4, 100), Within(MOST, BLOCK, 1.0), StepBudget(4 + BLOCK, "least")),
        (learned(), Work.decodes(MOST - 3, 100), Within(MOST, BLOCK, 1.0), StepBudget(MOST, "least")),
        (learned(), Work.decodes(4, 100), Within(MOST, BLOCK, 81.5), StepBudget(4 + 50, "time")),
        # Four decodes take 21 ms, so a step may take 84; one takes 9, and 36 ms would be less than anyone notices.
        (learned(), Work.decodes(4, 100), Within(MOST, BLOCK), StepBudget(4 + 52, "time")),
        (learned(), Work.decodes(1, 100), Within(MOST, BLOCK), StepBudget(1 + 34, "time")),
    ],
    ids=[
        "nobody decodes",
        "nothing is known",
        "no limit",
        "late anyway",
        "late and nearly full",
        "in time",
        "by decodes",
        "at least 50 ms",
    ],
)
def test_a_budget_says_what_bounds_it(cost: StepCost, beside: Work, within: Within, expected: StepBudget) -> None:
    assert step_budget(cost, beside, 0, within) == expected


def test_what_prompts_look_back_at_is_told_from_what_decodes_do() -> None:
    cost = learned(pair=2e-4, context=1e-3)
    deep = Work.decodes(4, 2000).with_prompt(64, 4000)
    expected = 5.0 + 1.2 * deep.tokens + 2.8 * deep.sampled + 1e-3 * deep.context + 2e-4 * deep.pairs
    assert cost.milliseconds(deep) == pytest.approx(expected, rel=0.02)
    shallow, behind = (step_budget(cost, Work.decodes(4, 2000), depth, Within(MOST, BLOCK, 150.0)).tokens for depth in (0, 8000))
    assert BLOCK < behind < shallow < MOST


def test_the_cost_of_prompts_is_not_forgotten_while_steps_only_decode(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a device whose memory is the limit, rows that decode cost nothing: that is no reason to take prompts for free."""
    cost = learned(base=50.0, token=0.3, sampled=0.0)
    monkeypatch.setattr("pagoda_daemon.scheduler.cost._FORGET", 0.9)  # an hour in 400 steps
    for at in range(400):
        cost.observe(Work.decodes(1 + at % 16, 4000 + at * 7 % 900), 50.0 + at % 3)
    beside = Work.decodes(8, 4000)
    assert cost.milliseconds(beside) == pytest.approx(51.0, abs=1.0)
    assert cost.milliseconds(beside.with_prompt(400, 0)) == pytest.approx(51.0 + 120.0, rel=0.1)


def beside_a_long_prompt(itl_ms: float | None) -> Simulation:
    """Four streams; a prompt of 4,000 tokens comes when they decode, and a short one soon after it."""
    jobs = [Job(0.0, 20, 200) for _ in range(4)] + [Job(1500.0, 4000, 2), Job(1900.0, 60, 2)]
    run = Simulation(jobs, VirtualWorker(WORKER, milliseconds), Limits.of(WORKER, 16, MOST, itl_ms=itl_ms))
    run.run()
    return run


@pytest.mark.parametrize(("itl_ms", "longest"), [(None, 4 * 21.0), (60.0, 60.0), (1.0, 5 + 1.2 * (5 + BLOCK) + 2.8 * 6), (math.inf, 640.0)])
def test_no_stream_beside_a_long_prompt_waits_longer_than_the_objective(itl_ms: float | None, longest: float) -> None:
    outcome = beside_a_long_prompt(itl_ms).outcome
    gaps = [record.worst_gap_ms for record in outcome.records[:4]]
    assert 0.7 * longest < max(gaps) <= longest + 2 * 2.8, "of what a prompt samples at its end nothing is known beforehand"
    assert {record.end for record in outcome.records} == {"length"}


@pytest.mark.parametrize("itl_ms", [None, 40.0, math.inf])
def test_a_short_prompt_passes_a_long_one_however_small_the_steps_are(itl_ms: float | None) -> None:
    *_, long, short = beside_a_long_prompt(itl_ms).outcome.records
    assert long.first_ms is not None
    assert short.first_ms is not None
    assert short.first_ms - short.job.arrival_ms < 0.25 * (long.first_ms - long.job.arrival_ms)


@pytest.mark.parametrize(("tier", "bounds"), [("interactive", {"time"}), ("batch", {"alone"})])
def test_batch_requests_alone_make_no_step_smaller(tier: Literal["interactive", "batch"], bounds: set[str]) -> None:
    jobs = [Job(0.0, 20, 300, tier=tier), Job(1500.0, 2000, 2)]
    seen: list[tuple[int, StepBudget | None]] = []
    limits = Limits.of(WORKER, 16, MOST, itl_ms=60.0)

    def watch(state: State, step: StepPlan) -> None:
        seen.append((step.tokens, state.in_flight[-1].budget))

    Simulation(jobs, VirtualWorker(WORKER, milliseconds), limits, watch=watch).run()
    assert {budget.bound for tokens, budget in seen[1:] if budget is not None} == bounds
    assert (max(tokens for tokens, _ in seen) > 60) is (tier == "batch")


def test_what_bounded_steps_with_prompts_is_counted() -> None:
    run = beside_a_long_prompt(60.0)
    bounds = run.state.tally().budgets
    assert list(bounds) == list(BOUNDS)
    assert bounds["time"] > 100
    assert bounds["alone"] == 1
    assert bounds["full"] == bounds["least"] == 0
    assert sum(bounds.values()) < run.outcome.steps


def test_the_first_token_is_foretold_by_steps_of_the_size_that_they_will_have() -> None:
    waits = []
    for itl_ms in (60.0, math.inf):
        state = State(Limits.of(WORKER, 16, MOST, itl_ms=itl_ms))
        submit(state, Submit("a", (1,) * 20, Sampling(50)), Arrival(0.0, 0))
        for now in (0.0, 1.0):
            step = plan(state, now)
            assert step is not None
            commit(state, VirtualWorker(WORKER, milliseconds).compute(step), now + 1.0)
        state.step_cost = learned()
        waits.append(first_token_ms(state, 0, 0, 1000))
    sized, full = waits
    # 1,000 tokens at 1.2 ms, and each step pays for its own beginning and for the token of the one who decodes.
    assert full == pytest.approx(1200 + 2 * 9, rel=0.1)
    assert sized == pytest.approx(1200 + 1000 / 42 * 9, rel=0.1)
