"""What a run reads anew of what the watches have shown. Pure; asked by `reconcile`.

Where all was read for a run that changes one number, 20 changes a second were more than two cores bore. So a run whose only deeds are
numbers, marks and words reads what moves between two edits (the replicas and their Deployments, and the service itself where more than its
status is written) and takes the rest as it was shown. Who makes or removes an object, mends one of those that stand still, or finds that
something is wrong, reads everything: there what is absent must be absent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from pagoda_operator.api.reader import Reader
from pagoda_operator.api.state import (
    CHILD_RESOURCES,
    CONFIG_MAPS,
    DEPLOYMENTS,
    NETWORK_POLICIES,
    PODS,
    PROFILES,
    SERVICES,
    Json,
    Resource,
)
from pagoda_operator.decide.plan import Plan
from pagoda_operator.decide.render.overlay import lost
from pagoda_operator.decide.render.writes import Annotate, Apply, Delete, Write

_MOVING: Final = frozenset({PODS, DEPLOYMENTS})
# For a status alone: it is written at the very version of the service that was shown, or not at all. It tells what an edited profile makes
# of a rendering, and where the service need not be read first the profile costs no further wait.
REPLICAS: Final = _MOVING | {PROFILES}
SERVICE: Final = _MOVING | {SERVICES}
# For more replicas: what fences them in, and what they mount.
GROWING: Final = SERVICE | {NETWORK_POLICIES, CONFIG_MAPS}
EVERYTHING: Final = SERVICE | {PROFILES, *CHILD_RESOURCES}


def needed(draft: Plan) -> frozenset[Resource]:
    """The least that the deeds of a plan ask for; nothing where it has none."""
    if not (draft.writes or draft.tells or draft.waiting):
        return frozenset()
    return next(read for read in (SERVICE, GROWING, EVERYTHING) if suffices(read, draft))


def suffices(read: frozenset[Resource], draft: Plan) -> bool:
    """Whether a plan may be carried out that was made with no more than this read anew."""
    if read >= EVERYTHING:
        return True
    if draft.waiting or draft.problem is not None or draft.held is not None:
        return False  # what is wrong may be so only in what was shown
    acts = bool(draft.writes or draft.tells)
    return (SERVICES in read or not acts) and all(_moves(write, read) for write in draft.writes)


def _moves(write: Write, read: frozenset[Resource]) -> bool:
    """A number, a mark, or a replica that another one follows: of live objects, each at the version that was read."""
    match write:
        case Annotate():
            return write.resource in _MOVING
        case Delete(resource, _):
            return resource == PODS
        case Apply(resource, manifest, live) if resource == DEPLOYMENTS:
            # By a pinned rendering that was shown late no pod is rolled.
            same = lost(manifest["spec"]["template"], live.body["spec"]["template"]) is None
            return same and (read >= GROWING or int(manifest["spec"]["replicas"]) <= live.replicas)
        case _:
            return False


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
