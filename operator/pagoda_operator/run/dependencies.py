"""The parts of the process that a run uses. Made by process.py, used by reconcile.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from pagoda_placement.charges import Grant
from pagoda_placement.fit import Size
from pagoda_placement.inventory import Inventory
from pagoda_placement.revision import Revision

from pagoda_operator.api.state import Key, Observed
from pagoda_operator.client.daemons import Daemons
from pagoda_operator.client.replicas import Replicas
from pagoda_operator.client.signals import Signals
from pagoda_operator.decide.plan import Plan
from pagoda_operator.decide.render.children import Manifest
from pagoda_operator.run.adapters import Adapters
from pagoda_operator.run.events import Recorder
from pagoda_operator.run.keys import TokenKeys
from pagoda_operator.run.scaler import Scaler
from pagoda_operator.watch.caches import Caches
from pagoda_operator.watch.observe import Ages
from pagoda_operator.watch.triggers import NameOwners, Triggers


class Quotas(Protocol):
    """Charges services for devices, and says how many they may have (quota/keeper.py, which imports this folder)."""

    async def settle(self, key: Key, observed: Observed) -> None:
        """Books what a run read."""

    def booked(self, key: Key, observed: Observed) -> bool:
        """Whether `settle` would change nothing."""

    async def gone(self, key: Key) -> bool:
        """Books that the service was deleted; returns whether it is still charged for anything."""

    def offer(self, key: Key, observed: Observed, rendered: Callable[[Observed], tuple[Revision, Manifest] | None]) -> Grant | None:
        """What the current revision may have, by its pod template; None if no quota caps what it needs."""

    def full(self, key: Key, observed: Observed) -> dict[str, str]:
        """Deployments for which there is no room for a successor of an unhealthy replica, and the quota that has none."""

    def admit(self, key: Key, observed: Observed, draft: Plan) -> Plan:
        """The draft as far as there is room, booked."""

    def unanswered(self, key: Key) -> None:
        """A write of the service had no answer."""


@dataclass(frozen=True)
class Dependencies:
    """One field per part."""

    triggers: Triggers
    signals: Signals
    caches: Caches
    keys: TokenKeys
    quota: Quotas
    name_owners: NameOwners
    daemons: Daemons
    adapters: Adapters
    scaling: Scaler
    faults: Callable[[], Mapping[str, str]]
    inventory: Callable[[], Inventory]
    sizes: Callable[[], tuple[Size, ...]]
    ages: Ages
    events: Recorder
    # Counts the starts of a service's replicas.
    started: Callable[[Observed], None]
    # Reads replicas' states, if no gateway does.
    replicas: Replicas | None = None
