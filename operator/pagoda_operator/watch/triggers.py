"""Queues the services that a change in the caches may concern: the caches' event handler. It decides nothing else.

It knows which service uses which profile, which services have replicas on which node, which service owns which served name, and (from
`reconcile`) which services wait for capacity.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

from pagoda_contracts.conditions.service import NOT_SERVED_YET
from pagoda_contracts.conditions.types import SERVING
from pagoda_contracts.name_owners import NOTHING_RESERVED, Reserved, ServedName, resolve

from pagoda_operator.api.state import ADAPTERS, NAMESPACES, NODES, PODS, PROFILES, QUOTAS, SERVICES, Json, Key, Resource, Taken
from pagoda_operator.watch.caches import Seen
from pagoda_operator.watch.kept import Packed
from pagoda_operator.watch.observe import profile_name


class Queue(Protocol):
    """Takes keys."""

    def add(self, key: Key, *, urgent: bool = False) -> None:
        """Run the key now; an urgent one before those that are not, but for every fourth run."""


class Triggers:
    """`changed` is called for every change, `waits` for what no object shows."""

    def __init__(self, queue: Queue, reserved: Reserved = NOTHING_RESERVED) -> None:
        self._queue = queue
        self.name_owners = NameOwners(queue.add, reserved)
        self._profiles: dict[Key, str] = {}
        # Node → services → how many of its replicas are there: a change of the node concerns these services.
        self._on_node: dict[str, dict[Key, int]] = {}
        self._waiting: set[Key] = set()
        # Namespace → services that an adapter there has named.
        self._attached: dict[str, set[Key]] = {}

    def changed(self, resource: Resource, key: Key, before: Seen | None, after: Seen | None) -> None:
        """Something that is compared changed in an object."""
        before, after = before or Seen(None, None), after or Seen(None, None)
        if before.own != after.own:
            self._own(resource, key, before.own, after.own)
        if before.shared != after.shared:
            self._shared(resource, key, before.shared, after.shared)

    def waits(self, key: Key, *, waiting: bool) -> None:
        """Whether a service cannot be placed for want of capacity, as its last run found."""
        (self._waiting.add if waiting else self._waiting.discard)(key)

    def users_of_profiles(self) -> Counter[str]:
        """How many services use each profile."""
        return Counter(self._profiles.values())

    def _own(self, resource: Resource, key: Key, before: Packed | None, after: Packed | None) -> None:
        if resource == SERVICES:
            self._service(key, after)
        elif resource == PROFILES:  # a run of its own keeps the default profile
            self._queue.add(Key("", key.name))
            self._wake(service for service, used in self._profiles.items() if used == key.name)
        else:
            if resource == PODS:
                self._count_on_node(before, -1)
                self._count_on_node(after, 1)
            self._wake({packed.service for packed in (before, after) if packed is not None and packed.service is not None})

    def _service(self, key: Key, after: Packed | None) -> None:
        if after is None:
            self._profiles.pop(key, None)
            self._waiting.discard(key)
            self.name_owners.drop(key)
            self._queue.add(key)
            return
        body = after.body("")
        self._profiles[key] = profile_name(body)
        self.name_owners.put(body)
        # One that was edited, and that no run has reported on yet, goes before runs that only report.
        self._queue.add(key, urgent=(body.get("status") or {}).get("observedGeneration") != body["metadata"].get("generation"))

    def _shared(self, resource: Resource, key: Key, before: Any, after: Any) -> None:
        known = [value for value in (before, after) if value is not None]
        if resource == NODES:
            self._wake({*self._on_node.get(key.name, ()), *self._waiting})
        elif resource == QUOTAS:  # a namespace that it counts no more is freed by that
            counted = {name for quota in known for name in quota.namespaces}
            self._wake({*(service for service in self._profiles if service.namespace in counted), *self._waiting})
        elif resource == ADAPTERS:
            for adapter in known:
                self._attached.setdefault(adapter.meta.namespace, set()).add(adapter.service)
            self._wake({adapter.service for adapter in known})
        elif resource == NAMESPACES:  # whose labels say which services accept its adapters
            self._wake(self._attached.get(key.name, ()))
        elif resource != PROFILES:  # which `_own` has told of
            self._wake(self._waiting)

    def _count_on_node(self, packed: Packed | None, count: int) -> None:
        if packed is None or packed.service is None or not packed.node:
            return
        there = self._on_node.setdefault(packed.node, {})
        there[packed.service] = there.get(packed.service, 0) + count
        if there[packed.service] <= 0:
            del there[packed.service]
        if not there:
            del self._on_node[packed.node]

    def _wake(self, keys: Iterable[Key]) -> None:
        for key in tuple(keys):
            self._queue.add(key)


class NamedService(NamedTuple):
    """A service, the names it wants, and those of its adapters, which it has."""

    key: Key
    created: str
    uid: str
    names: tuple[str, ...]
    owned: frozenset[str] = frozenset()
    adapters: frozenset[str] = frozenset()
    served: bool = True

    def wants(self, name: str) -> ServedName:
        """The name as it wants or has it."""
        owner = f"{self.key.namespace}/{self.key.name}"
        return ServedName(name, self.created, self.uid, owner, name in self.owned or name in self.adapters, self.served)

    @property
    def all_names(self) -> frozenset[str]:
        """Under which it is known here."""
        return self.adapters.union(self.names)


def parse_named_service(body: Json) -> NamedService:
    """A service and its names, readable even if the rest of its spec is not; as the gateway reads them."""
    meta, spec = body["metadata"], body.get("spec") or {}
    model: Any = spec.get("model") or {}
    names, status = tuple(model.get("servedNames") or (meta["name"],)), body.get("status") or {}
    owned, adapters = (frozenset(status.get(field) or ()) for field in ("servedNames", "adapterNames"))
    never = any((c.get("type"), c.get("reason")) == (SERVING.name, NOT_SERVED_YET.name) for c in status.get("conditions") or ())
    key = Key(meta.get("namespace", ""), meta["name"])
    return NamedService(key, meta.get("creationTimestamp", ""), meta["uid"], names, owned, adapters, not never)


class NameOwners:
    """Which service owns which served name. `wake` is called for each service that may have got or lost a name by another one's change.

    A service that has a name keeps it, otherwise the oldest service gets it, by the same function as in the gateway. Services are
    also kept by name, so an answer costs one name's services, not all.
    """

    def __init__(self, wake: Callable[[Key], None] = lambda _: None, reserved: Reserved = NOTHING_RESERVED) -> None:
        self._wake, self.reserved = wake, reserved
        self._services: dict[Key, NamedService] = {}
        self._by_name: dict[str, dict[Key, NamedService]] = {}

    def put(self, body: Json) -> None:
        """A service appeared or changed."""
        service = parse_named_service(body)
        if self._services.get(service.key) == service:
            return
        touched = self._forget(service.key)
        self._services[service.key] = service
        for name in service.all_names:
            touched |= self._by_name.setdefault(name, {}).keys()
            self._by_name[name][service.key] = service
        for key in touched - {service.key}:
            self._wake(key)

    def drop(self, key: Key) -> None:
        """A service is gone."""
        for other in self._forget(key):
            self._wake(other)

    def taken(self, key: Key) -> tuple[Taken, ...]:
        """The names that this service wants, and that another one or the administrator keeps from it."""
        mine = self._services.get(key)
        return tuple(taken for name in (mine.names if mine else ()) if (taken := self._taken(key, name)) is not None)

    def _taken(self, key: Key, name: str) -> Taken | None:
        if why := self.reserved.why_not(name, key.namespace):
            return Taken(name, why, reserved=True)
        one = self._owner(name)
        if one is None or one.owner == f"{key.namespace}/{key.name}" or not one.keeps_from(key.namespace):
            return None
        return Taken(name, f"{name!r} belongs to {one.owner}")

    def owner(self, name: str) -> Key | None:
        """The service that has this name, as its own or as an adapter's; None if no service has it."""
        one = self._owner(name)
        return Key(*one.owner.split("/")) if one is not None else None

    def _owner(self, name: str) -> ServedName | None:
        return resolve((service.wants(name) for service in self._by_name.get(name, {}).values()), self.reserved).get(name)

    def _forget(self, key: Key) -> set[Key]:
        touched: set[Key] = set()
        service = self._services.pop(key, None)
        for name in service.all_names if service else ():
            services = self._by_name[name]
            del services[key]
            touched |= services.keys()
            if not services:
                del self._by_name[name]
        return touched
