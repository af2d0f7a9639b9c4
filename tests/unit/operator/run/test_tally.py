"""Where a run's time goes: since when it was wanted, what it asked, how long it waited for answers."""

import asyncio
import random

import pytest
from pagoda_operator.api.state import Key
from pagoda_operator.client.tally import Tally, counting, sent, waiting
from pagoda_operator.run.queue import KeyedQueue, Outcome, Schedule
from structlog.testing import capture_logs
from support.servers.loop_clock import LoopClock

A, B = Key("ns", "a"), Key("ns", "b")


def test_a_run_was_wanted_since_the_first_trigger_whatever_kept_it():
    schedule = Schedule(spacing=5.0)
    schedule.add(A, 1.0)
    schedule.add(A, 2.0)
    schedule.take(3.0)
    assert schedule.queued(A) == 2.0
    schedule.add(A, 3.5)  # meanwhile
    schedule.done(A, 4.0)
    assert schedule.take(8.0) == A
    assert schedule.queued(A) == 4.5, "the spacing is ours"
    schedule.failed(A, 9.0)
    schedule.take(100.0)
    assert schedule.queued(A) == 91.0, "and so is a back-off"
    schedule.done(A, 200.0)
    schedule.take(201.0)
    assert schedule.queued(A) == 1.0, "nobody wanted it before it was due"


def test_answers_that_are_waited_for_at_once_are_waited_for_once():
    assert Tally(waits=[(5.0, 6.0), (1.0, 3.0), (2.0, 4.0), (2.5, 3.0)]).waited() == 4.0


async def test_a_run_says_how_long_it_was_wanted_took_and_waited_and_another_s_requests_are_not_its_own():
    clock = LoopClock()
    clock.stop()
    queue, together = KeyedQueue(resync=300.0, rng=random.Random(1)), asyncio.Barrier(2)

    async def answer():
        sent(write=True)
        with waiting():
            clock.skip(0.5)

    async def reconcile(key):
        await together.wait()
        await asyncio.gather(*(answer() for _ in range(1 + (key == B))))
        await together.wait()
        return Outcome(gone=True)

    queue.add(A)
    queue.add(B)
    clock.skip(2.0)
    with capture_logs() as lines:
        workers = [asyncio.create_task(queue.work(reconcile)) for _ in range(2)]
        while len(lines) < 2:
            await asyncio.sleep(0)
    for worker in workers:
        worker.cancel()
    await asyncio.gather(*workers, return_exceptions=True)
    told = {line["name"]: line for line in lines}
    assert {name: (line["requests"], line["writes"]) for name, line in told.items()} == {"a": (1, 1), "b": (2, 2)}
    assert {name: (line["queued_s"], line["took_s"], line["waited_s"]) for name, line in told.items()} == {
        "a": (2.0, 1.5, 0.5),
        "b": (2.0, 1.5, 1.0),
    }


@pytest.mark.parametrize("depth", [0, 1])
async def test_outside_a_run_nothing_is_counted(depth):
    with counting() as tally:
        if depth:
            sent(write=False)
    sent(write=True)
    with waiting():
        pass
    assert (tally.requests, tally.writes, tally.waits) == (depth, 0, [])
