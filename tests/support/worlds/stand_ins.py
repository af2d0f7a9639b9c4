"""DaemonState-ins for the parts that a reconcile depends on: each knows nothing, caps nothing and keeps nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from pagoda_operator.api.pods import Answer, DaemonState, Order
from pagoda_operator.api.quota import Grant
from pagoda_operator.api.signals import ServiceSignals
from pagoda_operator.api.state import Key, Observed
from pagoda_operator.decide.plan import Plan
from pagoda_operator.inventory.fleet import Fleet
from pagoda_operator.run.apply import Writer
from pagoda_operator.run.dependencies import Dependencies
from pagoda_operator.run.events import Recorder
from pagoda_operator.watch.ages import Ages
from pagoda_operator.watch.claims import Claims


def dependencies_with(writer: Writer, **parts: Any) -> Dependencies:
    """These parts, and stand-ins for all others. Events are written at once, by the run that tells them."""
    stand_ins = {
        "triggers": NoTriggers(),
        "signals": Silence(),
        "caches": None,
        "keys": None,
        "quota": NoQuotas(),
        "claims": Claims(),
        "daemons": NoDaemons(),
        "scaling": Unscaled(),
        "faults": dict,
        "fleet": Fleet,
        "sizes": tuple,
        "ages": Ages(),
        "events": Recorder(writer, ""),
    }
    return Dependencies(**(stand_ins | parts))


class NoDaemons:
    """Stand-in: no daemon accepts orders, so each replica is drained by its own deletion."""

    async def give(self, orders: Sequence[Order]) -> dict[str, Answer]:
        """Refused, all of them."""
        return {order.uid: Answer(DaemonState.REFUSED) for order in orders}


class NoQuotas:
    """DaemonState-in: nothing is capped."""

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
    """DaemonState-in: nobody is heard."""

    def of(self, key: Key, now: float) -> ServiceSignals | None:
        """Nothing."""
        del key, now
        return None

    def unheard(self, key: Key) -> float:
        """For ever."""
        del key
        return math.inf


class NoTriggers:
    """Nothing wakes a service."""

    def waits(self, key: Key, *, waiting: bool) -> None:
        """Nobody asks."""


class Unscaled:
    """DaemonState-in: spec.replicas counts in every mode."""

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
