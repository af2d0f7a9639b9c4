"""What NetworkPolicies allow, by the API's own words: an evaluator for flow tables, because the dev cluster's network enforces none.

A flow is allowed where the sender's policies let it out and the receiver's let it in. A pod that no policy selects in a direction is
open in it; one that is selected may do what any of the policies that select it says. Policies never deny by themselves, and a node reaches
its own pods always.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from typing import Any

Policy = Mapping[str, Any]


@dataclass(frozen=True)
class Peer:
    """A pod, or with an empty namespace something else that has an address. `node`: the kubelet of the receiver's node."""

    ip: str
    namespace: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    ports: Mapping[str, int] = field(default_factory=dict)
    node: bool = False


@dataclass(frozen=True)
class Network:
    """All policies, and each namespace's labels."""

    policies: Sequence[Policy]
    namespaces: Mapping[str, Mapping[str, str]]

    def allows(self, sender: Peer, receiver: Peer, port: int, protocol: str = "TCP") -> bool:
        if sender.node:
            return True
        out = self._open("Egress", "egress", "to", sender, receiver, (receiver, port, protocol))
        return out and self._open("Ingress", "ingress", "from", receiver, sender, (receiver, port, protocol))

    def _open(self, kind: str, rules: str, side: str, one: Peer, other: Peer, where: tuple[Peer, int, str]) -> bool:
        mine = [policy for policy in self.policies if kind in _types(policy["spec"]) and _selects(policy, one)]
        return not mine or any(
            self._matches(policy, rule, side, other, where) for policy in mine for rule in policy["spec"].get(rules) or ()
        )

    def _matches(self, policy: Policy, rule: Policy, side: str, other: Peer, where: tuple[Peer, int, str]) -> bool:
        peers, ports = rule.get(side), rule.get("ports")
        right = not ports or any(_port(port, *where) for port in ports)
        return right and (not peers or any(self._peer(policy["metadata"]["namespace"], peer, other) for peer in peers))

    def _peer(self, own: str, peer: Policy, other: Peer) -> bool:
        if "ipBlock" in peer:
            return _in_block(peer["ipBlock"], other.ip)
        if not other.namespace:
            return False
        space = peer.get("namespaceSelector")
        near = other.namespace == own if space is None else selected(space, self.namespaces[other.namespace])
        return near and selected(peer.get("podSelector") or {}, other.labels)


def _types(spec: Policy) -> Sequence[str]:
    return spec.get("policyTypes") or ("Ingress", *(("Egress",) if spec.get("egress") else ()))


def _selects(policy: Policy, pod: Peer) -> bool:
    return pod.namespace == policy["metadata"]["namespace"] and selected(policy["spec"]["podSelector"], pod.labels)


def selected(selector: Policy, labels: Mapping[str, str]) -> bool:
    """An empty selector selects all."""
    equal = all(labels.get(key) == value for key, value in (selector.get("matchLabels") or {}).items())
    return equal and all(_expression(term, labels) for term in selector.get("matchExpressions") or ())


def _expression(term: Policy, labels: Mapping[str, str]) -> bool:
    value, wanted = labels.get(term["key"]), term.get("values") or ()
    return {
        "In": value in wanted,
        "NotIn": value not in wanted,
        "Exists": value is not None,
        "DoesNotExist": value is None,
    }[term["operator"]]


def _port(rule: Policy, receiver: Peer, port: int, protocol: str) -> bool:
    if rule.get("protocol", "TCP") != protocol:
        return False
    wanted = rule.get("port")
    if wanted is None:
        return True
    first = receiver.ports.get(wanted) if isinstance(wanted, str) else int(wanted)
    return first is not None and first <= port <= int(rule.get("endPort", first))


def _in_block(block: Policy, ip: str) -> bool:
    """Of pods too: whether an implementation sees their addresses is open, so the evaluator takes the wider reading."""
    address = ip_address(ip)
    return address in ip_network(block["cidr"]) and not any(address in ip_network(hole) for hole in block.get("except") or ())
