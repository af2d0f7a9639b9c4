"""Which alternative of `accelerators[]` a service runs on, and why not the ones before it. Pure; called by `plan`.

Takes CPU entries only: devices need a resolver that is not built (docs/roadmap.md), and taking none of them in silence would be a lie.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from pagoda_contracts.resources.placement import Accelerator
from pagoda_contracts.resources.service import InferenceServiceSpec
from pagoda_contracts.resources.status import PlacementStatus, RejectedAccelerator

NO_ACCELERATOR: Final = "NoAccelerator"
BUILT: Final = ("cpu",)


class Placement(NamedTuple):
    """The entry in use, None where none can be, and the ones before it with reasons."""

    entry: Accelerator | None
    status: PlacementStatus

    @property
    def why_none(self) -> str:
        """All reasons in one line."""
        told = "; ".join(f"{rejected.accelerator}: {rejected.why}" for rejected in self.status.rejected)
        return f"no entry of accelerators can be used: {told}"


def place(spec: InferenceServiceSpec) -> Placement:
    """The first entry that can be used."""
    rejected: list[RejectedAccelerator] = []
    for index, entry in enumerate(spec.accelerators):
        kind = "".join(entry.kinds)
        name = f"{kind}[{index}]"
        if kind in BUILT:
            return Placement(entry, PlacementStatus(chosen=name, rejected=tuple(rejected)))
        why = f"{kind} accelerators are not built yet; accepted: {', '.join(BUILT)}"
        rejected.append(RejectedAccelerator(accelerator=name, why=why))
    return Placement(None, PlacementStatus(rejected=tuple(rejected)))
