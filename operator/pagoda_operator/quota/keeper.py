"""What `reconcile` asks about quotas: fills the ledger once, books what every run reads, requeues services that wait for room.

Made by process.py; the arithmetic is in `decide/quota.py`. No other service's run comes between an offer, the plan made of it and its
admission, unless the API server is asked about names. Then admission decides, and a refused plan is made again.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from pagoda_contracts.names import LABEL_SERVICE
from pagoda_placement.charges import Grant, Holding, counted, devices_of, holdings, names_product
from pagoda_placement.revision import Revision

from pagoda_operator.api.caps import Quota, of_namespace
from pagoda_operator.api.state import DEPLOYMENTS, PODS, SERVICES, Json, Key, Observed, Reader
from pagoda_operator.decide.plan import Plan
from pagoda_operator.decide.quota import Age, Ledger
from pagoda_operator.decide.render.children import Manifest
from pagoda_operator.decide.render.writes import Annotate, Apply, Create, Delete, Write
from pagoda_operator.watch.kept import key_of

# A service that is deleted while its replicas still end gives back before all others.
_GONE: Final = Age("~", "")
_PAUSED: Final = (
    "TenantQuota {}: scaling up is paused for a minute after a leader change, because writes of the previous leader may still arrive"
)


class Quotas:
    """`quotas`: all TenantQuotas in the cache; `requeue`: queues a service; `settled`: whether no write of a previous leader can arrive any
    more (leader.py); `steady`: a monotonic clock, in seconds; `selector`: which objects are replicas of this install's services."""

    def __init__(
        self,
        reader: Reader,
        quotas: Callable[[], Iterable[Quota]],
        requeue: Callable[[Key], None],
        steady: Callable[[], float],
        settled: Callable[[], bool] = lambda: True,
        selector: str = LABEL_SERVICE,
    ) -> None:
        self._selector = selector
        self._reader, self.quotas, self._requeue, self._settled, self.steady = reader, quotas, requeue, settled, steady
        self.ledger = Ledger()
        # Whether everything was counted, and whether that was after the last write of a previous leader could arrive.
        self._full = self._sure = False
        self._filling = asyncio.Lock()
        # Services that want more than they are granted.
        self._short: set[Key] = set()
        # Services that were requeued because a charge was overdue.
        self._overdue: frozenset[tuple[Key, float]] = frozenset()

    async def settle(self, key: Key, observed: Observed) -> None:
        """Book what this run read; before the first grant, what every service has."""
        if self._full:  # before this run lowers the charge: one replica may have ended while the next is not ordered yet
            self.ledger.freeze(self.quotas())
        self._book(key, observed.holdings, Age(observed.meta.creation_timestamp, observed.meta.uid))
        if not self._sure and of_namespace(self.quotas(), key.namespace):
            await self.fill()
            self.ledger.freeze(self.quotas())

    def booked(self, key: Key, observed: Observed) -> bool:
        """Whether exactly what was observed is booked; otherwise the run must verify it by quorum reads."""
        return self.ledger.agrees(key, observed.holdings) and (self._sure or not of_namespace(self.quotas(), key.namespace))

    async def gone(self, key: Key) -> bool:
        """Book that the service is deleted. Whether pods of it still have devices, which count until the pods are gone."""
        self._short.discard(key)
        if key not in self.ledger:
            return False
        selector = f"{LABEL_SERVICE}={key.name}"
        lists = [await self._reader.list(resource, key.namespace, selector) for resource in (DEPLOYMENTS, PODS)]
        self._book(key, holdings(*lists), _GONE)
        return key in self.ledger

    def _book(self, key: Key, found: Iterable[Holding], age: Age) -> None:
        quotas = of_namespace(self.quotas(), key.namespace) if self._short - {key} else ()
        told = [quota for quota in quotas if any(map(names_product, quota.caps))]
        before = [self.ledger.used(quota) for quota in told]
        freed = self.ledger.settle(key, found, age, self.steady())
        # A replica that might have been on a capped product is on another one.
        apart = any(self.ledger.used(quota)[cap] < count for quota, used in zip(told, before, strict=True) for cap, count in used.items())
        if freed or apart:
            for short in self._short - {key}:
                self._requeue(short)

    async def fill(self) -> None:
        """Book every service that no run of this process has read yet, by three lists. Once more, when no write of a previous leader can
        arrive any more."""
        async with self._filling:
            settled = self._settled()
            if self._sure or (self._full and not settled):
                return
            services, deployments, pods = await asyncio.gather(
                self._reader.list(SERVICES, "", ""),
                self._reader.list(DEPLOYMENTS, "", self._selector),
                self._reader.list(PODS, "", self._selector),
            )
            ages = {key_of(body): Age(body["metadata"].get("creationTimestamp", ""), body["metadata"]["uid"]) for body in services}
            made, running, now = _by_service(deployments), _by_service(pods), self.steady()
            for key in made.keys() | running.keys():
                found, age = holdings(made.get(key, ()), running.get(key, ())), ages.get(key, _GONE)
                if self._full:
                    self.ledger.recount(key, found, age, now)
                elif key not in self.ledger:
                    self.ledger.settle(key, found, age, 0.0)
            self._full, self._sure = True, settled

    def offer(self, key: Key, observed: Observed, rendered: Callable[[Observed], tuple[Revision, Manifest] | None]) -> Grant | None:
        """What the current revision may have. Its pod template, as it would be without quotas, shows which devices a replica needs."""
        quotas = of_namespace(self.quotas(), key.namespace)
        found = rendered(observed) if quotas else None
        if found is None:
            return None
        revision, template = found
        held = (one.need for one in observed.holdings if one.name == revision.name)
        need = next(held, None) or devices_of(template["metadata"], template["spec"])
        return self.ledger.offer(key, observed.holdings, revision.name, need, quotas)

    def full(self, key: Key, observed: Observed) -> dict[str, str]:
        """Deployments whose unhealthy replicas get no successor, and why: there is no room, or growth is paused."""
        quotas = of_namespace(self.quotas(), key.namespace)
        found = self.ledger.full(observed.holdings, quotas)
        if self._sure:
            return found
        growing = [one for one in observed.holdings if not one.extra]
        capped = {
            one.name: quota for one in growing for quota in quotas if quota.invalid or any(counted(one.need, cap) for cap in quota.caps)
        }
        return {name: _PAUSED.format(quota.name) for name, quota in capped.items()} | found

    def admit(self, key: Key, observed: Observed, draft: Plan) -> Plan:
        """The draft, booked; without the writes that would grow, if there is no room for them."""
        quotas = of_namespace(self.quotas(), key.namespace)
        planned = _planned(observed, draft.writes)
        refused = self._paused(key, planned, quotas) or self.ledger.admit(key, planned, quotas, self.steady())
        if refused:
            kept = tuple(write for write in draft.writes if not _grows(observed, write))
            draft = replace(draft, writes=kept, over_quota=refused)
            self.ledger.admit(key, _planned(observed, kept), (), self.steady())
        if refused or observed.limited:
            self._short.add(key)
        else:
            self._short.discard(key)
        return draft

    def _paused(self, key: Key, planned: Iterable[Holding], quotas: Iterable[Quota]) -> str:
        growth = () if self._sure else self.ledger.growth(key, planned, quotas)
        return next((_PAUSED.format(quota.name) for quota, _, _ in growth), "")

    def unanswered(self, key: Key) -> None:
        """A write of the service had no answer."""
        self.ledger.unanswered(key, self.steady())

    def requeue_overdue(self) -> None:
        """Requeue each service with an overdue charge once. Others wait for that room, and its own next run may be minutes away."""
        overdue = self.ledger.overdue(self.steady())
        for key, _ in sorted(overdue - self._overdue):
            self._requeue(key)
        self._overdue = overdue


def _planned(observed: Observed, writes: Iterable[Write]) -> list[Holding]:
    """The service's holdings after the writes."""
    known = {holding.name: holding for holding in observed.holdings}
    for write in writes:
        if write.resource != DEPLOYMENTS or isinstance(write, Annotate):
            continue
        target = 0 if isinstance(write, Delete) else int(write.manifest["spec"]["replicas"])
        if write.name in known:
            known[write.name] = replace(known[write.name], target=target)
        elif isinstance(write, Create):
            template = write.manifest["spec"]["template"]
            known[write.name] = Holding(write.name, devices_of(template["metadata"], template["spec"]), target)
    return list(known.values())


def _grows(observed: Observed, write: Write) -> bool:
    if write.resource != DEPLOYMENTS or not isinstance(write, Create | Apply):
        return False
    before = next((holding.target for holding in observed.holdings if holding.name == write.name), 0)
    return int(write.manifest["spec"]["replicas"]) > before


def _by_service(bodies: Iterable[Json]) -> dict[Key, list[Json]]:
    """In one pass: searching 5,000 pods for each of 2,000 services would block the event loop for seconds, and with it the Lease."""
    found: dict[Key, list[Json]] = defaultdict(list)
    for body in bodies:
        found[Key(body["metadata"]["namespace"], body["metadata"]["labels"][LABEL_SERVICE])].append(body)
    return found
