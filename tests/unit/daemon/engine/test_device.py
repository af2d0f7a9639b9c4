"""The device's threads, with a worker that computes at once and with one whose device computes by itself."""

from __future__ import annotations

import contextlib
import select
import threading
import weakref
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pagoda_contracts.launch import Fault
from pagoda_daemon.core.batch import StepPlan, StepResult, WorkerLimits
from pagoda_daemon.engine.device import Device
from pagoda_daemon.engine.outcomes import Loaded, Outcome, StepFailed
from pagoda_daemon.runner.faulty import FaultyWorker
from pagoda_daemon.runner.worker import AsyncWorker, Worker
from pagoda_daemon.simulated.device.virtual import VirtualWorker
from pagoda_daemon.simulated.device.worker import SimulatedWorker
from support.engine.async_device import PATIENCE_S, AsyncDevice, DeviceSaysNo

LIMITS = WorkerLimits(8, 4, 97, 32)

# What became of a step: its row (the test gives step n the row n), or which one raised, and the probe's verdict.
Fate = int | tuple[int, bool]


def step(number: int) -> StepPlan:
    """One token of row `number`."""
    zero = np.zeros(1, np.int32)
    row = np.array([number], np.int32)
    return StepPlan(number, row, np.array([0, 1], np.int32), zero, zero, np.array([[number % 8]], np.int32), np.ones(1, np.bool_))


def fate(outcome: Outcome) -> Fate:
    if isinstance(outcome, StepResult):
        return int(outcome.rows[0])
    assert isinstance(outcome, StepFailed)
    return outcome.error.args[0], outcome.alive


class Bench:
    """A device under test, which `start` gives numbered steps."""

    def __init__(self, worker: Worker) -> None:
        self.started = 0
        self.device = Device(lambda: worker)
        self._poll = select.poll()
        self._poll.register(self.device.fileno(), select.POLLIN)
        assert isinstance(self.outcome(), Loaded)

    def start(self, steps: int = 1) -> None:
        for _ in range(steps):
            self.device.start(step(self.started))
            self.started += 1

    def outcome(self) -> Outcome:
        """Waits for it."""
        assert self._poll.poll(PATIENCE_S * 1000), "no outcome came"
        outcome = self.device.outcome()
        assert outcome is not None
        return outcome

    def fates(self, steps: int) -> list[Fate]:
        return [fate(self.outcome()) for _ in range(steps)]

    def stop(self) -> None:
        """Until its thread has ended."""
        self.device.stop()
        self.device._thread.join(PATIENCE_S)
        assert not self.device._thread.is_alive()


@contextlib.contextmanager
def bench(worker: Worker) -> Iterator[Bench]:
    made = Bench(worker)
    yield made
    made.stop()


def test_a_step_is_launched_while_the_one_before_computes_and_outcomes_come_in_order() -> None:
    worker = AsyncDevice(LIMITS)
    with bench(worker) as made:
        made.start(3)
        worker.await_launches(3)
        assert made.device.outcome() is None
        worker.let_end(1)
        assert made.fates(1) == [0]
        assert made.device.outcome() is None
        worker.let_end(3)
        assert made.fates(2) == [1, 2]
    assert worker.order == [("launch", 0), ("launch", 1), ("launch", 2), ("end", 0), ("end", 1), ("end", 2)]


def test_steps_are_launched_and_probed_on_the_thread_that_loaded_and_end_on_another() -> None:
    worker, loaded_on = AsyncDevice(LIMITS, bad_ends=[0]), set[threading.Thread]()

    def build() -> Worker:
        loaded_on.add(threading.current_thread())
        return worker

    device = Device(build)
    device.start(step(0))
    device.between_steps(lambda: worker.note("change", 0))
    worker.let_end(1)
    device.stop()
    device._thread.join(PATIENCE_S)
    assert worker.threads["launch"] == worker.threads["probe"] == worker.threads["change"] == loaded_on
    (collects,) = worker.threads["end"]
    assert collects not in loaded_on


@pytest.mark.parametrize("at_once", [True, False])
def test_what_a_change_had_is_given_up_when_it_is_done(at_once: bool) -> None:
    """Else an idle device would keep the last adapter on the host."""
    with bench(AtOnce() if at_once else AsyncDevice(LIMITS)) as made:
        had, given_up = step(0), threading.Event()
        weakref.finalize(had.starts, given_up.set)
        made.device.between_steps(partial(len, had.starts))
        del had
        assert given_up.wait(PATIENCE_S)


@pytest.mark.parametrize("where", ["bad_launches", "bad_ends"])
@pytest.mark.parametrize("alive", [True, False])
def test_a_step_that_raises_is_reported_in_its_turn_with_the_verdict_of_a_probe_after_all_launched(where: str, alive: bool) -> None:
    worker = AsyncDevice(LIMITS, **{where: [1]}, bad_probes=[] if alive else [0])
    with bench(worker) as made:
        made.start(3)
        worker.await_launches(3)
        worker.let_end(2)
        assert made.fates(1) == [0]
        assert made.device.outcome() is None
        worker.let_end(3)
        assert made.fates(2) == [(1, alive), 2]
    assert worker.order[-2:] == [("end", 2), ("probe", 0)]


def test_failures_under_way_together_share_a_verdict_and_a_later_one_gets_its_own() -> None:
    worker = AsyncDevice(LIMITS, bad_launches=[1, 4], bad_ends=[0, 3], bad_probes=[1])
    with bench(worker) as made:
        made.start(2)
        worker.await_launches(2)
        worker.let_end(6)
        assert made.fates(2) == [(0, True), (1, True)]
        made.start()
        assert made.fates(1) == [2]
        made.start()
        assert made.fates(1) == [(3, False)]
        made.start(2)
        assert made.fates(2) == [(4, True), 5]
    assert [what for what, _ in worker.order].count("probe") == 3


def test_a_change_waits_for_every_step_launched_and_later_ones_wait_for_it() -> None:
    worker = AsyncDevice(LIMITS, bad_launches=[1])
    with bench(worker) as made:
        made.start(2)
        made.device.between_steps(lambda: worker.note("change", 0))
        made.start()
        worker.let_end(3)
        assert made.fates(3) == [0, (1, True), 2]
    where = worker.order.index(("change", 0))
    assert worker.order.index(("end", 0)) < where < worker.order.index(("launch", 2))


@pytest.mark.parametrize("where", ["bad_launches", "bad_ends"])
def test_stop_ends_both_threads_after_every_step_launched_is_reported(where: str) -> None:
    worker = AsyncDevice(LIMITS, **{where: [1]})
    made = Bench(worker)
    made.start(3)
    made.device.stop()
    worker.await_launches(3)
    assert made.device._thread.is_alive()
    worker.let_end(3)
    made.stop()
    assert made.fates(3) == [0, (1, True), 2]
    (collects,) = worker.threads["end"]
    collects.join(PATIENCE_S)
    assert not collects.is_alive()


class AtOnce(SimulatedWorker):
    """Notes what comes in which order; step 1 raises."""

    def __init__(self) -> None:
        super().__init__(LIMITS)
        self.order: list[str] = []

    def execute(self, plan: StepPlan) -> StepResult:
        self.order.append(f"step {plan.step}")
        if plan.step == 1:
            raise DeviceSaysNo(1)
        return super().execute(plan)

    def probe(self) -> None:
        self.order.append("probe")


def test_a_worker_that_computes_at_once_has_one_thread_and_is_probed_before_the_next_step() -> None:
    worker, before = AtOnce(), set(threading.enumerate())
    with bench(worker) as made:
        made.device.between_steps(lambda: worker.order.append("change"))
        made.start(3)
        assert made.fates(3) == [0, (1, True), 2]
        assert set(threading.enumerate()) - before == {made.device._thread}
    assert worker.order == ["change", "step 0", "step 1", "probe", "step 2"]


def test_only_a_worker_that_can_launch_is_an_async_one() -> None:
    assert isinstance(AsyncDevice(LIMITS), AsyncWorker)
    virtual = VirtualWorker(LIMITS, lambda _: 0.0)
    # Faults are for steps that are computed one at a time, whatever the worker below can do.
    faulty = FaultyWorker(AsyncDevice(LIMITS), [Fault(at_step=0, kind="error")])
    assert not any(isinstance(worker, AsyncWorker) for worker in (SimulatedWorker(LIMITS), virtual, faulty))


ACTS = st.lists(st.sampled_from(["start", "bad launch", "bad end", "change", "let one end", "await"]), max_size=24)


@given(acts=ACTS, bad_probes=st.sets(st.integers(0, 4)))
@settings(max_examples=60, deadline=None)
def test_whatever_comes_in_whatever_order_every_step_has_its_fate_in_its_turn(acts: list[str], bad_probes: set[int]) -> None:
    starts = [act for act in acts if act in ("start", "bad launch", "bad end")]
    bad = {kind: [n for n, act in enumerate(starts) if act == kind] for kind in ("bad launch", "bad end")}
    worker = AsyncDevice(LIMITS, bad["bad launch"], bad["bad end"], bad_probes)
    made, permitted = Bench(worker), 0
    do: dict[str, Callable[[], object]] = {
        "change": lambda: made.device.between_steps(lambda: worker.note("change", made.started)),
        "let one end": lambda: worker.let_end(permitted),
        # Changes and probes keep later steps from being launched until those before have ended.
        "await": lambda: worker.await_launches(0 if {"change", "bad launch", "bad end"} & set(acts) else made.started),
    }
    for act in acts:
        permitted += act == "let one end"
        do.get(act, made.start)()
    worker.let_end(len(starts))
    made.stop()
    fates = made.fates(len(starts))
    assert [one if isinstance(one, int) else one[0] for one in fates] == list(range(len(starts)))
    assert [n for n, one in enumerate(fates) if not isinstance(one, int)] == sorted(bad["bad launch"] + bad["bad end"])
    assert any(isinstance(one, tuple) and not one[1] for one in fates) == any(("probe", n) in worker.order for n in bad_probes)
    _check_order(worker)


def _check_order(worker: AsyncDevice) -> None:
    """Steps begin and end in order, and nothing is on its way when the device is probed or changed."""
    under_way: list[int] = []
    for what, number in worker.order:
        if what == "launch" and number not in worker.bad_launches:
            under_way.append(number)
        elif what == "end":
            assert under_way.pop(0) == number
        elif what in ("probe", "change"):
            assert not under_way, worker.order
    assert not under_way
    assert [number for what, number in worker.order if what == "launch"] == list(range(worker.launched))
