"""The work queue: deduplication, back-off, resync, one run per key at a time."""

import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pagoda_operator.api.errors import Conflict, Unavailable
from pagoda_operator.api.state import Key
from pagoda_operator.run.queue import CONFLICT_DELAYS, RETRY_DELAYS, KeyedQueue, Outcome, Schedule

A, B = Key("ns", "a"), Key("ns", "b")


def test_many_triggers_are_one_run():
    schedule = Schedule()
    for _ in range(100):
        schedule.add(A, 0.0)
    assert (schedule.take(0.0), schedule.take(0.0)) == (A, None)


def test_a_trigger_during_a_run_makes_one_more_run_after_it():
    schedule = Schedule(spacing=0.5)
    schedule.add(A, 0.0)
    schedule.take(0.0)
    schedule.add(A, 0.1)
    assert schedule.take(10.0) is None
    schedule.done(A, 300.0)
    assert schedule.take(0.4) is None  # the spacing between two starts
    assert schedule.take(0.5) == A


def test_retry_delays_grow_until_a_success():
    schedule = Schedule()
    delays = []
    for _ in range(8):
        schedule.add(A, 0.0)
        schedule.take(1000.0)
        delays.append(schedule.failed(A, 0.0))
    assert delays == [*RETRY_DELAYS, 60, 60]
    schedule.take(1e9)
    schedule.done(A, None)
    schedule.add(A, 2e9)
    schedule.take(2e9)
    assert schedule.failed(A, 2e9) == RETRY_DELAYS[0]


def test_an_event_shortens_a_backoff():
    schedule = Schedule(spacing=0.0)
    schedule.add(A, 0.0)
    schedule.take(0.0)
    schedule.failed(A, 0.0)
    schedule.add(A, 0.2)
    assert [schedule.take(0.1), schedule.take(0.3)] == [None, A]


def left(schedule, working):
    """What is run once those in work are done."""
    for key in set(working):
        schedule.done(key, None)
    rest = set()
    while found := schedule.take(1e9):
        rest.add(found)
        schedule.done(found, None)
    return rest


@given(st.lists(st.tuples(st.sampled_from(["add", "hurry", "take", "done", "failed"]), st.sampled_from([A, B])), max_size=40))
def test_no_trigger_is_lost(steps):
    schedule, working, owed, now = Schedule(), set(), set(), 0.0
    for step, key in steps:
        now += 1.0
        if step in ("add", "hurry"):
            schedule.add(key, now, urgent=step == "hurry")
            owed.add(key)
        elif step == "take" and (taken := schedule.take(now)):
            assert taken not in working
            working.add(taken)
            owed.discard(taken)
        elif key in working:
            working.discard(key)
            schedule.done(key, None) if step == "done" else schedule.failed(key, now)
    assert owed <= left(schedule, working)


@pytest.mark.parametrize("when", ["before", "in work", "planned"])
def test_an_urgent_key_goes_first_once_and_not_before_it_is_due(when):
    schedule, others = Schedule(spacing=1.0), [Key("ns", f"report-{number}") for number in range(3)]
    if when == "in work":
        schedule.add(A, 0.0)
        assert schedule.take(0.0) == A
    if when == "planned":
        schedule.add(A, 300.0)
    for other in others:
        schedule.add(other, 0.0)
    schedule.add(A, 0.5, urgent=True)
    if when == "in work":
        schedule.done(A, 300.0)
        assert schedule.take(0.9) == others.pop(0), "the spacing holds it"
        assert schedule.next_due() == 0.0
    assert schedule.take(1.0) == A
    schedule.done(A, 1.0)
    rest = [schedule.take(9.0) for _ in range(len(others) + 2)]
    assert rest == [*others, A, None], "a second run of it waits its turn"


def test_every_fourth_run_is_for_the_key_that_waited_longest():
    schedule, reports = Schedule(), [Key("ns", f"report-{number}") for number in range(2)]
    for number, key in enumerate(reports):
        schedule.add(key, float(number))
    for number in range(9):
        schedule.add(Key("ns", f"edit-{number}"), 2.0, urgent=True)
    taken = [schedule.take(3.0) for _ in range(11)]
    assert [key in reports for key in taken] == [False, False, False, True] * 2 + [False] * 3
    assert [key for key in taken if key in reports] == reports


def test_a_failed_urgent_key_stays_urgent_until_it_succeeds():
    schedule, report = Schedule(spacing=0.0), Key("ns", "report")
    schedule.add(A, 0.0, urgent=True)
    assert schedule.take(0.0) == A
    schedule.add(report, 0.0)
    schedule.failed(A, 1.0, delays=CONFLICT_DELAYS)
    assert schedule.take(1.0) == A
    schedule.done(A, 0.5)
    assert (schedule.take(2.0), schedule.take(2.0)) == (report, A)


def test_an_earlier_plan_starts_no_second_concurrent_run():
    schedule = Schedule()
    for due in (5.0, 3.0):
        schedule.add(A, due)
    assert schedule.take(3.0) == A
    schedule.add(A, 5.0)  # as it was planned before
    assert (schedule.take(10.0), schedule.next_due()) == (None, None)


async def test_one_trigger_wakes_one_worker(monkeypatch):
    looks, taken, take = [], asyncio.Event(), Schedule.take

    def counted(schedule, now):
        looks.append(now)
        return take(schedule, now)

    async def reconcile(_key):
        taken.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(Schedule, "take", counted)
    queue = KeyedQueue(resync=300.0, rng=random.Random(1))
    workers = [asyncio.create_task(queue.work(reconcile)) for _ in range(32)]
    await asyncio.sleep(0)
    queue.add(A)
    await taken.wait()
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(looks) <= 3  # the one before the trigger, the one that found it, the next worker's
    for worker in workers:
        worker.cancel()
    await asyncio.gather(*workers, return_exceptions=True)


async def drive(outcomes, workers=2):
    """Runs key A through the given outcomes; a repeated one ends it."""
    queue, runs, finished = KeyedQueue(resync=0.01, rng=random.Random(1)), [], asyncio.Event()

    async def reconcile(key):
        runs.append(key)
        if len(runs) > len(outcomes):
            finished.set()
            return Outcome(gone=True)
        outcome = outcomes[len(runs) - 1]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    queue.add(A)
    tasks = [asyncio.create_task(queue.work(reconcile)) for _ in range(workers)]
    await asyncio.wait_for(finished.wait(), 60)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return queue, runs


@pytest.mark.deep
@pytest.mark.parametrize("outcome", [Outcome(), Outcome(again=0.0), Unavailable("down"), ZeroDivisionError("bug")])
async def test_a_key_comes_back_after_every_kind_of_end(outcome):
    _, runs = await drive([outcome])
    assert runs == [A, A]


@pytest.mark.deep
async def test_a_conflict_is_retried_at_once_and_repeated_ones_back_off(monkeypatch):
    reported, failed = [], Schedule.failed
    monkeypatch.setattr(Schedule, "failed", lambda *given, **more: reported.append(failed(*given, **more)) or reported[-1])
    await drive([Conflict("409")] * 2 + [Unavailable("down")])
    assert reported == [0.0, 0.0, RETRY_DELAYS[2]]
    schedule, delays = Schedule(spacing=0.0), []
    for _ in range(5):
        schedule.add(A, 0.0)
        schedule.take(1e9)
        delays.append(schedule.failed(A, 0.0, delays=CONFLICT_DELAYS))
    assert delays == [0.0, 0.0, 0.5, *RETRY_DELAYS[:2]]


async def test_a_bug_in_one_service_stops_no_other():
    queue, seen = KeyedQueue(resync=300, rng=random.Random(1)), asyncio.Event()

    async def reconcile(key):
        if key == A:
            raise KeyError("poison")
        seen.set()
        return Outcome(gone=True)

    worker = asyncio.create_task(queue.work(reconcile))
    queue.add(A)
    queue.add(B)
    await asyncio.wait_for(seen.wait(), 60)
    assert not worker.done()
    worker.cancel()
    await asyncio.gather(worker, return_exceptions=True)
