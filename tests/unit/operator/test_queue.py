"""The one door: deduplication, back-off, resync, one run per key at a time."""

import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pagoda_operator.errors import Unavailable, Unconverged
from pagoda_operator.queue import RETRY_DELAYS, Door, KeyedQueue, Outcome, Schedule
from pagoda_operator.state import Key

A, B = Key("ns", "a"), Key("ns", "b")


def test_many_triggers_are_one_run():
    schedule = Schedule()
    for _ in range(100):
        schedule.add(A, 0.0)
    assert (schedule.take(0.0), schedule.take(0.0)) == (A, None)


def test_a_trigger_during_a_run_makes_one_more_and_never_a_second_at_once():
    schedule = Schedule(spacing=0.5)
    schedule.add(A, 0.0)
    schedule.take(0.0)
    schedule.add(A, 0.1)
    assert schedule.take(10.0) is None
    schedule.done(A, 300.0)
    assert schedule.take(0.4) is None  # the spacing between two starts
    assert schedule.take(0.5) == A


def test_failures_come_back_later_each_time_and_success_forgets_them():
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


def test_an_event_shortens_a_back_off_but_not_a_hold():
    schedule = Schedule(spacing=0.0)
    for key, hold in ((A, False), (B, True)):
        schedule.add(key, 0.0)
        schedule.take(0.0)
        schedule.failed(key, 0.0, hold=hold)
        schedule.add(key, 0.2)
    assert [schedule.take(0.3), schedule.take(0.3), schedule.take(1.0)] == [A, None, B]


@given(st.lists(st.tuples(st.sampled_from(["add", "take", "done", "failed"]), st.sampled_from([A, B])), max_size=40))
def test_no_trigger_is_lost(steps):
    schedule, working, owed, now = Schedule(), set(), set(), 0.0
    for step, key in steps:
        now += 1.0
        if step == "add":
            schedule.add(key, now)
            owed.add(key)
        elif step == "take" and (taken := schedule.take(now)):
            assert taken not in working
            working.add(taken)
            owed.discard(taken)
        elif key in working:
            working.discard(key)
            schedule.done(key, None) if step == "done" else schedule.failed(key, now)
    for key in working.copy():
        schedule.done(key, None)
    rest = set()
    while found := schedule.take(1e9):
        rest.add(found)
        schedule.done(found, None)
    assert owed <= rest


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
    await asyncio.wait_for(finished.wait(), 20)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return queue, runs


@pytest.mark.parametrize("outcome", [Outcome(), Outcome(again=0.0), Unavailable("down"), Unconverged("fight"), ZeroDivisionError("bug")])
async def test_whatever_a_run_ends_with_the_key_comes_back(outcome):
    _, runs = await drive([outcome])
    assert runs == [A, A]


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
    await asyncio.wait_for(seen.wait(), 5)
    assert not worker.done()
    worker.cancel()
    await asyncio.gather(worker, return_exceptions=True)


async def test_an_edited_profile_wakes_the_services_that_use_it():
    queue = KeyedQueue(resync=300, rng=random.Random(1))
    door, woken, done = Door(queue), [], asyncio.Event()
    door.service(A, "default", gone=False)
    door.service(B, "h100", gone=False)

    async def reconcile(key):
        woken.append(key)
        if key == Key("", "h100") or len(woken) > 4:
            done.set()
        return Outcome(gone=True)

    worker = asyncio.create_task(queue.work(reconcile))
    while len(woken) < 2:
        await asyncio.sleep(0)
    door.profile("h100")
    await asyncio.wait_for(done.wait(), 5)
    while len(woken) < 4:
        await asyncio.sleep(0.01)
    assert sorted(woken[2:]) == sorted([B, Key("", "h100")])
    worker.cancel()
    await asyncio.gather(worker, return_exceptions=True)
