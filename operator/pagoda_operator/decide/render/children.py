"""The objects around a pod template: Deployment, ConfigMap, ControllerRevision, Service, PodDisruptionBudget, NetworkPolicies. Pure.

Every child carries the service's labels, an owner reference that garbage collection follows, and the hash of its rendering.

NetworkPolicies deny by default in both directions. In: gateways and the operator on the replica's two ports, readers of metrics on one.
Out: DNS and the profile's `egress`, and only if models come from elsewhere. Policies add up, so an admin can open more with another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from pagoda_contracts.names import (
    ANNOTATION_PLACEMENT,
    ANNOTATION_RENDERED,
    COMPONENT_GATEWAY,
    COMPONENT_INSPECT,
    COMPONENT_OPERATOR,
    COMPONENT_REPLICA,
    DAEMON_CONFIG_KEY,
    LABEL_ACCELERATOR,
    LABEL_CLASS,
    LABEL_COMPONENT,
    LABEL_MANAGED_BY,
    LABEL_NAME,
    LABEL_NAMESPACE_NAME,
    LABEL_REVISION,
    LABEL_SERVICE,
    LABEL_SERVICE_UID,
    MANAGED_BY,
    PORT_DAEMON_GRPC,
    PORT_DAEMON_HTTP,
)
from pagoda_contracts.resources.profile import Egress
from pagoda_placement.revision import Revision
from pagoda_placement.values import digest

from pagoda_operator.api.callers import Callers, namespace_of
from pagoda_operator.api.state import (
    CONFIG_MAPS,
    CONTROLLER_REVISIONS,
    CORE_SERVICES,
    DEPLOYMENTS,
    DISRUPTION_BUDGETS,
    NETWORK_POLICIES,
    RESOURCE_CLAIM_TEMPLATES,
    SERVICES,
    Resource,
)

Manifest = dict[str, Any]

# As long as a fetch may take (fetch.py). The Deployment controller does not see a fetch, a pull of a 30 GB image or a node that is being
# added, so its default of ten minutes failed slow starts. The pods themselves show what cannot start.
_PROGRESS_S: Final = 86_400
# Node-local DNS caches listen on a link-local address, which belongs to no pod.
_LINK_LOCAL: Final = ("169.254.0.0/16", "fe80::/10")
_DNS: Final = 53


class Owner(NamedTuple):
    """The service that children belong to; with the class of the install that acts on it, if it has one."""

    namespace: str
    name: str
    uid: str
    service_class: str = ""

    @property
    def selector(self) -> dict[str, str]:
        """Selects the service's replicas; the uid keeps a predecessor's pods out."""
        return {LABEL_SERVICE: self.name, LABEL_SERVICE_UID: self.uid}

    @property
    def labels(self) -> dict[str, str]:
        """On every child."""
        names = {LABEL_NAME: "pagoda", LABEL_MANAGED_BY: MANAGED_BY, LABEL_COMPONENT: COMPONENT_REPLICA}
        return self.selector | names | ({LABEL_CLASS: self.service_class} if self.service_class else {})


def replica_labels(owner: Owner, revision: Revision) -> dict[str, str]:
    """On a revision's children and pods."""
    return owner.labels | {LABEL_REVISION: revision.hash, LABEL_ACCELERATOR: revision.accelerator}


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


def controller_revision(owner: Owner, revision: Revision, number: int, data: Manifest) -> Manifest:
    """Pins what was rendered; `data` is never written again."""
    return stamped(owner, CONTROLLER_REVISIONS, revision.name, replica_labels(owner, revision), {"revision": number, "data": data})


def claim_template(owner: Owner, revision: Revision, claim: Manifest) -> Manifest:
    """The resource claims of a revision's pods, one for each pod."""
    return stamped(owner, RESOURCE_CLAIM_TEMPLATES, revision.name, replica_labels(owner, revision), {"spec": claim})


def config_map(owner: Owner, revision: Revision, text: str, placement: str) -> Manifest:
    """The replica's DaemonConfig, as JSON. It is immutable: kubelets need not watch it, and no edit reaches running pods.
    `placement`: devices and alternatives of the revision. An annotation, because the alternatives may be edited; empty for none."""
    body = {"immutable": True, "data": {DAEMON_CONFIG_KEY: text}}
    manifest = stamped(owner, CONFIG_MAPS, revision.name, replica_labels(owner, revision), body)
    if placement:
        manifest["metadata"]["annotations"][ANNOTATION_PLACEMENT] = placement
    return manifest


def deployment(owner: Owner, name: str, template: Manifest, replicas: int, notes: Mapping[str, str] | None = None) -> Manifest:
    """Runs a revision. The template never changes, so the Deployment keeps no history. `notes`: annotations that are not part of the
    rendering; empty ones are left out."""
    selector = owner.selector | {name: template["metadata"]["labels"][name] for name in (LABEL_REVISION, LABEL_ACCELERATOR)}
    spec = {
        "replicas": replicas,
        "revisionHistoryLimit": 0,
        "progressDeadlineSeconds": _PROGRESS_S,
        "selector": {"matchLabels": selector},
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
        "template": template,
    }
    manifest = stamped(owner, DEPLOYMENTS, name, owner.labels | selector, {"spec": spec})
    manifest["metadata"]["annotations"] |= {name: text for name, text in (notes or {}).items() if text}
    return manifest


def core_service(owner: Owner) -> Manifest:
    """All replicas of the service under one name, for clients that the service (spec.clientKeys) or an admin's NetworkPolicy lets in.
    Gateways read the EndpointSlices that Kubernetes makes of it, which have its labels."""
    ports = [
        {"name": "http", "port": PORT_DAEMON_HTTP, "targetPort": "http", "protocol": "TCP"},
        {"name": "grpc", "port": PORT_DAEMON_GRPC, "targetPort": "grpc", "protocol": "TCP"},
    ]
    return stamped(owner, CORE_SERVICES, owner.name, owner.labels, {"spec": {"selector": owner.selector, "ports": ports}})


def disruption_budget(owner: Owner) -> Manifest:
    """One replica at a time; a replica that is not ready never blocks the drain of a node."""
    spec = {"maxUnavailable": 1, "unhealthyPodEvictionPolicy": "AlwaysAllow", "selector": {"matchLabels": owner.selector}}
    return stamped(owner, DISRUPTION_BUDGETS, owner.name, owner.labels, {"spec": spec})


def network_policy(owner: Owner, callers: Callers, egress: tuple[Egress, ...], *, clients: bool = False) -> Manifest:
    """Default deny for the replicas, and the exceptions. `clients`: those of the service's namespace call replicas themselves."""
    accounts = ((callers.gateway, COMPONENT_GATEWAY), (callers.operator, COMPONENT_OPERATOR))
    peers = [_pods(namespace_of(account), {LABEL_NAME: "pagoda", LABEL_COMPONENT: component}) for account, component in accounts]
    # A policy cannot select by account: the whole namespace may read metrics, and the token decides.
    namespaces = sorted({*map(namespace_of, callers.metrics), *callers.metrics_namespaces})
    readers = [*map(_pods, namespaces), *map(_network, callers.metrics_from)]
    metrics = [{"from": readers, "ports": _tcp(PORT_DAEMON_HTTP)}] if readers else []
    proxies = [{"from": [*map(_pods, callers.proxies)], "ports": _tcp(PORT_DAEMON_HTTP)}] if callers.proxies else []
    beside = [{"from": [{"podSelector": {}}], "ports": _tcp(PORT_DAEMON_HTTP)}] if clients else []
    ingress = [{"from": peers, "ports": _tcp(PORT_DAEMON_HTTP, PORT_DAEMON_GRPC)}, *beside, *proxies, *metrics]
    return _policy(owner, owner.name, owner.selector, ingress, egress)


def inspector_uid(uid: str) -> str:
    """The uid label of a pod that inspects a model or tries a revision. With the service's own uid, Service and gateway would take the pod
    for a replica."""
    return f"{COMPONENT_INSPECT}-{uid}"


def inspection_name(service: str) -> str:
    """Names the policy of such pods. It has a dot, so that no service's own policy can have the same name."""
    return f"{service}.{COMPONENT_INSPECT}"


def inspection_policy(owner: Owner, egress: tuple[Egress, ...]) -> Manifest:
    """Lets such pods, which have the model's credential and serve no requests, fetch and nothing else."""
    selector = owner.selector | {LABEL_SERVICE_UID: inspector_uid(owner.uid)}
    return _policy(owner, inspection_name(owner.name), selector, [], egress)


def _policy(owner: Owner, name: str, selector: dict[str, str], ingress: list[Manifest], egress: tuple[Egress, ...]) -> Manifest:
    spec = {
        "podSelector": {"matchLabels": selector},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": ingress,
        "egress": [_dns(), *map(_egress, egress)] if egress else [],
    }
    return stamped(owner, NETWORK_POLICIES, name, owner.labels, {"spec": spec})


def _dns() -> Manifest:
    """Any namespace, because namespace and labels of the cluster's DNS differ between distributions."""
    peers = [{"namespaceSelector": {}}, *map(_network, _LINK_LOCAL)]
    return {"to": peers, "ports": [{"protocol": protocol, "port": _DNS} for protocol in ("UDP", "TCP")]}


def _egress(rule: Egress) -> Manifest:
    peer = _network(rule.cidr) if rule.cidr is not None else _pods(rule.namespace or "")
    return {"to": [peer], "ports": _tcp(*rule.ports)}


def _pods(namespace: str, labels: dict[str, str] | None = None) -> dict[str, Any]:
    selected = {"podSelector": {"matchLabels": labels}} if labels else {}
    return {"namespaceSelector": {"matchLabels": {LABEL_NAMESPACE_NAME: namespace}}, **selected}


def _network(cidr: str) -> Manifest:
    return {"ipBlock": {"cidr": cidr}}


def _tcp(*ports: int) -> list[Manifest]:
    return [{"protocol": "TCP", "port": port} for port in ports]
