"""All that the operator knows of the cluster: one cache for each kind, fed by watches, lists and the answers to its own writes.

An object may be kept in two ways. `own` is a service, a profile or a child of a service, and can be read as the API server gave it: a run
is planned from it without a request. `shared` is what decisions over more than one service compare: nodes, other tenants' pods, quotas,
slices. A cache may be late by a moment, so creates and deletes are verified by quorum reads first (run/reconcile.py), and every other write
names the version that was observed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import msgspec
import structlog
from pagoda_contracts.names import LABEL_CLASS, LABEL_SERVICE
from pagoda_kube.cache import Cache, Item
from pagoda_placement.fit import Size, largest
from pagoda_placement.inventory import Inventory

from pagoda_operator.api.state import (
    ADAPTERS,
    CHILD_RESOURCES,
    NAMESPACES,
    NODES,
    PODS,
    PROFILES,
    QUOTAS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    SERVICES,
    Json,
    Key,
    Lister,
    Resource,
)
from pagoda_operator.watch.kept import OWN, PARSERS, Packed, key_of, pack

KINDS: Final = tuple(dict.fromkeys((*OWN, *PARSERS)))
# Kinds that have a class: what an install acts on, and what it makes of that.
CLASSED: Final = frozenset((SERVICES, ADAPTERS, QUOTAS, PODS, *CHILD_RESOURCES))
# Read in all namespaces, even if services are served in some only: placement counts everybody's devices.
CLUSTER_WIDE: Final = (PROFILES, QUOTAS, NAMESPACES, NODES, PODS, RESOURCE_SLICES, RESOURCE_CLAIMS)


class Seen(NamedTuple):
    """What is kept of one object."""

    own: Packed | None
    shared: Any


Changed = Callable[[Resource, Key, Seen | None, Seen | None], None]


class Caches:
    """`changed` is called for each object of which something changed that is compared. `namespaces`: where services are served; empty for
    all. `service_class`: the class of the services that are served; empty for those without one."""

    def __init__(self, changed: Changed = lambda *_: None, namespaces: Collection[str] = (), service_class: str = "") -> None:
        self._on_change, self._namespaces, self._class = changed, namespaces, service_class
        # By kind, and by the namespace that is listed and watched; "" for all.
        self._kinds: dict[Resource, dict[str, Cache[Seen]]] = {
            resource: {scope: Cache(partial(self._changed, resource)) for scope in ((resource not in CLUSTER_WIDE and namespaces) or ("",))}
            for resource in KINDS
        }
        # The keys of each service's objects, by kind.
        self._of: dict[Resource, dict[Key, dict[Key, None]]] = {resource: {} for resource in self._kinds}
        self._changes = dict.fromkeys(self._kinds, 0)
        self._sorted: dict[Resource, tuple[int, tuple[Any, ...]]] = {}

    # Read by runs

    async def get(self, resource: Resource, namespace: str, name: str) -> Json | None:
        """One of our own objects; None if none is cached."""
        cache = self._cache(resource, namespace)
        known = cache.get(Key(namespace, name)) if cache is not None else None
        return None if known is None or known.value is None or known.value.own is None else known.value.own.body(known.version)

    async def list(self, resource: Resource, namespace: str, selector: str) -> list[Json]:
        """The objects of one service."""
        label, _, name = selector.partition("=")
        if label != LABEL_SERVICE:
            raise ValueError(f"the caches list by {LABEL_SERVICE}=<name> only, not by {selector!r}")
        keys = sorted(self._of[resource].get(Key(namespace, name), ()))
        return [body for key in keys if (body := await self.get(resource, *key)) is not None]

    # Read by decisions over more than one service

    def changes(self, *resources: Resource) -> int:
        """How often anything shared of these kinds changed."""
        return sum(self._changes[resource] for resource in resources)

    def all(self, resource: Resource) -> tuple[Any, ...]:
        """Everything shared of a kind, sorted by namespace and name."""
        last = self._sorted.get(resource)
        # These are kept with more than what is compared: their status, and the version at which that is written again.
        if last is None or last[0] != self._changes[resource] or resource in (QUOTAS, ADAPTERS, PROFILES):
            found = (pair for cache in self._kinds[resource].values() for pair in cache.values().items())
            kept = {key: seen.shared for key, seen in found if seen.shared is not None}
            last = self._sorted[resource] = self._changes[resource], tuple(kept[key] for key in sorted(kept))
        return last[1]

    # Fed

    def of(self, resource: Resource, namespace: str = "") -> Cache[Seen]:
        """The cache of a kind."""
        return self._kinds[resource][namespace]

    def each(self) -> Iterator[tuple[Resource, str, Cache[Seen]]]:
        """Each cache with its kind and its namespace, "" for all."""
        return ((resource, scope, cache) for resource, scopes in self._kinds.items() for scope, cache in scopes.items())

    def reader_of(self, resource: Resource) -> Callable[[msgspec.Raw], Item[Seen]]:
        """Reads an object of a list or an event. Items of a list lack their kind; everything else is as in a GET."""
        kind = {"apiVersion": resource.api_version, "kind": resource.kind}
        return lambda raw: self._item(resource, kind | msgspec.json.decode(raw, type=dict))

    def event(self, resource: Resource, body: Json, *, gone: bool) -> None:
        """An event of a watch."""
        read = self._item(resource, body)
        cache = self._cache(resource, read.key.namespace)
        if cache is None:
            return
        if gone:
            cache.drop(read.key, read.version)
        else:
            cache.put(read)

    def wrote(self, resource: Resource, verb: str, body: Json) -> None:
        """The server's answer to a write of ours. After a delete it is the deleted object, or a terminating one as it is now."""
        if resource not in self._kinds:
            return
        cache = self._cache(resource, key_of(body).namespace)
        if verb == "delete" and "deletionTimestamp" not in body["metadata"] and cache is not None:
            cache.deleted(key_of(body), str(body["metadata"].get("resourceVersion", "")))
        else:
            self.event(resource, body, gone=False)

    async def verify(self, lister: Lister, resource: Resource, service: Key, profile: str) -> int:
        """Reads a service's objects of a kind by a quorum read; returns how many differed from the cache."""
        cache = self._cache(resource, service.namespace)
        if cache is None:
            return 0
        since = cache.newest
        if resource in (SERVICES, PROFILES):
            key = service if resource == SERVICES else Key("", profile)
            listed = await lister.listed(resource, key.namespace, name=key.name)
            among: tuple[Key, ...] = (key,)
        else:
            listed = await lister.listed(resource, service.namespace, label=f"{LABEL_SERVICE}={service.name}")
            among = tuple(self._of[resource].get(service, ()))
        return cache.take_list((self._item(resource, body) for body in listed.items), listed.version, since, among)

    def _cache(self, resource: Resource, namespace: str) -> Cache[Seen] | None:
        """None for an object of a namespace where no service is served."""
        scopes = self._kinds[resource]
        return scopes.get("") or scopes.get(namespace)

    def _item(self, resource: Resource, body: Json) -> Item[Seen]:
        """As it is kept. A pod elsewhere, or of another install, is nobody's replica here; it may still use devices. Of the rest of what is
        another install's, nothing is kept; but services of any install may use a profile, whose status one install writes."""
        read = item(resource, body)
        if resource == PROFILES and read.value is not None and self._of_another_class(body):
            return read._replace(value=Seen(read.value.own, None))
        elsewhere = resource == PODS and self._namespaces and read.key.namespace not in self._namespaces
        if read.value is None or not (elsewhere or (resource in CLASSED and self._of_another_class(body))):
            return read
        pod = Seen(None, read.value.shared) if resource == PODS and read.value.shared is not None else None
        return read._replace(value=pod)

    def _of_another_class(self, body: Json) -> bool:
        return bool((body["metadata"].get("labels") or {}).get(LABEL_CLASS, "") != self._class)

    def _changed(self, resource: Resource, key: Key, before: Seen | None, after: Seen | None) -> None:
        was, now = (seen.own if seen is not None else None for seen in (before, after))
        if was is not None and was.service is not None and (now is None or now.service != was.service):
            siblings = self._of[resource][was.service]
            siblings.pop(key, None)
            if not siblings:
                del self._of[resource][was.service]
        if now is not None and now.service is not None:
            self._of[resource].setdefault(now.service, {})[key] = None
        if (before.shared if before is not None else None) != (after.shared if after is not None else None):
            self._changes[resource] += 1
        try:
            self._on_change(resource, key, before, after)
        # The cache has it by now, so no later list reports it again. And one object's fault must not end the watch of the others.
        except Exception:  # noqa: BLE001
            structlog.get_logger().exception("change_not_reported", kind=resource.kind, **key._asdict())


def item(resource: Resource, body: Json) -> Item[Seen]:
    """An object as it is kept. A part that cannot be read is not kept, and stops no other object."""
    key, version = key_of(body), str(body["metadata"].get("resourceVersion", ""))
    seen = Seen(*(_read(parse, resource, body) for parse in (partial(pack, resource), PARSERS.get(resource, lambda _: None))))
    return Item(key, version, None if seen == Seen(None, None) else seen)


def _read(parse: Callable[[Json], Any], resource: Resource, body: Json) -> Any:
    try:
        return parse(body)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        structlog.get_logger().warning("object_not_read", kind=resource.kind, **key_of(body)._asdict(), error=repr(error))
        return None


class InventoryView:
    """The inventory for placement. It is built again only if something changed: hundreds of services may wait for the same devices."""

    def __init__(self, caches: Caches) -> None:
        self._caches = caches
        self._made = (-1, Inventory())
        self._faults: tuple[int, Mapping[str, str]] = (-1, {})
        self._sizes: tuple[int, tuple[Size, ...]] = (-1, ())

    def __call__(self) -> Inventory:
        """As it is now."""
        kinds = (NODES, PODS, RESOURCE_SLICES, RESOURCE_CLAIMS)
        if self._made[0] != (changes := self._caches.changes(*kinds)):
            self._made = changes, Inventory(*map(self._caches.all, kinds))
        return self._made[1]

    def faults(self) -> Mapping[str, str]:
        """Node → what is wrong with its devices."""
        if self._faults[0] != (changes := self._caches.changes(NODES)):
            self._faults = changes, MappingProxyType({node.name: node.fault for node in self._caches.all(NODES) if node.fault})
        return self._faults[1]

    def sizes(self) -> tuple[Size, ...]:
        """Of the largest nodes, computed only if nodes changed: a service on CPU alone compares no nodes."""
        if self._sizes[0] != (changes := self._caches.changes(NODES)):
            self._sizes = changes, largest(self._caches.all(NODES))
        return self._sizes[1]
