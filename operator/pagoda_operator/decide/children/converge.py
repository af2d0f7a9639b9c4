"""The current revision's children and the service's own: what each should be, and the writes that make it so. Pure; called by `plan`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pagoda_operator.api.state import (
    CONFIG_MAPS,
    CONTROLLER_REVISIONS,
    CORE_SERVICES,
    DEPLOYMENTS,
    DISRUPTION_BUDGETS,
    RESOURCE_CLAIM_TEMPLATES,
    Observed,
    Resource,
)
from pagoda_operator.decide.children.pinning import CLAIM, Pinned
from pagoda_operator.decide.render import children
from pagoda_operator.decide.render.children import Manifest, Owner
from pagoda_operator.decide.render.overlay import lost
from pagoda_operator.decide.render.revision import Revision
from pagoda_operator.decide.render.writes import Apply, Create, Delete, Write
from pagoda_operator.decide.replicas.replicas import Steps

# What pins a revision, or is immutable in the server's eyes.
_FROZEN: Final = (CONFIG_MAPS, CONTROLLER_REVISIONS, RESOURCE_CLAIM_TEMPLATES)


def wanted(toward: Steps, owner: Owner, current: Revision, pinned: Pinned) -> list[tuple[Resource, Manifest]]:
    """In the order of creation: what pins a revision before what runs it."""
    data, count = pinned.data, toward.replicas[current.name]
    deployment = children.deployment(owner, current.name, data["podTemplate"], count, toward.notes(current.name))
    return [
        (CONTROLLER_REVISIONS, children.controller_revision(owner, current, pinned.number, data)),
        (CONFIG_MAPS, children.config_map(owner, current, pinned.text, pinned.placement)),
        *((RESOURCE_CLAIM_TEMPLATES, children.claim_template(owner, current, data[CLAIM])) for _ in range(CLAIM in data)),
        (DEPLOYMENTS, deployment),
        (CORE_SERVICES, children.core_service(owner)),
        (DISRUPTION_BUDGETS, children.disruption_budget(owner)),
    ]


def converge(observed: Observed, manifests: list[tuple[Resource, Manifest]]) -> Iterator[Write]:
    """Compare, then create or apply; nothing where nothing differs."""
    for resource, manifest in manifests:
        live = observed.find(resource, manifest["metadata"]["name"])
        if live is None:
            yield Create(resource, manifest)
        elif live.deleting:
            continue
        elif resource in _FROZEN and lost(_frozen(manifest), live.body) is not None:
            # A pinned rendering that nothing runs yet: made anew by the next pass, before anything is made from it.
            yield Delete(resource, live)
            return
        elif resource != CONTROLLER_REVISIONS and lost(manifest, live.body) is not None:
            # A ControllerRevision is final: the API server refuses any patch, even of a label, of one whose data came with their keys in
            # another order than its own. To try would stall every service once a new operator labels children differently.
            yield Apply(resource, manifest, live)


def _frozen(manifest: Manifest) -> Manifest:
    """What the API server lets nobody change in place."""
    return {part: manifest[part] for part in ("data", "revision", "spec") if part in manifest}
