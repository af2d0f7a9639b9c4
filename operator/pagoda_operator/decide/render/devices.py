"""A pod's devices: what its container asks for, which nodes have them, and its resource claims. Pure; called by `pod` and `children`.

Laid on last, and only added: what a profile or a service says of nodes holds beside it.
"""

from __future__ import annotations

import copy
from typing import Any, Final

from pagoda_contracts.names import DEVICE_CLASS_GPU, LABEL_GPU_PRODUCT
from pagoda_contracts.resources.placement import Accelerator, DraAccelerator

from pagoda_operator.api.placement import Resolved

_CLAIM: Final = "devices"


def resources(accelerator: Accelerator, resolved: Resolved) -> dict[str, Any]:
    """Cores are a request without a limit: a small node must fit the replacement of a pod that still drains."""
    if accelerator.cpu is not None:
        cpu = accelerator.cpu
        return {"requests": {"cpu": cpu.cores, "memory": cpu.memory}, "limits": {"memory": cpu.memory}}
    if accelerator.dra is not None:
        return {"claims": [{"name": _CLAIM}]}
    asked = {resolved.resource: str(count(accelerator))}
    return {"requests": asked, "limits": asked}


def count(accelerator: Accelerator) -> int:
    """Devices of a replica, hence ranks of its tensor parallelism."""
    if accelerator.gpu is not None:
        return accelerator.gpu.count
    return accelerator.dra.count if accelerator.dra is not None else 1


def placed(template: dict[str, Any], revision: str, accelerator: Accelerator, resolved: Resolved) -> dict[str, Any]:
    """The template on its devices' nodes, with its claim where it has one."""
    result = copy.deepcopy(template)
    spec = result["spec"]
    if resolved.labels:
        _require(spec, {"key": LABEL_GPU_PRODUCT, "operator": "In", "values": list(resolved.labels)})
    if accelerator.dra is not None:
        claims = [claim for claim in spec.get("resourceClaims", []) if claim["name"] != _CLAIM]
        spec["resourceClaims"] = [*claims, {"name": _CLAIM, "resourceClaimTemplateName": revision}]
    return result


def _require(spec: dict[str, Any], expression: dict[str, Any]) -> None:
    """Node selector terms are alternatives: what must hold goes into each of them."""
    affinity = spec.setdefault("affinity", {}).setdefault("nodeAffinity", {})
    required = affinity.setdefault("requiredDuringSchedulingIgnoredDuringExecution", {})
    for term in required.setdefault("nodeSelectorTerms", [{}]):
        term["matchExpressions"] = [*term.get("matchExpressions", []), expression]


def claim_spec(dra: DraAccelerator, resolved: Resolved) -> dict[str, Any]:
    """Of the ResourceClaimTemplate. The profile, or the product, that was judged to fit is pinned beside the entry's own selectors."""
    selectors = [*dra.selectors, *_pinned(resolved)]
    request = {
        "deviceClassName": dra.device_class_name,
        "allocationMode": "ExactCount",
        "count": dra.count,
        **({"selectors": [{"cel": {"expression": text}} for text in selectors]} if selectors else {}),
    }
    return {"spec": {"devices": {"requests": [{"name": _CLAIM, "exactly": request}]}}}


def _pinned(resolved: Resolved) -> list[str]:
    attributes = f"device.attributes['{DEVICE_CLASS_GPU}']"
    found = [f"{attributes}.productName == '{resolved.product}'"] if resolved.product else []
    return [*found, f"{attributes}.profile == '{resolved.profile}'"] if resolved.profile else found
