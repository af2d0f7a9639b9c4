"""Queues the services that a change in the caches may concern: the caches' event handler. It decides nothing else.

It knows which service uses which profile, which services have replicas on which node, and (from `reconcile`) which wait for capacity.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from pagoda_operator.api.state import ADAPTERS, NODES, PODS, PROFILES, QUOTAS, SERVICES, Key, Resource
from pagoda_operator.watch.caches import Seen
from pagoda_operator.watch.claims import Claims
from pagoda_operator.watch.kept import Packed
from pagoda_operator.watch.observe import profile_name, unanswered


class Queue(Protocol):
    """Takes keys."""

    def add(self, key: Key, *, urgent: bool = False) -> None:
        """Run the key now; an urgent one before those that are not, but for every fourth turn."""


class Triggers:
    """`changed` is called for every change, `child` and `waits` for what no object shows."""

    def __init__(self, queue: Queue, claims: Claims) -> None:
        self._queue, self._claims = queue, claims
        self._profiles: dict[Key, str] = {}
        # Node → services → how many of its replicas are there: a change of the node concerns these services.
        self._on_node: dict[str, dict[Key, int]] = {}
        self._waiting: set[Key] = set()

    def changed(self, resource: Resource, key: Key, before: Seen | None, after: Seen | None) -> None:
        """Something that is compared changed in an object."""
        before, after = before or Seen(None, None), after or Seen(None, None)
        if before.own != after.own:
            self._own(resource, key, before.own, after.own)
        if before.shared != after.shared:
            self._shared(resource, key, before.shared, after.shared)

    def child(self, key: Key) -> None:
        """Something concerns a service that no object shows: its gateways, its adapters."""
        self._queue.add(key)

    def waits(self, key: Key, *, waiting: bool) -> None:
        """Whether a service cannot be placed for want of capacity, as its last run found."""
        if waiting:
            self._waiting.add(key)
        else:
            self._waiting.discard(key)

    def _own(self, resource: Resource, key: Key, before: Packed | None, after: Packed | None) -> None:
        if resource == SERVICES:
            self._service(key, after)
        elif resource == PROFILES:  # the default one is itself kept by a run of its own
            self._queue.add(Key("", key.name))
            self._wake(service for service, used in self._profiles.items() if used == key.name)
        else:
            if resource == PODS:
                self._count_on_node(before, -1)
                self._count_on_node(after, 1)
            self._wake({packed.service for packed in (before, after) if packed is not None and packed.service is not None})

    def _service(self, key: Key, after: Packed | None) -> None:
        """One that was edited, and whose edit has no answer yet, goes before runs that only report."""
        if after is None:
            self._profiles.pop(key, None)
            self._waiting.discard(key)
            self._claims.drop(key)
            self._queue.add(key)
            return
        body = after.body("")
        self._profiles[key] = profile_name(body)
        self._claims.put(body)
        self._queue.add(key, urgent=unanswered(body))

    def _shared(self, resource: Resource, key: Key, before: Any, after: Any) -> None:
        known = [value for value in (before, after) if value is not None]
        if resource == NODES:
            self._wake({*self._on_node.get(key.name, ()), *self._waiting})
        elif resource == QUOTAS:  # a namespace that it counts no more is freed by that
            counted = {name for quota in known for name in quota.namespaces}
            self._wake({*(service for service in self._profiles if service.namespace in counted), *self._waiting})
        elif resource == ADAPTERS:
            self._wake({service for service, _ in known})
        else:
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
