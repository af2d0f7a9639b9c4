"""Stubs for the parts that a reconcile depends on: each knows nothing, caps nothing and keeps nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pagoda_operator.api.pods import Answer, DaemonState, Order
from pagoda_operator.api.signals import ServiceSignals
from pagoda_operator.api.state import Json, Key, Observed, Resource
from pagoda_operator.decide.adapters.catalogue import Catalogue
from pagoda_operator.decide.plan import Plan
from pagoda_operator.decide.render.children import Owner
from pagoda_operator.run.apply import Cluster
from pagoda_operator.run.dependencies import Dependencies
from pagoda_operator.run.events import Recorder
from pagoda_operator.watch.caches import Caches
from pagoda_operator.watch.observe import Ages
from pagoda_operator.watch.triggers import NameOwners
from pagoda_placement.charges import Grant
from pagoda_placement.inventory import Inventory


def dependencies_with(api: Cluster, **parts: Any) -> Dependencies:
    """These parts, and stubs for all others. Events are queued; a test that needs them calls `events.write_pending`."""
    stubs = {
        "triggers": NoTriggers(),
        "signals": Silence(),
        "caches": Current(api),
        "keys": NoKeys(),
        "quota": NoQuotas(),
        "name_owners": NameOwners(),
        "daemons": NoDaemons(),
        "adapters": NoAdapters(),
        "scaling": Unscaled(),
        "faults": dict,
        "inventory": Inventory,
        "sizes": tuple,
        "ages": Ages(lambda: 0.0),
        "events": Recorder(api, "operator-1"),
        "started": lambda _observed: None,
    }
    return Dependencies(**(stubs | parts))


class NoDaemons:
    """Stand-in: no daemon accepts orders, so each replica is drained by its own deletion."""

    async def give(self, orders: Sequence[Order]) -> dict[str, Answer]:
        """Refused, all of them."""
        return {order.uid: Answer(DaemonState.REFUSED) for order in orders}


class NoAdapters:
    """Stand-in: there are no LoraAdapters."""

    def catalogue(self, key: Key, observed: Observed | None) -> Catalogue:
        """Empty."""
        del key, observed
        return Catalogue()

    def sole(self, key: Key) -> dict[str, int]:
        """None."""
        del key
        return {}

    async def run(self, key: Key, observed: Observed) -> float | None:
        """Nothing."""

    async def orphaned(self, key: Key) -> None:
        """Nothing."""


class Current(Caches):
    """Stand-in: caches that are never late. Each read is one of the API server."""

    def __init__(self, api: Cluster) -> None:
        super().__init__()
        self._api = api

    async def get(self, resource: Resource, namespace: str, name: str) -> Json | None:
        return await self._api.get(resource, namespace, name)

    async def list(self, resource: Resource, namespace: str, selector: str) -> list[Json]:
        return list(await self._api.list(resource, namespace, selector))

    async def verify(self, *_: object) -> int:
        """Nothing differs."""
        return 0


class NoKeys:
    """Stand-in: no replica needs the keys."""

    async def ensure(self, owner: Owner) -> None:
        """Nothing."""


class NoQuotas:
    """Stand-in: nothing is capped."""

    async def settle(self, key: Key, observed: Observed) -> None:
        """Nothing."""

    def booked(self, key: Key, observed: Observed) -> bool:
        """There is nothing to book."""
        del key, observed
        return True

    async def gone(self, key: Key) -> bool:  # noqa: ARG002 (the protocol's words)
        """Nothing."""
        return False

    def offer(self, key: Key, observed: Observed, rendered: Callable[[Observed], object]) -> Grant | None:
        """No limit."""

    def full(self, key: Key, observed: Observed) -> dict[str, str]:
        """None."""
        del key, observed
        return {}

    def admit(self, key: Key, observed: Observed, draft: Plan) -> Plan:
        """All of it."""
        del key, observed
        return draft

    def unanswered(self, key: Key) -> None:
        """Nothing."""


class Silence:
    """Stand-in: no gateway reports."""

    def of(self, key: Key, now: float) -> ServiceSignals | None:
        """Nothing."""
        del key, now
        return None

    def note_ready(self, key: Key, pods: Iterable[str]) -> None:
        """Nobody asks."""

    def unheard(self, key: Key) -> float:
        """For ever."""
        del key
        return math.inf


class NoTriggers:
    """Nothing wakes a service."""

    def waits(self, key: Key, *, waiting: bool) -> None:
        """Nobody asks."""


class Unscaled:
    """Stand-in: spec.replicas counts in every mode."""

    async def complete(self, key: Key, observed: Observed) -> Observed:  # noqa: ARG002 (the protocol's words)
        """Nothing is decided."""
        return observed

    def foresee(self, key: Key, observed: Observed) -> Observed:
        """Nothing either."""
        del key
        return observed

    def again(self, key: Key) -> float | None:  # noqa: ARG002 (the protocol's words)
        """Never."""
        return None

    async def save_history(self, key: Key, observed: Observed) -> None:
        """Nothing was learned."""

    def forget(self, key: Key) -> None:
        """Nothing is known."""
