"""Who is let in: the measured step costs, the predicted first token, and each reason to refuse."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from pagoda_contracts.prefix import Scope, root
from pagoda_daemon.core.batch import WorkerLimits
from pagoda_daemon.core.messages import Refusal, Submit
from pagoda_daemon.core.sampling import Sampling
from pagoda_daemon.scheduler import forecast
from pagoda_daemon.scheduler.admission import MAX_ANSWERS, Arrival, submit
from pagoda_daemon.scheduler.cost import StepCost
from pagoda_daemon.scheduler.limits import Limits
from pagoda_daemon.scheduler.overload import logprob_bytes, refuse, worst_blocks
from pagoda_daemon.scheduler.state import State
from pagoda_daemon.simulated.device.virtual import VirtualWorker
from pagoda_daemon.simulated.replay.run import Simulation
from pagoda_daemon.simulated.replay.trace import Job, drawn

WORKER = WorkerLimits(512, 16, 97, 4096)


def request(name: str = "x", prompt: int = 100, **fields) -> Submit:
    return Submit(name, (1,) * prompt, fields.pop("sampling", Sampling(50)), **fields)


def state(waiting: int = 0, **changes) -> State:
    made = State(replace(Limits.of(WORKER, 4, 256), **{"queue_tokens": 1000, **changes}))
    for i in range(waiting):
        assert submit(made, request(f"w{i}"), Arrival(0.0, 0)) is None
    return made


def measured(made: State, base: float = 5.0, per_token: float = 0.1) -> State:
    for tokens in (1, 4, 64, 256) * 20:
        made.step_cost.observe(tokens, 0, base + per_token * tokens)
    return made


def reason(found: Refusal | None) -> str | None:
    return found.reason if found else None


@pytest.mark.parametrize("n", [0, -1, MAX_ANSWERS + 1, 10**9])
def test_an_unbounded_number_of_answers_is_refused_before_anything_is_made(n: int) -> None:
    made = state()
    refused = submit(made, request(n=n), Arrival(0.0, 0))
    assert refused is not None
    assert refused.error == f"never_fits: n must be 1 to {MAX_ANSWERS}, got {n}"
    assert made.idle
    assert not made.groups
    assert submit(made, request(n=MAX_ANSWERS), Arrival(0.0, 0)) is None


def test_block_names_are_salted_by_tenant_model_and_adapter() -> None:
    roots = set()
    for model, tenant, adapter in (("m", "t", "a"), ("m", "t", ""), ("m", "u", "a"), ("n", "t", "a")):
        made = State(Limits.of(replace(WORKER, model=model), 4, 256))
        made.adapters.hold(adapter)
        submit(made, request(tenant=tenant, adapter=adapter), Arrival(0.0, 0))
        waiting = made.waiting.first()
        assert waiting is not None
        assert waiting.chain.root == root(Scope(tenant, model, adapter), "tokens", WORKER.block_size)
        roots.add(waiting.chain.root)
    assert len(roots) == 4


def test_a_draining_replica_refuses_everything() -> None:
    made = state()
    made.draining = True
    assert reason(refuse(made, request(), 0.0, 1.0)) == "draining"


def test_a_full_queue_refuses_and_says_how_long_it_takes_to_drain() -> None:
    made = measured(state(waiting=10))
    short, longer = (refuse(made, request(prompt=size), 0.0, 1.0) for size in (900, 4000))
    assert short is not None
    assert longer is not None
    assert (short.reason, longer.reason) == ("queue_full", "queue_full")
    assert 1.0 <= short.retry_after_s <= longer.retry_after_s <= 120.0
    # 900 tokens too many at 256 a step of 30.6 ms.
    slow = measured(state(waiting=10), base=5000.0)
    found = refuse(slow, request(prompt=1000), 0.0, 1.0)
    assert found is not None
    assert found.retry_after_s == pytest.approx(1000 / 256 * 5.03, rel=0.1)


def test_a_prompt_longer_than_the_queue_is_admitted_if_no_request_waits() -> None:
    assert refuse(state(), request(prompt=4000), 0.0, 1.0) is None


def test_above_four_fifths_of_the_queue_newcomers_are_shed_in_proportion() -> None:
    made = state(waiting=8)
    assert refuse(state(waiting=7), request(prompt=100), 0.0, 0.0) is None
    draw, shed = random.Random(7), 0
    for _ in range(2000):
        found = refuse(made, request(prompt=100), 0.0, draw.random())
        shed += reason(found) == "load_shed"
        assert reason(found) in (None, "load_shed")
    # 900 of 1000 tokens: half of the way from 80 % to full.
    assert 0.45 < shed / 2000 < 0.55
    assert reason(refuse(made, request(prompt=199), 0.0, 0.98)) == "load_shed"


def test_a_deadline_that_the_first_token_would_miss_is_refused() -> None:
    made = state(waiting=9)
    assert refuse(made, request(deadline_ms=10, prompt=1), 0.0, 1.0) is None, "nothing was measured yet"
    assert reason(refuse(made, request(deadline_ms=10), 10.0, 1.0)) == "expired"
    passed = refuse(made, request(deadline_ms=10), 11.0, 1.0)
    assert passed is not None
    assert (passed.reason, "-1 ms" in passed.message) == ("expired", False)
    measured(made)
    wait = forecast.first_token_ms(made, 0, 0, 100)
    assert reason(refuse(made, request(deadline_ms=int(wait) - 5), 0.0, 1.0)) == "deadline"
    assert refuse(made, request(deadline_ms=int(wait) + 5), 0.0, 1.0) is None


def test_memory_counts_the_worst_case_and_lets_in_as_many_as_there_are_rows() -> None:
    made = state(waiting=3, committed_blocks=100)
    big = request(sampling=Sampling(3000))
    assert refuse(made, big, 0.0, 1.0) is None, "three are here, four have a row"
    assert submit(made, big, Arrival(0.0, 0)) is None
    assert reason(refuse(made, request(prompt=10, sampling=Sampling(1)), 0.0, 1.0)) == "memory_pressure"
    roomy = state(waiting=4, committed_blocks=100_000, logprob_bytes=10_000)
    assert refuse(roomy, request(), 0.0, 1.0) is None
    assert reason(refuse(roomy, request(sampling=Sampling(50, logprobs=10)), 0.0, 1.0)) == "memory_pressure"


def test_the_worst_case_counts_answers_and_log_probabilities() -> None:
    limits = Limits.of(WORKER, 4, 256)
    one = worst_blocks(request(prompt=100), limits)
    assert one == 10
    assert worst_blocks(request(prompt=100, n=3), limits) == 10 + 2 * 4, "six full blocks of the prompt are shared"
    plain, spoken = Sampling(50), Sampling(50, logprobs=3, prompt_logprobs=1)
    assert logprob_bytes(request(sampling=plain)) == 0
    assert logprob_bytes(request(sampling=spoken, n=2)) == 32 * (2 * 4 * 50 + 2 * 100)


def test_a_refusal_leaves_nothing_behind() -> None:
    made = state()
    made.draining = True
    out = submit(made, request(n=3, deadline_ms=99), Arrival(0.0, 0))
    assert out is not None
    assert out.finish_reason == "refused"
    made.check()
    assert (made.idle, made.deadlines, made.present) == (True, [], 0)


class Foretold(Simulation):
    """Writes down, for each job, what was predicted when it came."""

    def _hear(self) -> None:
        self.foretold = getattr(self, "foretold", {})
        first = self._heard
        while first < len(self._jobs) and self._jobs[first].arrival_ms <= self.outcome.now_ms:
            job = self._jobs[first]
            slot = self.state.virtual.slot(job.tenant, job.weight)
            self.foretold[first] = (self.outcome.now_ms, forecast.first_token_ms(self.state, 0, slot, job.prompt_tokens))
            first += 1
        super()._hear()


@pytest.mark.deep
@pytest.mark.parametrize("per_second", [10.0, 40.0])
def test_the_predicted_first_token_is_near_the_real_one(per_second: float) -> None:
    worker = VirtualWorker(WorkerLimits(2048, 16, 97, 8192), lambda plan: 8.0 + 0.05 * plan.tokens + 2e-4 * int(plan.lengths.sum()))
    limits = replace(Limits.of(worker.limits, 32, 512), queue_tokens=1 << 40, committed_blocks=1 << 40)
    run = Foretold(drawn(400, per_second, seed=3), worker, limits)
    records = run.run().records
    ratios = []
    for number, (now, wait) in run.foretold.items():
        first = records[number].first_ms
        if number >= 50 and first is not None:
            ratios.append((wait + 10.0) / (first - now + 10.0))
    low, middle, high = np.percentile(ratios, (10, 50, 90))
    assert 0.6 < middle < 1.6
    assert low > 0.25
    assert high < 4.0


def test_step_costs_are_learned_through_noise_and_pauses() -> None:
    draw, cost = random.Random(5), StepCost()
    assert cost.predict(1) == 0
    for _ in range(600):
        tokens, context = draw.choice((1, 8, 32, 64, 300, 512)), draw.randrange(0, 60_000)
        took = (4.0 + 0.03 * tokens + 1e-4 * context) * draw.uniform(0.95, 1.05)
        cost.observe(tokens, context, took * (10 if draw.random() < 0.02 else 1))
    for tokens, context in ((1, 0), (64, 30_000), (512, 0), (512, 60_000)):
        assert cost.milliseconds(tokens, context) == pytest.approx(4.0 + 0.03 * tokens + 1e-4 * context, rel=0.25)


def test_the_estimate_follows_soon_when_a_device_becomes_slow() -> None:
    cost = StepCost()
    for _ in range(500):
        cost.observe(32, 1000, 10.0)
    cost.observe(32, 1000, 500.0)
    assert cost.milliseconds(32, 1000) < 12.0, "one pause is no change"
    for _ in range(10):
        cost.observe(32, 1000, 60.0)
    assert cost.milliseconds(32, 1000) == pytest.approx(60.0, rel=0.25)


def test_a_step_larger_than_any_seen_is_scaled_not_guessed() -> None:
    cost = StepCost()
    for _ in range(50):
        cost.observe(1, 0, 10.0)
        cost.observe(64, 0, 80.0)
    assert [cost.predict(tokens) for tokens in (1, 64, 128)] == [10, 80, 160]


def test_more_work_is_never_predicted_to_be_quicker() -> None:
    draw, cost = random.Random(9), StepCost()
    for _ in range(200):
        cost.observe(draw.randrange(1, 500), draw.randrange(0, 5000), draw.uniform(5.0, 50.0))
    times = [cost.milliseconds(tokens, context) for tokens in (1, 100, 400) for context in (0, 1000, 5000)]
    assert times == sorted(times) or all(a <= b + 1e-9 for a, b in zip(times[::3], times[3::3], strict=False))
    assert min(times) > 0


def test_a_request_whose_deadline_cannot_be_met_is_refused_in_a_run() -> None:
    worker = VirtualWorker(WORKER, lambda _: 50.0)
    jobs = [Job(0.0, 200, 50) for _ in range(20)] + [Job(2000.0, 200, 5, deadline_ms=20.0)]
    outcome = Simulation(jobs, worker, Limits.of(WORKER, 4, 256)).run()
    assert outcome.records[-1].end == "deadline"
    assert outcome.records[-1].tokens == 0
