"""The Lease on a store that loses answers, is away, or belongs to somebody else by now."""

import asyncio
import contextlib
import itertools
import os
import threading
from types import SimpleNamespace

import pytest
from pagoda_operator.api.errors import Conflict, Unavailable
from pagoda_operator.serve.election import Terms
from pagoda_operator.serve.leader import Lease, Means, _end
from pagoda_operator.serve.process import OwnLoop


class Ended(BaseException):
    """In place of os._exit."""


def end(why):
    raise Ended(why)


class Store:
    def __init__(self):
        self.lease = None
        self.versions = itertools.count(1)
        self.away = False
        self.lose_answer = False

    async def get(self, _resource, _namespace, _name):
        if self.away:
            raise Unavailable("down")
        return self.lease

    async def create(self, _resource, manifest, _manager):
        return self._store(manifest, self.lease is None)

    async def replace(self, _resource, manifest, _manager):
        version = manifest["metadata"]["resourceVersion"]
        return self._store(manifest, self.lease is not None and version == self.lease["metadata"]["resourceVersion"])

    def _store(self, manifest, right):
        if self.away:
            raise Unavailable("down")
        if not right:
            raise Conflict("not this version")
        meta = manifest["metadata"] | {"resourceVersion": str(next(self.versions))}
        self.lease = manifest | {"metadata": meta}
        if self.lose_answer:
            self.lose_answer = False
            raise Unavailable("no answer")
        return self.lease


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def store():
    return Store()


def contender(store, name, clock):
    """Its planning loop turns, unless a test says when it last did."""
    lease = Lease(store, "ns", name, Means(end, clock))
    lease._last_beat = float("inf")
    return lease


async def rounds(lease, clock, seconds):
    """Runs the lease's loop for so many seconds of its clock."""
    until = clock.now + seconds
    while clock.now < until:
        clock.now += await lease._round() or 0.01


async def test_a_standby_leads_after_the_lease_is_given_back(store):
    clock = Clock()
    first, second = contender(store, "a", clock), contender(store, "b", clock)
    await first._round()
    assert await second._round() == 2.0
    assert (first.leads(), second.leads(), first.epoch) == (True, False, 1)
    await first.release()
    assert not first.leads()
    assert store.lease["spec"]["holderIdentity"] == ""
    await second._round()
    assert (second.leads(), second.epoch, second.acquired.is_set()) == (True, 2, True)


async def test_a_silent_leader_ends_after_ten_seconds_and_is_succeeded_after_fifteen(store):
    clock = Clock()
    first, second = contender(store, "a", clock), contender(store, "b", clock)
    await first._round()
    await rounds(second, clock, 7.9)
    first.guard()
    await rounds(second, clock, 5.9)
    assert not second.leads()
    with pytest.raises(Ended, match="without the Lease"):
        first.guard()
    await rounds(second, clock, 1.9)
    assert second.leads()
    with pytest.raises(Ended):
        await first._round()


async def test_a_lost_answer_does_not_cost_the_lease(store):
    clock = Clock()
    lease = contender(store, "a", clock)
    await lease._round()
    store.lose_answer = True
    await rounds(lease, clock, 30)
    assert (lease.leads(), lease.epoch, store.lease["spec"]["leaseTransitions"]) == (True, 1, 1)


async def test_a_leader_that_cannot_reach_the_server_ends_at_its_deadline(store):
    clock = Clock()
    lease = contender(store, "a", clock)
    await lease._round()
    store.away = True
    await rounds(lease, clock, 9)
    lease.guard()
    clock.now += 1.5
    with pytest.raises(Ended):
        lease.guard()


async def test_a_new_process_with_the_same_identity_leads_and_the_old_one_ends(store):
    clock = Clock()
    old, new = contender(store, "a", clock), contender(store, "a", clock)
    await old._round()
    acquired = store.lease["spec"]["acquireTime"]
    await new._round()
    assert (new.epoch, new.leads()) == (2, True)
    with pytest.raises(Ended, match="same identity"):
        await rounds(old, clock, 5)
    await rounds(new, clock, 5)
    assert store.lease["spec"]["acquireTime"] != acquired


async def test_a_leader_recreates_a_deleted_lease_and_the_epoch_grows(store):
    clock = Clock()
    lease = contender(store, "a", clock)
    await lease._round()
    store.lease = None
    await rounds(lease, clock, 5)
    assert (lease.leads(), lease.epoch) == (True, 2)


@pytest.mark.parametrize(("answered", "waits"), [(True, 0.0), (False, 60.0)])
async def test_a_successor_waits_for_the_last_writes_unless_all_were_answered(store, answered, waits):
    clock = Clock()
    first, second, third = (contender(store, name, clock) for name in "abc")
    await first._round()
    assert first.settled(), "nobody led before"
    await first.release(answered=answered)
    assert not second.settled()
    await second._round()
    assert second.settled() == (waits == 0.0)
    await second.release()
    await third._round()
    assert third.settled() == (waits == 0.0), "its predecessor had to wait still"
    await rounds(third, clock, waits)
    assert third.settled()


async def test_a_successor_of_a_silent_leader_waits_for_its_last_writes(store):
    clock = Clock()
    first, second = contender(store, "a", clock), contender(store, "b", clock)
    await first._round()
    await rounds(second, clock, 16)
    assert (second.leads(), second.settled()) == (True, False)
    again = contender(store, "b", clock)
    await again._round()
    assert (again.leads(), again.settled()) == (True, False)
    await rounds(again, clock, 60)
    assert again.settled()


class Watched(Store):
    """Says when it was written three times more, and on which thread."""

    def __init__(self):
        super().__init__()
        self.threads = set()
        self.renewed = threading.Event()

    def _store(self, manifest, right):
        self.threads.add(threading.current_thread().name)
        body = super()._store(manifest, right)
        if int(body["metadata"]["resourceVersion"]) > 3:
            self.renewed.set()
        return body


@pytest.fixture
def apart():
    loop = OwnLoop("lease-test")
    yield loop
    # What a test sent there and gave up is taken up and dropped before the loop is closed.
    asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop._loop).result(timeout=60)
    loop.close()
    loop._thread.join(timeout=60)
    assert not loop._thread.is_alive()


# No two seconds anywhere decide anything.
PATIENT = Terms(duration=15000.0, deadline=10000.0, retry=0.001)


async def test_a_long_plan_delays_no_renewal_and_nothing_is_renewed_after_the_release(apart):
    store, ended = Watched(), []
    lease = Lease(store, "ns", "a", Means(ended.append, terms=PATIENT, apart=apart.do))
    running = asyncio.create_task(lease.run())
    await lease.acquired.wait()
    assert store.renewed.wait(60), "the planning loop is blocked in this very line, and the Lease renewed"
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await lease.release()
    given_back = store.lease
    await apart.do(asyncio.sleep(0.01))
    assert (store.lease, given_back["spec"]["holderIdentity"], lease.leads(), ended) == (given_back, "", False, [])
    assert store.threads == {"lease-test"}


async def test_a_leader_whose_planning_loop_hangs_ends(store):
    clock = Clock()
    lease = contender(store, "a", clock)
    running = asyncio.create_task(lease.run())
    await lease.acquired.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)  # its last sign of life
    await rounds(lease, clock, 59)
    with pytest.raises(Ended, match="the loop that plans hangs"):
        await rounds(lease, clock, 4)


async def test_an_error_in_the_renewing_loop_ends_the_run(store, apart):
    async def broken(*_):
        raise RuntimeError("a bug")

    store.get = broken
    lease = Lease(store, "ns", "a", Means(end, apart=apart.do))
    with pytest.raises(RuntimeError, match="a bug"):
        await lease.run()
    await lease.release()


@pytest.mark.parametrize("free", ["never held", "given back", "silent holder"])
async def test_a_standby_whose_planning_loop_hangs_takes_no_lease(store, free):
    clock = Clock()
    other, lease = contender(store, "other", clock), Lease(store, "ns", "a", Means(end, clock))
    if free != "never held":
        await other._round()
    if free == "given back":
        await other.release()
    await rounds(lease, clock, 60)
    assert not lease.leads(), "it has not begun"
    lease._last_beat = clock.now
    clock.now += 5.0
    await rounds(lease, clock, 60)
    assert (lease.leads(), lease.epoch < 2) == (False, True)
    lease._last_beat = clock.now
    await lease._round()
    assert lease.leads()


@pytest.mark.parametrize("reader", ["gone", "stuck", "no stderr"])
def test_a_blocked_log_reader_does_not_delay_the_end(monkeypatch, reader):
    theirs, ours = os.pipe()
    if reader == "gone":
        os.close(theirs)
    if reader == "stuck":
        os.set_blocking(ours, False)
        with contextlib.suppress(BlockingIOError):
            while os.write(ours, bytes(4096)):
                pass
        os.set_blocking(ours, True)
    stderr = SimpleNamespace(fileno=lambda: ours if reader != "no stderr" else None.fileno())
    monkeypatch.setattr("pagoda_operator.serve.leader.sys", SimpleNamespace(stderr=stderr))
    monkeypatch.setattr(os, "_exit", end)
    with pytest.raises(Ended, match="1"):
        _end("a test")
    for pipe in (ours,) if reader == "gone" else (theirs, ours):
        os.close(pipe)


async def test_the_end_does_not_wait_for_a_lease_loop_that_hangs(apart, store):
    lease, let = Lease(store, "ns", "a", Means(end, apart=apart.do, release_s=0.01)), threading.Event()
    apart._loop.call_soon_threadsafe(let.wait)
    try:
        await lease.release()
    finally:
        let.set()
