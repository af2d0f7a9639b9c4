"""Cores and memory of nodes: what a replica's pod asks for, what other pods hold of it, and where it finds room. Pure but for `Loads`.

Every service on CPU asks, and every pod of the cluster counts. So pods are summed up by node as they come and go, what nodes alone decide
is worked out once for a set of nodes, and places are counted only up to those that are wanted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from pagoda_operator.placement.nodes import Node
from pagoda_operator.placement.pods import Occupant
from pagoda_operator.placement.shape import gib

UNBOUNDED: Final = 1 << 20


class Amount(NamedTuple):
    """So much of a node."""

    millicores: int
    memory: int

    def __str__(self) -> str:
        """For people."""
        cores = f"{cores_of(self.millicores)}" if self.millicores else ""
        return " and ".join(part for part in (cores, gib(self.memory) if self.memory else "") if part) or "nothing"


NOTHING: Final = Amount(0, 0)


def cores_of(millicores: int) -> str:
    """For people: 0.25 cores, 1,000 cores."""
    whole, rest = divmod(millicores, 1000)
    count = f"{whole:,}" if not rest else f"{millicores / 1000:.3f}".rstrip("0")
    return f"{count} core{'' if millicores == 1000 else 's'}"


@dataclass(frozen=True)
class Held:
    """What pods that have a node ask for there: all of them by node, each service's own by its uid."""

    by_node: Mapping[str, Amount] = field(default_factory=dict)
    own: Mapping[str, Mapping[str, Amount]] = field(default_factory=dict)


class Loads:
    """The same, kept by every change of a pod that the mirror hears of. Made by serve.py, read by `view`."""

    def __init__(self) -> None:
        self.changes = 0
        self._by_node: dict[str, Amount] = {}
        self._own: dict[str, dict[str, Amount]] = {}
        self._made = (-1, Held())

    def heard(self, before: Occupant | None, after: Occupant | None) -> bool:
        """One pod changed; whether that is news to anybody but the sums."""
        for pod, sign in ((before, -1), (after, 1)):
            if pod is not None and pod.node and (pod.millicores or pod.memory):
                self._add(pod, sign)
        return any(pod is not None and not pod.plain for pod in (before, after))

    def held(self) -> Held:
        """As it is now; a value, whatever comes later."""
        if self._made[0] != self.changes:
            self._made = (self.changes, Held(dict(self._by_node), dict(self._own)))
        return self._made[1]

    def _add(self, pod: Occupant, sign: int) -> None:
        self.changes += 1
        _move(self._by_node, pod, sign)
        if pod.service_uid:
            mine = dict(self._own.get(pod.service_uid, {}))  # a copy: the last is in somebody's hands
            _move(mine, pod, sign)
            self._own[pod.service_uid] = mine
            if not mine:
                del self._own[pod.service_uid]


def _move(sums: dict[str, Amount], pod: Occupant, sign: int) -> None:
    last = sums.get(pod.node, NOTHING)
    sums[pod.node] = Amount(last.millicores + sign * pod.millicores, last.memory + sign * pod.memory)
    if sums[pod.node] == NOTHING:
        del sums[pod.node]


def held_by(occupants: Iterable[Occupant]) -> Held:
    """Of a fleet that nobody kept the sums of."""
    loads = Loads()
    for pod in occupants:
        loads.heard(None, pod)
    return loads.held()


def holds(node: Node, need: Amount) -> bool:
    """Whether it could with nobody else there. Of what a node says nothing it is not judged by."""
    return not (0 < node.millicores < need.millicores or 0 < node.memory < need.memory)


def times(node: Node, need: Amount, held: Held, mine: str) -> int:
    """How many such pods find room on a node now; what the service's own hold is free to it."""
    used, own = held.by_node.get(node.name, NOTHING), held.own.get(mine, {}).get(node.name, NOTHING)
    most = UNBOUNDED
    if node.millicores and need.millicores:
        most = (node.millicores - used.millicores + own.millicores) // need.millicores
    if node.memory and need.memory:
        most = min(most, (node.memory - used.memory + own.memory) // need.memory)
    return max(0, most)


def count(nodes: Iterable[Node], need: Amount, held: Held, mine: str, enough: int) -> int:
    """Such pods that find room now, not counted any further than is wanted."""
    found = 0
    for node in nodes:
        found += times(node, need, held, mine)
        if found >= enough:
            return enough
    return found


def too_small(nodes: Iterable[Node], need: Amount) -> str:
    """Why none of the nodes could ever hold it: the largest of what is missing."""
    there = tuple(nodes)
    cores, memory = max(node.millicores for node in there), max(node.memory for node in there)
    if 0 < cores < need.millicores:
        return f"needs {cores_of(need.millicores)} on one node, the largest has {cores_of(cores)}"
    if 0 < memory < need.memory:
        return f"needs {gib(need.memory)} on one node, the largest has {gib(memory)}"
    return f"needs {need} on one node, and none has both"


def by_words(told: Iterable[tuple[str, str]]) -> str:
    """Nodes that are barred, by what: `2 nodes: taint x:NoSchedule is not tolerated`."""
    found: dict[str, list[str]] = defaultdict(list)
    for name, why in told:
        found[why].append(name)
    parts = [f"{names[0] if len(names) == 1 else f'{len(names)} nodes'}: {why}" for why, names in sorted(found.items())]
    return "; ".join(parts[:3])
