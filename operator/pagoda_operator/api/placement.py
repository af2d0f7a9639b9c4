"""What placement hands on: the entry taken, the devices it came down to, and what the status says of it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, NamedTuple

from pagoda_contracts.conditions.types import Reason
from pagoda_contracts.resources.placement import Accelerator
from pagoda_contracts.resources.status import PlacementStatus


@dataclass(frozen=True)
class Resolved:
    """The devices that an entry came down to; all empty on CPU. Pinned beside the revision, since the fleet it was read from changes."""

    resource: str = ""
    """The extended resource to ask for; empty for claims."""
    profile: str = ""
    labels: tuple[str, ...] = ()
    """Values of the product label of the nodes whose devices do."""
    product: str = ""
    """Of a claim: the GPU to select by."""
    device: str = ""
    """For people."""

    @property
    def identity(self) -> dict[str, str]:
        """What another choice would have to run as another revision; the nodes may change under one."""
        sliced = bool(self.profile) or not self.resource
        parts = {"resource": self.resource if sliced else "", "profile": self.profile, "product": self.product}
        return {name: value for name, value in parts.items() if value}

    def written(self, alternatives: str) -> str:
        """As an annotation's value."""
        return json.dumps({"alternatives": alternatives, **vars(self)}, sort_keys=True, separators=(",", ":"))


class Pin(NamedTuple):
    """What a revision was placed on, and for which list of alternatives."""

    resolved: Resolved
    alternatives: str


def read_pin(text: str) -> Pin | None:
    """The annotation's value; None where it is not ours to read."""
    try:
        found: Any = json.loads(text)
        names = ("resource", "profile", "product", "device")
        resolved = Resolved(**{name: str(found.get(name, "")) for name in names}, labels=tuple(map(str, found.get("labels", ()))))
        return Pin(resolved, str(found["alternatives"]))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


class Held(NamedTuple):
    """Why nothing can be decided yet."""

    reason: Reason
    message: str
    # Only a person's edit cures it.
    stalled: bool = False


class Placement(NamedTuple):
    """The entry in use, None where none can be, and the ones before it with reasons."""

    entry: Accelerator | None
    status: PlacementStatus
    resolved: Resolved = Resolved()
    # Nothing is decided before this is known.
    held: Held | None = None
    # No event tells when a wait is over.
    again_at: float | None = None

    @property
    def why_none(self) -> str:
        """All reasons in one line."""
        reasons = "; ".join(f"{rejected.accelerator}: {rejected.why}" for rejected in self.status.rejected)
        return f"no entry of accelerators can be used: {reasons}"
