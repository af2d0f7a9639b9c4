"""List and watch against a scripted API server: pages, bookmarks, 410 in both places, faults, and what is known meanwhile."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import aiohttp
import pytest
from aiohttp import web
from pagoda_gateway.watch.cluster import PodObject
from pagoda_gateway.watch.reflector import Reflector, Store


def pod(name: str, version: str = "1", **metadata) -> dict:
    return {"kind": "Pod", "metadata": {"name": name, "namespace": "ns", "resourceVersion": version, "unknown": 1} | metadata}


def event(kind: str, thing: dict) -> bytes:
    return json.dumps({"type": kind, "object": thing}).encode() + b"\n"


def page(*items: dict, version: str = "10", more: str = "") -> dict:
    return {"kind": "PodList", "metadata": {"resourceVersion": version, "continue": more}, "items": list(items)}


@dataclass
class Server:
    """Answers in the order written: a document (a list), a number (a fault), or a list of lines (a watch that then ends)."""

    answers: asyncio.Queue = field(default_factory=asyncio.Queue)
    asked: asyncio.Queue = field(default_factory=asyncio.Queue)
    url: str = ""

    def say(self, *answers) -> None:
        for answer in answers:
            self.answers.put_nowait(answer)

    async def next_query(self) -> dict[str, str]:
        return await asyncio.wait_for(self.asked.get(), 60)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.asked.put_nowait(dict(request.query))
        answer = await self.answers.get()
        if isinstance(answer, int):
            return web.json_response({"kind": "Status", "code": answer, "message": "scripted"}, status=answer)
        if isinstance(answer, dict):
            return web.json_response(answer)
        out = web.StreamResponse()
        await out.prepare(request)
        for line in answer:
            await out.write(line)
        return out


class Api:
    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session, self._url = session, url

    async def get(self, path, query, limits):
        return await self._session.get(self._url + path, params=list(query), timeout=limits)


@dataclass
class Seen:
    """What the mirror was told."""

    names: dict[str, str] = field(default_factory=dict)
    synced: int = 0

    def put(self, thing: PodObject) -> None:
        self.names[thing.metadata.key] = thing.metadata.resource_version

    def drop(self, key: str) -> None:
        del self.names[key]

    def mark(self) -> None:
        self.synced += 1


@pytest.fixture
async def scene() -> AsyncIterator[tuple[Server, Seen]]:
    server, seen = Server(), Seen()
    app = web.Application()
    app.add_routes([web.get("/pods", server.handle)])
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with aiohttp.ClientSession() as session:
        api = Api(session, f"http://127.0.0.1:{runner.addresses[0][1]}")
        task = asyncio.create_task(
            Reflector(api, "/pods", Store(PodObject, seen.put, seen.drop), seen.mark, [("labelSelector", "l")]).run()
        )
        yield server, seen
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await runner.cleanup()


async def test_pages_become_one_list_and_the_watch_goes_on_from_it(scene):
    server, seen = scene
    server.say(
        page(pod("a"), more="next"), page(pod("b"), version="20"), [event("ADDED", pod("c", "21")), event("DELETED", pod("a", "22"))]
    )
    assert await server.next_query() == {"labelSelector": "l", "limit": "500"}
    assert (await server.next_query())["continue"] == "next"
    first = await server.next_query()
    assert (first["resourceVersion"], first["watch"], first["allowWatchBookmarks"]) == ("20", "1", "true")
    assert (await server.next_query())["resourceVersion"] == "22"
    assert (seen.names.keys(), seen.synced) == ({"ns/b", "ns/c"}, 1)


async def test_a_bookmark_moves_the_version_and_nothing_else(scene):
    server, seen = scene
    server.say(page(pod("a")), [event("BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": "99"}})])
    versions = [(await server.next_query()).get("resourceVersion") for _ in range(3)]
    assert versions == [None, "10", "99"]
    assert seen.names == {"ns/a": "1"}


GONE = {"kind": "Status", "code": 410, "message": "too old"}


@pytest.mark.parametrize("gone", [410, [event("ERROR", GONE)]], ids=["as-status", "as-event"])
async def test_a_version_too_old_lists_again_and_drops_what_is_gone(scene, gone):
    server, seen = scene
    server.say(page(pod("a"), pod("b")), gone, page(pod("b", "31"), pod("c"), version="40"), [])
    queries = [await server.next_query() for _ in range(4)]
    assert ["watch" in query for query in queries] == [False, True, False, True]
    assert queries[3]["resourceVersion"] == "40"
    assert seen.names == {"ns/b": "31", "ns/c": "1"}
    assert seen.synced == 2


TORN = [event("ADDED", pod("b", "11")), b'{"type": "ADD']
INTERNAL = event("ERROR", {"kind": "Status", "code": 500, "message": "storage"})


@pytest.mark.parametrize("fault", [500, 403, [INTERNAL], [b"no json\n"]], ids=["500", "403", "error-event", "garbage"])
async def test_a_fault_keeps_what_is_known_and_watches_again_from_there(scene, fault):
    server, seen = scene
    server.say(page(pod("a")), fault, [event("ADDED", pod("b", "12"))], [])
    versions = [(await server.next_query()).get("resourceVersion") for _ in range(4)]
    assert versions == [None, "10", "10", "12"]
    assert (seen.names.keys(), seen.synced) == ({"ns/a", "ns/b"}, 1)


async def test_a_watch_that_ends_within_an_event_loses_nothing_before_it(scene):
    server, seen = scene
    server.say(page(pod("a")), TORN, [])
    versions = [(await server.next_query()).get("resourceVersion") for _ in range(3)]
    assert versions == [None, "10", "11"]
    assert seen.names.keys() == {"ns/a", "ns/b"}


async def test_a_large_event_is_read_whole(scene):
    server, seen = scene
    server.say(page(), [event("ADDED", pod("big", "11", annotations={"x": "y" * 3 * 2**20}))], [])
    for _ in range(3):
        await server.next_query()
    assert seen.names == {"ns/big": "11"}
