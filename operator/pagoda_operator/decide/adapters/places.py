"""On which replicas each adapter is, within the places that a replica has. Pure.

Older adapters choose first. Those with placement OnDemand are on the disk of each replica and share one place at least, but for pinned
ones. With placement Replicas an adapter takes the same replicas each time as long as they are there (rendezvous hashing), of different
nodes if it can, and not one on which it failed of late. A replica that it leaves keeps it until it is loaded on all replicas that it goes
to, so that requests for it always find one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from pagoda_placement.values import digest

from pagoda_operator.api.adapters import Adapter, Entry
from pagoda_operator.decide.adapters.catalogue import entry_of


class Replica(NamedTuple):
    """A ready replica; `has`: the names that it has loaded, `fails`: entries that it could not load of late."""

    name: str
    uid: str
    node: str = ""
    has: frozenset[str] = frozenset()
    fails: frozenset[Entry] = frozenset()


class Places(NamedTuple):
    """What each replica should have, by its uid; on which replicas (by name) each adapter should be, by its uid."""

    entries: Mapping[str, tuple[Entry, ...]]
    replicas: Mapping[str, tuple[str, ...]]


def place(accepted: Sequence[Adapter], replicas: Sequence[Replica], most: int) -> Places:
    """`most`: adapters that a replica may have at the same time."""
    on: dict[str, list[Adapter]] = {replica.uid: [] for replica in replicas}
    chosen: dict[str, list[Replica]] = {}
    most -= any(adapter.shares_place for adapter in accepted)
    for adapter in accepted:
        free = [replica for replica in replicas if adapter.shares_place or _used(on[replica.uid]) < most]
        chosen[adapter.uid] = _choice(adapter, free)
        _put(on, adapter, chosen[adapter.uid])
    for adapter in accepted:
        _put(on, adapter, [one for one in _staying(adapter, replicas, chosen[adapter.uid]) if _used(on[one.uid]) < most])
    names = {uid: tuple(sorted(replica.name for replica in picked)) for uid, picked in chosen.items()}
    return Places({uid: tuple(map(entry_of, adapters)) for uid, adapters in on.items()}, names)


def _used(adapters: Iterable[Adapter]) -> int:
    """Places that are taken for good."""
    return sum(not adapter.shares_place for adapter in adapters)


def _put(on: Mapping[str, list[Adapter]], adapter: Adapter, replicas: Iterable[Replica]) -> None:
    for replica in replicas:
        on[replica.uid].append(adapter)


def _choice(adapter: Adapter, free: list[Replica]) -> list[Replica]:
    wanted = adapter.copies
    if wanted is None:
        return free
    order = sorted(free, key=lambda replica: digest([adapter.uid, replica.uid]))
    before: Counter[str] = Counter()
    turns: list[tuple[bool, int, int]] = []
    for index, replica in enumerate(order):
        turns.append((entry_of(adapter) in replica.fails, before[replica.node], index))
        before[replica.node] += 1
    return [order[index] for *_, index in sorted(turns)[:wanted]]


def _staying(adapter: Adapter, replicas: Iterable[Replica], chosen: Sequence[Replica]) -> list[Replica]:
    name = adapter.served_name
    if all(name in replica.has for replica in chosen):
        return []
    return [replica for replica in replicas if name in replica.has and replica not in chosen]
