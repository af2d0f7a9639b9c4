"""The service's children: what each should be, the writes that make it so, how old revisions go, and its NetworkPolicies. Pure; called by
`plan`.

What a revision runs is rendered once, and then read from its ControllerRevision, so that no upgrade rolls a pod. NetworkPolicies are
written before the pods: no pod runs a moment without them. They are not part of a revision: an edited profile changes them for the replicas
that run.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from typing import Final, NamedTuple

from pagoda_contracts.conditions.service import INVALID_PROFILE, PROFILE_NOT_FOUND, REVISION_LOST
from pagoda_contracts.names import ANNOTATION_RENDERED, CONTAINER_FETCH, DAEMON_CONFIG_KEY
from pagoda_contracts.resources.effect import CLAIM_SCHEME
from pagoda_contracts.resources.profile import Egress
from pagoda_contracts.resources.service import Accelerator, InferenceServiceSpec
from pagoda_placement.model import map_name
from pagoda_placement.result import Resolved
from pagoda_placement.revision import Revision

from pagoda_operator.api.errors import SpecProblem
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
    Key,
    Observed,
    Resource,
)
from pagoda_operator.decide.render import children, devices, pod
from pagoda_operator.decide.render.children import Manifest, Owner, inspection_name, inspection_policy, network_policy
from pagoda_operator.decide.render.fetch import model_of
from pagoda_operator.decide.render.inspection import known
from pagoda_operator.decide.render.overlay import Edit, edits, lost
from pagoda_operator.decide.render.writes import Apply, Create, Delete, Write
from pagoda_operator.decide.replicas.replicas import Steps, pods_of

CLAIM: Final = "claim"
# What pins a revision, or is immutable for the API server.
_FROZEN: Final = (CONFIG_MAPS, CONTROLLER_REVISIONS, RESOURCE_CLAIM_TEMPLATES)


class Where(NamedTuple):
    """The entry of `accelerators[]` that a revision runs on, and the devices that were chosen for it. `written`: what its ConfigMap says
    about them; empty if there was nothing to choose."""

    entry: Accelerator
    resolved: Resolved = Resolved()
    written: str = ""


class Pinned(NamedTuple):
    """The number of a revision, and what it runs, as its ControllerRevision has it or will have it."""

    number: int
    data: Manifest


# What a revision runs


def pin(observed: Observed, owner: Owner, current: Revision, where: Where) -> Pinned:
    """The revision as its ControllerRevision has it; rendered now if nothing has run it yet. SpecProblem if neither is possible.

    Until its Deployment exists nothing depends on the rendering, and an edited profile that repairs it must reach it. Then it is final.
    """
    kept = observed.find(CONTROLLER_REVISIONS, current.name)
    deployment = observed.find(DEPLOYMENTS, current.name)
    numbers = [int(child.body["revision"]) for child in observed.of(CONTROLLER_REVISIONS) if child.name != current.name]
    number = int(kept.body["revision"]) if kept else max(numbers, default=0) + 1
    if deployment is not None:
        return Pinned(number, kept.body["data"] if kept else _again(observed, owner, current, where, deployment))
    try:
        # In the API server's order: the ConfigMap's text, rendered from it, must be the same before and after.
        return Pinned(number, json.loads(json.dumps(render(observed, owner, current, where), sort_keys=True)))
    except SpecProblem:
        if kept is None:
            raise
        return Pinned(number, kept.body["data"])


def _again(observed: Observed, owner: Owner, current: Revision, where: Where, deployment: Child) -> Manifest:
    """The data of a ControllerRevision that was deleted: rendered now if the Deployment was made from just that. If not, it is what
    runs, with the API server's defaults: another rendering could roll the pods, or hide from `outdated` that it would."""
    recovered = _recovered(observed, current, deployment)
    try:
        fresh = render(observed, owner, current, where)
    except SpecProblem:
        return recovered
    same = all(fresh.get(part) == recovered.get(part) for part in ("daemonConfig", CLAIM))
    # The hash of a rendering counts its replicas, and the Deployment may have been scaled since.
    most = max(deployment.replicas, observed.asked, len(observed.pods)) + 1
    noted = deployment.meta.get("annotations", {}).get(ANNOTATION_RENDERED)
    made = (children.deployment(owner, deployment.name, fresh["podTemplate"], number) for number in range(most + 1))
    return fresh if same and any(one["metadata"]["annotations"][ANNOTATION_RENDERED] == noted for one in made) else recovered


def _recovered(observed: Observed, current: Revision, deployment: Child) -> Manifest:
    """What a revision runs, from its other children."""
    live = observed.find(CONFIG_MAPS, current.name)
    if live is None:
        message = (
            f"ControllerRevision and ConfigMap {current.name} were deleted while Deployment {current.name} runs; "
            "delete the Deployment as well, and the operator makes all of it again"
        )
        raise SpecProblem(REVISION_LOST, message)
    config = json.loads(live.body["data"][DAEMON_CONFIG_KEY])
    claim = observed.find(RESOURCE_CLAIM_TEMPLATES, current.name)
    return {"daemonConfig": config, "podTemplate": deployment.body["spec"]["template"]} | ({CLAIM: claim.body["spec"]} if claim else {})


def render(observed: Observed, owner: Owner, current: Revision, where: Where) -> Manifest:
    """What would be pinned now; SpecProblem if the profile is missing or refused."""
    if observed.spec is None or observed.profile is None:
        name = observed.spec.profile_ref.name if observed.spec else ""
        if observed.invalid_profile:
            raise SpecProblem(INVALID_PROFILE, f"ServingProfile {name!r}: {observed.invalid_profile}")
        raise SpecProblem(PROFILE_NOT_FOUND, f"ServingProfile {name!r} does not exist")
    labels, weights = children.replica_labels(owner, current), _weights(observed, observed.spec)
    key = Key(owner.namespace, owner.name)
    inputs = pod.Inputs(key, current, observed.spec, where.entry, observed.profile, labels, observed.callers, where.resolved, weights)
    profile = observed.profile.wire()
    rendered = {"profile": profile, "daemonConfig": pod.daemon_config(inputs), "podTemplate": pod.pod_template(inputs)}
    return rendered | ({CLAIM: devices.claim_spec(where.entry.dra, where.resolved)} if where.entry.dra else {})


def _weights(observed: Observed, spec: InferenceServiceSpec) -> int:
    """Bytes of the model's files: as an inspection counted them, else as a published model has them."""
    found = known(observed, spec)
    if found is None:
        return 0
    return found.size or (found.shape.weight_bytes("bf16") if found.shape is not None else 0)


def _config_text(observed: Observed, current: Revision, config: Manifest) -> str:
    """The ConfigMap's text. A live one that says the same in another order stays: it is no reason to make it again."""
    live = observed.find(CONFIG_MAPS, current.name)
    text: str = live.body.get("data", {}).get(DAEMON_CONFIG_KEY, "") if live else ""
    try:
        same = json.loads(text) == config
    except ValueError:
        same = False
    return text if same else json.dumps(config, indent=1)


# The children


def wanted(
    observed: Observed, owner: Owner, current: Revision, where: Where, pinned: Pinned, toward: Steps
) -> list[tuple[Resource, Manifest]]:
    """All children in the order of creation: by what gateways know replicas, what pins a revision, what runs it."""
    data, count = pinned.data, toward.replicas[current.name]
    deployment = children.deployment(owner, current.name, data["podTemplate"], count, toward.notes.get(current.name))
    text = _config_text(observed, current, data["daemonConfig"])
    return [
        (CORE_SERVICES, children.core_service(owner)),
        (CONTROLLER_REVISIONS, children.controller_revision(owner, current, pinned.number, data)),
        (CONFIG_MAPS, children.config_map(owner, current, text, where.written)),
        *((RESOURCE_CLAIM_TEMPLATES, children.claim_template(owner, current, data[CLAIM])) for _ in range(CLAIM in data)),
        (DEPLOYMENTS, deployment),
        (DISRUPTION_BUDGETS, children.disruption_budget(owner)),
    ]


def reachable(observed: Observed, owner: Owner) -> tuple[Write, ...]:
    """The Service as it should be, if the plan decides nothing else: without it, gateways lose the replicas that serve."""
    return tuple(converge(observed, [(CORE_SERVICES, children.core_service(owner))])) if observed.pods else ()


def converge(observed: Observed, manifests: list[tuple[Resource, Manifest]]) -> Iterator[Write]:
    """Creates what is missing and applies what differs."""
    for resource, manifest in manifests:
        live = observed.find(resource, manifest["metadata"]["name"])
        if live is None:
            yield Create(resource, manifest)
        elif live.deleting:
            continue
        elif resource in _FROZEN and lost(_frozen(manifest), live.body) is not None:
            # A pinned rendering that nothing runs yet: the next run makes it again, before anything is made from it.
            yield Delete(resource, live)
            return
        elif resource != CONTROLLER_REVISIONS:
            # A ControllerRevision is final: the API server refuses any patch, even of a label, of one whose data came with their keys in
            # another order than its own. To try would stall every service once a new operator labels children differently.
            yield from _restored(resource, manifest, live)


def _restored(resource: Resource, manifest: Manifest, live: Child) -> Iterator[Apply]:
    """The write that makes a live object what was rendered, if it differs. One that was written from this very rendering was edited since;
    annotations are no part of a rendering."""
    path, found = lost(manifest, live.body), edits(manifest, live.body)
    ours, noted = (body["metadata"].get("annotations", {}).get(ANNOTATION_RENDERED) for body in (manifest, live.body))
    if path is not None and not found and ours == noted and path[:2] != ("metadata", "annotations"):
        found = (Edit(path, ""),)
    if path is not None or found:
        yield Apply(resource, manifest, live, found)


def _frozen(manifest: Manifest) -> Manifest:
    """The fields that the API server does not let change in place."""
    return {part: manifest[part] for part in ("data", "revision", "spec") if part in manifest}


def retire(observed: Observed, owner: Owner, current: Revision, toward: Steps, kept: Collection[str]) -> Iterator[Write]:
    """Old revisions: kept while needed, then scaled to 0, then, without pods, deleted."""
    for old in running(observed):
        if old.name == current.name:
            continue
        if writes := tuple(rescaled(observed, owner, old, toward)):
            yield from writes
        elif old.name not in kept and _empty(observed, old):
            yield Delete(DEPLOYMENTS, old)
    # What pinned or configured a revision goes after its Deployment. An inspection's report on the model belongs to no revision.
    in_use = {current.name, map_name(observed.meta.name), *(child.name for child in observed.of(DEPLOYMENTS))}
    for child in (child for resource in _FROZEN for child in observed.of(resource)):
        if child.name not in in_use and not child.deleting:
            yield Delete(child.resource, child)


def running(observed: Observed) -> list[Child]:
    """The Deployments that are not being deleted."""
    return [child for child in observed.of(DEPLOYMENTS) if not child.deleting]


def rescaled(observed: Observed, owner: Owner, live: Child, toward: Steps) -> Iterator[Write]:
    """A Deployment with another number of replicas and its pinned template; the live one if the ControllerRevision was removed."""
    kept = observed.find(CONTROLLER_REVISIONS, live.name)
    template: Manifest = kept.body["data"]["podTemplate"] if kept else live.body["spec"]["template"]
    manifest = children.deployment(owner, live.name, template, toward.replicas[live.name], toward.notes.get(live.name))
    yield from _restored(DEPLOYMENTS, manifest, live)


def _empty(observed: Observed, deployment: Child) -> bool:
    """Whether its last pod is gone: the Deployment controller says so, and no pod of it is listed."""
    pods = [pod for pod in pods_of(observed, deployment) if not pod.finished]
    return deployment.seen and deployment.count("replicas") == 0 and not pods


# NetworkPolicies


def isolate(observed: Observed, owner: Owner, *, inspecting: bool = False) -> Iterator[Write]:
    """The NetworkPolicies; none if the installation says nothing, or while the profile cannot be read. If it says no, they are deleted.
    `inspecting`: a pod that inspects the model, or tries a revision, is about to be made; its policy stays until that pod is gone."""
    callers = observed.callers
    if callers is None:
        return
    if not callers.network_policy:
        yield from (Delete(NETWORK_POLICIES, child) for child in observed.of(NETWORK_POLICIES) if not child.deleting)
    elif observed.profile is not None:
        clients = callers.clients and observed.spec is not None and observed.spec.client_keys is not None
        policy = network_policy(owner, callers, _egress(observed, *_fetched(observed)), clients=clients)
        yield from converge(observed, [(NETWORK_POLICIES, policy)])
        if inspecting or observed.of(PODS):
            yield from converge(observed, [(NETWORK_POLICIES, inspection_policy(owner, _egress(observed)))])
        elif (left := observed.find(NETWORK_POLICIES, inspection_name(owner.name))) is not None and not left.deleting:
            yield Delete(NETWORK_POLICIES, left)


def _egress(observed: Observed, *older: str) -> tuple[Egress, ...]:
    """The profile's egress, if the spec's model or one of these addresses is not on a claim, or if there may be adapters. A replica of an
    older revision may be made again, or a rollout is rolled back, and then needs its model; an inspection reads the spec's model only."""
    models = ([observed.spec.model.uri] if observed.spec is not None else []) + list(older)
    adapters = observed.spec is not None and observed.spec.adapters is not None  # they may come from anywhere
    far = adapters or any(not uri.startswith(CLAIM_SCHEME) for uri in models)
    return observed.profile.egress if far and observed.profile is not None else ()


def _fetched(observed: Observed) -> Iterator[str]:
    """The addresses that live revisions fetch from."""
    for deployment in observed.of(DEPLOYMENTS):
        for container in deployment.body["spec"]["template"]["spec"].get("initContainers") or ():
            if container["name"] == CONTAINER_FETCH:
                yield model_of(container.get("args") or ())
