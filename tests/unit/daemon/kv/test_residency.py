"""How long sampled blocks live, lie idle and wait for their next use."""

from itertools import pairwise

import pytest
from pagoda_contracts.metrics import BLOCK_LIFETIME
from pagoda_daemon.core.batch import WorkerLimits
from pagoda_daemon.kv.pool import BlockPool
from pagoda_daemon.kv.residency import Residency
from pagoda_daemon.simulated.device.worker import SimulatedWorker
from support.engine.drive import Drive


def test_a_block_lives_from_its_taking_to_its_eviction():
    pool = BlockPool(1)
    pool.residency.now_ms = 1000.0
    pool.take(1)
    pool.keep([0])
    pool.release([0])
    pool.residency.now_ms = 4000.0
    pool.hold([0])
    pool.release([0])
    pool.residency.now_ms = 9000.0
    pool.take(1)
    totals = pool.residency.totals()
    assert (sum(totals.gap), totals.gap_sum) == (1, 3.0)
    assert (sum(totals.lifetime), totals.lifetime_sum) == (1, 8.0)
    assert (sum(totals.idle), totals.idle_sum) == (1, 5.0)
    assert totals.lifetime[BLOCK_LIFETIME.buckets.index(10.0)] == 1


def test_a_block_that_held_nothing_worth_keeping_is_no_eviction():
    pool = BlockPool(1)
    for at in range(3):
        pool.residency.now_ms = 1000.0 * at
        pool.release(pool.take(1))
    assert sum(pool.residency.totals().lifetime) == 0


@pytest.mark.parametrize(("total", "stride"), [(1, 1), (2047, 1), (4096, 4), (10**6, 976)])
def test_about_a_thousand_blocks_stand_for_all(total, stride):
    residency = Residency(total)
    assert residency.stride == stride
    residency.taken(range(total))
    residency.evicted(range(total))
    assert sum(residency.totals().lifetime) == len(range(0, total, stride)) <= 2047


def test_the_scheduler_reports_the_time_of_every_move():
    d = Drive(SimulatedWorker(WorkerLimits(8, 4, 97, 64)), 2, 16)
    for prompt in ([1] * 20, [2] * 20, [1] * 20, [3] * 20, [1] * 20):
        d.submit(str(len(d.ends)), prompt, 4)
        d.drain()
    totals = d.state.tally().residence
    assert sum(totals.lifetime) == sum(totals.idle) > 0
    assert 0 < totals.idle_sum <= totals.lifetime_sum < d.now_ms / 1000 * 8
    assert all(before <= after for before, after in pairwise((0.0, totals.idle_sum, totals.lifetime_sum)))
