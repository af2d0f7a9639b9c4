"""What feeds the caches: a reflector for each kind, and for our own kinds, which Kopf watches, lists alone. Made and run by process.py."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Iterable
from typing import Final

import aiohttp
import structlog
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
from pagoda_operator.serve.probes import Vitals
from pagoda_operator.watch.caches import Caches, Seen

# Kinds that an older cluster does not have.
PERHAPS: Final = (RESOURCE_CLAIM_TEMPLATES, RESOURCE_SLICES, RESOURCE_CLAIMS)
# What Kopf watches: our own kinds.
KOPFS: Final = (SERVICES, PROFILES, ADAPTERS, QUOTAS)
_TRY_AGAIN_S: Final = 2.0


class Feeds:
    """Of all kinds; of those in PERHAPS only which are `present` in this cluster."""

    def __init__(self, api: Api, caches: Caches, vitals: Vitals, present: Iterable[Resource], resync: float) -> None:
        here, every_s = frozenset(present), min(resync, LIST_EVERY_S)
        self._reflectors = {
            resource: Reflector(api, kind_of(caches, resource), cache, _signs(vitals, resource), every_s)
            for resource, cache in caches.kinds.items()
            if resource not in PERHAPS or resource in here
        }
        vitals.expect(len(self._reflectors) + 1)  # and the definitions that Kopf looks for

    def runs(self) -> list[Awaitable[None]]:
        """One for each kind, until cancelled."""
        return [found.run_lists() if resource in KOPFS else found.run() for resource, found in self._reflectors.items()]

    async def list_all(self) -> None:
        """Every kind by quorum reads, however long the API server takes: before a leader's first decision. Without them devices in use
        would look free."""
        await asyncio.gather(*(_until_listed(resource, reflector) for resource, reflector in self._reflectors.items()))


def kind_of(caches: Caches, resource: Resource) -> Kind[Seen]:
    """Of children those that bear a service's label; of pods all, since placement needs to know what others hold."""
    query = (("labelSelector", LABEL_SERVICE),) if resource in CHILD_RESOURCES else ()
    return Kind(path_of(resource), caches.reader_of(resource), query)


async def _until_listed(resource: Resource, reflector: Reflector[Seen]) -> None:
    while True:
        try:
            await reflector.list()
            return
        except (ApiFault, aiohttp.ClientError, OSError, *UNREADABLE) as error:
            structlog.get_logger().warning("not_listed", kind=resource.kind, error=f"{type(error).__name__}: {error}")
        await asyncio.sleep(_TRY_AGAIN_S)


def _signs(vitals: Vitals, resource: Resource) -> Signs:
    """What Kopf watches is heard by its own session (kopf_watches.py)."""
    if resource in KOPFS:
        return Signs()
    path = path_of(resource)
    return Signs(heard=lambda: vitals.watched(path, time.monotonic()))
