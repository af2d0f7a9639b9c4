"""The ledger: what services are charged for devices, and what quotas let them have now. Pure.

The ledger is in memory. It is read and written without an await in between: of two services that race for the last slice only one gets it.
An entry is what a quorum read of the service's Deployments and pods showed, or more after an admitted write. Growth needs room beside
everything that is in use or promised, so no order of events exceeds a cap. If a cap shrinks, the newest services drain the excess.

A cap counts a service's holdings when it is asked for, since nodes tell later which products they have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, NamedTuple

from pagoda_placement.charges import (
    Devices,
    Grant,
    Holding,
    On,
    caps_of,
    charge,
    counted,
    is_certain,
    lasting,
    most,
    names_product,
    spoken,
)

from pagoda_operator.api.caps import Quota
from pagoda_operator.api.state import Key

# A cache shows a write within a second or two; the API server gives up an unanswered write after a minute.
_UNSEEN_S: Final = 30.0
_UNANSWERED_S: Final = 65.0
_MAY: Final = "; a replica may get one, because its entry of accelerators admits it: set gpu.product to another one"


class Age(NamedTuple):
    """Sorts services; the oldest keeps its devices longest."""

    created: str
    uid: str


_Found = tuple[Holding, ...]


@dataclass(frozen=True)
class Entry:
    """One service: what it has, as the last read or admission says. `before`: what it had before that admission. `unseen`: what was
    admitted and no read has shown yet; it is charged until one does, or until `unseen_until`."""

    found: _Found
    age: Age
    before: tuple[_Found, ...] = ()
    unseen: tuple[_Found, ...] = ()
    unseen_until: float = 0.0

    @property
    def states(self) -> tuple[_Found, ...]:
        """Each of these may be true. The largest is charged."""
        return (self.found, *self.before, *self.unseen)

    @cached_property
    def charge(self) -> Devices:
        """The devices in use or on their way, by word."""
        charged: Devices = {}
        for state in self.states:
            charged = most(charged, charge(state))
        return charged

    @cached_property
    def lasting(self) -> Devices:
        """The devices in use after all pods that leave are gone, by word."""
        return lasting(self.found)

    def uses(self, cap: str, on: On) -> int:
        """At most so many devices that a cap counts."""
        if not names_product(cap):
            return self.charge.get(cap, 0)
        return max(sum(one.uses(cap, on) for one in state) for state in self.states)

    def surely_stays(self, cap: str, on: On) -> int:
        """At least so many of them will be in use after all pods that leave are gone."""
        if not names_product(cap):
            return self.lasting.get(cap, 0)
        return sum(one.surely_stays(cap, on) for one in self.found)


_NOTHING: Final = Entry((), Age("", ""))


class Ledger:
    """One leader's. Times are seconds of a monotonic clock. `on`: the products of nodes, as they are known now; set by process.py."""

    def __init__(self) -> None:
        self.on: On = lambda _: ""
        self._entries: dict[Key, Entry] = {}
        # The services when a quota became invalid, by its name and namespaces.
        self._frozen: dict[tuple[str, frozenset[str]], tuple[Entry, ...]] = {}

    def __contains__(self, key: Key) -> bool:
        return key in self._entries

    def used(self, quota: Quota) -> Devices:
        """What the tenant is charged now, of the devices that the quota caps."""
        return {cap: self._charged(quota, cap) for cap in quota.caps}

    def over(self, quota: Quota) -> list[str]:
        """The caps that are certainly exceeded: pods that end count, a product that no node has told yet does not."""
        found = {cap: (self._surely_stays if names_product(cap) else self._charged)(quota, cap) for cap in quota.caps}
        return sorted(cap for cap, count in found.items() if count > quota.caps[cap])

    def freeze(self, quotas: Iterable[Quota]) -> None:
        """Remember what is charged under each quota that has become invalid, and forget it for those that can be read."""
        known = {(quota.name, quota.namespaces): quota for quota in quotas if quota.invalid}
        self._frozen = {name: self._frozen[name] if name in self._frozen else tuple(self._under(quota)) for name, quota in known.items()}

    def settle(self, key: Key, found: Iterable[Holding], age: Age, now: float) -> bool:
        """Book what a quorum read shows; whether room became free for others."""
        found, before = tuple(found), self._entry(key)
        shown, unseen, until = charge(found), before.unseen, before.unseen_until
        admitted = [(word, count) for state in unseen for word, count in charge(state).items()]
        if now >= until or all(shown.get(word, 0) >= count for word, count in admitted):
            unseen, until = (), 0.0
        after = Entry(found, age, (), unseen, until)
        if after.charge:
            self._entries[key] = after
        else:
            self._entries.pop(key, None)
        return any(after.charge.get(word, 0) < count for word, count in before.charge.items())

    def agrees(self, key: Key, found: Iterable[Holding]) -> bool:
        """Whether exactly this is booked, and all of it was seen."""
        found, entry = tuple(found), self._entry(key)
        same = Counter(entry.charge) == Counter(charge(found)) and Counter(entry.lasting) == Counter(lasting(found))
        return not entry.unseen and same

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
            self._entries[key] = replace(entry, unseen=_each(entry.states), unseen_until=until)

    def overdue(self, now: float) -> frozenset[tuple[Key, float]]:
        """Services with a charge that no read has shown in time, and the end of that time: a read must show what is true."""
        return frozenset((key, entry.unseen_until) for key, entry in self._entries.items() if entry.unseen and now >= entry.unseen_until)

    def offer(self, key: Key, found: tuple[Holding, ...], current: str, need: Devices, quotas: Iterable[Quota]) -> Grant | None:
        """What the current revision may have, if each of its replicas needs these devices; None if no quota caps them."""
        offers = [
            self._offer(key, found, current, (cap, need), quota)
            for quota in self._effective(quotas, need)
            for cap in quota.caps
            if counted(need, cap)
        ]
        if not offers:
            return None
        least = min(offers, key=lambda grant: (grant.replicas, grant.room))
        return Grant(least.replicas, min(grant.room for grant in offers), least.why, any(grant.unread for grant in offers))

    def _offer(self, key: Key, found: _Found, current: str, wanted: tuple[str, Devices], quota: Quota) -> Grant:
        (cap, need), each = wanted, counted(wanted[1], wanted[0])
        charged = self._charged(quota, cap)
        stay = {holding.name: holding.stays(cap, self.on) for holding in found}
        leaving = sum(holding.uses(cap, self.on) for holding in found) - sum(stay.values())
        old = sum(count for name, count in stay.items() if name != current)
        mine = max(0, quota.caps[cap] - (charged - self._entry(key).uses(cap, self.on)))
        free = max(0, mine - leaving)
        kept = sum(stay.values()) - self._share(key, quota, cap)
        # Replicas that might have been on such devices and are on others.
        apart = {one.name: one.target - stay[one.name] // most_each for one in found if (most_each := counted(one.need, cap))}
        # Devices that are being released stay the service's own. Otherwise each replica that ends would cause the next one to end.
        replicas = max(mine, kept) // each + sum(apart.values())
        room = max(free - old, min(kept - old, stay.get(current, 0)), 0) // each + apart.get(current, 0)
        # Under an invalid quota no replica that serves goes because the new revision needs devices that the service does not have.
        unread = quota.invalid != "" and any(one.target and not counted(one.need, cap) for one in found if one.name != current)
        if unread:
            replicas = max(replicas, sum(holding.target for holding in found))
        return Grant(replicas, room, _message(quota, cap, charged) + ("" if is_certain(need, cap) else _MAY), unread)

    def _share(self, key: Key, quota: Quota, cap: str) -> int:
        """How much of the quota's excess this service gives back: the newest service first, each all that it has, until it is enough."""
        mine = {other: entry for other, entry in self._entries.items() if quota.counts(other.namespace)}
        lasts = {other: count for other, entry in mine.items() if (count := entry.surely_stays(cap, self.on))}
        excess = sum(lasts.values()) - quota.caps[cap]
        for other in sorted(lasts, key=lambda other: (mine[other].age, other), reverse=True):
            given = max(0, min(excess, lasts[other]))
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
        for cap, count in ((cap, counted(one.need, cap)) for cap in quota.caps):
            used = self._surely_stays(quota, cap) if one.extra else self._charged(quota, cap) + count
            if count and used > quota.caps[cap]:
                return _message(quota, cap, self._charged(quota, cap))
        return ""

    def admit(self, key: Key, planned: Iterable[Holding], quotas: Iterable[Quota], now: float) -> str:
        """Book these holdings before the writes that make them. If a quota has no room: its message, and nothing is booked."""
        planned, before = tuple(planned), self._entry(key)
        for quota, cap, grown in self.growth(key, planned, quotas):
            charged = self._charged(quota, cap)
            if charged + grown > quota.caps[cap]:
                return f"{_message(quota, cap, charged)}; {grown} more would be needed"
        # A read must show an end before less is charged, and a start before more is taken as seen.
        grows = any(count > before.charge.get(word, 0) for word, count in charge(planned).items())
        unseen, until = (_each((*before.unseen, planned)), now + _UNSEEN_S) if grows else (before.unseen, before.unseen_until)
        others = tuple(state for state in _each((*before.before, before.found)) if state != planned)
        self._entries[key] = Entry(planned, before.age, others, unseen, until)
        return ""

    def growth(self, key: Key, planned: Iterable[Holding], quotas: Iterable[Quota]) -> Iterator[tuple[Quota, str, int]]:
        """Where these holdings need more than is booked of what a quota caps: the quota, the cap, how many more."""
        planned, before = tuple(planned), self._entry(key)
        for quota in self._effective(quotas, charge(planned)):
            for cap in quota.caps:
                if (grown := sum(one.uses(cap, self.on) for one in planned) - before.uses(cap, self.on)) > 0:
                    yield quota, cap, grown

    def _effective(self, quotas: Iterable[Quota], words: Iterable[str]) -> Iterator[Quota]:
        """The cap of an invalid quota is what was charged when it became invalid, so that nothing grows and nothing is taken away. What is
        charged now would not do: a rollout that replaces replicas one by one would lower it with each."""
        caps = tuple(caps_of(words))
        for quota in quotas:
            yield replace(quota, caps={cap: self._frozen_cap(quota, cap) for cap in caps}) if quota.invalid else quota

    def _frozen_cap(self, quota: Quota, cap: str) -> int:
        if (frozen := self._frozen.get((quota.name, quota.namespaces))) is None:
            return self._charged(quota, cap)
        return max(sum(entry.uses(cap, self.on) for entry in frozen), self._surely_stays(quota, cap))

    def _entry(self, key: Key) -> Entry:
        return self._entries.get(key, _NOTHING)

    def _under(self, quota: Quota) -> Iterator[Entry]:
        return (entry for key, entry in self._entries.items() if quota.counts(key.namespace))

    def _surely_stays(self, quota: Quota, cap: str) -> int:
        return sum(entry.surely_stays(cap, self.on) for entry in self._under(quota))

    def _charged(self, quota: Quota, cap: str) -> int:
        return sum(entry.uses(cap, self.on) for entry in self._under(quota))


def _each(states: Iterable[_Found]) -> tuple[_Found, ...]:
    found: list[_Found] = []
    for state in states:
        if state and state not in found:
            found.append(state)
    return tuple(found)


def _message(quota: Quota, word: str, charged: int) -> str:
    verb = "is" if charged == 1 else "are"
    if quota.invalid:
        return f"TenantQuota {quota.name} cannot be read, so its services do not grow; {charged} {spoken(word)} {verb} in use"
    return f"TenantQuota {quota.name} allows {quota.caps[word]} {spoken(word)}, and {charged} {verb} in use"
