"""Decides what to write: `plan(observed) -> Plan`. Pure: no client, no clock; `reconcile` calls it, `apply` carries it out.

Rules: a revision's pod template is rendered once and then read from its ControllerRevision; a Deployment that serves is not
touched before the current revision is fully available; nothing that another object controls is ever adopted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from pagoda_contracts.names import DAEMON_CONFIG_KEY, LABEL_ACCELERATOR, LABEL_REVISION
from pagoda_contracts.resources.service import Accelerator, InferenceServiceSpec

from pagoda_operator.errors import SpecProblem
from pagoda_operator.manifests import children, pod
from pagoda_operator.manifests.children import Manifest, Owner
from pagoda_operator.manifests.overlay import lost
from pagoda_operator.manifests.revision import Revision, identify
from pagoda_operator.placement import NO_ACCELERATOR, Placement, place
from pagoda_operator.state import (
    CONFIG_MAPS,
    CONTROLLER_REVISIONS,
    CORE_SERVICES,
    DEPLOYMENTS,
    DISRUPTION_BUDGETS,
    Child,
    Key,
    Observed,
    Resource,
)

PROFILE_NOT_FOUND: Final = "ProfileNotFound"
NAME_CONFLICT: Final = "NameConflict"
REVISION_LOST: Final = "RevisionLost"


@dataclass(frozen=True)
class Create:
    """Make an object that must not exist yet."""

    resource: Resource
    manifest: Manifest

    @property
    def name(self) -> str:
        """The object's name."""
        return str(self.manifest["metadata"]["name"])


@dataclass(frozen=True)
class Apply:
    """Bring a live object, this very version of it, to what was rendered."""

    resource: Resource
    manifest: Manifest
    live: Child

    @property
    def name(self) -> str:
        """The object's name."""
        return self.live.name


@dataclass(frozen=True)
class Delete:
    """Remove a live object, this very version of it."""

    resource: Resource
    live: Child

    @property
    def name(self) -> str:
        """The object's name."""
        return self.live.name


Write = Create | Apply | Delete


@dataclass(frozen=True)
class Plan:
    """What to write, in order, and what keeps the service from its spec."""

    writes: tuple[Write, ...] = ()
    problem: SpecProblem | None = None
    current: Revision | None = None
    retiring: tuple[str, ...] = ()
    placement: Placement | None = None
    # Something on its way out is in the way; no event tells when it is gone.
    waiting: str = ""
    # The API server would not let us; said in the status while the queue retries.
    denied: str = ""


@dataclass(frozen=True)
class _Pinned:
    """What a revision runs, from its ControllerRevision or about to be written to it."""

    number: int
    data: Manifest


def plan(observed: Observed) -> Plan:
    """The writes that bring what is observed nearer to the spec; none when it is there."""
    if observed.spec is None:
        return Plan(problem=SpecProblem(pod.INVALID_SPEC, observed.invalid))
    placement = place(observed.spec)
    if placement.entry is None:
        return Plan(problem=SpecProblem(NO_ACCELERATOR, placement.why_none), placement=placement)
    return replace(_plan(observed, observed.spec, placement.entry), placement=placement)


def _plan(observed: Observed, spec: InferenceServiceSpec, accelerator: Accelerator) -> Plan:
    owner = owner_of(observed)
    current = identify(owner.name, spec, accelerator)
    try:
        pinned = _pin(observed, owner, current)
    except SpecProblem as problem:
        return Plan(problem=problem, current=current, retiring=_retiring(observed, current))
    wanted = _wanted(spec, owner, current, pinned)
    steps = [*_converge(observed, wanted), *_retire(observed, owner, current)]
    return _fenced(observed, Plan(tuple(steps), None, current, _retiring(observed, current)))


def owner_of(observed: Observed) -> Owner:
    """The service as the owner of its children."""
    return Owner(observed.meta.namespace, observed.meta.name, observed.meta.uid)


def settled(deployment: Child | None, replicas: int) -> bool:
    """Whether a Deployment runs all wanted replicas, available."""
    return deployment is not None and deployment.seen and deployment.count("availableReplicas") >= replicas


def _pin(observed: Observed, owner: Owner, current: Revision) -> _Pinned:
    """Read the revision from its ControllerRevision; render it where nothing has run it yet.

    Until its Deployment exists nothing depends on the pinned rendering, and the cure of a refused one (an edited profile)
    must reach it; from then on it is final.
    """
    kept = observed.find(CONTROLLER_REVISIONS, current.name)
    deployment = observed.find(DEPLOYMENTS, current.name)
    numbers = [int(child.body["revision"]) for child in observed.of(CONTROLLER_REVISIONS) if child.name != current.name]
    number = int(kept.body["revision"]) if kept else max(numbers, default=0) + 1
    if deployment is not None:
        return _Pinned(number, kept.body["data"] if kept else _recovered(observed, current, deployment))
    try:
        return _Pinned(number, _render(observed, owner, current))
    except SpecProblem:
        if kept is None:
            raise
        return _Pinned(number, kept.body["data"])


def _recovered(observed: Observed, current: Revision, deployment: Child) -> Manifest:
    """The pin that somebody removed, from what runs: rendering it anew could roll the pods."""
    live = observed.find(CONFIG_MAPS, current.name)
    if live is None:
        message = f"ControllerRevision and ConfigMap {current.name} were removed under a running Deployment; remove that too"
        raise SpecProblem(REVISION_LOST, message)
    config = json.loads(live.body["data"][DAEMON_CONFIG_KEY])
    return {"daemonConfig": config, "podTemplate": deployment.body["spec"]["template"]}


def _render(observed: Observed, owner: Owner, current: Revision) -> Manifest:
    if observed.spec is None or observed.profile is None or (accelerator := place(observed.spec).entry) is None:
        raise _no_profile(observed)
    labels = children.replica_labels(owner, current)
    key = Key(owner.namespace, owner.name)
    inputs = pod.Inputs(key, current, observed.spec, accelerator, observed.profile, labels)
    profile = observed.profile.wire()
    return {"profile": profile, "daemonConfig": pod.daemon_config(inputs), "podTemplate": pod.pod_template(inputs)}


def _no_profile(observed: Observed) -> SpecProblem:
    name = observed.spec.profile_ref.name if observed.spec else ""
    if observed.invalid_profile:
        return SpecProblem(pod.INVALID_PROFILE, f"ServingProfile {name!r}: {observed.invalid_profile}")
    return SpecProblem(PROFILE_NOT_FOUND, f"ServingProfile {name!r} does not exist")


def _wanted(spec: InferenceServiceSpec, owner: Owner, current: Revision, pinned: _Pinned) -> list[tuple[Resource, Manifest]]:
    """In the order of creation: what pins a revision before what runs it."""
    data = pinned.data
    return [
        (CONTROLLER_REVISIONS, children.controller_revision(owner, current, pinned.number, data)),
        (CONFIG_MAPS, children.config_map(owner, current, data["daemonConfig"])),
        (DEPLOYMENTS, children.deployment(owner, current.name, data["podTemplate"], spec.replicas)),
        (CORE_SERVICES, children.core_service(owner)),
        (DISRUPTION_BUDGETS, children.disruption_budget(owner)),
    ]


def _converge(observed: Observed, wanted: list[tuple[Resource, Manifest]]) -> Iterator[Write]:
    for resource, manifest in wanted:
        live = observed.find(resource, manifest["metadata"]["name"])
        if live is None:
            yield Create(resource, manifest)
        elif not live.deleting and (drift := lost(manifest, live.body)) is not None:
            frozen = resource in (CONFIG_MAPS, CONTROLLER_REVISIONS) and drift[0] in ("data", "revision")
            if frozen:  # a pinned rendering that nothing runs yet: made anew by the next pass, before anything is made from it
                yield Delete(resource, live)
                return
            yield Apply(resource, manifest, live)


def _retire(observed: Observed, owner: Owner, current: Revision) -> Iterator[Write]:
    """Old revisions: kept while needed, then scaled to 0, then, without pods, deleted."""
    fallback = _fallback(observed, current)
    for old in observed.of(DEPLOYMENTS):
        if old.name == current.name or old.deleting:
            continue
        keep = fallback is not None and old.name == fallback.name
        replicas = observed.spec.replicas if observed.spec and keep else 0
        manifest = children.deployment(owner, old.name, _template_of(observed, old), replicas)
        if lost(manifest, old.body) is not None:
            yield Apply(DEPLOYMENTS, manifest, old)
        elif not keep and _empty(observed, old):
            yield Delete(DEPLOYMENTS, old)
    yield from _leftovers(observed, current)


def _leftovers(observed: Observed, current: Revision) -> Iterator[Write]:
    """What pinned or configured a revision goes after the Deployment that ran it."""
    running = {child.name for child in observed.of(DEPLOYMENTS)} | {current.name}
    for resource in (CONFIG_MAPS, CONTROLLER_REVISIONS):
        for child in observed.of(resource):
            if child.name not in running and not child.deleting:
                yield Delete(resource, child)


def _fallback(observed: Observed, current: Revision) -> Child | None:
    """The old Deployment that goes on serving until the current one is available: one that serves, else the newest that ever did."""
    if observed.spec and settled(observed.find(DEPLOYMENTS, current.name), observed.spec.replicas):
        return None
    olds = (child for child in observed.of(DEPLOYMENTS) if child.name != current.name and not child.deleting)
    proven = [child for child in olds if child.replicas > 0 and _proven(child)]
    return max(proven, key=lambda child: (_available(child), _number(observed, child), child.name), default=None)


def _proven(deployment: Child) -> bool:
    """Available now, or complete once: a node's hiccup must not count as a bad revision."""
    return _available(deployment) or deployment.condition("Progressing").get("reason") == "NewReplicaSetAvailable"


def _available(deployment: Child) -> bool:
    return bool(deployment.body.get("status", {}).get("availableReplicas", 0) > 0)


def _number(observed: Observed, deployment: Child) -> int:
    kept = observed.find(CONTROLLER_REVISIONS, deployment.name)
    return int(kept.body["revision"]) if kept else 0


def _template_of(observed: Observed, deployment: Child) -> Manifest:
    """The pinned template; the live one where somebody removed the ControllerRevision."""
    kept = observed.find(CONTROLLER_REVISIONS, deployment.name)
    template: Manifest = kept.body["data"]["podTemplate"] if kept else deployment.body["spec"]["template"]
    return template


def _empty(observed: Observed, deployment: Child) -> bool:
    """Whether its last pod is gone: the Deployment controller says so, and no pod of it is listed."""
    labels: dict[str, Any] = deployment.body["spec"]["template"]["metadata"]["labels"]
    mine = (labels.get(LABEL_REVISION), labels.get(LABEL_ACCELERATOR))
    pods = [pod for pod in observed.pods if (pod.revision, pod.accelerator) == mine and not pod.finished]
    return deployment.seen and deployment.count("replicas") == 0 and not pods


def _retiring(observed: Observed, current: Revision) -> tuple[str, ...]:
    return tuple(child.name for child in observed.of(DEPLOYMENTS) if child.name != current.name)


def _fenced(observed: Observed, draft: Plan) -> Plan:
    """No name that another object holds: a predecessor's child is waited for, any other is a conflict."""
    held = {(stranger.resource, stranger.name): stranger for stranger in observed.strangers}
    created = [(step.resource, step.name) for step in draft.writes if isinstance(step, Create)]
    in_the_way = [held[name] for name in created if name in held]
    if not in_the_way:
        return replace(draft, waiting=_going(observed.children))
    rest = tuple(step for step in draft.writes if not isinstance(step, Create))
    other = next((child for child in in_the_way if not (child.of_a_predecessor or child.deleting)), None)
    if other is None:
        return replace(draft, writes=rest, waiting=_named(in_the_way[0]))
    message = f"{_named(other)} exists and is not this service's; rename the service or remove it"
    return replace(draft, writes=rest, problem=SpecProblem(NAME_CONFLICT, message))


def _going(owned: tuple[Child, ...]) -> str:
    return next((_named(child) for child in owned if child.deleting), "")


def _named(child: Child) -> str:
    return f"{child.resource.kind} {child.name}"
