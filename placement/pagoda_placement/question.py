"""What a placement is decided from. Pure; the operator's `ask` and `pagoda plan -f` make it, `place` answers it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from pagoda_contracts.resources.profile import NODE_DEADLINE
from pagoda_contracts.resources.service import InferenceServiceSpec
from pagoda_contracts.resources.status import PlacementStatus
from pagoda_contracts.units import parse_duration

from pagoda_placement.fit import Size
from pagoda_placement.inventory import Inventory
from pagoda_placement.model import Inspection
from pagoda_placement.result import Pin, Resolved
from pagoda_placement.terms import Terms


class Run(NamedTuple):
    """A revision that has a Deployment, or is pinned and has none yet.

    `pin`: its devices, if they were chosen; `running`: whether one of its pods has a node; `refused`: why the scheduler found none.
    """

    name: str
    number: int
    pin: Pin | None
    running: bool
    accelerator: str = ""
    refused: str = ""
    # Of its template, which stays as it was pinned; None if there is none.
    tolerations: tuple[Mapping[str, Any], ...] | None = None


class Question(NamedTuple):
    """All that a placement is decided from."""

    name: str
    spec: InferenceServiceSpec
    inventory: Inventory = Inventory()
    terms: Terms = Terms()
    model: Inspection = Inspection()
    runs: tuple[Run, ...] = ()
    kept: PlacementStatus | None = None
    wanted: int = 1
    now: float = 0.0
    # Of the largest nodes, for messages.
    sizes: tuple[Size, ...] = ()
    # How long nodes that no pool has yet may take, in seconds.
    node_deadline: float = parse_duration(NODE_DEADLINE)
    # Names of revisions that were made. On CPU, none of them waits for an inspection.
    made: frozenset[str] = frozenset()


class Current(NamedTuple):
    """Where the spec's revision was placed: the entry's position, the devices, and fields of its Run."""

    position: int
    resolved: Resolved
    running: bool
    refused: str
    tolerations: tuple[Mapping[str, Any], ...] | None = None


def pinned(question: Question, current: Current | None) -> Question:
    """For more pods of a revision that has a template: they tolerate what it says, not what a new one would."""
    if current is None or current.tolerations is None:
        return question
    return question._replace(terms=question.terms._replace(tolerations=current.tolerations))
