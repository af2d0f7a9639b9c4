"""TenantQuotas as far as devices go, and the ledger: what services are charged, and what quotas let them have now. Pure.

The ledger is in memory. It is read and written without an await in between: of two services that race for the last slice only one gets it.
An entry is what a quorum read of the service's Deployments and pods showed, or more after an admitted write. Growth needs room beside
everything that is in use or promised, so no order of events exceeds a cap. If a cap shrinks, the newest services drain the excess.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from pagoda_contracts.resources.meta import ObjectMeta
from pagoda_contracts.resources.tenant import TenantQuotaSpec
from pydantic import ValidationError

from pagoda_operator.api.quota import GPU, Devices, Grant, Holding, charge, lasting, most, slice_word, spoken, total
from pagoda_operator.api.state import Json, Key, explain

# A cache shows a write within a second or two; the API server gives up an unanswered write after a minute.
_UNSEEN_S: Final = 30.0
_UNANSWERED_S: Final = 65.0


@dataclass(frozen=True)
class Quota:
    """One TenantQuota. Metadata and status are not compared, so that our own status write is no change."""

    name: str
    namespaces: frozenset[str] = frozenset()
    caps: Devices = field(default_factory=dict)
    native: bool = False
    spec: TenantQuotaSpec | None = None
    invalid: str = ""
    meta: ObjectMeta = field(default=ObjectMeta(), compare=False)
    status: Json = field(default_factory=dict, compare=False)

    def counts(self, namespace: str) -> bool:
        """Whether services in the namespace are the tenant's."""
        return namespace in self.namespaces

    def within(self, served: Collection[str]) -> Quota:
        """As an operator that serves in these namespaces only (empty: in all) keeps it: it makes no native quota elsewhere."""
        return replace(self, native=self.native and (not served or self.namespaces <= set(served)))


def parse_quota(body: Json) -> Quota:
    """The cache's parser. An invalid quota keeps the namespaces that can be read: nothing grows there, and its status says so."""
    meta, status = ObjectMeta.model_validate(body["metadata"]), body.get("status") or {}
    try:
        spec = TenantQuotaSpec.model_validate(body.get("spec"), extra="ignore")
    except ValidationError as error:
        return Quota(meta.name, _namespaces(body.get("spec")), invalid=explain(error), meta=meta, status=status)
    native = spec.devices is not None and spec.devices.resource_quota
    return Quota(meta.name, frozenset(spec.subjects.namespaces), _caps(spec), native, spec, "", meta, status)


def _namespaces(spec: Any) -> frozenset[str]:
    subjects = spec.get("subjects") if isinstance(spec, Mapping) else None
    names = subjects.get("namespaces") if isinstance(subjects, Mapping) else None
    return frozenset(name for name in names if isinstance(name, str)) if isinstance(names, list | tuple) else frozenset()


def _caps(spec: TenantQuotaSpec) -> Devices:
    if spec.devices is None:
        return {}
    slices: dict[str, int] = {}
    for entry in spec.devices.mig_slices:  # two spellings of the same slices: the smaller cap applies
        word = slice_word(entry.profile)
        slices[word] = min(entry.count, slices.get(word, entry.count))
    return slices if spec.devices.gpus is None else {GPU: spec.devices.gpus} | slices


def of_namespace(quotas: Iterable[Quota], namespace: str) -> tuple[Quota, ...]:
    """The quotas that limit devices in the namespace, invalid ones included. All of them apply, as with native quotas."""
    return tuple(quota for quota in quotas if (quota.caps or quota.invalid) and quota.counts(namespace))


class Age(NamedTuple):
    """Sorts services; the oldest keeps its devices longest."""

    created: str
    uid: str


@dataclass(frozen=True)
class Entry:
    """One service. `unseen`: admitted devices that no read has shown yet; they are charged until one does, or until `unseen_until`."""

    charge: Devices
    lasting: Devices
    age: Age
    unseen: Devices = field(default_factory=dict)
    unseen_until: float = 0.0


_NOTHING: Final = Entry({}, {}, Age("", ""))


class Ledger:
    """One leader's. Times are seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._entries: dict[Key, Entry] = {}
        # What was charged when a quota became invalid, by its name and namespaces.
        self._frozen: dict[tuple[str, frozenset[str]], Devices] = {}

    def __contains__(self, key: Key) -> bool:
        return key in self._entries

    def used(self, quota: Quota) -> Devices:
        """What the tenant is charged now, of the devices that the quota caps."""
        return {word: self._charged(quota, word) for word in quota.caps}

    def freeze(self, quotas: Iterable[Quota]) -> None:
        """Remember what is charged under each quota that has become invalid, and forget it for those that can be read."""
        known = {(quota.name, quota.namespaces): quota for quota in quotas if quota.invalid}
        self._frozen = {
            name: self._frozen[name] if name in self._frozen else total(entry.charge for entry in self._under(quota))
            for name, quota in known.items()
        }

    def settle(self, key: Key, found: Iterable[Holding], age: Age, now: float) -> bool:
        """Book what a quorum read shows; whether room became free for others."""
        found, before = tuple(found), self._entry(key)
        shown, unseen, until = charge(found), before.unseen, before.unseen_until
        if now >= until or all(shown.get(word, 0) >= count for word, count in unseen.items()):
            unseen, until = {}, 0.0
        after = Entry(most(shown, unseen), lasting(found), age, unseen, until)
        if after.charge or after.lasting:
            self._entries[key] = after
        else:
            self._entries.pop(key, None)
        return any(after.charge.get(word, 0) < count for word, count in before.charge.items())

    def agrees(self, key: Key, found: Iterable[Holding]) -> bool:
        """Whether exactly this is booked, and all of it was seen."""
        found, entry = tuple(found), self._entry(key)
        return not entry.unseen and Counter(entry.charge) == Counter(charge(found)) and Counter(entry.lasting) == Counter(lasting(found))

    def recount(self, key: Key, found: Iterable[Holding], age: Age, now: float) -> None:
        """Book what a later quorum read shows. Runs that read before it may not lower the charge for a while."""
        self.settle(key, found, age, now)
        self._keep(key, now + _UNSEEN_S)

    def unanswered(self, key: Key, now: float) -> None:
        """A write of this service had no answer: it may still be carried out."""
        self._keep(key, now + _UNANSWERED_S)

    def _keep(self, key: Key, until: float) -> None:
        if (entry := self._entries.get(key)) is not None:
            until = max(entry.unseen_until, until)
            self._entries[key] = replace(entry, unseen=most(entry.unseen, entry.charge), unseen_until=until)

    def overdue(self, now: float) -> frozenset[tuple[Key, float]]:
        """Services with a charge that no read has shown in time, and the end of that time: a read must show what is true."""
        return frozenset((key, entry.unseen_until) for key, entry in self._entries.items() if entry.unseen and now >= entry.unseen_until)

    def offer(self, key: Key, found: tuple[Holding, ...], current: str, need: Devices, quotas: Iterable[Quota]) -> Grant | None:
        """What the current revision may have, if each of its replicas needs these devices; None if no quota caps them."""
        offers = [
            self._offer(key, found, current, (word, count), quota)
            for quota in self._effective(quotas, need)
            for word, count in need.items()
            if count and word in quota.caps
        ]
        if not offers:
            return None
        least = min(offers, key=lambda grant: (grant.replicas, grant.room))
        return Grant(least.replicas, min(grant.room for grant in offers), least.why, any(grant.unread for grant in offers))

    def _offer(self, key: Key, found: tuple[Holding, ...], current: str, need: tuple[str, int], quota: Quota) -> Grant:
        word, each = need
        charged = self._charged(quota, word)
        others = charged - self._entry(key).charge.get(word, 0)
        stay = {holding.name: holding.lasting.get(word, 0) for holding in found}
        leaving = sum(holding.need.get(word, 0) * holding.leaving for holding in found)
        old = sum(count for name, count in stay.items() if name != current)
        mine = max(0, quota.caps[word] - others)
        free = max(0, mine - leaving)
        kept = sum(stay.values()) - self._share(key, quota, word)
        # Devices that are being released stay the service's own. Otherwise each replica that ends would cause the next one to end.
        replicas = max(mine, kept) // each
        room = max(free - old, min(kept - old, stay.get(current, 0)), 0) // each
        # Under an invalid quota no replica that serves goes because the new revision needs devices that the service does not have.
        unread = quota.invalid != "" and any(one.target and not one.need.get(word) for one in found if one.name != current)
        if unread:
            replicas = max(replicas, sum(holding.target for holding in found))
        return Grant(replicas, room, _message(quota, word, charged), unread)

    def _share(self, key: Key, quota: Quota, word: str) -> int:
        """How much of the quota's excess this service gives back: the newest service first, each all that it has, until it is enough."""
        lasts = {other: entry for other, entry in self._entries.items() if quota.counts(other.namespace) and entry.lasting.get(word)}
        excess = sum(entry.lasting[word] for entry in lasts.values()) - quota.caps[word]
        for other in sorted(lasts, key=lambda other: (lasts[other].age, other), reverse=True):
            given = max(0, min(excess, lasts[other].lasting[word]))
            if other == key:
                return given
            excess -= given
        return 0

    def full(self, found: Iterable[Holding], quotas: Iterable[Quota]) -> dict[str, str]:
        """Deployments without room for a successor of an unhealthy replica, and the message of the quota."""
        refused, quotas = {}, tuple(quotas)
        for one in found:
            messages = (self._too_much(quota, one) for quota in self._effective(quotas, one.need))
            if why := next(filter(None, messages), ""):
                refused[one.name] = why
        return refused

    def _too_much(self, quota: Quota, one: Holding) -> str:
        """An existing successor goes only if its quota shrank. Replicas that end do not take its room."""
        for word, count in one.need.items():
            used = self._lasting(quota, word) if one.extra else self._charged(quota, word) + count
            if count and word in quota.caps and used > quota.caps[word]:
                return _message(quota, word, self._charged(quota, word))
        return ""

    def admit(self, key: Key, planned: Iterable[Holding], quotas: Iterable[Quota], now: float) -> str:
        """Book these holdings before the writes that make them. If a quota has no room: its message, and nothing is booked."""
        planned = tuple(planned)
        before, after = self._entry(key), charge(planned)
        for quota, word, grown in self.growth(key, planned, quotas):
            charged = self._charged(quota, word)
            if charged + grown > quota.caps[word]:
                return f"{_message(quota, word, charged)}; {grown} more would be needed"
        # A read must show an end before less is charged, and a start before more is taken as seen.
        grows = any(count > before.charge.get(word, 0) for word, count in after.items())
        unseen, until = (most(before.unseen, after), now + _UNSEEN_S) if grows else (before.unseen, before.unseen_until)
        self._entries[key] = Entry(most(before.charge, after), lasting(planned), before.age, unseen, until)
        return ""

    def growth(self, key: Key, planned: Iterable[Holding], quotas: Iterable[Quota]) -> Iterator[tuple[Quota, str, int]]:
        """Where these holdings need more than is booked of what a quota caps: the quota, the word, how many more."""
        before, after = self._entry(key).charge, charge(planned)
        for quota in self._effective(quotas, after):
            for word in quota.caps:
                if (grown := after.get(word, 0) - before.get(word, 0)) > 0:
                    yield quota, word, grown

    def _effective(self, quotas: Iterable[Quota], words: Iterable[str]) -> Iterator[Quota]:
        """The cap of an invalid quota is what was charged when it became invalid, so that nothing grows and nothing is taken away. What is
        charged now would not do: a rollout that replaces replicas one by one would lower it with each."""
        words = tuple(words)
        for quota in quotas:
            yield replace(quota, caps={word: self._frozen_cap(quota, word) for word in words}) if quota.invalid else quota

    def _frozen_cap(self, quota: Quota, word: str) -> int:
        frozen = self._frozen.get((quota.name, quota.namespaces))
        return self._charged(quota, word) if frozen is None else max(frozen.get(word, 0), self._lasting(quota, word))

    def _entry(self, key: Key) -> Entry:
        return self._entries.get(key, _NOTHING)

    def _under(self, quota: Quota) -> Iterator[Entry]:
        return (entry for key, entry in self._entries.items() if quota.counts(key.namespace))

    def _lasting(self, quota: Quota, word: str) -> int:
        return sum(entry.lasting.get(word, 0) for entry in self._under(quota))

    def _charged(self, quota: Quota, word: str) -> int:
        return sum(entry.charge.get(word, 0) for entry in self._under(quota))


def _message(quota: Quota, word: str, charged: int) -> str:
    verb = "is" if charged == 1 else "are"
    if quota.invalid:
        return f"TenantQuota {quota.name} cannot be read, so its services do not grow; {charged} {spoken(word)} {verb} in use"
    return f"TenantQuota {quota.name} allows {quota.caps[word]} {spoken(word)}, and {charged} {verb} in use"
