"""The objects around a pod template (Deployment, ConfigMap, ControllerRevision, Service, PodDisruptionBudget), and what identifies them.

Every child carries the service's labels, an owner reference that garbage collection follows, and the hash of its rendering. A revision is
the hash of the service's own words. The profile's content is not part of it: an edited profile or a new operator rolls no pod.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from pagoda_contracts.names import (
    ANNOTATION_PLACEMENT,
    ANNOTATION_RENDERED,
    COMPONENT_REPLICA,
    DAEMON_CONFIG_KEY,
    LABEL_ACCELERATOR,
    LABEL_COMPONENT,
    LABEL_MANAGED_BY,
    LABEL_NAME,
    LABEL_REVISION,
    LABEL_SERVICE,
    LABEL_SERVICE_UID,
    MANAGED_BY,
    PORT_DAEMON_GRPC,
    PORT_DAEMON_HTTP,
)
from pagoda_contracts.resources.service import Accelerator, InferenceServiceSpec

from pagoda_operator.api.state import (
    CONFIG_MAPS,
    CONTROLLER_REVISIONS,
    CORE_SERVICES,
    DEPLOYMENTS,
    DISRUPTION_BUDGETS,
    RESOURCE_CLAIM_TEMPLATES,
    SERVICES,
    Resource,
)
from pagoda_operator.decide.render.fetch import fetched
from pagoda_operator.inventory.values import digest

Manifest = dict[str, Any]


class Owner(NamedTuple):
    """The service that children belong to."""

    namespace: str
    name: str
    uid: str

    @property
    def selector(self) -> dict[str, str]:
        """Selects the service's replicas; the uid keeps a predecessor's pods out."""
        return {LABEL_SERVICE: self.name, LABEL_SERVICE_UID: self.uid}

    @property
    def labels(self) -> dict[str, str]:
        """On every child."""
        names = {LABEL_NAME: "pagoda", LABEL_MANAGED_BY: MANAGED_BY, LABEL_COMPONENT: COMPONENT_REPLICA}
        return self.selector | names


def replica_labels(owner: Owner, revision: Revision) -> dict[str, str]:
    """On a revision's children and pods."""
    return owner.labels | {LABEL_REVISION: revision.hash, LABEL_ACCELERATOR: revision.accelerator}


def replica_selector(owner: Owner, labels: Mapping[str, str]) -> dict[str, str]:
    """Selects one (revision × accelerator)'s pods; immutable in a Deployment, hence narrow and final."""
    return owner.selector | {name: labels[name] for name in (LABEL_REVISION, LABEL_ACCELERATOR)}


def controller_revision(owner: Owner, revision: Revision, number: int, data: Manifest) -> Manifest:
    """Pins what was rendered; `data` is never written again."""
    labels = replica_labels(owner, revision)
    return stamped(owner, CONTROLLER_REVISIONS, revision.name, labels, {"revision": number, "data": data})


def claim_template(owner: Owner, revision: Revision, claim: Manifest) -> Manifest:
    """The resource claims of a revision's pods, one for each pod."""
    return stamped(owner, RESOURCE_CLAIM_TEMPLATES, revision.name, replica_labels(owner, revision), {"spec": claim})


def config_map(owner: Owner, revision: Revision, text: str, placement: str = "") -> Manifest:
    """The replica's DaemonConfig, as JSON. Immutable: kubelets need not watch it, and nobody edits it under running pods.
    `placement`: what the revision was placed on, and for which alternatives; an annotation, since those may be edited."""
    body = {"immutable": True, "data": {DAEMON_CONFIG_KEY: text}}
    manifest = stamped(owner, CONFIG_MAPS, revision.name, replica_labels(owner, revision), body)
    if placement:
        manifest["metadata"]["annotations"][ANNOTATION_PLACEMENT] = placement
    return manifest


# As long as a fetch may take (fetch.py). The Deployment controller sees pods come and become ready, never a fetch or an image of 30 GB
# that moves, nor a node that an autoscaler makes: its default of ten minutes gave up every start that took longer. What cannot come up
# is known from the pods themselves, and what is refused from the Deployment, at once or after ten minutes (replica.py).
_PROGRESS_S: Final = 86_400


def deployment(owner: Owner, name: str, template: Manifest, replicas: int, notes: Mapping[str, str] | None = None) -> Manifest:
    """Runs a revision. The template never changes, so its own history is of no use. `notes`: annotations about it, not about what it
    is; those without a text are left out."""
    labels = owner.labels | replica_selector(owner, template["metadata"]["labels"])
    spec = {
        "replicas": replicas,
        "revisionHistoryLimit": 0,
        "progressDeadlineSeconds": _PROGRESS_S,
        "selector": {"matchLabels": replica_selector(owner, labels)},
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
        "template": template,
    }
    manifest = stamped(owner, DEPLOYMENTS, name, labels, {"spec": spec})
    manifest["metadata"]["annotations"] |= {name: text for name, text in (notes or {}).items() if text}
    return manifest


def core_service(owner: Owner) -> Manifest:
    """All replicas of the service under one name, which gateways do not need: they watch pods. By default nobody else gets through (the
    NetworkPolicy lets gateways and operator in, replicas know callers by their tokens); for those whom an installation lets in."""
    ports = [
        {"name": "http", "port": PORT_DAEMON_HTTP, "targetPort": "http", "protocol": "TCP"},
        {"name": "grpc", "port": PORT_DAEMON_GRPC, "targetPort": "grpc", "protocol": "TCP"},
    ]
    return stamped(owner, CORE_SERVICES, owner.name, owner.labels, {"spec": {"selector": owner.selector, "ports": ports}})


def disruption_budget(owner: Owner) -> Manifest:
    """One replica at a time; a replica that is not ready never blocks the drain of a node."""
    spec = {"maxUnavailable": 1, "unhealthyPodEvictionPolicy": "AlwaysAllow", "selector": {"matchLabels": owner.selector}}
    return stamped(owner, DISRUPTION_BUDGETS, owner.name, owner.labels, {"spec": spec})


def stamped(owner: Owner, resource: Resource, name: str, labels: dict[str, str], body: Manifest) -> Manifest:
    """A child with its owner and the hash of its rendering."""
    reference = {
        "apiVersion": SERVICES.api_version,
        "kind": SERVICES.kind,
        "name": owner.name,
        "uid": owner.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    meta = {"name": name, "namespace": owner.namespace, "labels": labels, "ownerReferences": [reference]}
    manifest = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": meta, **body}
    meta["annotations"] = {ANNOTATION_RENDERED: digest(manifest)}
    return manifest


# An empty one is the same as none.
_ONLY_WHERE_SET: Final = ("health", "slo")


class Revision(NamedTuple):
    """One (revision × accelerator): `name` is that of its Deployment, ConfigMap and ControllerRevision."""

    name: str
    hash: str
    accelerator: str


def identify(
    service: str, spec: InferenceServiceSpec, accelerator: Accelerator, resolved: Mapping[str, str] = MappingProxyType({})
) -> Revision:
    """The revision that the spec asks for on this accelerator, where the entry leaves a choice on the devices it came down to.

    Only fields that differ from their default are hashed, so that a field added by a later version changes no hash.
    The accelerator counts by its content, not by its place in the list: reordering alternatives rolls nothing.
    """
    words = spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    names = ("model", "engine", "drain", "podTemplate", "profileRef", *(("credentials",) if fetched(spec) else ()))
    parts = {name: words[name] for name in names if name in words}
    parts |= {name: words[name] for name in _ONLY_WHERE_SET if words.get(name)}
    kind = _words(accelerator)
    revision, where = digest(parts), digest([kind, dict(resolved)] if resolved else kind)
    return Revision(f"{service}-{digest([revision, where])}", revision, where)


def entry_digest(accelerator: Accelerator) -> str:
    """Names an entry of `accelerators[]` by its content; how long it is waited for is not part of it."""
    return digest(_words(accelerator))


def _words(accelerator: Accelerator) -> dict[str, Any]:
    words: dict[str, Any] = accelerator.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude={"fallback_after"})
    return words
