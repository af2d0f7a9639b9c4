"""A pod as an occupant of its node: what it asks for, and whether it still does. Pure.

`parse_occupant` is the cache's parser of pods: it keeps pods that hold devices or claims, and ours. A pod that is being
deleted occupies until it is gone; one that has finished does not.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from pagoda_contracts.names import LABEL_SERVICE, LABEL_SERVICE_UID, RESOURCE_GPU, RESOURCE_MIG_PREFIX
from pagoda_contracts.units import read_quantity

from pagoda_operator.inventory.values import Json

CPU: Final = "cpu"
MEMORY: Final = "memory"

Requests = Counter[str]


@dataclass(frozen=True)
class Occupant:
    """One pod. `devices` and the rest are what the scheduler counts for it; `node` is empty until it is bound."""

    namespace: str
    name: str
    uid: str
    node: str
    service: str
    service_uid: str
    devices: tuple[tuple[str, int], ...]
    millicores: int
    memory: int
    claims: tuple[str, ...]
    terminating: bool


def parse_occupant(body: Json) -> Occupant | None:
    """None where it holds nothing that is decided by."""
    meta, spec, status = body["metadata"], body.get("spec") or {}, body.get("status") or {}
    if status.get("phase") in ("Succeeded", "Failed"):
        return None
    labels = meta.get("labels") or {}
    devices = _effective(spec, _devices)
    claims = tuple(sorted(_claims(spec, status)))
    if not devices and not claims and LABEL_SERVICE not in labels:
        return None
    cores = _effective(spec, _amounts)
    return Occupant(
        namespace=meta.get("namespace", ""),
        name=meta["name"],
        uid=meta.get("uid", ""),
        node=spec.get("nodeName", ""),
        service=labels.get(LABEL_SERVICE, ""),
        service_uid=labels.get(LABEL_SERVICE_UID, ""),
        devices=tuple(sorted(devices.items())),
        millicores=cores[CPU],
        memory=cores[MEMORY],
        claims=claims,
        terminating="deletionTimestamp" in meta,
    )


def _effective(spec: Json, read: Callable[[Json], Requests]) -> Requests:
    """The scheduler's rule: sidecars (init containers that stay) add to everything after them; an init container that ends needs its share
    only while it runs; the pod's overhead comes on top."""
    sidecars, peak = Counter[str](), Counter[str]()
    for container in spec.get("initContainers") or ():
        if container.get("restartPolicy") == "Always":
            sidecars += read(container)
            peak |= sidecars
        else:
            peak |= sidecars + read(container)
    running = _sum(read(container) for container in spec.get("containers") or ()) + sidecars
    whole = spec.get("resources")
    if whole:  # stated for the pod as a whole: counts instead of its containers' sum
        running = Counter({**running, **read({"resources": whole})})
    return (running | peak) + read({"resources": {"requests": spec.get("overhead") or {}}})


def _sum(parts: Iterable[Requests]) -> Requests:
    total = Counter[str]()
    for part in parts:
        total += part
    return total


def _wanted(container: Json) -> Json:
    resources = container.get("resources") or {}
    return {**(resources.get("limits") or {}), **(resources.get("requests") or {})}


def _devices(container: Json) -> Requests:
    wanted = _wanted(container).items()
    return Counter({name: int(read_quantity(count)) for name, count in wanted if name.startswith((RESOURCE_GPU, RESOURCE_MIG_PREFIX))})


def _amounts(container: Json) -> Requests:
    wanted = _wanted(container)
    cpu, memory = read_quantity(wanted.get(CPU)), read_quantity(wanted.get(MEMORY))
    return Counter({CPU: math.ceil(cpu * 1000), MEMORY: math.ceil(memory)})


def _claims(spec: Json, status: Json) -> list[str]:
    """Names of the ResourceClaims: given by the pod, or made from a template and named in its status."""
    made = {one["name"]: one.get("resourceClaimName") for one in status.get("resourceClaimStatuses") or ()}
    found = [(one.get("resourceClaimName") or made.get(one["name"])) for one in spec.get("resourceClaims") or ()]
    return [name for name in found if name]
