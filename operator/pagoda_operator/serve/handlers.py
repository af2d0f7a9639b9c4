"""Kopf's side: the only file that registers with it. Events go to mirrors and become keys at the door; no logic, no write, no finalizer.

Only `on.event`: Kopf then writes neither annotations nor finalizers, and a lost event costs a minute.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import aiohttp
import kopf
from pagoda_contracts.names import LABEL_SERVICE

from pagoda_operator.api.state import (
    ADAPTERS,
    CHILD_RESOURCES,
    NODES,
    PODS,
    PROFILES,
    QUOTAS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    SERVICES,
    Json,
    Key,
    Resource,
)
from pagoda_operator.run.queue import RETRY_DELAYS
from pagoda_operator.serve.kopf_unlearned import NoDifference
from pagoda_operator.watch.claims import Claims
from pagoda_operator.watch.door import Door, Stand
from pagoda_operator.watch.mirror import Mirror
from pagoda_operator.watch.observe import adapted_service, profile_name, quota_namespaces, unanswered
from pagoda_operator.watch.world import World

_BACKOFFS: Final = (0.5, 1, 2, 5, 10, 15)
# Kinds that an older cluster does not have.
DEVICES: Final = (RESOURCE_SLICES, RESOURCE_CLAIMS)
PERHAPS: Final = (RESOURCE_CLAIM_TEMPLATES, *DEVICES)
CHILDREN: Final = tuple(resource for resource in CHILD_RESOURCES if resource not in PERHAPS)
ALWAYS: Final = (SERVICES, PROFILES, ADAPTERS, QUOTAS, *CHILDREN, PODS, NODES)


class EndlessJitter:
    """Delays between tries of a watch: Kopf's own end after 54 s of HTTP 5xx, and with them the process."""

    def __iter__(self) -> Iterator[float]:
        step = 0
        while True:
            yield _BACKOFFS[min(step, len(_BACKOFFS) - 1)] * random.uniform(0.8, 1.2)  # noqa: S311 (spreads load, keeps no secret)
            step += 1


class Intake:
    """When the last event came. The first lists come as thousands of events: planning before their end reads what is about to be told.
    `heard` is told of each: what a list of Kopf's said is a word of that kind's too, and no line of its watch."""

    def __init__(self, heard: Callable[[str, float], None] = lambda _kind, _now: None) -> None:
        self._last = 0.0
        self._heard = heard

    def touch(self, resource: Resource) -> None:
        """An event."""
        self._last = asyncio.get_running_loop().time()
        self._heard(resource.plural, self._last)

    async def quiet(self, seconds: float, most: float) -> None:
        """Wait until no event came for so long; no longer than `most`, since a large cluster is never silent."""
        end = asyncio.get_running_loop().time() + most
        while (now := asyncio.get_running_loop().time()) < min(end, self._last + seconds):  # noqa: ASYNC110 (no event tells of silence)
            await asyncio.sleep(min(end, self._last + seconds) - now)


class Sink(NamedTuple):
    """Where events go, and which of the kinds in PERHAPS this cluster has."""

    door: Door
    world: World
    mirror: Mirror
    intake: Intake
    claims: Claims
    present: frozenset[Resource] = frozenset()

    @property
    def kinds(self) -> tuple[Resource, ...]:
        """Every kind that is watched, but the definitions that Kopf itself looks for."""
        return (*ALWAYS, *(resource for resource in PERHAPS if resource in self.present))


def register(registry: kopf.OperatorRegistry, sink: Sink, server: str, session: Callable[[], aiohttp.ClientSession]) -> None:
    """All handlers, closed over the sink: no global registry, so that two operators may live in one test."""

    @kopf.on.startup(registry=registry)
    async def _configure(settings: kopf.OperatorSettings, **_: Any) -> None:
        configure(settings)

    @kopf.on.login(registry=registry)
    async def _login(**_: Any) -> kopf.AiohttpSession:
        return kopf.AiohttpSession(server=server, aiohttp_session=session())

    _own_kinds(registry, sink)
    _children(registry, sink)
    _cluster_kinds(registry, sink)


def _own_kinds(registry: kopf.OperatorRegistry, sink: Sink) -> None:
    @kopf.on.event(*_words(SERVICES), registry=registry)
    async def _service(*, namespace: str | None, name: str, body: kopf.Body, event: kopf.RawEvent, **_: Any) -> None:
        key, gone = Key(namespace or "", name), _gone(event)
        if gone:
            sink.claims.drop(key)
        else:
            sink.claims.put(body)
        news = _mirrored(sink, SERVICES, event)
        sink.door.service(key, profile_name(body), gone=gone, news=news or gone, edited=not gone and unanswered(body))

    @kopf.on.event(*_words(PROFILES), registry=registry)
    async def _profile(*, name: str, event: kopf.RawEvent, **_: Any) -> None:
        if _mirrored(sink, PROFILES, event):
            sink.door.profile(name)

    @kopf.on.event(*_words(ADAPTERS), registry=registry)
    async def _adapter(*, body: kopf.Body, **_: Any) -> None:
        if (key := adapted_service(body)) is not None:
            sink.door.child(key)


def _children(registry: kopf.OperatorRegistry, sink: Sink) -> None:
    def watch(resource: Resource) -> None:
        @kopf.on.event(*_words(resource), labels={LABEL_SERVICE: kopf.PRESENT}, registry=registry)
        async def _child(*, namespace: str | None, labels: kopf.Labels, event: kopf.RawEvent, **_: Any) -> None:
            if _mirrored(sink, resource, event):
                sink.door.child(Key(namespace or "", labels[LABEL_SERVICE]))

    for resource in sink.kinds:
        if resource in CHILD_RESOURCES:
            watch(resource)

    @kopf.on.event(*_words(PODS), registry=registry)
    async def _pod(*, namespace: str | None, name: str, labels: kopf.Labels, spec: kopf.Spec, event: kopf.RawEvent, **_: Any) -> None:
        if _of_the_world(sink, PODS, event):
            sink.door.room()
        pod = Key(namespace or "", name)
        before, news = sink.mirror.service_of(PODS, pod), _mirrored(sink, PODS, event)
        if LABEL_SERVICE in labels:
            service = Key(pod.namespace, labels[LABEL_SERVICE])
            sink.door.replica(pod, Stand(service, spec.get("nodeName", "")), gone=_gone(event), news=news)
        elif before is not None:  # somebody took the label off: to its service it is gone
            sink.door.replica(pod, Stand(before, ""), gone=True)


def _cluster_kinds(registry: kopf.OperatorRegistry, sink: Sink) -> None:
    @kopf.on.event(*_words(NODES), registry=registry)
    async def _node(*, name: str, event: kopf.RawEvent, **_: Any) -> None:
        if _of_the_world(sink, NODES, event):
            sink.door.node(name)

    @kopf.on.event(*_words(QUOTAS), registry=registry)
    async def _quota(*, name: str, body: kopf.Body, event: kopf.RawEvent, **_: Any) -> None:
        before = sink.world.get(QUOTAS, Key("", name))
        if _of_the_world(sink, QUOTAS, event):
            left = before.namespaces if before is not None else ()  # a namespace that it counts no more is freed by that
            sink.door.quota({*quota_namespaces(body), *left})

    for resource in sink.kinds:
        if resource in DEVICES:
            _room(registry, sink, resource)


def _room(registry: kopf.OperatorRegistry, sink: Sink, resource: Resource) -> None:
    @kopf.on.event(*_words(resource), registry=registry)
    async def _devices(*, event: kopf.RawEvent, **_: Any) -> None:
        if _of_the_world(sink, resource, event):
            sink.door.room()


def _mirrored(sink: Sink, resource: Resource, event: kopf.RawEvent) -> bool:
    """Whether anything that is compared changed in an object of ours."""
    sink.intake.touch(resource)
    body: Json = event["object"]
    return sink.mirror.drop(resource, body) if _gone(event) else sink.mirror.put(resource, body)


def _of_the_world(sink: Sink, resource: Resource, event: kopf.RawEvent) -> bool:
    """Whether anything that is decided by changed."""
    sink.intake.touch(resource)
    body: Json = event["object"]
    return sink.world.drop(resource, body) if _gone(event) else sink.world.put(resource, body)


def _gone(event: kopf.RawEvent) -> bool:
    return event["type"] == "DELETED"


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
    # Pods have none: placement needs to know what others hold.
    for resource in CHILD_RESOURCES:
        settings.watching.label_selectors[_words(resource)] = LABEL_SERVICE
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
