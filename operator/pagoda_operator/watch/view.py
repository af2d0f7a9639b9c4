"""What placement sees of the caches. Made by parts.py, asked by `reconcile`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pagoda_operator.api.state import NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from pagoda_operator.inventory.fit import Size, largest
from pagoda_operator.inventory.fleet import Fleet
from pagoda_operator.watch.caches import Caches


class View:
    """The fleet, made anew only where something changed: hundreds of services may wait for the same devices."""

    def __init__(self, caches: Caches) -> None:
        self._caches = caches
        self._made = (-1, Fleet())
        self._faults: tuple[int, Mapping[str, str]] = (-1, {})
        self._sizes: tuple[int, tuple[Size, ...]] = (-1, ())

    def __call__(self) -> Fleet:
        """As it is now."""
        if self._made[0] != self._caches.changes:
            self._made = (self._caches.changes, fleet(self._caches))
        return self._made[1]

    def faults(self) -> Mapping[str, str]:
        """Node → what is wrong with its devices. The caches are filled before the first decision: to a process that decided before,
        every sick node would look well, and its mark be taken off."""
        if self._faults[0] != self._caches.changes_of(NODES):
            found = {node.name: node.fault for node in self._caches.all(NODES) if node.fault}
            self._faults = (self._caches.changes_of(NODES), MappingProxyType(found))
        return self._faults[1]

    def sizes(self) -> tuple[Size, ...]:
        """Of the largest nodes; worked out where nodes changed: who is on CPU alone compares no nodes."""
        if self._sizes[0] != self._caches.changes_of(NODES):
            self._sizes = (self._caches.changes_of(NODES), largest(self._caches.all(NODES)))
        return self._sizes[1]


def fleet(caches: Caches) -> Fleet:
    """What placement sees of it."""
    return Fleet(caches.all(NODES), caches.all(PODS), caches.all(RESOURCE_SLICES), caches.all(RESOURCE_CLAIMS))
