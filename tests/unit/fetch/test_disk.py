"""A volume that is too small, or becomes so: said with needed and free, and nothing left behind."""

import asyncio
import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from pagoda_fetch.core.errors import ConfigRejected, NoRoom
from pagoda_fetch.volume.sink import Sink
from pagoda_fetch.volume.store import Store, point
from support.clients.fetching import LARGE, TAKEN, Fetcher, contents, model_files
from support.servers.fetch_hub import Fault, running_hub

FILES = model_files()
WHOLE = sum(len(FILES[name]) for name in TAKEN)


@pytest.fixture
def hub():
    with running_hub(FILES) as running:
        yield running


async def test_too_little_room_is_said_before_a_byte_moves(tmp_path, hub):
    fetcher = Fetcher(tmp_path, hub.url)
    fetcher.store = Store(fetcher.root, reserve=1000, free=lambda _: 2_000_000)
    with pytest.raises(NoRoom, match=r"needs 3\.\d MiB more, 1\.9 MiB are free"):
        await fetcher.fetch()
    assert not hub.sent
    assert fetcher.staged() == {}


async def test_what_is_there_already_needs_no_room(tmp_path, hub):
    fetcher = Fetcher(tmp_path, hub.url, attempts=1, parallel=1)
    hub.faults[LARGE] = Fault(cut_after=2_500_000)
    with pytest.raises(Exception, match="in the middle of the body"):
        await fetcher.fetch()
    kept = sum(fetcher.staged().values())
    fetcher.store = Store(fetcher.root, reserve=0, free=lambda _: WHOLE - kept)
    assert contents(await fetcher.fetch())[LARGE] == FILES[LARGE]


async def test_room_that_others_take_meanwhile_ends_it_and_leaves_nothing(tmp_path, hub, monkeypatch):
    monkeypatch.setattr("pagoda_fetch.download.job._ROOM_EVERY", 500_000)
    fetcher = Fetcher(tmp_path, hub.url)
    looks = iter([10 * WHOLE])
    fetcher.store = Store(fetcher.root, reserve=0, free=lambda _: next(looks, 1000))
    with pytest.raises(NoRoom):
        await fetcher.fetch()
    assert (fetcher.staged(), fetcher.published(), list(fetcher.store.locks.iterdir())) == ({}, [], [])


def limited(tmp_path, hub):
    """A process that may write files of 1 MB only: the kernel refuses its write in the middle, as on a full disk."""
    script = f"""
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
sys.argv = ["pagoda-fetch", "fetch", "hf://org/model", "--hub", {hub.url!r}, "--to", {str(tmp_path / "models")!r}, "--reserve", "0"]
from pagoda_fetch.__main__ import main
main()
"""
    return subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True, check=False)


@pytest.mark.deep
async def test_a_write_that_the_kernel_refuses_ends_it_and_leaves_nothing(tmp_path, hub):
    done = await asyncio.to_thread(limited, tmp_path, hub)
    assert done.returncode == 1
    assert "NoRoom" in done.stderr
    assert "free" in done.stderr
    assert list((tmp_path / "models").glob("sha256-*")) == []
    assert list((tmp_path / "models/.staging").iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: mounts a tmpfs")
async def test_a_full_disk_ends_it_and_leaves_nothing(tmp_path, hub):
    """Another one fills the volume after the room was checked."""
    volume = tmp_path / "models"
    volume.mkdir()
    await asyncio.to_thread(subprocess.run, ["mount", "-t", "tmpfs", "-o", "size=6m", "none", str(volume)], check=True)
    try:
        hub.faults[LARGE] = Fault(trickle_after=500_000)
        fetcher = Fetcher(tmp_path, hub.url)
        task = asyncio.create_task(fetcher.fetch())
        await asyncio.to_thread(hub.faults[LARGE].begun.wait)
        (volume / "others").write_bytes(bytes(4_500_000))
        hub.faults[LARGE].released.set()
        with pytest.raises(NoRoom):
            await task
        assert (fetcher.staged(), fetcher.published()) == ({}, [])
        (volume / "others").unlink()
        assert contents(await fetcher.fetch())[LARGE] == FILES[LARGE]
    finally:
        await asyncio.to_thread(subprocess.run, ["umount", str(volume)], check=True)


async def test_a_fetch_that_is_cancelled_during_a_write_closes_the_file_after_it(tmp_path, hub, monkeypatch):
    """A thread outlives whoever waits for it: by then the number of a closed file may be another file's."""
    loop, begun, go_on = asyncio.get_running_loop(), asyncio.Event(), threading.Event()
    begin, opened = Sink.begin, []

    def held(sink):
        loop.call_soon_threadsafe(begun.set)
        go_on.wait(60)
        opened.append(sink)
        return begin(sink)

    monkeypatch.setattr(Sink, "begin", held)
    task = asyncio.create_task(Fetcher(tmp_path, hub.url, parallel=1).fetch())
    await begun.wait()
    task.cancel()
    for _ in range(20):
        await asyncio.sleep(0)
    assert not task.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [sink._stream for sink in opened] == [None]


async def test_a_volume_that_cannot_be_written_is_for_a_person(tmp_path, hub):
    (tmp_path / "models").write_text("a file where the volume should be")
    with pytest.raises(ConfigRejected, match="must be writable"):
        await Fetcher(tmp_path, hub.url).fetch()


def test_the_link_is_relative_and_changes_at_once(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        point(tmp_path / "run/model", tmp_path / name)
        link = tmp_path / "run/model"
        assert (link.readlink(), link.resolve()) == (Path("..") / name, tmp_path / name)
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["model"]


async def test_a_disk_that_fills_at_the_very_end_leaves_nothing(tmp_path, hub, monkeypatch):
    fetcher = Fetcher(tmp_path, hub.url)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(fetcher.store, "publish", full)
    with pytest.raises(NoRoom, match="No space left"):
        await fetcher.fetch()
    assert (fetcher.staged(), fetcher.published()) == ({}, [])
