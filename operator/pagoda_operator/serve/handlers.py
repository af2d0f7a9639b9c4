"""Kopf's side: the only file that registers with it. It watches our own kinds, whose events go to the caches; no logic, no write, no
finalizer. What becomes of an event says triggers.py.

Only `on.event`: Kopf then writes neither annotations nor finalizers, and a lost event costs until the next list.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any, Final

import aiohttp
import kopf

from pagoda_operator.api.state import Resource
from pagoda_operator.run.queue import RETRY_DELAYS
from pagoda_operator.serve.feeds import KOPFS
from pagoda_operator.serve.kopf_storage import NoDifference
from pagoda_operator.watch.caches import Caches

_BACKOFFS: Final = (0.5, 1, 2, 5, 10, 15)


class EndlessJitter:
    """Delays between tries of a watch: Kopf's own end after 54 s of HTTP 5xx, and with them the process."""

    def __iter__(self) -> Iterator[float]:
        step = 0
        while True:
            yield _BACKOFFS[min(step, len(_BACKOFFS) - 1)] * random.uniform(0.8, 1.2)  # noqa: S311 (spreads load, keeps no secret)
            step += 1


def register(registry: kopf.OperatorRegistry, caches: Caches, server: str, session: Callable[[], aiohttp.ClientSession]) -> None:
    """All handlers, closed over the caches: no global registry, so that two operators may live in one test."""

    @kopf.on.startup(registry=registry)
    async def _configure(settings: kopf.OperatorSettings, **_: Any) -> None:
        configure(settings)

    @kopf.on.login(registry=registry)
    async def _login(**_: Any) -> kopf.AiohttpSession:
        return kopf.AiohttpSession(server=server, aiohttp_session=session())

    for resource in KOPFS:
        _watch(registry, caches, resource)


def _watch(registry: kopf.OperatorRegistry, caches: Caches, resource: Resource) -> None:
    @kopf.on.event(*_words(resource), registry=registry)
    async def _event(*, event: kopf.RawEvent, **_: Any) -> None:
        caches.event(resource, event["object"], gone=event["type"] == "DELETED")


def configure(settings: kopf.OperatorSettings) -> None:
    """Kopf's settings: survive outages, notice silence, write nothing."""
    settings.peering.standalone = True
    settings.posting.enabled = False
    settings.persistence.diffbase_storage = NoDifference()
    settings.watching.inactivity_timeout = 70  # bookmarks come every ~60 s
    settings.watching.server_timeout, settings.watching.client_timeout = 300, 330
    settings.watching.connect_timeout = 10
    settings.watching.chunk_size = 100  # a page is in memory as text and as objects at once, and a start is where memory peaks
    # For so long after its last event Kopf keeps each object's body: over 5 s, 500 services' were all in memory at once after a start.
    settings.queueing.idle_timeout = 0.5
    settings.networking.request_timeout, settings.networking.connect_timeout = 30, 5
    settings.networking.error_backoffs = EndlessJitter()
    settings.queueing.error_delays = RETRY_DELAYS
    settings.queueing.worker_limit = None
    settings.execution.default_backoff, settings.execution.max_workers = 5, 8
    settings.process.ultimate_exiting_timeout = 25
    settings.scanning.disabled = False


def _words(resource: Resource) -> tuple[str, str, str]:
    group, _, version = resource.api_version.rpartition("/")
    return group, version, resource.plural
