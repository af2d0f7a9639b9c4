"""What a replica's pod asks of its devices: resources, nodes that have them, tolerations of vendors' taints, resource claims. Pure; called
by `pod`. All of it is added to what profile and service say, never put in its place."""

from __future__ import annotations

import copy
from itertools import product
from typing import Any, Final

from pagoda_contracts.names import COMPONENT_REPLICA, DEVICE_CLASS_GPU, LABEL_COMPONENT, LABEL_SERVICE_UID
from pagoda_contracts.resources.placement import Accelerator, DraAccelerator, ResourcesSpec
from pagoda_placement.options import ranks
from pagoda_placement.result import Resolved
from pagoda_placement.terms import vendor_tolerations
from pagoda_placement.values import alternatives
from pagoda_sizing.host import beside_devices

_CLAIM: Final = "devices"
_HOST: Final = ("cpu", "memory", "ephemeral-storage")
_HOSTNAME: Final = "kubernetes.io/hostname"
_ZONE: Final = "topology.kubernetes.io/zone"


def resources(accelerator: Accelerator, resolved: Resolved) -> dict[str, Any]:
    """Cores are a request without a limit: a small node must fit the replacement of a pod that still drains."""
    if accelerator.cpu is not None:
        cpu = accelerator.cpu
        return {"requests": {"cpu": cpu.cores, "memory": cpu.memory}, "limits": {"memory": cpu.memory}}
    if accelerator.dra is not None:
        return {"claims": [{"name": _CLAIM}]}
    asked = {resolved.resource: str(ranks(accelerator))}
    return {"requests": asked, "limits": asked}


def requested(accelerator: Accelerator, resolved: Resolved, fetched: int) -> dict[str, Any]:
    """What a replica requests of its node besides devices, so that the kubelet does not evict it first. `fetched`: bytes of the model if
    they lie on the pod's scratch disk. On CPU the entry says the rest."""
    host = beside_devices(ranks(accelerator), sliced=bool(resolved.profile), fetched=fetched)
    if accelerator.cpu is not None:
        return {"ephemeral-storage": f"{-(-host.disk // (1 << 20))}Mi"} if fetched else {}
    sizes = {"memory": host.memory, "ephemeral-storage": host.disk}
    return {"cpu": f"{host.millicores}m"} | {name: f"{-(-size // (1 << 20))}Mi" for name, size in sizes.items()}


def chosen(wished: ResourcesSpec) -> dict[str, Any]:
    """What the service says of it."""
    return {name: value for name, value in zip(_HOST, (wished.cpu, wished.memory, wished.ephemeral_storage), strict=True) if value}


def spread(own: dict[str, str]) -> dict[str, Any]:
    """Replicas of a service keep apart if they can. `own`: labels that only the service's replicas have."""
    apart = {"maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {"matchLabels": own}}
    return {"topologySpreadConstraints": [{**apart, "topologyKey": key} for key in (_HOSTNAME, _ZONE)]}


def _pack(spec: dict[str, Any], accelerator: Accelerator, uid: str) -> None:
    """A replica with a single GPU goes where other services' replicas are, so that whole nodes stay free for those that need several GPUs.
    Not if profile or service say what pods it is to be near: a preference of ours could outweigh theirs."""
    affinity = spec.get("affinity") or {}
    if accelerator.gpu is None or accelerator.gpu.count > 1 or affinity.get("podAffinity") or affinity.get("podAntiAffinity"):
        return
    others = [
        {"key": LABEL_COMPONENT, "operator": "In", "values": [COMPONENT_REPLICA]},
        {"key": LABEL_SERVICE_UID, "operator": "NotIn", "values": [uid]},
    ]
    term = {"topologyKey": _HOSTNAME, "labelSelector": {"matchExpressions": others}, "namespaceSelector": {}}
    preferred = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 50, "podAffinityTerm": term}]}
    spec["affinity"] = affinity | {"podAffinity": preferred}


def on_devices(template: dict[str, Any], accelerator: Accelerator, resolved: Resolved, claim: str) -> dict[str, Any]:
    """The template for the devices' nodes; `claim`: the ResourceClaimTemplate, for an entry that has one."""
    if accelerator.cpu is not None:
        return template
    result = copy.deepcopy(template)
    spec = result["spec"]
    _pack(spec, accelerator, result["metadata"]["labels"][LABEL_SERVICE_UID])
    if resolved.labels:
        _require(spec, alternatives(resolved.labels))
    given = spec.get("tolerations") or []
    spec["tolerations"] = [*given, *(one for one in vendor_tolerations() if one not in given)]
    if accelerator.dra is not None:
        claims = [one for one in spec.get("resourceClaims", []) if one["name"] != _CLAIM]
        spec["resourceClaims"] = [*claims, {"name": _CLAIM, "resourceClaimTemplateName": claim}]
    return result


def _require(spec: dict[str, Any], terms: list[list[dict[str, Any]]]) -> None:
    """Node selector terms are alternatives, so each of ours is joined to each of those that are there."""
    affinity = spec.setdefault("affinity", {}).setdefault("nodeAffinity", {})
    required = affinity.setdefault("requiredDuringSchedulingIgnoredDuringExecution", {})
    given = required.get("nodeSelectorTerms") or [{}]
    required["nodeSelectorTerms"] = [
        {**term, "matchExpressions": [*term.get("matchExpressions", []), *ours]} for term, ours in product(given, terms)
    ]


def claim_spec(dra: DraAccelerator, resolved: Resolved) -> dict[str, Any]:
    """The spec of the ResourceClaimTemplate: the entry's own selectors, and the product and profile that were judged to fit."""
    found = {"productName": resolved.product, "profile": resolved.profile}
    pinned = (f"device.attributes['{DEVICE_CLASS_GPU}'].{name} == '{value}'" for name, value in found.items() if value)
    selectors = [{"cel": {"expression": text}} for text in (*dra.selectors, *pinned)]
    request = {
        "deviceClassName": dra.device_class_name,
        "allocationMode": "ExactCount",
        "count": dra.count,
        **({"selectors": selectors} if selectors else {}),
    }
    return {"spec": {"devices": {"requests": [{"name": _CLAIM, "exactly": request}]}}}
