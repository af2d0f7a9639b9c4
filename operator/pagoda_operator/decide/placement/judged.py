"""What a placement is decided from, and its entries as far as they are judged: the types that `place` and its parts share. Pure."""

from __future__ import annotations

from typing import NamedTuple

from pagoda_contracts.resources.placement import Accelerator
from pagoda_contracts.resources.service import InferenceServiceSpec
from pagoda_contracts.resources.status import PlacementStatus
from pagoda_contracts.units import parse_duration

from pagoda_operator.api.placement import Held, Pin, Resolved
from pagoda_operator.decide.placement.options import Option, merged
from pagoda_operator.inventory.fit import Shape, Size
from pagoda_operator.inventory.fleet import Fleet, Terms


class Run(NamedTuple):
    """One revision that has a Deployment, or is pinned and waits for one: what it was placed on, where that is known, and whether a pod of
    it has a node; `refused`: what the scheduler says of one for which it found none."""

    name: str
    number: int
    pin: Pin | None
    running: bool
    accelerator: str = ""
    refused: str = ""


class Question(NamedTuple):
    """All that a placement is decided from."""

    name: str
    spec: InferenceServiceSpec
    fleet: Fleet = Fleet()
    terms: Terms = Terms()
    shape: Shape | None = None
    # Without a shape: what is being done about it, or why there will be none.
    unknown: Held | None = None
    unknowable: str = ""
    runs: tuple[Run, ...] = ()
    kept: PlacementStatus | None = None
    wanted: int = 1
    now: float = 0.0
    # The largest nodes there are, for reasons.
    sizes: tuple[Size, ...] = ()


class Home(NamedTuple):
    """Where the spec's revision lives: which entry, on what, and what its Run says."""

    position: int
    resolved: Resolved
    running: bool
    refused: str


class Judged(NamedTuple):
    """An entry with all that it could come down to."""

    position: int
    entry: Accelerator
    options: tuple[Option, ...]
    absent: str

    @property
    def name(self) -> str:
        """As the status calls it, such as gpu[0]."""
        return f"{''.join(self.entry.kinds)}[{self.position}]"

    @property
    def able(self) -> tuple[Option, ...]:
        """What can ever do, one per pod template, small first."""
        return merged(option for option in self.options if option.ever)

    @property
    def wait(self) -> float | None:
        """Seconds to wait for it; None for ever."""
        return parse_duration(self.entry.fallback_after) if self.entry.fallback_after else None
