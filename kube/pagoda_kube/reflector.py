"""Keeps a cache as the API server says: list, watch from there, and list again whenever a watch ends. Knows Kubernetes' wire format and no
object's meaning.

Every list is a quorum read (no resourceVersion). Beside the watch all is listed every five minutes: what a watch kept back, for whatever
reason, is found then. After a fault it tries again with jittered backoff, and the cache stays as it is.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

import aiohttp
import msgspec
import structlog

from pagoda_kube.api import UNREADABLE, ApiFault, Status
from pagoda_kube.cache import Cache, Item

log = structlog.get_logger()

# Objects in one page of a list: 5,000 pods at once would be 60 MB.
_PAGE: Final = 250
_LIST_S: Final = 30.0
LIST_EVERY_S: Final = 300.0
_WATCH_S: Final = 1800.0
# Bookmarks come about every 60 s: a watch that is silent for longer has died without a FIN.
SILENT_S: Final = 75.0
_CONNECT_S: Final = 5.0
_BACKOFF_S: Final = (0.1, 5.0)

V = TypeVar("V")


class Api(Protocol):
    """GET on the API server, authenticated."""

    async def get(self, path: str, query: Sequence[tuple[str, str]], limits: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:
        """The answer's head; ApiFault for an error."""


class _ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str
    continue_: str = msgspec.field(default="", name="continue")


class _List(msgspec.Struct):
    metadata: _ListMeta
    items: list[msgspec.Raw] | None = None


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class Kind(NamedTuple, Generic[V]):
    """What is followed: the path of its lists, what selects, and how an object is read."""

    path: str
    read: Callable[[msgspec.Raw], Item[V]]
    query: tuple[tuple[str, str], ...] = ()


class Signs(NamedTuple):
    """Signs of life: a complete list was taken; a watch was accepted, or something was heard from it."""

    listed: Callable[[], None] = lambda: None
    heard: Callable[[], None] = lambda: None


_NONE: Final = Signs()


class Reflector(Generic[V]):
    """Of one kind."""

    def __init__(self, api: Api, kind: Kind[V], cache: Cache[V], signs: Signs = _NONE, every_s: float = LIST_EVERY_S) -> None:
        self._api, self._kind, self._cache, self._signs, self._every_s = api, kind, cache, signs, every_s
        self._listed = False

    async def run(self) -> None:
        """Lists and watches until it is cancelled."""
        async with asyncio.TaskGroup() as both:
            both.create_task(self._forever(self._follow))
            both.create_task(self.run_lists())

    async def run_lists(self) -> None:
        """Lists from time to time, beside a watch of ours or of Kopf's; until it is cancelled."""
        await asyncio.sleep(_some(self._every_s))
        await self._forever(self._list_and_wait)

    async def list(self) -> str:
        """Takes one complete list and returns its version. May be called beside `run`. ApiFault, aiohttp.ClientError, OSError or one of
        UNREADABLE where it fails; then the cache is as before."""
        since, items, page = self._cache.newest, list[Item[V]](), ""
        while True:
            query = [*self._kind.query, ("limit", str(_PAGE)), *([("continue", page)] if page else [])]
            answer = await self._api.get(self._kind.path, query, aiohttp.ClientTimeout(total=_LIST_S))
            part = msgspec.json.decode(await answer.read(), type=_List)
            items += [self._kind.read(raw) for raw in part.items or ()]
            if not (page := part.metadata.continue_):
                break
        found = self._cache.take_list(items, part.metadata.resource_version, since)
        if found and self._listed:  # what a watch was about to send is among it
            log.info("list_found_more", path=self._kind.path, objects=found)
        self._listed = True
        self._signs.listed()
        return part.metadata.resource_version

    async def _forever(self, turn: Callable[[], Awaitable[None]]) -> None:
        """Turn after turn. One that ended within seconds is a fault's, whatever it said: a server that ends each watch at once is not
        listed ten times a second."""
        pause, clock = _BACKOFF_S[0], asyncio.get_running_loop().time
        while True:
            began = clock()
            try:
                await turn()
            except (ApiFault, aiohttp.ClientError, OSError, *UNREADABLE) as error:
                log.warning("watch_failed", path=self._kind.path, error=f"{type(error).__name__}: {error}")
            if clock() - began > _BACKOFF_S[1]:
                pause = _BACKOFF_S[0]
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311 (jitter)
            pause = min(2 * pause, _BACKOFF_S[1])

    async def _follow(self) -> None:
        version = await self.list()
        async with aclosing(self._lines(version)) as lines:
            async for line in lines:
                self._read(line)

    async def _list_and_wait(self) -> None:
        await self.list()
        await asyncio.sleep(_some(self._every_s))

    async def _lines(self, version: str) -> AsyncGenerator[bytes, None]:
        """The events of a watch from a version on, until the server ends it or falls silent."""
        extra = [
            ("watch", "1"),
            ("allowWatchBookmarks", "true"),
            ("resourceVersion", version),
            ("timeoutSeconds", f"{_some(_WATCH_S):.0f}"),
        ]
        limits = aiohttp.ClientTimeout(sock_connect=_CONNECT_S, sock_read=SILENT_S)
        answer = await self._api.get(self._kind.path, [*self._kind.query, *extra], limits)
        self._signs.heard()
        tail = b""
        try:
            while chunk := await answer.content.readany():
                self._signs.heard()
                *lines, tail = (tail + chunk).split(b"\n")
                for line in lines:
                    yield line
        except TimeoutError:
            log.info("watch_silent", path=self._kind.path, seconds=SILENT_S)
        finally:
            answer.close()

    def _read(self, line: bytes) -> None:
        event = msgspec.json.decode(line, type=_Event)
        if event.type == "ERROR":
            status = msgspec.json.decode(event.object, type=Status)
            raise ApiFault(status.code, status.message)
        if event.type == "BOOKMARK":
            return
        item = self._kind.read(event.object)
        if event.type == "DELETED":
            self._cache.drop(item.key, item.version)
        else:
            self._cache.put(item)


def _some(seconds: float) -> float:
    """A fifth more or less: kinds and processes that begin together come apart."""
    return seconds * random.uniform(0.8, 1.2)  # noqa: S311 (jitter)
