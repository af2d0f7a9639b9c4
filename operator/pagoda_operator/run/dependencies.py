"""What a reconcile hears from, and says to, the parts that live in the operator's memory. Made by process.py, used by reconcile.py.

Every part that adds to Observed or is told what a run found is one field here, with a stand-in that knows nothing: what a unit test does
not give is not there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from pagoda_operator.api.grant import Grant
from pagoda_operator.api.orders import Nobody, Orders
from pagoda_operator.api.signals_view import ServiceSignals
from pagoda_operator.api.state import Key, Observed
from pagoda_operator.decide.plan import Plan
from pagoda_operator.decide.render.children import Owner
from pagoda_operator.inventory.fleet import Fleet
from pagoda_operator.inventory.sizes import Size
from pagoda_operator.run.events import Recorder
from pagoda_operator.watch.ages import Ages
from pagoda_operator.watch.caches import Caches
from pagoda_operator.watch.claims import Claims


class Waits(Protocol):
    """Hears whether a service waits for capacity, so that news of capacity finds it."""

    def __call__(self, key: Key, *, waiting: bool) -> None:
        """As the last run found."""


class Keys(Protocol):
    """Keeps the cluster's token keys where replicas can mount them."""

    async def ensure(self, owner: Owner) -> None:
        """The owner's namespace has them; ClusterError where that cannot be."""


class NoKeys:
    """Stand-in: somebody else keeps them."""

    async def ensure(self, owner: Owner) -> None:
        """Nothing."""


class Quotas(Protocol):
    """Charges services for devices, and says how many they may have."""

    async def settle(self, key: Key, observed: Observed) -> None:
        """Book what a run read."""

    def booked(self, key: Key, observed: Observed) -> bool:
        """Whether `settle` would change nothing."""

    async def gone(self, key: Key) -> bool:
        """Book that the service is no more; whether it still holds anything."""

    def offer(self, key: Key, observed: Observed, planned: Callable[[Observed], Plan]) -> Grant | None:
        """What the current revision may have, as a first plan shows it; None where no quota caps what it needs."""

    def cramped(self, key: Key, observed: Observed) -> frozenset[str]:
        """Deployments of which not one replica more finds room beside all that is charged."""

    def admit(self, key: Key, observed: Observed, draft: Plan) -> Plan:
        """The draft as far as there is room, booked."""

    def unanswered(self, key: Key) -> None:
        """A write of the service had no answer."""


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

    def offer(self, key: Key, observed: Observed, planned: Callable[[Observed], Plan]) -> Grant | None:
        """No limit."""

    def cramped(self, key: Key, observed: Observed) -> frozenset[str]:
        """None."""
        del key, observed
        return frozenset()

    def admit(self, key: Key, observed: Observed, draft: Plan) -> Plan:
        """All of it."""
        del key, observed
        return draft

    def unanswered(self, key: Key) -> None:
        """Nothing."""


class Source(Protocol):
    """What gateways say of a service."""

    def of(self, key: Key, now: float) -> ServiceSignals | None:
        """What is known now (`now`: seconds of the caller's clock); None where nothing was heard of the service yet."""

    def unheard(self, key: Key) -> float:
        """For how many seconds no gateway has told of any of its replicas."""


class Silence:
    """Stand-in: nobody is heard."""

    def of(self, key: Key, now: float) -> ServiceSignals | None:
        """Nothing."""
        del key, now
        return None

    def unheard(self, key: Key) -> float:
        """For ever."""
        del key
        return math.inf


def nobody_asks(key: Key, *, waiting: bool) -> None:
    """Stand-in: nobody waits for capacity."""
    del key, waiting


class Scaling(Protocol):
    """Decides how many replicas (scaler.py)."""

    async def complete(self, key: Key, observed: Observed) -> Observed:
        """What was observed, with the decision."""

    def foresee(self, key: Key, observed: Observed) -> Observed:
        """The same as far as it can be told without a quota; nothing is remembered of it."""

    def again(self, key: Key) -> float | None:
        """In how many seconds a look is worth it without any event."""

    async def keep(self, key: Key, observed: Observed) -> None:
        """After a run: write down what was learned, where that is due."""

    def forget(self, key: Key) -> None:
        """The service is gone."""


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

    async def keep(self, key: Key, observed: Observed) -> None:
        """Nothing was learned."""

    def forget(self, key: Key) -> None:
        """Nothing is known."""


@dataclass(frozen=True)
class Dependencies:
    """One field per part."""

    waits: Waits = nobody_asks
    signals: Source = field(default_factory=Silence)
    # None: every run reads the API server.
    caches: Caches | None = None
    keys: Keys = field(default_factory=NoKeys)
    quota: Quotas = field(default_factory=NoQuotas)
    claims: Claims = field(default_factory=Claims)
    daemons: Orders = field(default_factory=Nobody)
    scaling: Scaling = field(default_factory=Unscaled)
    faults: Callable[[], Mapping[str, str]] = dict
    fleet: Callable[[], Fleet] = Fleet
    sizes: Callable[[], tuple[Size, ...]] = tuple
    ages: Ages = field(default_factory=Ages)
    # None: each word is written by the run that says it.
    events: Recorder | None = None
