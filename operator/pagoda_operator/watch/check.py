"""Fills the world's mirrors before the first decision, and from time to time compares mirrors with the API server. Run by process.py, on
the leader and on a standby.

A watch that is begun anew lists what is there and says nothing of what is not: a pod that went meanwhile would hold its GPU for ever. The
check lists names and versions only, of everything: 5,000 pods are 60 ms of CPU. What differs is read.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

import structlog
from pagoda_contracts.names import LABEL_SERVICE

from pagoda_operator.api.errors import ClusterError
from pagoda_operator.api.state import NODES, PODS, PROFILES, QUOTAS, SERVICES, Json, Key, Resource
from pagoda_operator.watch.door import Door, Stand
from pagoda_operator.watch.mirror import MIRRORED, Mirror
from pagoda_operator.watch.observe import profile_name
from pagoda_operator.watch.silence import LOOKS, PATIENCE, Silences
from pagoda_operator.watch.world import World, key_of

_UNLABELLED: Final = (SERVICES, PROFILES)
_TRY_AGAIN: Final = 2.0


class Lister(Protocol):
    """Reads a whole kind, a page at a time: 5,000 pods at once would be 60 MB."""

    def pages(self, resource: Resource) -> AsyncIterator[Sequence[Json]]:
        """All objects of the cluster; a quorum read."""


class Source(Lister, Protocol):
    """The quorum reads that checking needs."""

    async def versions(self, resource: Resource, selector: str) -> dict[Key, str]:
        """Every object of the kind with these labels, by version."""

    async def get(self, resource: Resource, namespace: str, name: str) -> Json | None:
        """The object, None where there is none."""


async def fill(lister: Lister, world: World, kinds: Iterable[Resource]) -> None:
    """Everything there is, however long the API server takes: without it, devices in use would look free."""
    for resource in kinds:
        while not await _swept(lister, world, resource):  # noqa: ASYNC110 (the API server's recovery raises no event)
            await asyncio.sleep(_TRY_AGAIN)


async def _swept(lister: Lister, world: World, resource: Resource) -> bool:
    seen: set[Key] = set()
    mark = world.mark()
    try:
        async for page in lister.pages(resource):
            seen |= {world.meet(resource, body) for body in page}
    except ClusterError as error:
        structlog.get_logger().warning("not_listed", kind=resource.kind, error=str(error))
        return False
    world.sweep(resource, mark, seen)
    return True


class _Doubts(NamedTuple):
    """What is not as it was shown before a list began, by what was shown; what of it the list has; when the list was complete."""

    shown: dict[Key, str | None]
    listed: frozenset[Key]
    at: float


class Shown(NamedTuple):
    """All that the watches fill, and the kinds that this cluster has."""

    mirror: Mirror
    world: World
    kinds: tuple[Resource, ...]


class Check:
    """Compares and repairs."""

    def __init__(self, source: Source, shown: Shown, door: Door, silences: Silences | None = None) -> None:
        self._source = source
        self._silences = silences or Silences()
        self._mirror, self._world = shown.mirror, shown.world
        self._own = [resource for resource in MIRRORED if resource in shown.kinds]
        self._whole = [resource for resource in shown.world.kinds if resource in shown.kinds]
        self._door = door
        self._first = asyncio.Lock()
        self._capped = False

    async def caps(self) -> None:
        """Before the first decision of a leader, once, however long the API server takes: by a quota that the watch does not show, or not
        as it is now, all seems free."""
        async with self._first:
            while not self._capped and QUOTAS in self._whole:
                try:
                    await self._check_world(QUOTAS)
                    self._capped = True
                except ClusterError as error:
                    structlog.get_logger().warning("quotas_not_read", error=str(error))
                    await asyncio.sleep(_TRY_AGAIN)

    async def run(self, period: float, rng: random.Random) -> None:
        """Every so many seconds, until cancelled."""
        while True:
            await asyncio.sleep(period * rng.uniform(0.8, 1.2))
            await self.once()

    async def once(self) -> int:
        """One comparison of everything; how many objects were shown wrongly."""
        own = [await self._checked(self._check_own, resource) for resource in self._own]
        whole = [await self._checked(self._check_world, resource) for resource in self._whole]
        self._door.keep(self._mirror.versions(SERVICES).keys(), self._mirror.versions(PODS).keys())
        if total := sum(own) + sum(whole):
            structlog.get_logger().info("mirror_repaired", objects=total)
        return total

    async def listen(self) -> None:
        """Compares sooner whoever has said nothing for long, until cancelled."""
        while True:
            await asyncio.sleep(PATIENCE / LOOKS)
            await self.doubt(time.monotonic())

    async def doubt(self, now: float) -> None:
        """One comparison of the kinds whose watches are in doubt."""
        doubted = [resource for resource in {*self._own, *self._whole} if self._silences.doubtful(resource.plural, now)]
        for resource in doubted:
            if resource in self._own:
                await self._checked(self._check_own, resource)
            if resource in self._whole:
                await self._checked(self._check_world, resource)

    @staticmethod
    async def _checked(check: Callable[[Resource], Awaitable[int]], resource: Resource) -> int:
        """One kind; that it cannot be read keeps nobody from looking at the others."""
        try:
            return await check(resource)
        except ClusterError as error:
            structlog.get_logger().warning("check_failed", kind=resource.kind, error=str(error))
            return 0

    async def _doubtful(self, resource: Resource, shown: Mirror | World, selector: str) -> _Doubts:
        """What changed while we listed has been told by now: only what stands as it stood is in doubt."""
        kept = shown.versions(resource)
        listed = await self._source.versions(resource, selector)
        now = shown.versions(resource)
        wrong = [key for key in kept.keys() | listed.keys() if kept.get(key) != listed.get(key)]
        doubtful = {key: kept.get(key) for key in wrong if now.get(key) == kept.get(key)}
        return _Doubts(doubtful, frozenset(doubtful.keys() & listed.keys()), time.monotonic())

    async def _check_own(self, resource: Resource) -> int:
        doubts = await self._doubtful(resource, self._mirror, "" if resource in _UNLABELLED else LABEL_SERVICE)
        wrong = sum([await self._repair(resource, key, version) for key, version in doubts.shown.items()])
        self._judge(resource, self._mirror, doubts)
        return wrong

    def _judge(self, resource: Resource, shown: Mirror | World, doubts: _Doubts) -> None:
        """What is shown otherwise by now had been kept back when the list was complete, whether it is compared or not. What the list does
        not have proves nothing: a deletion that fell between two watches is told by neither, and both are well."""
        agreed = all(shown.version(resource, key) == doubts.shown[key] for key in doubts.listed)
        self._silences.compared(resource.plural, doubts.at, agreed=agreed)

    async def _repair(self, resource: Resource, key: Key, version: str | None) -> bool:
        with self._mirror.reading(resource) as told:
            body = await self._source.get(resource, *key)
        if key in told or self._mirror.version(resource, key) != version:
            return False  # one that came and went meanwhile stands as before, too
        service = self._mirror.service_of(resource, key)
        changed = self._mirror.forget(resource, key) if body is None else self._mirror.put(resource, body)
        if not changed:
            return False
        self._tell(resource, key, body, service or self._mirror.service_of(resource, key))
        return True

    def _tell(self, resource: Resource, key: Key, body: Json | None, service: Key | None) -> None:
        """As the handlers would have."""
        if resource == PROFILES:
            self._door.profile(key.name)
        elif resource == SERVICES:
            self._door.service(key, profile_name(body) if body else "", gone=body is None)
        elif resource == PODS and service is not None:
            node = ((body or {}).get("spec") or {}).get("nodeName", "")
            self._door.replica(key, Stand(service, node), gone=body is None)
        elif service is not None:
            self._door.child(service)

    async def _check_world(self, resource: Resource) -> int:
        """Read by lists, since of these kinds we may get none alone; a deletion that nobody told us of would hold room for ever."""
        doubts = await self._doubtful(resource, self._world, "")
        found: dict[Key, Json] = {}
        if doubts.shown:
            async for page in self._source.pages(resource):
                found |= {key: body for body in page if (key := key_of(body)) in doubts.shown}
        wrong = sum(self._take(resource, key, found.get(key), doubts.shown) for key in doubts.shown)
        self._judge(resource, self._world, doubts)
        return wrong

    def _take(self, resource: Resource, key: Key, body: Json | None, doubtful: Mapping[Key, str | None]) -> bool:
        if self._world.version(resource, key) != doubtful[key]:
            return False
        before = self._world.get(resource, key)
        changed = self._world.forget(resource, key) if body is None else self._world.learn(resource, body)
        if changed and resource == NODES:
            self._door.node(key.name)
        elif changed and resource == QUOTAS:
            known = (before, self._world.get(resource, key))
            self._door.quota({name for quota in known if quota is not None for name in quota.namespaces})
        elif changed:
            self._door.room()
        return changed
