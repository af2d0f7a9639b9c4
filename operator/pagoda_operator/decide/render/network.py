"""A service's NetworkPolicies: who may reach its replicas and its inspection, and whom they may reach. Pure; called by `converge`.

Default deny both ways. In: gateways and the operator on the replica's two ports, readers of metrics on one. Out: nothing, but where
models come from elsewhere DNS and the profile's `egress`. Kubelet's probes are not a NetworkPolicy's business. Policies add up: an admin
opens more with one of his own. The pod that inspects a model, as the one that tries a revision (trial.py), is no replica, has the model's
credential and serves nobody: their own policy lets them fetch and nothing else.
"""

from __future__ import annotations

from typing import Any, Final

from pagoda_contracts.names import (
    COMPONENT_GATEWAY,
    COMPONENT_INSPECT,
    COMPONENT_OPERATOR,
    LABEL_COMPONENT,
    LABEL_NAME,
    LABEL_NAMESPACE_NAME,
    LABEL_SERVICE_UID,
    PORT_DAEMON_GRPC,
    PORT_DAEMON_HTTP,
)
from pagoda_contracts.resources.profile import Egress

from pagoda_operator.api.callers import Callers, namespace_of
from pagoda_operator.api.state import NETWORK_POLICIES
from pagoda_operator.decide.render.children import Manifest, Owner, stamped
from pagoda_operator.decide.render.inspect import inspector_uid

# Node-local DNS caches listen on a link-local address, which is no pod's.
_LINK_LOCAL: Final = ("169.254.0.0/16", "fe80::/10")
_DNS: Final = 53


def network_policy(owner: Owner, callers: Callers, egress: tuple[Egress, ...]) -> Manifest:
    """Default deny, and the exceptions."""
    spec = {
        "podSelector": {"matchLabels": owner.selector},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [_callers(callers), *_metrics(callers)],
        "egress": _out(egress),
    }
    return stamped(owner, NETWORK_POLICIES, owner.name, owner.labels, {"spec": spec})


def inspection_name(service: str) -> str:
    """Of the inspection's policy: with a dot, so that no service's own can be called so."""
    return f"{service}.{COMPONENT_INSPECT}"


def inspection_policy(owner: Owner, egress: tuple[Egress, ...]) -> Manifest:
    """Nobody in; out, where the model is fetched from."""
    selector = owner.selector | {LABEL_SERVICE_UID: inspector_uid(owner.uid)}
    spec = {"podSelector": {"matchLabels": selector}, "policyTypes": ["Ingress", "Egress"], "ingress": [], "egress": _out(egress)}
    return stamped(owner, NETWORK_POLICIES, inspection_name(owner.name), owner.labels, {"spec": spec})


def _out(egress: tuple[Egress, ...]) -> list[Manifest]:
    return [_names(), *map(_egress, egress)] if egress else []


def _callers(callers: Callers) -> Manifest:
    accounts = ((callers.gateway, COMPONENT_GATEWAY), (callers.operator, COMPONENT_OPERATOR))
    return {
        "from": [_pods(namespace_of(account), {LABEL_NAME: "pagoda", LABEL_COMPONENT: component}) for account, component in accounts],
        "ports": _tcp(PORT_DAEMON_HTTP, PORT_DAEMON_GRPC),
    }


def _metrics(callers: Callers) -> list[Manifest]:
    """A policy cannot select by account: the whole namespace, and the token decides."""
    namespaces = sorted({namespace_of(account) for account in callers.metrics})
    peers = [*(_pods(name) for name in namespaces), *(_network(cidr) for cidr in callers.metrics_from)]
    return [{"from": peers, "ports": _tcp(PORT_DAEMON_HTTP)}] if peers else []


def _names() -> Manifest:
    """Wherever the cluster's DNS runs: its namespace and labels differ between distributions."""
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
