"""Follows one kind of object: list, then watch from there. Called by cluster.py; knows Kubernetes' wire format, no object's meaning.

After a 410 it lists again. After any other fault it retries with jittered backoff and keeps its last state, so that the gateway goes on
serving while the API server is unreachable.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Final, Generic, Protocol, TypeVar

import aiohttp
import msgspec
import structlog

log = structlog.get_logger()

_PAGE: Final = 500
_LIST_S: Final = 30.0
_WATCH_S: Final = 290
# Bookmarks come about every 60 s: a watch that is silent for longer has died without a FIN.
_SILENT_S: Final = 75.0
_CONNECT_S: Final = 5.0
_BACKOFF_S: Final = (0.1, 5.0)
_GONE: Final = 410


class Meta(msgspec.Struct, rename="camel"):
    """The part of metadata that routing reads."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: str = ""
    deletion_timestamp: str | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}

    @property
    def key(self) -> str:
        """namespace/name."""
        return f"{self.namespace}/{self.name}"


class Watched(Protocol):
    """An object with metadata."""

    @property
    def metadata(self) -> Meta: ...


T = TypeVar("T", bound=Watched)


class Api(Protocol):
    """GET on the API server, authenticated."""

    async def get(self, path: str, query: Sequence[tuple[str, str]], limits: aiohttp.ClientTimeout) -> aiohttp.ClientResponse: ...


class ApiFault(Exception):
    """The API server answered with an error; `code` is HTTP's."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class _List(msgspec.Struct):
    metadata: _ListMeta
    items: list[msgspec.Raw] = []


class _ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Status(msgspec.Struct):
    code: int = 0
    message: str = ""


class Store(Generic[T]):
    """Turns lists and events into puts and deletes by key."""

    def __init__(self, kind: type[T], put: Callable[[T], None], delete: Callable[[str], None]) -> None:
        self._decoder = msgspec.json.Decoder(kind)
        self._put, self._delete = put, delete
        self._keys: set[str] = set()

    def replace(self, raws: Iterable[msgspec.Raw]) -> None:
        """Takes a complete list. Objects that it lacks are deleted."""
        objects = {(read := self._decoder.decode(raw)).metadata.key: read for raw in raws}
        for key in self._keys - objects.keys():
            self._delete(key)
        for read in objects.values():
            self._put(read)
        self._keys = set(objects)

    def apply(self, event: str, raw: msgspec.Raw) -> str:
        """Takes one event and returns its resource version. ApiFault for an ERROR."""
        if event == "ERROR":
            status = msgspec.json.decode(raw, type=_Status)
            raise ApiFault(status.code, status.message)
        read = self._decoder.decode(raw)
        key = read.metadata.key
        if event in ("ADDED", "MODIFIED"):
            self._put(read)
            self._keys.add(key)
        elif event == "DELETED":
            self._delete(key)
            self._keys.discard(key)
        return read.metadata.resource_version


class Reflector:
    """Keeps a store up to date. `synced` is called after every complete list."""

    def __init__(self, api: Api, path: str, store: Store[T], synced: Callable[[], None], query: Sequence[tuple[str, str]] = ()) -> None:
        self._api, self._path, self._query = api, path, list(query)
        self._replace, self._apply, self._synced = store.replace, store.apply, synced
        self._version = ""

    async def run(self) -> None:
        """Runs until it is cancelled."""
        pause = _BACKOFF_S[0]
        while True:
            try:
                if not self._version:
                    await self._list()
                    pause = _BACKOFF_S[0]
                async for line in self._lines():
                    self._read(line)
                    pause = _BACKOFF_S[0]
            except ApiFault as fault:
                self._version = "" if fault.code == _GONE else self._version
                log.warning("watch ended with an error", path=self._path, why=str(fault))
            except (aiohttp.ClientError, OSError, msgspec.DecodeError) as error:
                log.warning("watch broke; the last state stays in use", path=self._path, why=f"{type(error).__name__}: {error}")
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311 - jitter
            pause = min(2 * pause, _BACKOFF_S[1])

    async def _list(self) -> None:
        raws: list[msgspec.Raw] = []
        page = ""
        while True:
            query = [*self._query, ("limit", str(_PAGE)), *([("continue", page)] if page else [])]
            answer = await self._get(query, aiohttp.ClientTimeout(total=_LIST_S))
            part = msgspec.json.decode(await answer.read(), type=_List)
            raws += part.items
            if not (page := part.metadata.continue_):
                break
        self._replace(raws)
        self._version = part.metadata.resource_version
        self._synced()

    async def _lines(self) -> AsyncIterator[bytes]:
        """Yields the watch's events from the last version on, until the server ends the watch or falls silent."""
        extra = [("watch", "1"), ("allowWatchBookmarks", "true"), ("resourceVersion", self._version), ("timeoutSeconds", str(_WATCH_S))]
        answer = await self._get([*self._query, *extra], aiohttp.ClientTimeout(sock_connect=_CONNECT_S, sock_read=_SILENT_S))
        tail = b""
        try:
            while chunk := await answer.content.readany():
                *lines, tail = (tail + chunk).split(b"\n")
                for line in lines:
                    yield line
        except TimeoutError:
            log.info("watch fell silent and is opened again", path=self._path, seconds=_SILENT_S)
        finally:
            answer.close()

    def _read(self, line: bytes) -> None:
        event = msgspec.json.decode(line, type=_Event)
        self._version = self._apply(event.type, event.object) or self._version

    async def _get(self, query: Sequence[tuple[str, str]], limits: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:
        answer = await self._api.get(self._path, query, limits)
        if answer.status == 200:
            return answer
        body = await answer.read()
        try:
            message = msgspec.json.decode(body, type=_Status).message
        except msgspec.DecodeError:
            message = body[:200].decode(errors="replace")
        raise ApiFault(answer.status, message)
