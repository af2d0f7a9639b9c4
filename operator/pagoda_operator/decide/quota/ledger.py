"""The ledger: what every service is charged, and what quotas let one have now. No clock, no client: `keeper.py` fills it.

In memory, asked and written without an await in between, so that of two services that race for the last slice one gets it. The truth is
the cluster: an entry is what a quorum read of the service's Deployments and pods showed, or more where a write was just let through.
Growth needs room beside everything that is held or promised, so no order of events exceeds a cap. A shrunk cap takes replicas away from
the newest services, as many as are too many, by lowering what they are granted: they drain.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from pagoda_operator.api.quota import Devices, Grant, Holding, charge, lasting, most, spoken, total
from pagoda_operator.api.state import Key
from pagoda_operator.decide.quota.caps import Quota

# A cache shows a write within a second or two; the API server gives up an unanswered one after a minute.
_UNSEEN_S: Final = 30.0
_UNANSWERED_S: Final = 65.0


class Age(NamedTuple):
    """Who is older keeps."""

    created: str
    uid: str


@dataclass(frozen=True)
class Entry:
    """One service. `doubt`: was let through and is not seen yet; counts until it is, or until then."""

    charge: Devices
    lasting: Devices
    age: Age
    doubt: Devices = field(default_factory=dict)
    doubt_until: float = 0.0


class Growth(NamedTuple):
    """More of a word that a quota caps."""

    quota: Quota
    word: str
    more: int


_NOTHING: Final = Entry({}, {}, Age("", ""))


class Ledger:
    """Of one leader."""

    def __init__(self) -> None:
        self._entries: dict[Key, Entry] = {}
        # What was charged when a quota became unreadable, by its name and namespaces.
        self._frozen: dict[tuple[str, frozenset[str]], Devices] = {}

    def __contains__(self, key: Key) -> bool:
        return key in self._entries

    def used(self, quota: Quota) -> Devices:
        """What the tenant is charged now, of what the quota caps."""
        return {word: self._charged(quota, word) for word in quota.caps}

    def freeze(self, quotas: Iterable[Quota]) -> None:
        """Remember what is charged under those of all quotas that have become unreadable, and forget it of those that can be read."""
        known = {(quota.name, quota.namespaces): quota for quota in quotas if quota.invalid}
        self._frozen = {name: self._frozen[name] if name in self._frozen else self._all(quota) for name, quota in known.items()}

    def settle(self, key: Key, held: Iterable[Holding], age: Age, now: float) -> bool:
        """What a quorum read shows; whether room came free for others."""
        held, before = tuple(held), self._entries.get(key)
        shown, doubt, until = charge(held), before.doubt if before is not None else {}, before.doubt_until if before is not None else 0.0
        if now >= until or all(shown.get(word, 0) >= count for word, count in doubt.items()):
            doubt, until = {}, 0.0
        after = Entry(most(shown, doubt), lasting(held), age, doubt, until)
        if after.charge or after.lasting:
            self._entries[key] = after
        else:
            self._entries.pop(key, None)
        return before is not None and any(after.charge.get(word, 0) < count for word, count in before.charge.items())

    def agrees(self, key: Key, held: Iterable[Holding]) -> bool:
        """Whether this is what is booked, and nothing is in doubt."""
        held, entry = tuple(held), self._entry(key)
        return not entry.doubt and _same(entry.charge, charge(held)) and _same(entry.lasting, lasting(held))

    def forget(self, key: Key) -> None:
        """The service and all that it held are gone."""
        self._entries.pop(key, None)

    def offer(self, key: Key, held: tuple[Holding, ...], current: str, need: Devices, quotas: Iterable[Quota]) -> Grant | None:
        """What the current revision, a replica of which needs so much, may have; None where no quota caps that."""
        offers = [
            self._offer(key, held, current, (word, count), quota)
            for quota in self._readable(quotas, need)
            for word, count in need.items()
            if count and word in quota.caps
        ]
        if not offers:
            return None
        least = min(offers, key=lambda grant: (grant.replicas, grant.room))
        return Grant(least.replicas, min(grant.room for grant in offers), least.why, any(grant.unread for grant in offers))

    def _offer(self, key: Key, held: tuple[Holding, ...], current: str, need: tuple[str, int], quota: Quota) -> Grant:
        word, each = need
        charged = self._charged(quota, word)
        others = charged - self._entry(key).charge.get(word, 0)
        stay = {holding.name: holding.lasting.get(word, 0) for holding in held}
        leaving = sum(holding.need.get(word, 0) * holding.leaving for holding in held)
        old = sum(count for name, count in stay.items() if name != current)
        mine = max(0, quota.caps[word] - others)
        free = max(0, mine - leaving)
        kept = sum(stay.values()) - self._share(key, quota, word)
        # What leaves is to be followed: were it not the service's own, one replica on its way out would take the next one along.
        replicas = max(mine, kept) // each
        room = max(free - old, min(kept - old, stay.get(current, 0)), 0) // each
        # Where it is not known what is allowed, nothing that serves goes for want of what it does not hold itself.
        unread = quota.invalid != "" and any(holding.target and not holding.need.get(word) for holding in held if holding.name != current)
        if unread:
            replicas = max(replicas, sum(holding.target for holding in held))
        return Grant(replicas, room, _says(quota, word, charged), unread)

    def full(self, held: Iterable[Holding], quotas: Iterable[Quota]) -> dict[str, str]:
        """Deployments for which there is no room for a successor of an unhealthy replica, and by which quota."""
        found, quotas = {}, tuple(quotas)
        for one in held:
            capped = (self._too_much(quota, one) for quota in self._readable(quotas, one.need))
            if why := next(filter(None, capped), ""):
                found[one.name] = why
        return found

    def _too_much(self, quota: Quota, one: Holding) -> str:
        """A successor that is there goes only if its quota shrank: what ends meanwhile takes no room from it."""
        for word, count in one.need.items():
            used = self._lasting(quota, word) if one.extra else self._charged(quota, word) + count
            if count and word in quota.caps and used > quota.caps[word]:
                return _says(quota, word, self._charged(quota, word))
        return ""

    def _share(self, key: Key, quota: Quota, word: str) -> int:
        """Of what is too much under the quota, what this service gives back: the newest first, each all it has, until it is enough."""
        lasts = {other: entry for other, entry in self._entries.items() if quota.counts(other.namespace) and entry.lasting.get(word)}
        excess = sum(entry.lasting[word] for entry in lasts.values()) - quota.caps[word]
        for other in sorted(lasts, key=lambda other: (lasts[other].age, other), reverse=True):
            if excess <= 0:
                return 0
            given = min(excess, lasts[other].lasting[word])
            if other == key:
                return given
            excess -= given
        return 0

    def admit(self, key: Key, planned: Iterable[Holding], quotas: Iterable[Quota], now: float) -> str:
        """Let writes through that make the service's holdings these, and book them; else say by which quota not, and book nothing."""
        planned = tuple(planned)
        before, after = self._entry(key), charge(planned)
        for quota, word, grown in self._growth(key, after, quotas):
            charged = self._charged(quota, word)
            if charged + grown > quota.caps[word]:
                return f"{_says(quota, word, charged)}; {grown} more would be needed"
        # What is lowered counts until a read shows that it is gone, what is raised until a read shows it.
        grows = any(count > before.charge.get(word, 0) for word, count in after.items())
        doubt, until = (most(before.doubt, after), now + _UNSEEN_S) if grows else (before.doubt, before.doubt_until)
        self._entries[key] = Entry(most(before.charge, after), lasting(planned), before.age, doubt, until)
        return ""

    def growing(self, key: Key, planned: Iterable[Holding], quotas: Iterable[Quota]) -> Growth | None:
        """What of these holdings is more than is booked, where a quota caps it."""
        return next(self._growth(key, charge(tuple(planned)), quotas), None)

    def _growth(self, key: Key, after: Devices, quotas: Iterable[Quota]) -> Iterator[Growth]:
        before = self._entry(key).charge
        for quota in self._readable(quotas, after):
            for word in quota.caps:
                if (grown := after.get(word, 0) - before.get(word, 0)) > 0:
                    yield Growth(quota, word, grown)

    def recount(self, key: Key, held: Iterable[Holding], age: Age, now: float) -> None:
        """What a later quorum read shows, against runs that read before it: theirs may not lower it for a while."""
        self.settle(key, held, age, now)
        if (entry := self._entries.get(key)) is not None:
            until = max(entry.doubt_until, now + _UNSEEN_S)
            self._entries[key] = replace(entry, doubt=most(entry.doubt, entry.charge), doubt_until=until)

    def overdue(self, now: float) -> frozenset[tuple[Key, float]]:
        """Services of which something is still charged that cannot come any more, and since when: what a read shows is the truth again."""
        return frozenset((key, entry.doubt_until) for key, entry in self._entries.items() if entry.doubt and now >= entry.doubt_until)

    def unanswered(self, key: Key, now: float) -> None:
        """A write of this service had no answer: it may still happen."""
        if (entry := self._entries.get(key)) is not None:
            self._entries[key] = replace(entry, doubt=most(entry.doubt, entry.charge), doubt_until=now + _UNANSWERED_S)

    def _readable(self, quotas: Iterable[Quota], words: Iterable[str]) -> Iterator[Quota]:
        """What one that nobody can read allows is unknown: what was held when it became so is its cap, so that nothing grows and nothing is
        taken away. Were what is held now, a rollout that makes one replica way for another would lower it with each, down to nothing."""
        words = tuple(words)
        for quota in quotas:
            yield replace(quota, caps={word: self._unread(quota, word) for word in words}) if quota.invalid else quota

    def _unread(self, quota: Quota, word: str) -> int:
        frozen = self._frozen.get((quota.name, quota.namespaces))
        if frozen is None:
            return self._charged(quota, word)
        return max(frozen.get(word, 0), self._lasting(quota, word))

    def _all(self, quota: Quota) -> Devices:
        return total(entry.charge for key, entry in self._entries.items() if quota.counts(key.namespace))

    def _entry(self, key: Key) -> Entry:
        return self._entries.get(key, _NOTHING)

    def _lasting(self, quota: Quota, word: str) -> int:
        return sum(entry.lasting.get(word, 0) for key, entry in self._entries.items() if quota.counts(key.namespace))

    def _charged(self, quota: Quota, word: str) -> int:
        return sum(entry.charge.get(word, 0) for key, entry in self._entries.items() if quota.counts(key.namespace))


def _says(quota: Quota, word: str, charged: int) -> str:
    verb = "is" if charged == 1 else "are"
    if quota.invalid:
        return f"TenantQuota {quota.name} cannot be read, so its services do not grow; {charged} {spoken(word)} {verb} in use"
    return f"TenantQuota {quota.name} allows {quota.caps[word]} {spoken(word)}, and {charged} {verb} in use"


def _same(left: Devices, right: Devices) -> bool:
    return all(left.get(word, 0) == right.get(word, 0) for word in left.keys() | right.keys())
