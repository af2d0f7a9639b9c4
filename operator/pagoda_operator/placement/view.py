"""What placement sees of the world (`world.py`). Made by serve.py, asked by `completion`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from pagoda_operator.placement.blocks import Ground
from pagoda_operator.placement.cores import Loads
from pagoda_operator.placement.fleet import Fleet
from pagoda_operator.placement.pods import Occupant
from pagoda_operator.placement.slices import Claim, Slice
from pagoda_operator.state import NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from pagoda_operator.world import World


class View:
    """A world's fleet, made anew only where something changed: hundreds of services may wait for the same devices. `loads` hears of every
    change of its pods."""

    def __init__(self, world: World, loads: Loads | None = None) -> None:
        self._world = world
        self._loads = loads or Loads()
        self._made, self._bare = _Made(), _Made()
        self._ground = Ground(())
        self._faults: tuple[int, Mapping[str, str]] = (-1, {})

    def __call__(self) -> Fleet:
        """As it is now."""
        return self._kept(self._made, self._world.changes, self._whole)

    def cores(self) -> Fleet:
        """For who runs on CPU alone: without the pods themselves, which take long to put in order with each that comes or goes."""
        changes = self._world.changes_of(NODES) + self._world.changes_of(RESOURCE_SLICES)
        return self._kept(self._bare, changes, lambda: self._of(self._world.all(RESOURCE_SLICES)))

    def _whole(self) -> Fleet:
        """What is in the sums alone is left out."""
        pods = tuple(pod for pod in self._world.all(PODS) if not pod.plain)
        return self._of(self._world.all(RESOURCE_SLICES), pods, self._world.all(RESOURCE_CLAIMS))

    def _of(self, slices: tuple[Slice, ...], pods: tuple[Occupant, ...] = (), claims: tuple[Claim, ...] = ()) -> Fleet:
        nodes = self._world.all(NODES)
        if self._ground.nodes is not nodes:
            self._ground = Ground(nodes)
        return Fleet(nodes, pods, slices, claims, self._loads.held(), self._ground)

    def _kept(self, made: _Made, changes: int, anew: Callable[[], Fleet]) -> Fleet:
        if made.changes != changes:
            made.fleet = anew()
        elif made.sums != self._loads.changes:
            made.fleet = made.fleet.with_sums(self._loads.held())
        made.changes, made.sums = changes, self._loads.changes
        return made.fleet

    def faults(self) -> Mapping[str, str]:
        """Node → what is wrong with its devices. From the mirror that is filled before the first decision: to a new process that waited for
        the watch every sick node would look well, and its mark be taken off."""
        if self._faults[0] != self._world.changes_of(NODES):
            found = {node.name: node.fault for node in self._world.all(NODES) if node.fault}
            self._faults = (self._world.changes_of(NODES), MappingProxyType(found))
        return self._faults[1]


@dataclass
class _Made:
    """A fleet, and of which changes."""

    changes: int = -1
    sums: int = -1
    fleet: Fleet = field(default=Fleet())
