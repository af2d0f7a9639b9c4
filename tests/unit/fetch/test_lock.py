"""One download per address over all who share a volume; a dead holder is replaced, a frozen one stops."""

import asyncio
import json
import subprocess
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
from pagoda_fetch.core.errors import LockLost
from pagoda_fetch.volume.lock import Holder, OwnedLock, locked, myself, surely_dead
from support.clients.fetching import LARGE, QUICK, TAKEN, Fetcher, contents, model_files
from support.servers.fetch_hub import Fault, running_hub

ME = Holder("pod-a", "", 1)
OTHER = Holder("pod-b", "elsewhere", 1)


def planted(folder, holder, generation=1, beats=0):
    path = folder / f"k.{generation}"
    path.write_text(json.dumps([*holder, beats]))
    return path


async def take(folder, me=ME, limits=QUICK):
    async with locked(folder, "k", me, limits, lambda: None):
        return sorted(path.name for path in folder.iterdir())


async def test_a_free_lock_is_taken_and_given_back(tmp_path):
    assert await take(tmp_path) == ["k.1"]
    assert list(tmp_path.iterdir()) == []


def test_a_signature_that_comes_late_does_not_bring_back_what_was_given_back(tmp_path, monkeypatch):
    """A beat runs on a thread of its own: it may have looked before the lock was given back, and write after it."""
    held = OwnedLock(planted(tmp_path, ME), ME, QUICK)

    def given_back_meanwhile(*_):
        held.release()
        return tmp_path / "k.1"

    monkeypatch.setattr("pagoda_fetch.volume.lock._newest", given_back_meanwhile)
    held.sign()
    assert list(tmp_path.iterdir()) == []


async def test_the_second_waits_for_the_first(tmp_path):
    order = []
    waits = asyncio.Event()

    async def second():
        async with locked(tmp_path, "k", OTHER, QUICK, waits.set):
            order.append("second")

    async with locked(tmp_path, "k", ME, QUICK, lambda: None):
        task = asyncio.create_task(second())
        await waits.wait()
        order.append("first")
    await task
    assert order == ["first", "second"]


async def test_a_silent_holder_is_replaced(tmp_path):
    planted(tmp_path, OTHER)
    assert await take(tmp_path, limits=replace(QUICK, dead_after=0.1)) == ["k.2"]


async def test_a_holder_that_signs_is_not_replaced_however_long_it_takes(tmp_path, monkeypatch):
    beats, now = 0, 0.0
    monkeypatch.setattr("pagoda_fetch.volume.lock.time", SimpleNamespace(monotonic=lambda: now))

    def sign():
        nonlocal beats, now
        beats += 1
        now += 0.9
        planted(tmp_path, OTHER, beats=beats)
        if beats == 30:
            (tmp_path / "k.1").unlink()

    sign()
    async with locked(tmp_path, "k", ME, replace(QUICK, dead_after=1.0), sign):
        assert beats == 30


@pytest.mark.parametrize(
    ("other", "me", "dead"),
    [
        (Holder("", "m", 999_999_999), Holder("", "m", 1), True),
        (Holder("", "m", 1), Holder("", "m", 2), False),
        (Holder("p", "old container", 1), Holder("p", "new container", 1), True),
        (Holder("p", "m", 1), Holder("q", "n", 1), False),
        (Holder("", "", 1), Holder("", "", 1), False),
    ],
    ids=["gone", "alive", "earlier container of this pod", "another pod", "nobody knows"],
)
def test_which_holders_of_a_lock_are_surely_dead(other, me, dead):
    assert surely_dead(other, me) is dead


async def test_a_process_of_this_machine_that_is_gone_is_replaced_at_once(tmp_path):
    process = await asyncio.to_thread(subprocess.Popen, ["true"])
    process.wait()
    planted(tmp_path, myself("")._replace(pid=process.pid))
    assert await take(tmp_path, me=myself(""), limits=QUICK) == ["k.2"]


async def test_a_half_written_lock_is_waited_for(tmp_path):
    (tmp_path / "k.1").write_text("")
    assert await take(tmp_path, limits=replace(QUICK, dead_after=0.1)) == ["k.2"]


def test_of_two_processes_that_find_an_abandoned_lock_one_takes_it(tmp_path):
    from pagoda_fetch.volume.lock import _take

    dead = planted(tmp_path, OTHER)
    assert [_take(tmp_path, "k", dead, ME), _take(tmp_path, "k", dead, OTHER)] == [tmp_path / "k.2", None]


@pytest.mark.parametrize("mine", [1, 9, 99])
def test_a_replaced_holder_stops_before_it_writes(tmp_path, mine):
    held = OwnedLock(planted(tmp_path, ME, generation=mine), ME, QUICK)
    held.sign()
    held.check()
    taken = planted(tmp_path, OTHER, generation=mine + 1)
    held.sign()
    with pytest.raises(LockLost):
        held.check()
    held.release()
    assert taken.exists()


class Clock:
    """Stands for `time` in the lock."""

    now = 0.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr("pagoda_fetch.volume.lock.time", made)
    return made


def test_a_frozen_holder_stops_before_it_reads(tmp_path, clock):
    """Another takes over after 60 s: half of it is for a write that has begun."""
    held = OwnedLock(planted(tmp_path, ME), ME, replace(QUICK, dead_after=60.0))
    held.sign()
    clock.now = 29.0
    held.check()
    clock.now = 31.0
    with pytest.raises(LockLost):
        held.check()


def test_a_holder_that_renews_goes_on(tmp_path, clock):
    held = OwnedLock(planted(tmp_path, ME), ME, replace(QUICK, dead_after=60.0))
    for _ in range(5):
        clock.now += 29.0
        held.sign()
        held.check()


def test_a_holder_that_cannot_renew_stops_as_a_frozen_one(tmp_path, clock):
    """On a full disk, or a volume that is gone, the others see no sign: after 60 s one of them takes over."""
    held = OwnedLock(path := planted(tmp_path, ME), ME, replace(QUICK, dead_after=60.0))
    held.sign()
    path.unlink()
    path.mkdir()  # every write of the signature fails from now on
    for _ in range(2):
        clock.now += 16.0
        held.sign()
    with pytest.raises(LockLost):
        held.check()


async def test_two_fetchers_on_one_cache_download_once(tmp_path):
    files = model_files()
    with running_hub(files) as hub:
        hub.faults[LARGE] = held = Fault(trickle_after=1_200_000)
        first, second = Fetcher(tmp_path, hub.url), Fetcher(tmp_path, hub.url)
        downloads = asyncio.create_task(first.fetch())
        await asyncio.to_thread(held.begun.wait)
        joins = asyncio.create_task(second.fetch())
        await second.reached("waiting")
        held.released.set()
        places = await asyncio.gather(downloads, joins)
        assert places[0] == places[1]
        assert contents(places[0]) == {name: files[name] for name in TAKEN}
        whole = [headers for headers in hub.asked_for(f"/cdn/{LARGE}") if "range" not in headers]
        assert len(whole) == 1


@pytest.fixture
def lost(monkeypatch):
    """Set once a holder has seen that another took over."""
    seen, sign = threading.Event(), OwnedLock.sign

    def watched(held):
        sign(held)
        try:
            held.check()
        except LockLost:
            seen.set()

    monkeypatch.setattr(OwnedLock, "sign", watched)
    return seen


async def test_a_fetcher_that_lost_its_lock_writes_nothing_more(tmp_path, lost):
    files = model_files()
    with running_hub(files) as hub:
        hub.faults[LARGE] = Fault(trickle_after=1_200_000)
        fetcher = Fetcher(tmp_path, hub.url)
        task = asyncio.create_task(fetcher.fetch())
        await asyncio.to_thread(hub.faults[LARGE].begun.wait)
        (lock,) = fetcher.store.locks.iterdir()
        lock.with_suffix(".2").write_text(json.dumps([*OTHER, 0]))
        await asyncio.to_thread(lost.wait)
        hub.faults[LARGE].released.set()
        with pytest.raises(LockLost):
            await task
        assert fetcher.published() == []
        assert fetcher.staged().get(LARGE) is None
