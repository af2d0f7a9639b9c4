"""The devices that a node offers by device plugins, and what its labels say of them. Pure; called by `nodes`.

GPU Feature Discovery names product and memory. If it is not installed, the provider's labels or the machine type do (sizing, platforms.py).
What neither knows a profile may say (`inventory.classes`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pagoda_contracts.names import LABEL_GPU_MEMORY, LABEL_GPU_PRODUCT, LABEL_GPU_REPLICAS
from pagoda_contracts.units import read_quantity
from pagoda_sizing.devices import GB
from pagoda_sizing.platforms import identify, platforms, products, vendor_of

from pagoda_placement.values import SHARED, Json, Profile, of_product, of_resource, parse_profile

# A profile's memory as a share of the GB in its name, if no label says it. NVIDIA's own tables are between 0.93 and 1.06.
_NAMED_SHARE: Final = 0.93


@dataclass(frozen=True)
class Offer:
    """Devices of one kind on one node. `memory` is one device's, in bytes; None without a label that has it. `label`: the labels by which
    nodes with such devices are found (values.py, `alternatives`)."""

    resource: str
    product: str
    label: str
    profile: Profile | None
    memory: int | None
    capacity: int
    allocatable: int
    shared: bool = False


def offers(labels: Mapping[str, str], status: Json) -> Iterator[Offer]:
    """Returns the devices of every vendor that is known, by resource."""
    capacity, allocatable = status.get("capacity") or {}, status.get("allocatable") or {}
    for resource in sorted(capacity.keys() | allocatable.keys()):
        vendor = vendor_of(resource.removesuffix(SHARED))
        if vendor is None:
            continue
        have, healthy = int(read_quantity(capacity.get(resource))), int(read_quantity(allocatable.get(resource)))
        if not (have or healthy):
            continue
        if vendor.daemon:
            yield _offer(labels, resource, max(have, healthy), healthy)
        else:
            yield Offer(resource, labels.get(vendor.product, "").replace("_", "-"), "", None, None, max(have, healthy), healthy)


def _offer(labels: Mapping[str, str], resource: str, capacity: int, allocatable: int) -> Offer:
    sliced, name = of_resource(resource), resource.removesuffix(SHARED)
    product, label, single, whole = _described(labels)
    measured = whole_number(labels.get(f"{name}.memory" if sliced else LABEL_GPU_MEMORY))
    profile = sliced or single
    memory = measured << 20 if measured else None if profile else whole
    shared = resource.endswith(SHARED) or _replicas(labels, name if sliced else "") > 1
    return Offer(resource, product, label, profile, memory, capacity, allocatable, shared)


def _described(labels: Mapping[str, str]) -> tuple[str, str, Profile | None, int | None]:
    """Product, label, the profile of all GPUs, and a whole GPU's bytes if only the provider says them."""
    label = labels.get(LABEL_GPU_PRODUCT, "")
    if label:
        product, profile = of_product(label.removesuffix("-SHARED"))
        return product, label, profile, None
    known = identify(labels)
    cut = next((one.partition for one in platforms().platforms if one.partition and one.partition in labels), "")
    profile = parse_profile(labels[cut]) if cut else None
    found = ([known.label] if known else []) + ([f"{cut}={labels[cut]}"] if profile else [])
    return known.product if known else "", ",".join(found), profile, known.memory if known else None


def _replicas(labels: Mapping[str, str], sliced: str) -> int:
    names = (f"{sliced}.replicas" if sliced else LABEL_GPU_REPLICAS, *platforms().replicas)
    return max((whole_number(labels.get(name)) or 1 for name in names), default=1)


def known_memory(product: str, profile: Profile | None) -> int | None:
    """Returns one device's bytes by the catalogue or the profile's name, for devices that no label measures; None if unknown."""
    return int(profile.gb * GB * _NAMED_SHARE) if profile is not None else products().get(product)


def refusal(resource: str) -> str:
    """Returns why no replica runs on devices of a resource, or of a DRA driver; empty if there is a daemon for them."""
    vendor = vendor_of(resource.removesuffix(SHARED))
    return f"{vendor.name} devices ({resource}), for which Pagoda has no daemon yet" if vendor and not vendor.daemon else ""


def whole_number(text: Any) -> int | None:
    """Returns the number that a label has; None if it has none."""
    return int(str(text)) if text is not None and str(text).isdecimal() else None
