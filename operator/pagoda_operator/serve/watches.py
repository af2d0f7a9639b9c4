"""Feeds the caches: a reflector for each kind, and Kopf for our own kinds, which reflectors only list. Run by process.py.

Of Kopf only `on.event` is used, so it writes neither annotations nor finalizers. The next list finds an event that was lost.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from http import HTTPStatus
from itertools import chain, repeat
from typing import Any, Final

import aiohttp
import kopf
import structlog
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration
from pagoda_contracts.names import LABEL_SERVICE
from pagoda_kube.api import UNREADABLE, ApiFault
from pagoda_kube.reflector import LIST_EVERY_S, Api, Kind, Reflector, Signs

from pagoda_operator.api.state import (
    ADAPTERS,
    CHILD_RESOURCES,
    PROFILES,
    QUOTAS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    SERVICES,
    Resource,
)
from pagoda_operator.client.requests import path_of
from pagoda_operator.run.queue import RETRY_DELAYS
from pagoda_operator.serve.monitoring import Liveness
from pagoda_operator.watch.caches import Caches, Seen

# Kinds that an older cluster does not have.
OPTIONAL_KINDS: Final = (RESOURCE_CLAIM_TEMPLATES, RESOURCE_SLICES, RESOURCE_CLAIMS)
# Our own kinds, which Kopf watches.
KOPF_KINDS: Final = (SERVICES, PROFILES, ADAPTERS, QUOTAS)
_TRY_AGAIN_S: Final = 2.0


class Reflectors:
    """One for each kind; for the OPTIONAL_KINDS only if they are `present` in this cluster."""

    def __init__(self, api: Api, caches: Caches, liveness: Liveness, present: Iterable[Resource], resync: float) -> None:
        here, every_s = frozenset(present), min(resync, LIST_EVERY_S)
        self._reflectors = {
            (resource, scope): Reflector(api, kind_of(caches, resource, scope), cache, _signs(liveness, resource, scope), every_s)
            for resource, scope, cache in caches.each()
            if resource not in OPTIONAL_KINDS or resource in here
        }
        liveness.expect(len(self._reflectors) + 1)  # and the definitions that Kopf looks for

    def runs(self) -> list[Awaitable[None]]:
        """Their runs, until cancelled."""
        return [found.run_lists() if resource in KOPF_KINDS else found.run() for (resource, _), found in self._reflectors.items()]

    async def list_all(self) -> None:
        """Lists every kind by a quorum read, however long that takes: a leader that decided before would take devices in use for free."""
        await asyncio.gather(*(_until_listed(resource, reflector) for (resource, _), reflector in self._reflectors.items()))


def kind_of(caches: Caches, resource: Resource, namespace: str) -> Kind[Seen]:
    """Children are listed by a service's label. Pods are all listed, since placement needs the devices that others use. `namespace`: "" for
    all."""
    query = (("labelSelector", LABEL_SERVICE),) if resource in CHILD_RESOURCES else ()
    return Kind(path_of(resource, namespace), caches.reader_of(resource), query)


async def _until_listed(resource: Resource, reflector: Reflector[Seen]) -> None:
    while True:
        try:
            await reflector.list()
            return
        except (ApiFault, aiohttp.ClientError, OSError, *UNREADABLE) as error:
            structlog.get_logger().warning("not_listed", kind=resource.kind, error=f"{type(error).__name__}: {error}")
        await asyncio.sleep(_TRY_AGAIN_S)


def _signs(liveness: Liveness, resource: Resource, namespace: str) -> Signs:
    if resource in KOPF_KINDS:  # Kopf's own session reports them
        return Signs()
    path = path_of(resource, namespace)
    return Signs(heard=lambda: liveness.watched(path, time.monotonic()))


_BACKOFFS: Final = (0.5, 1, 2, 5, 10, 15)


class EndlessJitter:
    """Delays between attempts at a watch: Kopf's own end after 54 s of HTTP 5xx, and with them the process."""

    def __iter__(self) -> Iterator[float]:
        for seconds in chain(_BACKOFFS, repeat(_BACKOFFS[-1])):
            yield seconds * random.uniform(0.8, 1.2)  # noqa: S311 (spreads load, keeps no secret)


def register(registry: kopf.OperatorRegistry, caches: Caches, server: str, session: Callable[[], aiohttp.ClientSession]) -> None:
    """Registers all handlers, in a registry of this process: two operators may run in one test."""

    @kopf.on.startup(registry=registry)
    async def _configure(settings: kopf.OperatorSettings, **_: Any) -> None:
        configure(settings)

    @kopf.on.login(registry=registry)
    async def _login(**_: Any) -> kopf.AiohttpSession:
        return kopf.AiohttpSession(server=server, aiohttp_session=session())

    for resource in KOPF_KINDS:
        _watch(registry, caches, resource)


def _watch(registry: kopf.OperatorRegistry, caches: Caches, resource: Resource) -> None:
    group, _, version = resource.api_version.rpartition("/")

    @kopf.on.event(group, version, resource.plural, registry=registry)
    async def _event(*, event: kopf.RawEvent, **_: Any) -> None:
        caches.event(resource, event["object"], gone=event["type"] == "DELETED")


def configure(settings: kopf.OperatorSettings) -> None:
    """Kopf's settings: it survives outages, notices silence and writes nothing."""
    settings.posting.enabled = False
    settings.watching.inactivity_timeout = 70  # bookmarks come every ~60 s
    settings.watching.server_timeout, settings.watching.client_timeout = 300, 330
    settings.watching.connect_timeout = 10
    settings.watching.chunk_size = 100  # a page is in memory as text and as objects, and memory peaks at the start
    # Kopf keeps each object's body for so long after its last event. With 5 s all 500 services were in memory at once after a start.
    settings.queueing.idle_timeout = 0.5
    settings.networking.request_timeout, settings.networking.connect_timeout = 30, 5
    settings.networking.error_backoffs = EndlessJitter()
    settings.queueing.error_delays = RETRY_DELAYS
    settings.process.ultimate_exiting_timeout = 25


def watch_session(configuration: Configuration, heard: Callable[[str, float], None]) -> aiohttp.ClientSession:
    """Returns Kopf's HTTP session, with the addresses, certificates and rotating tokens of our own client. `heard` is called with the path
    and the time of each accepted watch, event and bookmark."""

    async def authorize(request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        if token := await configuration.get_api_key_with_prefix("BearerToken"):
            request.headers["Authorization"] = token
        return await send(request)

    class Response(aiohttp.ClientResponse):
        async def start(self, connection: Any) -> aiohttp.ClientResponse:
            await super().start(connection)
            if "watch" in self.url.query and self.status == HTTPStatus.OK:
                heard(self.url.path, time.monotonic())
                self.content = _Stamped(self.content, lambda: heard(self.url.path, time.monotonic()))  # type: ignore[assignment]
            return self

    ssl_context = ApiClient(configuration).rest_client.ssl_context
    connector = aiohttp.TCPConnector(limit=0, ssl=ssl_context)
    return aiohttp.ClientSession(connector=connector, response_class=Response, middlewares=(authorize,))


class _Stamped:
    """A response's stream that reports each chunk. Kopf passes events on but no bookmarks, and idle kinds have only those."""

    def __init__(self, content: aiohttp.StreamReader, alive: Callable[[], None]) -> None:
        self._content, self._alive = content, alive

    def __getattr__(self, name: str) -> Any:
        return getattr(self._content, name)

    async def iter_chunked(self, size: int) -> Any:
        async for chunk in self._content.iter_chunked(size):
            self._alive()
            yield chunk
