"""Devices that no node offers yet, and that a node pool without nodes may have. Pure; called by `options`.

A node autoscaler adds a node only for a pod that is pending. So a service gets its pods if the catalogue or its profile knows what an entry
asks for; a name that neither knows is taken for a typing error. The pods require the labels that such nodes will have on this platform.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from pagoda_contracts.names import RESOURCE_GPU
from pagoda_contracts.resources.placement import Accelerator, GpuAccelerator
from pagoda_sizing.platforms import Platform, label_of, matches, products, seen, slices

from pagoda_placement.inventory import DeviceClass, Inventory
from pagoda_placement.result import Resolved
from pagoda_placement.terms import Hint
from pagoda_placement.values import Profile, alternatives, parse_profile


class Unseen(NamedTuple):
    """Where nodes may come from: the platform that the labels of nodes show, and what the profile says of devices."""

    inventory: Inventory
    hints: tuple[Hint, ...]

    @property
    def platform(self) -> Platform | None:
        """The provider of the cluster."""
        return seen(self.inventory.label_names)


def expected(entry: Accelerator, unseen: Unseen) -> Iterator[DeviceClass]:
    """Returns the classes of devices that an entry could mean though no node offers them."""
    if entry.gpu is not None:
        yield from _gpus(entry.gpu, unseen)
    elif entry.mig is not None and (profile := parse_profile(entry.mig.profile or "")) is not None:
        memory = slices().get(profile.name.partition(".me")[0])
        if memory is not None:
            yield _slice(profile, memory, unseen.platform)


def _gpus(gpu: GpuAccelerator, unseen: Unseen) -> Iterator[DeviceClass]:
    """A GPU of any product is expected only if the profile says of one that such nodes exist."""
    told = {hint.product: hint for hint in unseen.hints if matches(gpu.product, hint.product)}
    for product, hint in told.items():
        yield _whole(product, hint.memory or products().get(product), hint.label)
    known, platform = products() if gpu.product else {}, unseen.platform
    for product, memory in sorted(known.items(), key=lambda one: (one[1], one[0])):
        if product not in told and matches(gpu.product, product):
            yield _whole(product, memory, (label_of(platform, product) if platform else "") or product)


def _whole(product: str, memory: int | None, label: str) -> DeviceClass:
    return DeviceClass(RESOURCE_GPU, product, label, None, memory, expected=True)


def _slice(profile: Profile, memory: int, platform: Platform | None) -> DeviceClass:
    """Providers that cut all GPUs of a node alike call the slices whole GPUs. Elsewhere the resource names the profile."""
    if platform is not None and platform.partition:
        return DeviceClass(RESOURCE_GPU, "", f"{platform.partition}={profile.name}", profile, memory, expected=True)
    return DeviceClass(profile.resource, "", "", profile, memory, expected=True)


def asked(resolved: Resolved) -> str:
    """Returns what the pods ask for, for people."""
    terms = (" and ".join(f"{one['key']}={'|'.join(one['values'])}" for one in term) for term in alternatives(resolved.labels))
    return f"the pods ask for 1 {resolved.resource}" + (f" on a node with {' or '.join(terms)}" if resolved.labels else "")
