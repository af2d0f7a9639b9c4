"""Quotas: what `reconcile` asks about devices. Fills the ledger once, keeps it by what every run reads, wakes who waits for room.

Made by process.py; the arithmetic is ledger.py's. Between an offer, the plan made of it and its admission no other service's run comes in,
but where the API server is asked about names: then admission is what counts, and a refused plan is made again.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from pagoda_contracts.names import LABEL_SERVICE

from pagoda_operator.api.quota import Grant, Holding, devices_of, holdings
from pagoda_operator.api.state import DEPLOYMENTS, PODS, SERVICES, Json, Key, Observed, Reader
from pagoda_operator.decide.plan import Plan
from pagoda_operator.decide.quota.caps import Quota, of_namespace
from pagoda_operator.decide.quota.ledger import Age, Ledger
from pagoda_operator.decide.render.writes import Annotate, Apply, Create, Delete, Write

# Of a service that is gone and whose replicas still end: it gives back before all others.
_GONE: Final = Age("~", "")
_PAUSED: Final = (
    "TenantQuota {}: scaling up is paused for a minute after a leader change, because writes of the previous leader may still arrive"
)


class Quotas:
    """`quotas`: all that the watch has shown; `wake`: have a service looked at again; `settled`: whether nothing that a leader before us
    wrote can come any more (leader.py); `steady`: a clock that nobody sets, since what is in doubt stays so for a while by no other."""

    def __init__(
        self,
        reader: Reader,
        quotas: Callable[[], Iterable[Quota]],
        wake: Callable[[Key], None],
        steady: Callable[[], float],
        settled: Callable[[], bool] = lambda: True,
    ) -> None:
        self._reader, self._quotas, self._wake, self._settled, self.steady = reader, quotas, wake, settled, steady
        self.ledger = Ledger()
        # Whether everything was counted, and whether that was after the last write of a leader before us could come.
        self._full = self._sure = False
        self._filling = asyncio.Lock()
        # Services that want more than they are granted, and in vain.
        self._short: set[Key] = set()
        # Doubts that are over and whose services were woken for it.
        self._woken: frozenset[tuple[Key, float]] = frozenset()

    async def settle(self, key: Key, observed: Observed) -> None:
        """Book what this run read; before the first grant of all, what every service holds."""
        if self._full:  # before this run's read lowers what is charged: it may be between one replica's end and the next one's order
            self.ledger.freeze(self._quotas())
        age = Age(observed.meta.creation_timestamp, observed.meta.uid)
        self._booked(key, self.ledger.settle(key, observed.holdings, age, self.steady()))
        if not self._sure and of_namespace(self._quotas(), key.namespace):
            await self.fill()
            self.ledger.freeze(self._quotas())

    def booked(self, key: Key, observed: Observed) -> bool:
        """Whether what was shown is what is booked, with nothing in doubt; else a run reads the truth of it."""
        return self.ledger.agrees(key, observed.holdings) and (self._sure or not of_namespace(self._quotas(), key.namespace))

    async def gone(self, key: Key) -> bool:
        """The service is no more; what it holds still counts until it is gone too. Whether it does."""
        self._short.discard(key)
        if key not in self.ledger:
            return False
        selector = f"{LABEL_SERVICE}={key.name}"
        deployments, pods = [await self._reader.list(resource, key.namespace, selector) for resource in (DEPLOYMENTS, PODS)]
        self._booked(key, self.ledger.settle(key, holdings(deployments, pods), _GONE, self.steady()))
        return key in self.ledger

    async def fill(self) -> None:
        """Every service that no run of this process has read yet, by three lists; later ones are read by a run before they hold a thing.
        All of it once more, as soon as that is the last word on what a leader before us let through."""
        async with self._filling:
            settled = self._settled()
            if self._sure or (self._full and not settled):
                return
            services, deployments, pods = await asyncio.gather(
                self._reader.list(SERVICES, "", ""),
                self._reader.list(DEPLOYMENTS, "", LABEL_SERVICE),
                self._reader.list(PODS, "", LABEL_SERVICE),
            )
            ages = {_key(body): Age(body["metadata"].get("creationTimestamp", ""), body["metadata"]["uid"]) for body in services}
            made, running, now = _by_service(deployments), _by_service(pods), self.steady()
            for key in made.keys() | running.keys():
                if self._full:
                    self.ledger.recount(key, holdings(made.get(key, ()), running.get(key, ())), ages.get(key, _GONE), now)
                elif key not in self.ledger:
                    self.ledger.settle(key, holdings(made.get(key, ()), running.get(key, ())), ages.get(key, _GONE), 0.0)
            self._full, self._sure = True, settled

    def offer(self, key: Key, observed: Observed, planned: Callable[[Observed], Plan]) -> Grant | None:
        """What the current revision may have; what a replica of it needs is read from a plan that knows of no quota. That plan need not
        make one: in the first steps of a rollout none does, and without a grant then the last one's limit would be gone."""
        quotas = of_namespace(self._quotas(), key.namespace)
        draft = planned(observed) if quotas else Plan()
        if draft.current is None or draft.template is None:
            return None
        name, template = draft.current.name, draft.template
        need = next((one.need for one in observed.holdings if one.name == name), devices_of(template["metadata"], template["spec"]))
        return self.ledger.offer(key, observed.holdings, name, need, quotas)

    def full(self, key: Key, observed: Observed) -> dict[str, str]:
        """Deployments whose unhealthy replicas get no successor: there is no room for one more, or nothing may grow yet; and why."""
        quotas = of_namespace(self._quotas(), key.namespace)
        found = self.ledger.full(observed.holdings, quotas)
        if not self._sure:
            capped = {one.name: quota for one in observed.holdings for quota in quotas if quota.invalid or quota.caps.keys() & one.need}
            growing = [one.name for one in observed.holdings if not one.extra and one.name in capped]
            found = {name: _PAUSED.format(capped[name].name) for name in growing} | found
        return found

    def admit(self, key: Key, observed: Observed, draft: Plan) -> Plan:
        """The draft, booked; without what would grow where there is no room for it."""
        quotas = of_namespace(self._quotas(), key.namespace)
        planned = _planned(observed, draft.writes)
        refused = self._early(key, planned, quotas) or self.ledger.admit(key, planned, quotas, self.steady())
        if refused:
            kept = tuple(write for write in draft.writes if not _grows(observed, write))
            draft = replace(draft, writes=kept, over_quota=refused)
            self.ledger.admit(key, _planned(observed, kept), (), self.steady())
        if refused or observed.limited:
            self._short.add(key)
        else:
            self._short.discard(key)
        return draft

    def _early(self, key: Key, planned: Iterable[Holding], quotas: Iterable[Quota]) -> str:
        """Why nothing may grow yet: what the leader before let through is not all there to be counted."""
        if self._sure or (held := self.ledger.growing(key, planned, quotas)) is None:
            return ""
        return _PAUSED.format(held.quota.name)

    def unanswered(self, key: Key) -> None:
        """A write of the service had no answer."""
        self.ledger.unanswered(key, self.steady())

    def doubt(self) -> None:
        """Have each service read anew, once, when the last doubt of it is over: until then others wait for room that may be free, and its
        own next run may be minutes away."""
        overdue = self.ledger.overdue(self.steady())
        for key, _ in sorted(overdue - self._woken):
            self._wake(key)
        self._woken = overdue

    def _booked(self, key: Key, freed: bool) -> None:
        if freed:
            for short in self._short - {key}:
                self._wake(short)


def _planned(observed: Observed, writes: Iterable[Write]) -> list[Holding]:
    """What the service will hold once the writes are done."""
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
    """One pass: to look for each of 2,000 services through 5,000 pods would hold the event loop for seconds, and the Lease with it."""
    found: dict[Key, list[Json]] = defaultdict(list)
    for body in bodies:
        found[_service(body)].append(body)
    return found


def _key(body: Json) -> Key:
    return Key(body["metadata"]["namespace"], body["metadata"]["name"])


def _service(body: Json) -> Key:
    return Key(body["metadata"]["namespace"], body["metadata"]["labels"][LABEL_SERVICE])
