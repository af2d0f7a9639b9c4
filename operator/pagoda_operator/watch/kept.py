"""What the caches keep of an object. Pure.

`pack` keeps our own objects as text, without fields that no plan and no status compares: a pod has 25 KB as dictionaries and 1 KB as text.
The managedFields of a child are kept if another field manager owns a part of its spec.
`PARSERS` keep what decisions over more than one service need. Neither keeps what changes with time alone (heartbeats, images, counters), so
two values are equal if nothing changed that is compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import msgspec
from pagoda_contracts.names import LABEL_SERVICE
from pagoda_placement.inventory import parse_occupant
from pagoda_placement.nodes import parse_node
from pagoda_placement.slices import parse_claim, parse_slice

from pagoda_operator.api.adapters import parse_adapter, parse_namespace
from pagoda_operator.api.caps import parse_quota
from pagoda_operator.api.pods import by_scheduler
from pagoda_operator.api.state import (
    ADAPTERS,
    CHILD_RESOURCES,
    CORE_SERVICES,
    DISRUPTION_BUDGETS,
    NAMESPACES,
    NODES,
    PODS,
    PROFILES,
    QUOTAS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    SERVICES,
    Json,
    Key,
    Resource,
)
from pagoda_operator.decide.render.overlay import by_others
from pagoda_operator.decide.status.profile import parse_profile

OWN: Final = (SERVICES, PROFILES, PODS, *CHILD_RESOURCES)
_POD_SPEC: Final = ("nodeName", "priority", "schedulingGates", "terminationGracePeriodSeconds", "resourceClaims")
# Kinds whose status decides nothing: each change of replicas changes a budget's status, and each new service its profile's, which would
# cause runs.
_STATUS_IGNORED: Final = frozenset({DISRUPTION_BUDGETS, CORE_SERVICES, PROFILES})
_POD_CONTAINERS: Final = ("initContainers", "containers")
_IGNORED_FIELDS: Final = frozenset(
    {"containerID", "image", "imageID", "volumeMounts", "resources", "allocatedResources", "user", "lastProbeTime"}
)


class Packed(NamedTuple):
    """One object without its resourceVersion. `service`: its service, None for a profile; `node`: the pod's node, "" before it has one."""

    service: Key | None
    node: str
    text: bytes

    def body(self, version: str) -> dict[str, Any]:
        """The object again."""
        body: dict[str, Any] = msgspec.json.decode(self.text)
        body["metadata"]["resourceVersion"] = version
        return body


def pack(resource: Resource, body: Json) -> Packed | None:
    """None for an object without a service's label, which is not ours."""
    if resource not in OWN:
        return None
    service = _service(resource, body)
    if service is None and resource != PROFILES:
        return None
    meta = {name: value for name, value in body["metadata"].items() if name not in ("managedFields", "resourceVersion")}
    if resource in CHILD_RESOURCES and by_others(body["metadata"]):
        meta["managedFields"] = body["metadata"]["managedFields"]
    kept = {**body, "apiVersion": resource.api_version, "kind": resource.kind, "metadata": meta}
    if resource in _STATUS_IGNORED:
        kept.pop("status", None)
    if resource == PODS:
        kept |= _pod(body, meta)
    # In the server's order: a ConfigMap's text is rendered from a ControllerRevision's data in their order.
    node = (body.get("spec") or {}).get("nodeName", "") if resource == PODS else ""
    return Packed(service, node, msgspec.json.encode(kept))


def _pod(body: Json, meta: Json) -> dict[str, Any]:
    """A pod without what only its node needs."""
    entries = by_scheduler(body["metadata"])
    spec, status = body.get("spec") or {}, body.get("status") or {}
    asked = {field: [_pick(container, ("name", "resources")) for container in spec[field]] for field in _POD_CONTAINERS if field in spec}
    return {
        "metadata": {**meta, "managedFields": entries} if entries else meta,
        "spec": _pick(spec, _POD_SPEC) | asked,
        "status": {name: _without_ignored(value) for name, value in status.items()},
    }


def _service(resource: Resource, body: Json) -> Key | None:
    if resource == SERVICES:
        return key_of(body)
    name = (body["metadata"].get("labels") or {}).get(LABEL_SERVICE)
    return Key(body["metadata"].get("namespace", ""), name) if name else None


def key_of(body: Json) -> Key:
    """The object's namespace and name."""
    meta = body["metadata"]
    return Key(meta.get("namespace", ""), meta["name"])


def _pick(value: Json, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: value[name] for name in names if name in value}


def _without_ignored(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    return [
        {name: part for name, part in found.items() if name not in _IGNORED_FIELDS} if isinstance(found, dict) else found for found in value
    ]


PARSERS: Final[Mapping[Resource, Callable[[Json], Any]]] = {
    ADAPTERS: parse_adapter,
    NAMESPACES: parse_namespace,
    NODES: parse_node,
    PODS: parse_occupant,
    PROFILES: parse_profile,
    QUOTAS: parse_quota,
    RESOURCE_SLICES: parse_slice,
    RESOURCE_CLAIMS: parse_claim,
}
