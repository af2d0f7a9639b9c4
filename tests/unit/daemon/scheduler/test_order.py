"""Who is served when there is not enough for all: classes, tenants, deadlines. Whole runs on the simulator's virtual clock."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pagoda_daemon.core.batch import StepPlan, WorkerLimits
from pagoda_daemon.core.messages import Submit
from pagoda_daemon.core.sampling import Sampling
from pagoda_daemon.scheduler.admission import refusal
from pagoda_daemon.scheduler.limits import Limits
from pagoda_daemon.scheduler.order import VirtualTokens, bound
from pagoda_daemon.scheduler.state import State
from pagoda_daemon.simulated.device.virtual import VirtualWorker
from pagoda_daemon.simulated.device.worker import SimulatedWorker, expected_tokens
from pagoda_daemon.simulated.replay.run import Simulation
from pagoda_daemon.simulated.replay.trace import Job, drawn, merged
from support.engine.drive import Drive

VOCAB, ROWS = 97, 8
WORKER = WorkerLimits(1024, 16, VOCAB, 2048)


def simulate(jobs: list[Job], watch=None, rows: int = ROWS) -> list:
    worker = VirtualWorker(WORKER, lambda plan: 2.0 + 0.02 * plan.tokens)
    limits = replace(Limits.of(WORKER, rows, 256), queue_tokens=1 << 40, committed_blocks=1 << 40)
    return Simulation(jobs, worker, limits, watch=watch).run().records


def burst(tenant: str, count: int, prompt: int = 100, output: int = 40, **more) -> list[Job]:
    return [Job(0.0, prompt, output, tenant=tenant, **more) for _ in range(count)]


class Shares:
    """Looks at the counters in every step in which all tenants wait, and keeps how far they drift."""

    def __init__(self, tenants: int) -> None:
        self.tenants, self.seen, self.drift = tenants, 0, 0.0
        self.start: list[float] | None = None
        self.end: list[float] = []

    def __call__(self, state: State, _plan: StepPlan) -> None:
        if len(state.waiting.count_of) < self.tenants:
            return
        counters = state.virtual.counters[: self.tenants].tolist()
        self.start = self.start or counters
        self.end = counters
        self.seen += 1
        self.drift = max(self.drift, max(counters) - min(counters))


@pytest.mark.deep
def test_a_burst_of_one_tenant_leaves_another_its_share_within_the_bound() -> None:
    shares = Shares(2)
    simulate(merged([burst("flood", 300, prompt=300), burst("quiet", 250)]), shares)
    held = ROWS * (300 + 40)
    assert shares.seen > 100
    assert shares.drift <= bound(300, held)
    # The bound is of use only where it is far below what was served.
    assert shares.end[0] > 3 * bound(300, held) > 0


@pytest.mark.deep
def test_a_tenant_that_asks_for_little_hardly_waits_behind_a_burst() -> None:
    quiet = [Job(500.0 + 400.0 * i, 100, 10, tenant="quiet") for i in range(30)]
    flood = burst("flood", 400)
    records = simulate(merged([flood, quiet]))
    wait = {name: sorted(r.first_ms - r.job.arrival_ms for r in records if r.job.tenant == name) for name in ("quiet", "flood")}
    # A row becomes free about every 4 steps; nobody of the flood goes first then. Alone the median would be about one step.
    alone = sorted(r.first_ms - r.job.arrival_ms for r in simulate(quiet))
    slowest_step = 2.0 + 0.02 * 256
    assert wait["quiet"][-1] <= alone[-1] + 45 * slowest_step, "longer than the longest answer that runs (40 steps) takes to end"
    assert wait["quiet"][len(quiet) // 2] < 0.05 * wait["flood"][200]


@pytest.mark.deep
def test_weights_divide_the_service() -> None:
    shares = Shares(2)
    simulate(merged([burst("gold", 200, weight=3.0), burst("plain", 200)]), shares)
    assert shares.drift <= bound(100, ROWS * 140), "equal counters: gold was served three times as much"


@pytest.mark.parametrize(
    ("weight", "share", "prompt", "output"), [(3.0, 0.75, 100, 40), (3.0, 0.75, 200, 2), (3.0, 0.75, 2, 60), (0.25, 0.2, 100, 40)]
)
def test_of_two_that_always_wait_each_is_served_by_its_weight(weight: float, share: float, prompt: int, output: int) -> None:
    """By what ended first, not by the counters: those agree whatever they count."""
    one = burst("one", 120, prompt=prompt, output=output, weight=weight)
    records = simulate(merged([one, burst("other", 120, prompt=prompt, output=output)]))
    first = sorted(records, key=lambda record: record.last_ms)[:100]
    assert sum(record.job.tenant == "one" for record in first) == pytest.approx(100 * share, abs=ROWS / 2 + 1)


def test_idling_earns_no_credit() -> None:
    virtual = VirtualTokens()
    busy, idle = virtual.slot("busy", 1.0), virtual.slot("idle", 1.0)
    virtual.charge_input(busy, 5000)
    virtual.lift(idle, [busy])
    assert virtual.counters[idle] == virtual.counters[busy]
    virtual.leave(busy)
    late = virtual.slot("late", 1.0)
    virtual.lift(late, [])
    assert virtual.counters[late] == 5000


def test_a_lone_tenant_gets_everything() -> None:
    flood = simulate(burst("a", 60))
    together = simulate(merged([burst("a", 30), burst("b", 30)]))
    assert max(r.last_ms for r in flood) == pytest.approx(max(r.last_ms for r in together), rel=0.02)


def test_recompute_after_a_preemption_is_not_charged_twice() -> None:
    drive = Drive(SimulatedWorker(WorkerLimits(7, 4, VOCAB, 64)), 2, 16)
    drive.submit("a", [1] * 8, 12, tenant="x")
    drive.submit("b", [2] * 8, 12, tenant="y")
    drive.drain()
    assert drive.state.preemptions > 0
    assert drive.state.virtual.counters[:2].tolist() == [8 + 2 * 12] * 2


def test_interactive_goes_before_batch_and_priority_before_arrival() -> None:
    drive = Drive(SimulatedWorker(WORKER), 1, 64)
    for name, fields in {
        "batch": {"tier": "batch", "priority": 9},
        "plain": {},
        "urgent": {"priority": 5},
        "last": {},
    }.items():
        drive.submit(name, [len(name)] * 8, 1, **fields)
    drive.drain()
    assert list(drive.ends) == ["urgent", "plain", "last", "batch"]


def test_batch_gives_up_its_row_and_loses_no_token() -> None:
    drive = Drive(SimulatedWorker(WORKER), 1, 64)
    drive.submit("batch", [1] * 8, 30, tier="batch")
    for _ in range(5):
        drive.step()
    drive.submit("now", [2] * 8, 3)
    drive.step()
    assert len(drive.tokens["now"]) == 1, "it waited for the batch request"
    drive.drain()
    assert list(drive.ends) == ["now", "batch"]
    assert tuple(drive.tokens["batch"]) == expected_tokens([1] * 8, 30, VOCAB)
    assert drive.state.preemptions == 1


def test_the_tenant_that_was_served_most_is_preempted() -> None:
    drive = Drive(SimulatedWorker(WorkerLimits(12, 4, VOCAB, 64)), 3, 32)
    drive.submit("early", [1] * 4, 30, tenant="little")
    for _ in range(4):
        drive.step()
    drive.submit("greedy", [2] * 16, 20, tenant="much")
    while not drive.state.preemptions:
        before = drive.state.virtual.counters[:2].tolist()
        drive.step()
    assert before[1] > before[0]
    assert set(drive.state.row_of) == {"early"}
    drive.drain()
    assert tuple(drive.tokens["greedy"]) == expected_tokens([2] * 16, 20, VOCAB)


def test_of_one_tenant_the_latest_is_preempted() -> None:
    drive = Drive(SimulatedWorker(WorkerLimits(10, 4, VOCAB, 64)), 3, 32)
    drive.submit("first", [1] * 8, 24)
    drive.submit("second", [2] * 8, 24)
    while not drive.state.preemptions:
        drive.step()
    assert set(drive.state.row_of) == {"first"}
    drive.drain()


def test_a_late_request_never_reaches_the_device() -> None:
    drive = Drive(SimulatedWorker(WORKER), 1, 64)
    drive.submit("first", [1] * 4, 20)
    drive.submit("late", [2] * 4, 5, deadline_ms=10)
    drive.submit("fine", [3] * 4, 5, deadline_ms=10_000)
    fed: set[int] = set()
    while (step := drive.step()) is not None:
        fed |= set(step.token_ids[step.positions == 0].tolist())
    (end,) = drive.ends["late"]
    assert end.refusal is not None
    assert (end.finish_reason, end.refusal.reason) == ("refused", "expired")
    assert fed == {1, 3}
    assert drive.ends["fine"][0].finish_reason == "length"


def test_a_running_request_ends_at_its_deadline_and_says_what_it_had() -> None:
    drive = Drive(SimulatedWorker(WORKER), 1, 64)
    drive.submit("a", [1] * 4, 50, deadline_ms=10)
    drive.drain()
    (end,) = drive.ends["a"]
    assert (end.finish_reason, end.error) == ("error", "the deadline passed after 10 tokens")
    assert end.refusal is not None
    assert end.refusal.reason == "expired"


def test_a_deadline_does_not_follow_a_name_to_the_next_request() -> None:
    drive = Drive(SimulatedWorker(WORKER), 1, 64)
    drive.submit("a", [1] * 4, 2, deadline_ms=20)
    drive.drain()
    drive.submit("a", [1] * 4, 40)
    drive.drain()
    assert [end.finish_reason for end in drive.ends["a"]] == ["length", "length"]


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"n": 0}, "n must be 1 to 128, got 0"),
        ({"weight": 0.0}, "weight must be above 0, got 0"),
        ({"priority": 5000}, "priority must be -1000 to 1000, got 5000"),
    ],
)
def test_odd_fields_are_refused_by_name(fields: dict, says: str) -> None:
    why = refusal(Submit("x", (1,), Sampling(1), **fields), Limits.of(WORKER, 4, 64))
    assert why is not None
    assert says in why


@pytest.mark.deep
def test_fairness_survives_a_mixed_load() -> None:
    shares = Shares(3)
    jobs = [drawn(150, 1000.0, seed, tenant=name, prefix_tokens=0) for seed, name in enumerate("abc")]
    long = [[replace_job(job) for job in part] for part in jobs]
    simulate(merged(long), shares, rows=16)
    assert shares.seen > 50
    assert shares.drift <= bound(1500, 16 * 2048)


def replace_job(job: Job) -> Job:
    return Job(job.arrival_ms, min(job.prompt_tokens, 1500), min(job.output_tokens, 500), tenant=job.tenant)
