"""What a replica on devices requests of its node besides them, once profile and service are merged, and whether its limits allow it. Pure;
called by `pod`."""

from __future__ import annotations

import math
from typing import Any, Final

from pagoda_contracts.conditions.service import INVALID_PROFILE, INVALID_SPEC
from pagoda_contracts.names import CONTAINER_DAEMON
from pagoda_contracts.resources.placement import Accelerator
from pagoda_contracts.units import parse_quantity
from pagoda_placement.result import Resolved
from pagoda_sizing.replica import too_little

from pagoda_operator.api.errors import SpecProblem
from pagoda_operator.decide.render.devices import requested
from pagoda_operator.decide.render.overlay import leaves, written

_MODEL: Final = "model"


def with_requests(template: dict[str, Any], accelerator: Accelerator, resolved: Resolved, weights: int) -> dict[str, Any]:
    """The merged template with our requests for what neither profile nor service requests or limits. Of a limit without a request, the API
    server makes the request. `weights`: bytes of the model."""
    spec = template["spec"]
    daemon = next(one for one in spec["containers"] if one["name"] == CONTAINER_DAEMON)
    resources = daemon.get("resources") or {}
    said, limits = resources.get("requests") or {}, resources.get("limits") or {}
    ours = requested(accelerator, resolved, weights if _on_scratch(spec) else 0)
    found = {name: value for name, value in ours.items() if name not in limits} | said
    if not found:
        return template
    with_ours = {**daemon, "resources": {**resources, "requests": found}}
    containers = [with_ours if one is daemon else one for one in spec["containers"]]
    # What differs is new and the rest is shared. A copy of all of it was a twentieth of a reconcile's time.
    return {**template, "spec": {**spec, "containers": containers}}


def check(spec: dict[str, Any], wished: dict[str, Any]) -> None:
    """SpecProblem if the daemon requests more than its limit, which the API server refuses. `wished`: what the service says in
    spec.resources."""
    daemon = next(one for one in spec["containers"] if one["name"] == CONTAINER_DAEMON)
    requests, limits = (daemon.get("resources", {}).get(name) or {} for name in ("requests", "limits"))
    for name, asked in requests.items():
        if name in limits and _bytes(asked) > _bytes(limits[name]):
            by_service = wished.get(name) == asked
            source = f"spec.resources requests {asked} of {name}" if by_service else f"a replica requests {asked} of {name}"
            message = f"{source}, above the limit of {limits[name]} in the podTemplate of the profile or the service"
            raise SpecProblem(INVALID_SPEC if by_service else INVALID_PROFILE, message)


def check_memory(spec: dict[str, Any], overlay: dict[str, Any], entry: str, weights: int) -> None:
    """SpecProblem if a memory limit is below what its container takes: the kernel would kill it at each start.

    `overlay`: the service's podTemplate. `entry`: the field of the service that limits the daemon on CPU; empty on devices. `weights`:
    bytes of the model.
    """
    held = weights if _model_volume(spec).get("medium") == "Memory" else 0
    own = {written(path) for path in leaves(overlay)} if overlay else set()
    for kind in ("initContainers", "containers"):
        for container in spec.get(kind) or ():
            limit = ((container.get("resources") or {}).get("limits") or {}).get("memory")
            if why := too_little(container["name"], _bytes(limit), cuda=not entry, held=held):
                path = f"spec.{kind}[{container['name']}].resources.limits.memory"
                by_entry = entry if container["name"] == CONTAINER_DAEMON else ""
                field = by_entry or f"podTemplate.{path} of the {'service' if path in own else 'profile'}"
                raise SpecProblem(INVALID_SPEC if by_entry or path in own else INVALID_PROFILE, f"{field} is {limit}: {why}")


def _on_scratch(spec: dict[str, Any]) -> bool:
    """Whether the model lies on the pod's scratch disk: not on a claim, not in memory, not on what a profile mounts in its place."""
    volume = _model_volume(spec)
    return bool(volume) and volume["medium"] != "Memory"


def _model_volume(spec: dict[str, Any]) -> dict[str, Any]:
    """The emptyDir that the model is fetched to, its medium said; empty if there is none."""
    volume: dict[str, Any] = next((one for one in spec.get("volumes") or () if one["name"] == _MODEL), {})
    return {"medium": "", **(volume["emptyDir"] or {})} if "emptyDir" in volume else {}


def _bytes(text: Any) -> float:
    """A quantity; nan, which exceeds nothing, for what is none: the API server's message names it."""
    try:
        return float(parse_quantity(str(text)))
    except ValueError:
        return math.nan
