"""The result of placement: the entry, the devices that it resolved to, and what the status says of it. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from pagoda_contracts.conditions.service import NO_NODES_CAME, WAITING_FOR_CAPACITY, WAITING_FOR_NODES
from pagoda_contracts.conditions.types import NO_DEADLINE, Reason
from pagoda_contracts.resources.placement import Accelerator
from pagoda_contracts.resources.status import PlacementStatus

from pagoda_placement.values import stamp, unix

_WAITS: Final[Mapping[str, Reason]] = {"": WAITING_FOR_CAPACITY, "Expected": WAITING_FOR_NODES, "Missing": NO_NODES_CAME}


@dataclass(frozen=True)
class Resolved:
    """The devices that an entry resolved to; all empty on CPU. Pinned with the revision, since the inventory it was read from changes."""

    resource: str = ""
    """The extended resource to ask for; empty for claims."""
    profile: str = ""
    labels: tuple[str, ...] = ()
    """Values of the product label of nodes with such devices."""
    product: str = ""
    """Of a claim: the GPU to select by."""
    device: str = ""
    """For people."""
    products: tuple[str, ...] = ()
    """Of whole GPUs: what a pod may get. An empty one is not known, as if it were any."""

    @property
    def identity(self) -> dict[str, str]:
        """The parts that make another revision if they differ. The nodes may change under one revision."""
        sliced = bool(self.profile) or not self.resource
        parts = {"resource": self.resource if sliced else "", "profile": self.profile, "product": self.product}
        return {name: value for name, value in parts.items() if value}

    def written(self, alternatives: str) -> str:
        """Returns the annotation's value."""
        fields = {name: value for name, value in vars(self).items() if name != "products" or value}  # an older one has none
        return json.dumps({"alternatives": alternatives, **fields}, sort_keys=True, separators=(",", ":"))


class Pin(NamedTuple):
    """The devices of a revision, and the digest of the alternatives that they were chosen from."""

    resolved: Resolved
    alternatives: str


def read_pin(text: str) -> Pin | None:
    """Returns the annotation's value; None if it cannot be read."""
    try:
        found: Any = json.loads(text)
        names = ("resource", "profile", "product", "device")
        labels, products = (tuple(map(str, found.get(name, ()))) for name in ("labels", "products"))
        resolved = Resolved(**{name: str(found.get(name, "")) for name in names}, labels=labels, products=products)
        return Pin(resolved, str(found["alternatives"]))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


class Undecided(NamedTuple):
    """Why nothing can be decided yet. `stalled`: only an edit helps. `since`: when the wait began, in Unix seconds, if that is known.
    `until`: from when an entry on CPU, which needs to know less, is taken all the same; None if that is unknown yet."""

    reason: Reason
    message: str
    stalled: bool = False
    since: float = 0.0
    until: float | None = None


class Placement(NamedTuple):
    """The entry in use, None if none can be used, and the entries before it with reasons. `again_at`: when a wait ends without an event.
    `nodes`: of an entry that no node offers yet, whether its nodes may still come, or should have."""

    entry: Accelerator | None
    status: PlacementStatus
    resolved: Resolved = Resolved()
    undecided: Undecided | None = None
    again_at: float | None = None
    nodes: Literal["", "Expected", "Missing"] = ""

    @property
    def why_none(self) -> str:
        """All reasons in one line."""
        reasons = "; ".join(f"{rejected.accelerator}: {rejected.why}" for rejected in self.status.rejected)
        return f"no entry of accelerators can be used: {reasons}"

    def awaited(self, node_deadline: float) -> tuple[Reason, str] | None:
        """Returns the condition's reason and message while the service waits for devices, else None."""
        waits = self.status.waiting
        if waits is None:
            return None
        said = f"waiting for {waits.accelerator} since {waits.since}: {waits.why}"
        return _WAITS[self.nodes], said + self._deadline((unix(waits.since) or 0.0) + node_deadline)

    def _deadline(self, stalls_at: float) -> str:
        """What happens if the devices do not come, and when."""
        if self.again_at is None:
            return "" if self.nodes == "Missing" else f"; {NO_DEADLINE}"
        stalls = self.nodes == "Expected" and self.again_at == stalls_at
        return f"; at {stamp(self.again_at)} {'the service becomes Stalled' if stalls else 'the next entry is chosen'}"
