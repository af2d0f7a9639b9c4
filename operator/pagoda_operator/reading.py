"""What a run reads anew of what the watches have shown. Pure; asked by `reconcile`.

Where all was read for a run that changes one number, 20 changes a second were more than two cores bore. So a run whose only deeds are
numbers, marks and words reads what moves between two edits (the replicas and their Deployments, and the service itself where more than its
status is written) and takes the rest as it was shown. Who makes or removes an object, or mends one of those that stand still, reads
everything: there what is absent must be absent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from pagoda_operator.observe import Reader
from pagoda_operator.plan import Plan
from pagoda_operator.state import CHILD_RESOURCES, DEPLOYMENTS, PODS, PROFILES, SERVICES, Json, Resource
from pagoda_operator.writes import Annotate, Apply, Delete, Write

# For a status alone: it is written at the very version of the service that was shown, or not at all.
REPLICAS: Final = frozenset({PODS, DEPLOYMENTS})
SERVICE: Final = REPLICAS | {SERVICES}
EVERYTHING: Final = SERVICE | {PROFILES, *CHILD_RESOURCES}


def suffices(read: frozenset[Resource], draft: Plan) -> bool:
    """Whether a plan may be carried out that was made with no more than this read anew."""
    if read >= EVERYTHING:
        return True
    acts = bool(draft.writes or draft.tells)
    return not draft.waiting and (SERVICES in read or not acts) and all(_moves(write) for write in draft.writes)


def _moves(write: Write) -> bool:
    """A number, a mark, or a replica that another one follows: of live objects, each at the version that was read."""
    if isinstance(write, Delete):
        return write.resource == PODS
    return isinstance(write, Annotate | Apply) and write.resource in REPLICAS


class Partly(NamedTuple):
    """A Reader: of these kinds the truth, of all others what was shown."""

    truth: Reader
    shown: Reader
    read: frozenset[Resource]

    async def get(self, resource: Resource, namespace: str, name: str) -> Json | None:
        """The object; None where there is none, or none was shown."""
        return await self._of(resource).get(resource, namespace, name)

    async def list(self, resource: Resource, namespace: str, selector: str) -> Sequence[Json]:
        """The objects with these labels."""
        return await self._of(resource).list(resource, namespace, selector)

    def _of(self, resource: Resource) -> Reader:
        return self.truth if resource in self.read else self.shown
