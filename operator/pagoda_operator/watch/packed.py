"""Our own objects as the caches keep them: as text, without what no plan and no status compares. Pure.

A pod is 25 KB of dictionaries and 1 KB of such text. Two texts are equal where nothing changed that anybody compares.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec
from pagoda_contracts.names import LABEL_SERVICE

from pagoda_operator.api.pods import by_scheduler
from pagoda_operator.api.state import CHILD_RESOURCES, CORE_SERVICES, DISRUPTION_BUDGETS, PODS, PROFILES, SERVICES, Json, Key, Resource

OWN: Final = (SERVICES, PROFILES, PODS, *CHILD_RESOURCES)
_POD_SPEC: Final = ("nodeName", "priority", "schedulingGates", "terminationGracePeriodSeconds", "resourceClaims")
# What these say of themselves decides nothing: each change of replicas changes a budget's status, and that was a run for nothing.
_MUTE: Final = frozenset({DISRUPTION_BUDGETS, CORE_SERVICES})
# Of a pod's containers, what devices they ask for.
_POD_CONTAINERS: Final = ("initContainers", "containers")
_NOISE: Final = frozenset({"containerID", "image", "imageID", "volumeMounts", "resources", "allocatedResources", "user", "lastProbeTime"})


class Packed(NamedTuple):
    """One object without its resourceVersion. `service`: whose it is, None of a profile; `node`: where a pod stands, "" before."""

    service: Key | None
    node: str
    text: bytes

    def body(self, version: str) -> dict[str, Any]:
        """The object again."""
        body: dict[str, Any] = msgspec.json.decode(self.text)
        body["metadata"]["resourceVersion"] = version
        return body


def pack(resource: Resource, body: Json) -> Packed | None:
    """None of what is none of ours: it bears no service's label."""
    if resource not in OWN:
        return None
    service = _service(resource, body)
    if service is None and resource != PROFILES:
        return None
    meta = {name: value for name, value in body["metadata"].items() if name not in ("managedFields", "resourceVersion")}
    kept = {**body, "apiVersion": resource.api_version, "kind": resource.kind, "metadata": meta}
    if resource in _MUTE:
        kept.pop("status", None)
    if resource == PODS:
        kept |= _pod(body, meta)
    # In the server's order: a ConfigMap's text is rendered from a ControllerRevision's data as they stand there.
    node = (body.get("spec") or {}).get("nodeName", "") if resource == PODS else ""
    return Packed(service, node, msgspec.json.encode(kept))


def _pod(body: Json, meta: Json) -> dict[str, Any]:
    """Not what its node alone cares for."""
    told = by_scheduler(body["metadata"])
    spec, status = body.get("spec") or {}, body.get("status") or {}
    asked = {name: [_asked(container) for container in spec[name]] for name in _POD_CONTAINERS if name in spec}
    return {
        "metadata": {**meta, "managedFields": told} if told else meta,
        "spec": {name: spec[name] for name in _POD_SPEC if name in spec} | asked,
        "status": {name: _quiet(value) for name, value in status.items()},
    }


def _service(resource: Resource, body: Json) -> Key | None:
    if resource == SERVICES:
        return key_of(body)
    name = (body["metadata"].get("labels") or {}).get(LABEL_SERVICE)
    return Key(body["metadata"].get("namespace", ""), name) if name else None


def key_of(body: Json) -> Key:
    """Its namespace and name."""
    meta = body["metadata"]
    return Key(meta.get("namespace", ""), meta["name"])


def _asked(container: Json) -> Json:
    return {name: container[name] for name in ("name", "resources") if name in container}


def _quiet(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    return [{name: part for name, part in found.items() if name not in _NOISE} if isinstance(found, dict) else found for found in value]
