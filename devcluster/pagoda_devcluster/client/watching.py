"""The API server for the processes that play nodes: asynchronous calls, and lists that are followed for as long as they run."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple, TypeVar

import httpx
import structlog

from pagoda_devcluster.client.api import FIELD_MANAGER, reason
from pagoda_devcluster.client.pki import PLAYER
from pagoda_devcluster.cluster.errors import ApiError
from pagoda_devcluster.cluster.spec import ClusterSpec

Object = dict[str, Any]
T = TypeVar("T")
GONE, CONFLICT, NOT_FOUND = 410, 409, 404
RETRY_SECONDS = 0.5
# The API server ends a watch after 5-10 min by itself; this ends one whose server went away without a word.
WATCH_SECONDS = 300
log = structlog.get_logger()


class Event(NamedTuple):
    """`LISTED` has all objects there are; ADDED, MODIFIED and DELETED have one."""

    kind: str
    objects: list[Object]


async def insist(what: Callable[[], Awaitable[T]]) -> T:
    """Until it is done. A server that has just begun, or that is too busy for our patience, must not end the process that plays nodes: at a
    start nothing else would try again, and nothing starts the process anew."""
    while True:
        try:
            return await what()
        except (httpx.HTTPError, ApiError) as error:
            log.warning("not_yet", error=str(error) or type(error).__name__)
            await asyncio.sleep(RETRY_SECONDS)


class AsyncApi:
    """As the player, whose writes the audit log shows under that name."""

    def __init__(self, spec: ClusterSpec) -> None:
        pki = spec.paths.pki
        context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
        context.load_cert_chain(str(pki / f"{PLAYER.name}.crt"), str(pki / f"{PLAYER.name}.key"))
        limits = httpx.Limits(max_connections=40, max_keepalive_connections=40)
        self._client = httpx.AsyncClient(base_url=spec.server, verify=context, trust_env=False, timeout=60, limits=limits)

    async def get(self, path: str) -> Object | None:
        return await self.call("GET", path)

    async def apply(self, path: str, body: Object) -> Object | None:
        params = {"fieldManager": FIELD_MANAGER, "force": "true"}
        return await self.call("PATCH", path, body, "application/apply-patch+yaml", params)

    async def merge(self, path: str, body: Object) -> Object | None:
        """None: it is gone."""
        return await self.call("PATCH", path, body, "application/merge-patch+json", {"fieldManager": FIELD_MANAGER})

    async def delete(self, path: str, body: Object) -> Object | None:
        return await self.call("DELETE", path, body)

    async def call(
        self, method: str, path: str, body: Object | None = None, kind: str = "application/json", params: dict[str, str] | None = None
    ) -> Object | None:
        content = None if body is None else json.dumps(body)
        answer = await self._client.request(method, path, content=content, params=params, headers={"Content-Type": kind})
        if answer.status_code == NOT_FOUND:
            return None
        if answer.is_error:
            raise ApiError(f"the API server refused {path}: {reason(answer)}", answer.status_code)
        document: Object = answer.json()
        return document

    async def follow(self, path: str, **params: str) -> AsyncIterator[Event]:
        """A list and then every change of it, for ever. After a break that lost events there is another list."""
        version = ""
        while True:
            try:
                if not version:
                    listed = await self.call("GET", path, params=params) or {"items": [], "metadata": {"resourceVersion": ""}}
                    version = listed["metadata"]["resourceVersion"]
                    yield Event("LISTED", listed["items"])
                async for event in self._changes(path, params | {"resourceVersion": version}):
                    version = event.objects[0]["metadata"]["resourceVersion"]
                    if event.kind != "BOOKMARK":
                        yield event
            except (httpx.HTTPError, ApiError, ValueError) as error:  # a server may die in the middle of a line
                log.info("watch_broken", path=path, error=str(error) or type(error).__name__)
                version = "" if isinstance(error, ApiError) and error.code == GONE else version
                await asyncio.sleep(RETRY_SECONDS)

    async def _changes(self, path: str, params: dict[str, str]) -> AsyncIterator[Event]:
        query = params | {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(WATCH_SECONDS)}
        timeout = httpx.Timeout(60, read=WATCH_SECONDS + 30)
        async with self._client.stream("GET", path, params=query, timeout=timeout) as answer:
            if answer.is_error:
                raise ApiError(f"the API server refused to watch {path}", answer.status_code)
            async for line in answer.aiter_lines():
                raw = json.loads(line)
                if raw["type"] == "ERROR":
                    raise ApiError(str(raw["object"].get("message")), raw["object"].get("code", GONE))
                yield Event(raw["type"], [raw["object"]])
