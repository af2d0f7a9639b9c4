"""What a revision runs, rendered once and then read from its ControllerRevision, so that no upgrade rolls a pod. Pure; called by `plan`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final, NamedTuple

from pagoda_contracts.conditions.service import INVALID_PROFILE, PROFILE_NOT_FOUND, REVISION_LOST
from pagoda_contracts.names import ANNOTATION_RENDERED, DAEMON_CONFIG_KEY
from pagoda_contracts.resources.service import Accelerator

from pagoda_operator.api.errors import SpecProblem
from pagoda_operator.api.placement import Resolved
from pagoda_operator.api.state import CONFIG_MAPS, CONTROLLER_REVISIONS, DEPLOYMENTS, RESOURCE_CLAIM_TEMPLATES, Child, Key, Observed
from pagoda_operator.decide.render import children, pod
from pagoda_operator.decide.render.children import Manifest, Owner, Revision

CLAIM: Final = "claim"


class Where(NamedTuple):
    """The entry of `accelerators[]` that a revision runs on, and the devices that it came down to."""

    entry: Accelerator
    resolved: Resolved = Resolved()
    written: str = ""


@dataclass(frozen=True)
class Pinned:
    """What a revision runs, from its ControllerRevision or about to be written to it."""

    number: int
    data: Manifest
    # What the ConfigMap says of the devices; empty where there was nothing to choose.
    placement: str = ""
    # What its ConfigMap says.
    text: str = ""


def pin(observed: Observed, owner: Owner, current: Revision, where: Where) -> Pinned:
    """Read the revision from its ControllerRevision; render it where nothing has run it yet.

    Until its Deployment exists nothing depends on the pinned rendering, and the cure of a refused one (an edited profile)
    must reach it; from then on it is final.
    """
    kept = observed.find(CONTROLLER_REVISIONS, current.name)
    deployment = observed.find(DEPLOYMENTS, current.name)
    numbers = [int(child.body["revision"]) for child in observed.of(CONTROLLER_REVISIONS) if child.name != current.name]
    number = int(kept.body["revision"]) if kept else max(numbers, default=0) + 1
    if deployment is not None and kept is not None:
        return Pinned(number, kept.body["data"], where.written)
    if deployment is not None:
        return Pinned(number, _again(observed, owner, current, where, deployment), where.written)
    try:
        return Pinned(number, _in_order(render(observed, owner, current, where)), where.written)
    except SpecProblem:
        if kept is None:
            raise
        return Pinned(number, kept.body["data"], where.written)


def _again(observed: Observed, owner: Owner, current: Revision, where: Where, deployment: Child) -> Manifest:
    """The pin that somebody removed. As a new service has it, where the Deployment was made from just that; else from what runs, to
    which the API server has added its defaults: another rendering could roll the pods, or hide from `outdated` that it would."""
    recovered = _recovered(observed, current, deployment)
    try:
        fresh = render(observed, owner, current, where)
    except SpecProblem:
        return recovered
    same = all(fresh.get(part) == recovered.get(part) for part in ("daemonConfig", CLAIM))
    # Its number may have been any when it was rendered: somebody else's may stand there now.
    most = max(deployment.replicas, observed.asked, len(observed.pods)) + 1
    return fresh if same and any(_made_from(owner, deployment, fresh["podTemplate"], number) for number in range(most + 1)) else recovered


def _made_from(owner: Owner, deployment: Child, template: Manifest, replicas: int) -> bool:
    """By the hash of its rendering, which counts its replicas. Its fields do not show it: those that a profile had once are there
    like the API server's defaults."""
    rendered = children.deployment(owner, deployment.name, template, replicas)
    noted = deployment.meta.get("annotations", {}).get(ANNOTATION_RENDERED)
    return bool(noted == rendered["metadata"]["annotations"][ANNOTATION_RENDERED])


def _recovered(observed: Observed, current: Revision, deployment: Child) -> Manifest:
    """What a revision runs, from what there is of it."""
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
    """As it would be pinned now; SpecProblem where that cannot be."""
    if observed.spec is None or observed.profile is None:
        raise _no_profile(observed)
    labels = children.replica_labels(owner, current)
    key = Key(owner.namespace, owner.name)
    inputs = pod.Inputs(key, current, observed.spec, where.entry, observed.profile, labels, observed.callers, where.resolved)
    profile = observed.profile.wire()
    rendered = {"profile": profile, "daemonConfig": pod.daemon_config(inputs), "podTemplate": pod.pod_template(inputs)}
    return rendered | ({CLAIM: pod.claim_spec(where.entry.dra, where.resolved)} if where.entry.dra else {})


def _in_order(data: Manifest) -> Manifest:
    """As the API server gives them back: the ConfigMap's text, rendered from them, is to be the same before and after."""
    ordered: Manifest = json.loads(json.dumps(data, sort_keys=True))
    return ordered


def told(observed: Observed, current: Revision, data: Manifest) -> str:
    """The ConfigMap's text; where one says the same in another order, as it stands there: it is nobody's reason to make it anew."""
    live = observed.find(CONFIG_MAPS, current.name)
    text: str = live.body.get("data", {}).get(DAEMON_CONFIG_KEY, "") if live else ""
    config = data["daemonConfig"]
    return text if _says(text) == config else json.dumps(config, indent=1)


def _says(text: str) -> Manifest | None:
    try:
        said: Manifest | None = json.loads(text)
    except ValueError:
        return None
    return said


def _no_profile(observed: Observed) -> SpecProblem:
    name = observed.spec.profile_ref.name if observed.spec else ""
    if observed.invalid_profile:
        return SpecProblem(INVALID_PROFILE, f"ServingProfile {name!r}: {observed.invalid_profile}")
    return SpecProblem(PROFILE_NOT_FOUND, f"ServingProfile {name!r} does not exist")


def template_of(observed: Observed, deployment: Child) -> Manifest:
    """The pinned template; the live one where somebody removed the ControllerRevision."""
    kept = observed.find(CONTROLLER_REVISIONS, deployment.name)
    template: Manifest = kept.body["data"]["podTemplate"] if kept else deployment.body["spec"]["template"]
    return template
