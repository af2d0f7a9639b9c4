"""Work on threads: places for small and large, what is dropped when a client leaves, and an exit that waits for none of it."""

from __future__ import annotations

import asyncio
import threading

import pytest
from pagoda_contracts import metrics as names
from pagoda_daemon.api.grpc.watch import Identity, frame
from pagoda_daemon.api.routes.preparing import INLINE, Preparing
from pagoda_daemon.health.replica import Preparations, Replica
from pagoda_daemon.metrics import Counts, Exposition

LARGE = 10 * 2**20
SMALL = 2 * INLINE


class Blocked:
    """Work that ends when the test says so."""

    def __init__(self) -> None:
        self.go, self.calls = threading.Event(), 0

    def __call__(self) -> str:
        self.calls += 1
        self.go.wait()
        return "made"


async def until(condition):
    while not condition():
        await asyncio.sleep(0.001)


async def test_a_small_piece_is_done_on_the_loop_and_a_larger_one_on_a_thread():
    preparing = Preparing(Preparations())
    assert await preparing.run(INLINE, threading.current_thread) is threading.main_thread()
    assert await preparing.run(INLINE + 1, threading.current_thread) is not threading.main_thread()
    assert await preparing.run(1, threading.current_thread, blocks=True) is not threading.main_thread()


async def test_what_the_work_raises_is_raised_to_its_request():
    with pytest.raises(ZeroDivisionError):
        await Preparing(Preparations()).run(SMALL, lambda: 1 // 0)


async def test_a_small_piece_does_not_wait_behind_large_ones():
    counts, large = Preparations(), Blocked()
    preparing = Preparing(counts)
    waiting = [asyncio.ensure_future(preparing.run(LARGE, large)) for _ in range(4)]
    await until(lambda: (counts.running, counts.waiting) == (2, 2))
    assert await preparing.run(SMALL, lambda: "small") == "small"
    large.go.set()
    assert await asyncio.gather(*waiting) == ["made"] * 4
    assert (counts.running, counts.waiting) == (0, 0)


async def test_waiting_work_of_a_client_that_left_is_dropped_and_running_work_keeps_its_place_to_its_end():
    counts, running, dropped = Preparations(), Blocked(), Blocked()
    preparing = Preparing(counts)
    left = [asyncio.ensure_future(preparing.run(LARGE, work)) for work in (running, running, dropped)]
    await until(lambda: (counts.running, counts.waiting) == (2, 1))
    for task in left:
        task.cancel()
    await asyncio.wait(left)
    assert (counts.running, counts.waiting) == (2, 0)
    honest = asyncio.ensure_future(preparing.run(LARGE, lambda: "honest"))
    await until(lambda: counts.waiting == 1)
    running.go.set()
    assert await honest == "honest"
    await until(lambda: counts.running == 0)
    assert (running.calls, dropped.calls) == (2, 0)


def test_the_loop_ends_while_a_thread_still_runs():
    work = Blocked()

    async def client_leaves():
        task = asyncio.ensure_future(Preparing(Preparations()).run(LARGE, work))
        await until(lambda: work.calls)
        task.cancel()

    asyncio.run(client_leaves())  # with the loop's own executor it would wait for `go` here, for ever
    work.go.set()


def test_metrics_and_state_frames_count_it():
    replica = Replica(0.0, preparations=Preparations(waiting=3, running=2))
    text = Exposition("m", replica, Counts()).text(1.0, 1.0).decode()
    assert f'{names.PREPARING.name}{{model_name="m",engine="0",state="waiting"}} 3' in text
    assert f'{names.PREPARING.name}{{model_name="m",engine="0",state="running"}} 2' in text
    assert frame(replica, Identity(("m",), "r", "v"), 1, 1.0).preparing == 5
