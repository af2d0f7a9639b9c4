"""Where a run's time goes: how long it was queued, what it requested, how long it waited for answers."""

import asyncio
import random

from pagoda_operator.api.state import Key
from pagoda_operator.client.requests import TALLY, Tally
from pagoda_operator.run.queue import KeyedQueue, Outcome, Schedule
from structlog.testing import capture_logs
from support.servers.loop_clock import LoopClock

A, B = Key("ns", "a"), Key("ns", "b")


def test_a_run_is_queued_since_its_first_trigger_whatever_delays_it():
    schedule = Schedule(spacing=5.0)
    schedule.add(A, 1.0)
    schedule.add(A, 2.0)
    schedule.take(3.0)
    assert schedule.queued(A) == 2.0
    schedule.add(A, 3.5)  # meanwhile
    schedule.done(A, 4.0)
    assert schedule.take(8.0) == A
    assert schedule.queued(A) == 4.5, "the spacing counts"
    schedule.failed(A, 9.0)
    schedule.take(100.0)
    assert schedule.queued(A) == 91.0, "and so does a backoff"
    schedule.done(A, 200.0)
    schedule.take(201.0)
    assert schedule.queued(A) == 1.0, "not before it was due"


def test_requests_at_the_same_time_wait_once():
    tally, times, requests = Tally(), [], {}
    for now, sign, name in [(1, "+", "a"), (2, "+", "b"), (3, "-", "a"), (4, "-", "b"), (5, "+", "c"), (6, "-", "c")]:
        times.append(now)
        if sign == "+":
            requests[name] = tally.request(lambda: times[-1], write=False)
            requests[name].__enter__()
        else:
            requests[name].__exit__(None, None, None)
    assert (tally.waited, tally.requests, tally.writes) == (4, 3, 0)


async def test_each_run_logs_its_own_times_and_requests():
    clock = LoopClock()
    clock.stop()
    queue, together = KeyedQueue(resync=300.0, rng=random.Random(1)), asyncio.Barrier(2)

    async def answer():
        with TALLY.get().request(asyncio.get_running_loop().time, write=True):
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
    reported = {line["name"]: line for line in lines}
    assert {name: (line["requests"], line["writes"]) for name, line in reported.items()} == {"a": (1, 1), "b": (2, 2)}
    assert {name: (line["queued_s"], line["took_s"], line["waited_s"]) for name, line in reported.items()} == {
        "a": (2.0, 1.5, 0.5),
        "b": (2.0, 1.5, 1.0),
    }
