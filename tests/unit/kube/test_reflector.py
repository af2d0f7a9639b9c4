"""List, watch and list again, against a scripted API server: pages, ends and faults of every kind, and what is known meanwhile."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field

import msgspec
import pytest
from kubernetes.aio.client import Configuration
from pagoda_kube import reflector
from pagoda_kube.api import ApiFault, KubernetesApi, allow_deep_objects
from pagoda_kube.cache import Cache, Item, Key
from pagoda_kube.reflector import Kind, Reflector, Signs
from support.servers.loop_clock import LoopClock
from support.servers.scripted_api import Held, Script, event, page, scripted_api


def pod(name: str, version: str = "1", **metadata) -> dict:
    return {"kind": "Pod", "metadata": {"name": name, "namespace": "ns", "resourceVersion": version} | metadata}


def read(raw: msgspec.Raw) -> Item[str]:
    """What is kept of a pod is its version, so that each of them is reported."""
    metadata = msgspec.json.decode(raw)["metadata"]
    return Item(Key(metadata["namespace"], metadata["name"]), metadata["resourceVersion"], metadata["resourceVersion"])


PODS = Kind("/pods", read, (("labelSelector", "l"),))


@dataclass
class Harness:
    """A reflector, what its server will say, and what came of it."""

    api: KubernetesApi
    server: Script
    reported: asyncio.Queue = field(default_factory=asyncio.Queue)
    signs: asyncio.Queue = field(default_factory=asyncio.Queue)

    def __post_init__(self) -> None:
        self.cache = Cache[str](lambda key, _before, after: self.reported.put_nowait((key.name, after)))
        signs = Signs(lambda: self.signs.put_nowait("listed"), lambda: self.signs.put_nowait("heard"))
        self.reflector = Reflector(self.api, PODS, self.cache, signs)

    @property
    def known(self) -> dict[str, str]:
        return {key.name: version for key, version in self.cache.values().items()}

    async def asked(self, count: int) -> list[str]:
        """The next questions: "list", or "watch" and from which version on."""
        queries = [await self.server.next_query() for _ in range(count)]
        return [f"watch {query['resourceVersion']}" if "watch" in query else "list" for query in queries]

    async def hears(self, *changes: tuple[str, str | None]) -> None:
        assert [await asyncio.wait_for(self.reported.get(), 60) for _ in changes] == list(changes)


@pytest.fixture
async def idle(monkeypatch) -> AsyncIterator[Harness]:
    """Nothing is asked yet."""
    monkeypatch.setattr(reflector, "_BACKOFF_S", (0.001, 5.0))
    async with scripted_api() as (url, scripts):
        api = KubernetesApi(Configuration(host=url))
        yield Harness(api, scripts["/pods"])
        await api.close()


@pytest.fixture
async def harness(idle) -> AsyncIterator[Harness]:
    task = asyncio.create_task(idle.reflector.run())
    yield idle
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_pages_become_one_list_and_a_watch_begins_at_its_version(harness):
    harness.server.say(
        page(pod("a"), pod("d"), more="next"),
        page(pod("b"), version="20"),
        [event("ADDED", pod("c", "21")), event("DELETED", pod("a", "22"))],
    )
    first = await harness.server.next_query()
    assert first == {"labelSelector": "l", "limit": "250"}
    assert await harness.server.next_query() == first | {"continue": "next"}
    watch = await harness.server.next_query()
    assert 1440 <= int(watch.pop("timeoutSeconds")) <= 2160
    assert watch == {"labelSelector": "l", "watch": "1", "allowWatchBookmarks": "true", "resourceVersion": "20"}
    assert await harness.server.next_query() == first
    assert harness.known == {"b": "1", "c": "21", "d": "1"}


@pytest.fixture
def deep() -> Iterator[bytes]:
    """A pod as deep as the API server stores one, in a process that was told."""
    before, levels = sys.getrecursionlimit(), 9_998
    allow_deep_objects()
    yield json.dumps(pod("deep", "11") | {"spec": 0}).replace('"spec": 0', f'"spec": {"[" * levels}{"]" * levels}').encode()
    sys.setrecursionlimit(before)


async def test_an_object_of_thousands_of_levels_hides_no_other(deep, harness):
    listed = json.dumps(page(pod("a"), {"here": 0})).encode().replace(b'{"here": 0}', deep)
    harness.server.say((200, listed), [b'{"type": "MODIFIED", "object": %s}\n' % deep, event("ADDED", pod("b", "12"))])
    assert await harness.asked(3) == ["list", "watch 10", "list"]
    assert harness.known == {"a": "1", "b": "12", "deep": "11"}


GONE = event("ERROR", {"kind": "Status", "code": 410, "message": "too old"})
INTERNAL = event("ERROR", {"kind": "Status", "code": 500, "message": "storage"})
ENDS = {
    "in-time": [],
    "410": 410,
    "410-event": [GONE],
    "500": 500,
    "403": 403,
    "500-event": [INTERNAL],
    "garbage": [b"no json\n"],
    "no-utf8": [b'{"type": "\xff", "object": {}}\n'],
    "torn": [b'{"type": "ADD'],
    "page-of-a-proxy": (502, b"<html>"),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
async def test_every_end_of_a_watch_is_followed_by_a_list_and_what_it_lacks_is_gone(harness, end):
    harness.server.say(page(pod("a"), pod("b")), end, page(pod("b", "31"), pod("c", "32"), version="40"))
    assert await harness.asked(4) == ["list", "watch 10", "list", "watch 40"]
    assert harness.known == {"b": "31", "c": "32"}


@pytest.mark.parametrize("end", [end for end in ENDS.values() if isinstance(end, list)], ids=[k for k in ENDS if isinstance(ENDS[k], list)])
async def test_no_end_of_a_watch_loses_its_earlier_events(harness, end):
    harness.server.say(page(pod("a")), [event("ADDED", pod("b", "11")), event("DELETED", pod("a", "12")), *end])
    assert await harness.asked(3) == ["list", "watch 10", "list"]
    assert harness.known == {"b": "11"}


@pytest.mark.parametrize(
    "faults",
    [[500], [403], [410], [(502, b"<html>")], [(200, b"no json")], [(200, b'{"\xff')], [page(pod("c", "19"), more="next"), 500]],
    ids=["500", "403", "410", "page-of-a-proxy", "garbage", "no-utf8", "half-a-list"],
)
async def test_a_list_that_fails_keeps_what_is_known_and_is_asked_for_again(harness, faults):
    harness.server.say(page(pod("a")), [event("ADDED", pod("b", "12"))], *faults)
    assert await harness.asked(3 + len(faults)) == ["list", "watch 10", *["list"] * len(faults), "list"]
    assert harness.known == {"a": "1", "b": "12"}
    harness.server.say(page(pod("b", "12"), version="20"))
    assert await harness.asked(1) == ["watch 20"]
    assert harness.known == {"b": "12"}


async def test_a_large_event_is_read_whole(harness):
    harness.server.say(page(), [event("ADDED", pod("big", "11", annotations={"x": "y" * 3 * 2**20}))])
    await harness.asked(3)
    assert harness.known == {"big": "11"}


async def test_a_bookmark_is_a_sign_of_life_and_changes_nothing(harness):
    watch = Held()
    harness.server.say(page(pod("a")), watch)
    assert await asyncio.wait_for(harness.signs.get(), 60) == "listed"
    await harness.asked(2)
    assert await asyncio.wait_for(harness.signs.get(), 60) == "heard"  # it was accepted
    assert harness.signs.empty()
    watch.put_nowait(event("BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": "99"}}))
    assert await asyncio.wait_for(harness.signs.get(), 60) == "heard"
    watch.put_nowait(event("ADDED", pod("b", "12")))
    await harness.hears(("a", "1"), ("b", "12"))
    watch.put_nowait(None)
    assert await harness.asked(1) == ["list"]
    assert harness.known == {"a": "1", "b": "12"}


async def test_what_a_watch_keeps_back_is_found_by_a_list_beside_it(idle):
    due = asyncio.Event()

    class Gated(Reflector):
        async def run_lists(self) -> None:
            await due.wait()
            await self.list()

    idle.server.say(page(pod("a")), Held(), page(pod("a"), pod("kept-back", "12"), version="20"))
    task = asyncio.create_task(Gated(idle.api, PODS, idle.cache).run())
    assert await idle.asked(2) == ["list", "watch 10"]
    due.set()
    assert await idle.asked(1) == ["list"]
    await idle.hears(("a", "1"), ("kept-back", "12"))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_watch_that_falls_silent_ends(harness, monkeypatch):
    """Its connection is up, and nothing comes: without a bookmark for so long it is dead."""
    monkeypatch.setattr(reflector, "SILENT_S", 0.5)
    harness.server.say(page(pod("a")), Held())
    assert await harness.asked(3) == ["list", "watch 10", "list"]
    assert harness.known == {"a": "1"}


async def test_a_list_beside_a_watch_is_not_undone_by_late_events_of_the_watch(harness):
    watch = Held()
    harness.server.say(page(pod("a")), watch, page(pod("b", "31"), version="40"))
    await harness.asked(2)
    assert await harness.reflector.list() == "40"
    for line in (event("ADDED", pod("b", "11")), event("MODIFIED", pod("a", "12")), event("MODIFIED", pod("b", "41"))):
        watch.put_nowait(line)
    await harness.hears(("a", "1"), ("b", "31"), ("a", None), ("b", "41"))
    assert harness.known == {"b": "41"}


async def test_events_that_arrive_during_a_list_are_not_undone_by_the_list(harness):
    watch = Held()
    harness.server.say(page(pod("a")), watch)
    await harness.asked(2)
    listing = asyncio.create_task(harness.reflector.list())
    assert await harness.asked(1) == ["list"]
    watch.put_nowait(event("ADDED", pod("b", "50")))
    await harness.hears(("a", "1"), ("b", "50"))
    harness.server.say(page(pod("a"), version="40"))
    assert await listing == "40"
    assert harness.known == {"a": "1", "b": "50"}


async def test_a_list_says_why_it_failed_and_leaves_the_cache_as_it_is(idle):
    idle.server.say(page(pod("a")), page(pod("b"), more="next"), 410)
    await idle.reflector.list()
    with pytest.raises(ApiFault) as fault:
        await idle.reflector.list()
    assert (fault.value.code, idle.known) == (410, {"a": "1"})


class Hours:
    """An API server without sockets, and hours of the loop's time that nobody waits for. `lasts`: how long each watch goes on before it
    ends, in turn; after the last of them, or after `hours`, all is over."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, lasts: list[float], hours: float = 1.0) -> None:
        self.asked: list[str] = []
        self.pauses: list[float] = []
        self.content = self
        self._lasts, self._left_s = iter(lasts), hours * 3600
        self._clock, self._sleep = LoopClock(), asyncio.sleep
        self._clock.stop()
        monkeypatch.setattr(asyncio, "sleep", self.sleep)

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self._pass(seconds)
        await self._sleep(0)

    async def get(self, _path, query, _limits) -> Hours:
        self.asked.append("watch" if ("watch", "1") in query else "list")
        return self

    async def read(self) -> bytes:
        return json.dumps(page()).encode()

    async def readany(self) -> bytes:
        self._pass(next(self._lasts, self._left_s))
        return b""

    def close(self) -> None: ...

    def _pass(self, seconds: float) -> None:
        self._clock.skip(seconds)
        self._left_s -= seconds
        if self._left_s <= 0:
            raise asyncio.CancelledError

    async def until_over(self, turns) -> None:
        with pytest.raises(asyncio.CancelledError):
            await turns


async def test_a_server_that_ends_each_watch_at_once_is_listed_ever_more_rarely(monkeypatch):
    hours = Hours(monkeypatch, [0.0] * 100_000)
    made = Reflector(hours, PODS, Cache())
    await hours.until_over(made._forever(made._follow))  # without the lists beside it
    assert hours.asked[:4] == ["list", "watch", "list", "watch"]
    assert hours.pauses[0] <= 0.15
    assert all(2.5 <= pause <= 7.5 for pause in hours.pauses[6:])
    assert 3600 / 7.5 <= hours.asked.count("list") <= 3600 / 2.5 + 6


async def test_after_a_watch_that_lasted_the_list_does_not_wait(monkeypatch):
    hours = Hours(monkeypatch, [0.0] * 10 + [300.0] * 3 + [0.0, 0.0])
    made = Reflector(hours, PODS, Cache())
    await hours.until_over(made._forever(made._follow))  # without the lists beside it
    assert min(hours.pauses[6:10]) >= 2.5
    assert max(hours.pauses[10:13]) <= 0.15


async def test_lists_alone_come_as_often_as_with_watches(monkeypatch):
    hours = Hours(monkeypatch, [])
    await hours.until_over(Reflector(hours, PODS, Cache()).run_lists())
    assert set(hours.asked) == {"list"}
    assert all(240 <= long <= 360 for long in [hours.pauses[0], *hours.pauses[1::2]])
    assert all(short <= 0.15 for short in hours.pauses[2::2])
    assert 10 <= len(hours.asked) <= 15
