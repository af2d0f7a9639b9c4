"""Kopf's side: the only file that registers with it. Events become keys at the door; no logic, no writes, no finalizers.

Only `on.event`: Kopf then writes neither annotations nor finalizers, and a lost event costs one resync.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any, Final

import aiohttp
import kopf
from pagoda_contracts.names import LABEL_SERVICE

from pagoda_operator.observe import profile_name
from pagoda_operator.queue import RETRY_DELAYS, Door
from pagoda_operator.state import DEPLOYMENTS, PODS, PROFILES, SERVICES, Key, Resource

_BACKOFFS: Final = (0.5, 1, 2, 5, 10, 15)


class EndlessJitter:
    """Delays between tries of a watch: Kopf's own end after 54 s of HTTP 5xx, and with them the process."""

    def __iter__(self) -> Iterator[float]:
        step = 0
        while True:
            yield _BACKOFFS[min(step, len(_BACKOFFS) - 1)] * random.uniform(0.8, 1.2)  # noqa: S311 (spreads load, keeps no secret)
            step += 1


def register(registry: kopf.OperatorRegistry, door: Door, server: str, session: Callable[[], aiohttp.ClientSession]) -> None:
    """All handlers, closed over the door: no global registry, so that two operators may live in one test."""

    @kopf.on.startup(registry=registry)
    async def _configure(settings: kopf.OperatorSettings, **_: Any) -> None:
        configure(settings)

    @kopf.on.login(registry=registry)
    async def _login(**_: Any) -> kopf.AiohttpSession:
        return kopf.AiohttpSession(server=server, aiohttp_session=session())

    @kopf.on.event(*_words(SERVICES), registry=registry)
    async def _service(*, namespace: str | None, name: str, body: kopf.Body, event: kopf.RawEvent, **_: Any) -> None:
        door.service(Key(namespace or "", name), profile_name(body), gone=event["type"] == "DELETED")

    @kopf.on.event(*_words(PROFILES), registry=registry)
    async def _profile(*, name: str, **_: Any) -> None:
        door.profile(name)

    @kopf.on.event(*_words(DEPLOYMENTS), labels={LABEL_SERVICE: kopf.PRESENT}, registry=registry)
    @kopf.on.event(*_words(PODS), labels={LABEL_SERVICE: kopf.PRESENT}, registry=registry)
    async def _child(*, namespace: str | None, labels: kopf.Labels, **_: Any) -> None:
        door.child(Key(namespace or "", labels[LABEL_SERVICE]))


def configure(settings: kopf.OperatorSettings) -> None:
    """Kopf's settings: survive outages, notice silence, write nothing."""
    settings.peering.standalone = True
    settings.posting.enabled = False
    settings.watching.inactivity_timeout = 70  # bookmarks come every ~60 s
    settings.watching.server_timeout, settings.watching.client_timeout = 300, 330
    settings.watching.connect_timeout = 10
    settings.watching.chunk_size = 500
    for resource in (DEPLOYMENTS, PODS):
        settings.watching.label_selectors[_words(resource)] = LABEL_SERVICE
    settings.networking.request_timeout, settings.networking.connect_timeout = 30, 5
    settings.networking.error_backoffs = EndlessJitter()
    settings.queueing.error_delays = RETRY_DELAYS
    settings.queueing.worker_limit = None
    settings.execution.default_backoff, settings.execution.max_workers = 5, 8
    settings.process.ultimate_exiting_timeout = 25


def _words(resource: Resource) -> tuple[str, str, str]:
    group, _, version = resource.api_version.rpartition("/")
    return group, version, resource.plural
