"""Old revisions: which one goes on serving, which ones go, and what they leave behind. Pure; called by `plan`."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from pagoda_operator.api.state import CONFIG_MAPS, CONTROLLER_REVISIONS, DEPLOYMENTS, RESOURCE_CLAIM_TEMPLATES, Child, Observed
from pagoda_operator.decide.children.pinning import template_of
from pagoda_operator.decide.render import children
from pagoda_operator.decide.render.children import Owner
from pagoda_operator.decide.render.inspect import map_name
from pagoda_operator.decide.render.overlay import lost
from pagoda_operator.decide.render.revision import Revision
from pagoda_operator.decide.render.writes import Apply, Delete, Write
from pagoda_operator.decide.replicas.replicas import Steps, pods_of


def retire(observed: Observed, owner: Owner, current: Revision, toward: Steps, kept: Collection[str]) -> Iterator[Write]:
    """Old revisions: kept while needed, then scaled to 0, then, without pods, deleted."""
    for old in running(observed):
        if old.name == current.name:
            continue
        if (write := _rescaled(observed, owner, old, toward)) is not None:
            yield write
        elif old.name not in kept and _empty(observed, old):
            yield Delete(DEPLOYMENTS, old)
    yield from _leftovers(observed, current)


def running(observed: Observed) -> list[Child]:
    """Deployments that stay until somebody says otherwise."""
    return [child for child in observed.of(DEPLOYMENTS) if not child.deleting]


def rescaled(observed: Observed, owner: Owner, toward: Steps) -> Iterator[Write]:
    """Every Deployment as it is, but for its number of replicas."""
    writes = (_rescaled(observed, owner, child, toward) for child in running(observed))
    return (write for write in writes if write is not None)


def _rescaled(observed: Observed, owner: Owner, live: Child, toward: Steps) -> Write | None:
    manifest = children.deployment(owner, live.name, template_of(observed, live), toward.replicas[live.name], toward.notes(live.name))
    return Apply(DEPLOYMENTS, manifest, live) if lost(manifest, live.body) is not None else None


def _leftovers(observed: Observed, current: Revision) -> Iterator[Write]:
    """What pinned or configured a revision goes after the Deployment that ran it."""
    running = {child.name for child in observed.of(DEPLOYMENTS)} | {current.name}
    running |= {map_name(observed.meta.name)}  # what an inspection told of the model is nobody's revision
    for resource in (CONFIG_MAPS, CONTROLLER_REVISIONS, RESOURCE_CLAIM_TEMPLATES):
        for child in observed.of(resource):
            if child.name not in running and not child.deleting:
                yield Delete(resource, child)


def _empty(observed: Observed, deployment: Child) -> bool:
    """Whether its last pod is gone: the Deployment controller says so, and no pod of it is listed."""
    pods = [pod for pod in pods_of(observed, deployment) if not pod.finished]
    return deployment.seen and deployment.count("replicas") == 0 and not pods


def retiring(observed: Observed, current: Revision) -> tuple[str, ...]:
    """Names of the old revisions' Deployments that are still there."""
    return tuple(child.name for child in observed.of(DEPLOYMENTS) if child.name != current.name)
