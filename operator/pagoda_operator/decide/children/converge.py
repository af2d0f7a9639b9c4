"""The service's children: what each should be, the writes that make it so, how old revisions go, and its NetworkPolicies. Pure; called by
`plan`.

NetworkPolicies are kept before the pods: no pod runs a moment without. They are not pinned with a revision: what a profile opens or closes
reaches the replicas that run, and rolls none.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from pagoda_contracts.names import CONTAINER_FETCH
from pagoda_contracts.resources.profile import Egress

from pagoda_operator.api.state import (
    CONFIG_MAPS,
    CONTROLLER_REVISIONS,
    CORE_SERVICES,
    DEPLOYMENTS,
    DISRUPTION_BUDGETS,
    NETWORK_POLICIES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    Child,
    Observed,
    Resource,
)
from pagoda_operator.decide.children.pinning import CLAIM, Pinned, template_of
from pagoda_operator.decide.render import children
from pagoda_operator.decide.render.children import Manifest, Owner, Revision, inspection_name, inspection_policy, network_policy
from pagoda_operator.decide.render.fetch import CLAIM_SCHEME, model_of
from pagoda_operator.decide.render.inspection import map_name
from pagoda_operator.decide.render.overlay import lost
from pagoda_operator.decide.render.writes import Apply, Create, Delete, Write
from pagoda_operator.decide.replicas.replicas import Steps, pods_of

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
    in_use = {child.name for child in observed.of(DEPLOYMENTS)} | {current.name}
    in_use |= {map_name(observed.meta.name)}  # an inspection's report on the model is nobody's revision
    for resource in (CONFIG_MAPS, CONTROLLER_REVISIONS, RESOURCE_CLAIM_TEMPLATES):
        for child in observed.of(resource):
            if child.name not in in_use and not child.deleting:
                yield Delete(resource, child)


def _empty(observed: Observed, deployment: Child) -> bool:
    """Whether its last pod is gone: the Deployment controller says so, and no pod of it is listed."""
    pods = [pod for pod in pods_of(observed, deployment) if not pod.finished]
    return deployment.seen and deployment.count("replicas") == 0 and not pods


def retiring(observed: Observed, current: Revision) -> tuple[str, ...]:
    """Names of the old revisions' Deployments that are still there."""
    return tuple(child.name for child in observed.of(DEPLOYMENTS) if child.name != current.name)


def isolate(observed: Observed, owner: Owner, *, inspecting: bool = False) -> Iterator[Write]:
    """Nothing where the installation says nothing, or while the profile cannot be read; what was made goes where it says no.
    `inspecting`: a pod that inspects the model, or tries a revision, is about to be made; its policy stays until that pod is gone."""
    callers = observed.callers
    if callers is None:
        return
    if not callers.network_policy:
        yield from (Delete(NETWORK_POLICIES, child) for child in observed.of(NETWORK_POLICIES) if not child.deleting)
    elif observed.profile is not None:
        yield from converge(observed, [(NETWORK_POLICIES, network_policy(owner, callers, _egress(observed)))])
        yield from _inspection(observed, owner, inspecting=inspecting)


def _inspection(observed: Observed, owner: Owner, *, inspecting: bool) -> Iterator[Write]:
    if inspecting or observed.of(PODS):
        yield from converge(observed, [(NETWORK_POLICIES, inspection_policy(owner, _way_to_the_model(observed)))])
    elif (left := observed.find(NETWORK_POLICIES, inspection_name(owner.name))) is not None and not left.deleting:
        yield Delete(NETWORK_POLICIES, left)


def _way_to_the_model(observed: Observed) -> tuple[Egress, ...]:
    """An inspection reads the model that the spec names, and no older revision's."""
    near = observed.spec is None or observed.spec.model.uri.startswith(CLAIM_SCHEME)
    return () if near or observed.profile is None else observed.profile.egress


def _egress(observed: Observed) -> tuple[Egress, ...]:
    """A replica whose model comes from a claim calls nobody. While an older revision fetches from elsewhere it may: a replica of it that
    is made anew, or a rollout that is turned back, needs its model."""
    wanted = [observed.spec.model.uri] if observed.spec is not None else []
    far = any(not uri.startswith(CLAIM_SCHEME) for uri in (*wanted, *_fetched(observed)))
    return observed.profile.egress if far and observed.profile is not None else ()


def _fetched(observed: Observed) -> Iterator[str]:
    """The addresses that live revisions fetch from."""
    for deployment in observed.of(DEPLOYMENTS):
        for container in deployment.body["spec"]["template"]["spec"].get("initContainers") or ():
            if container["name"] == CONTAINER_FETCH:
                yield model_of(container.get("args") or ())
