"""Devices under quota: what a replica is charged, what a service's Deployments hold, and what quotas let it have. Pure.

Devices are whole GPUs and MIG slices by profile. A replica's own annotation names them, because its resources do not always: under MIG's
single strategy a slice is requested as `nvidia.com/gpu`, and a resource claim names no device.

A quota may cap GPUs by product. A replica's second annotation has the products that its pods may get. A replica counts for each cap that
one of these may be, until its node tells which it is. What is not certain counts against growth, and takes nothing away.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final

from pagoda_contracts.names import (
    ANNOTATION_DEVICES,
    ANNOTATION_PRODUCTS,
    ANNOTATION_WITH_SUCCESSOR,
    LABEL_ACCELERATOR,
    LABEL_REVISION,
    LABEL_SERVICE_UID,
    RESOURCE_GPU,
    RESOURCE_MIG_PREFIX,
)
from pagoda_contracts.resources.placement import Accelerator
from pagoda_sizing.platforms import matches

from pagoda_placement.values import Json

Devices = Mapping[str, int]
"""Word (`gpu`, `mig-1g.10gb`) → count; absent is 0. `gpu:NVIDIA-L4|NVIDIA-L40S` repeats those of `gpu` whose product is one of these."""
On = Callable[[str], str]
"""Node → the product of its GPUs; empty if it is not known."""

GPU: Final = "gpu"
_MIG: Final = "mig-"
_OF: Final = ":"
_OR: Final = "|"
_NO_LABEL: Final = re.compile(r"[^A-Za-z0-9._-]+")
_WORDS: Final = re.compile(r"(gpu|mig-[1-9][0-9]*g\.[1-9][0-9]*gb[.a-z-]*)=([1-9][0-9]{0,4})")
_FINISHED: Final = ("Succeeded", "Failed")


@dataclass(frozen=True)
class Grant:
    """What quotas let one service have now. `replicas`: at most so many, those of old revisions included. `room`: at most so many of the
    current revision. `why` names the quota. `unread`: the quota cannot be read, and old revisions free devices of another kind than the
    current one needs."""

    replicas: int
    room: int
    why: str
    unread: bool = False


@dataclass(frozen=True)
class Holding:
    """One Deployment's replicas. `leaving`: pods that end, or that its controller may be ending because there are more than `target`.
    `extra`: whether one of them is the successor of an unhealthy replica. `nodes`: of pods that stay; `ending`: of pods that end."""

    name: str
    need: Devices
    target: int
    leaving: int = 0
    extra: bool = False
    nodes: tuple[str, ...] = ()
    ending: tuple[str, ...] = ()

    def charge(self, target: int | None = None) -> Devices:
        """The devices in use or on their way with this target. Pods that leave keep their devices until they are gone."""
        return times(self.need, (self.target if target is None else target) + self.leaving)

    @property
    def lasting(self) -> Devices:
        """The devices in use after all pods that leave are gone."""
        return times(self.need, self.target)

    def uses(self, cap: str, on: On) -> int:
        """At most so many devices that a cap counts are in use or on their way."""
        held, each = self.target + self.leaving, self._counted(cap)
        if not each or self._is_certain(cap):
            return each * held
        there = self._known(cap, (*self.nodes, *self.ending), on)
        return each * max(held - there.count(False), there.count(True))

    def stays(self, cap: str, on: On) -> int:
        """At most so many of them are in use after all pods that leave are gone."""
        apart = 0 if self._is_certain(cap) else self._known(cap, self.nodes, on).count(False) - self._surplus
        return self._counted(cap) * (self.target - min(self.target, max(0, apart)))

    def surely_stays(self, cap: str, on: On) -> int:
        """At least so many of them are."""
        each = self._counted(cap)
        if not each or self._is_certain(cap):
            return each * self.target
        there = self._known(cap, self.nodes, on).count(True) - self._surplus
        return each * min(self.target, max(0, there))

    @property
    def _surplus(self) -> int:
        """Pods on `nodes` that may be ending already."""
        return max(0, self.leaving - len(self.ending))

    @cached_property
    def _products(self) -> str:
        return _products(self.need)

    def _counted(self, cap: str) -> int:
        return _count(self.need, self._products, cap)

    def _is_certain(self, cap: str) -> bool:
        return len(_fits(self._products, cap)) == 1

    def _known(self, cap: str, nodes: tuple[str, ...], on: On) -> list[bool]:
        """Of each pod whose node tells its product, whether the cap counts it."""
        return [True in _fits(found, cap) for found in map(on, nodes) if found]


def holdings(deployments: Iterable[Json], pods: Iterable[Json]) -> tuple[Holding, ...]:
    """Returns what one service has. Pods of every owner of its name count, also those of a deleted service of the same name."""
    alive = [pod for pod in pods if pod.get("status", {}).get("phase") not in _FINISHED]
    mine = {mark_of(body["spec"]["template"]["metadata"]): body for body in deployments}
    orphans = [pod for pod in alive if mark_of(pod["metadata"]) not in mine]
    made = [_holding(body, [pod for pod in alive if mark_of(pod["metadata"]) == mark]) for mark, body in mine.items()]
    return (*made, *map(_orphan, orphans))


def _orphan(pod: Json) -> Holding:
    return Holding(pod["metadata"]["name"], devices_of(pod["metadata"], pod.get("spec") or {}), 0, 1, ending=tuple(_nodes([pod])))


def _holding(deployment: Json, pods: list[Json]) -> Holding:
    """A pod above the target may be ending already, and a raised target would make another one beside it."""
    spec, meta = deployment["spec"], deployment["metadata"]
    target = 0 if "deletionTimestamp" in meta else int(spec.get("replicas", 1))
    ending = [pod for pod in pods if "deletionTimestamp" in pod["metadata"]]
    staying = len(pods) - len(ending)
    leaving = len(pods) - min(staying, target)
    need = devices_of(spec["template"]["metadata"], spec["template"]["spec"])
    nodes = tuple(_nodes(pod for pod in pods if pod not in ending))
    return Holding(meta["name"], need, target, leaving, with_successor(meta, target), nodes, tuple(_nodes(ending)))


def _nodes(pods: Iterable[Json]) -> Iterator[str]:
    found = ((pod.get("spec") or {}).get("nodeName") for pod in pods)
    return (str(node) for node in found if node)


def with_successor(meta: Json, replicas: int) -> bool:
    """Whether one of a Deployment's replicas is the successor of an unhealthy one. The annotation names the replica count it is for."""
    return replicas > 1 and (meta.get("annotations") or {}).get(ANNOTATION_WITH_SUCCESSOR) == str(replicas)


def mark_of(meta: Json) -> tuple[str | None, ...]:
    """Returns the labels that a Deployment's template and its pods have in common."""
    labels = meta.get("labels") or {}
    return tuple(labels.get(name) for name in (LABEL_SERVICE_UID, LABEL_REVISION, LABEL_ACCELERATOR))


def charge(found: Iterable[Holding]) -> Devices:
    """Returns what a service is charged for all its holdings."""
    return total(holding.charge() for holding in found)


def lasting(found: Iterable[Holding]) -> Devices:
    """Returns what a service is charged after all pods that leave are gone."""
    return total(holding.lasting for holding in found)


def slice_word(profile: str) -> str:
    """Returns one word for both spellings of a profile's attributes: `1g.5gb+me` and `1g.5gb.me` are the same slices."""
    return _MIG + profile.replace("+", ".")


def needs(accelerator: Accelerator, resolved: str = "") -> Devices:
    """Returns what one replica on this entry is charged. A claimed device counts as a GPU, because a class may hand out whole GPUs.
    `resolved` is the profile that placement chose for a slice by memory."""
    if accelerator.gpu is not None:
        return {GPU: accelerator.gpu.count}
    if accelerator.dra is not None:
        return {GPU: accelerator.dra.count}
    profile = (accelerator.mig.profile or resolved) if accelerator.mig is not None else ""
    return {slice_word(profile): 1} if profile else {}


def of_product(product: str) -> str:
    """Returns the word of a cap on a product's GPUs."""
    return GPU + _OF + product


def names_product(cap: str) -> bool:
    """Whether a cap is on a product's GPUs."""
    return _OF in cap


def counted(need: Devices, cap: str) -> int:
    """Returns how many devices that a cap counts one replica may get."""
    return _count(need, _products(need), cap)


def _count(need: Devices, products: str, cap: str) -> int:
    if not names_product(cap):
        return need.get(cap, 0)
    return need.get(GPU, 0) if True in _fits(products, cap) else 0


def is_certain(need: Devices, cap: str) -> bool:
    """Whether a replica gets nothing but what the cap counts, or nothing of it."""
    return len(_fits(_products(need), cap)) == 1


def caps_of(words: Iterable[str]) -> Iterator[str]:
    """Returns the caps that would count these devices, each product alone."""
    for word in words:
        kind, _, products = word.partition(_OF)
        yield from map(of_product, products.split(_OR)) if products else (kind,)


def _products(need: Devices) -> str:
    return next((word.partition(_OF)[2] for word in need if _OF in word), "")


@lru_cache(maxsize=1024)
def _fits(products: str, cap: str) -> frozenset[bool]:
    """Whether GPUs of these products are what the cap counts; without products both is possible. Other caps are never in doubt."""
    word = cap.partition(_OF)[2]
    if not word:
        return frozenset((True,))
    return frozenset(matches(word, one) for one in products.split(_OR)) if products else frozenset((True, False))


def written_products(products: Iterable[str]) -> str:
    """Returns the annotation's value; empty if the product of one is not known: then it may be any. Drivers may write spaces."""
    found = [_NO_LABEL.sub("-", one) for one in products]
    return _OR.join(found) if all(found) else ""


def written(devices: Devices) -> str:
    """Returns the annotation's value."""
    return ",".join(f"{word}={count}" for word, count in sorted(devices.items()) if count)


def devices_of(meta: Json, spec: Json) -> Devices:
    """Returns the devices of a pod or a pod template: by its annotations, else by the devices that its containers request."""
    annotations = meta.get("annotations") or {}
    devices, products = _devices_of(annotations.get(ANNOTATION_DEVICES), spec), annotations.get(ANNOTATION_PRODUCTS)
    return {**devices, of_product(products): devices[GPU]} if products and devices.get(GPU) else devices


def _devices_of(said: str | None, spec: Json) -> Devices:
    if said is not None and (found := _WORDS.findall(said)) and written(parsed := {word: int(count) for word, count in found}) == said:
        return parsed
    containers = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    return total(_requested(container.get("resources") or {}) for container in containers)


def _requested(resources: Json) -> Devices:
    asked = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
    counted = {GPU: asked.get(RESOURCE_GPU, 0)}
    slices = {slice_word(name.removeprefix(RESOURCE_MIG_PREFIX)): n for name, n in asked.items() if name.startswith(RESOURCE_MIG_PREFIX)}
    return {word: int(count) for word, count in (counted | slices).items() if int(count)}


def total(parts: Iterable[Devices]) -> dict[str, int]:
    """Returns the sum."""
    found = Counter[str]()
    for part in parts:
        found.update(part)
    return dict(found)


def times(devices: Devices, count: int) -> Devices:
    """Returns the devices of so many replicas."""
    return {word: one * count for word, one in devices.items() if count}


def most(left: Devices, right: Devices) -> Devices:
    """Returns the larger of both, word by word."""
    return {word: max(left.get(word, 0), right.get(word, 0)) for word in left.keys() | right.keys()}


def spoken(word: str) -> str:
    """Returns the word for people."""
    kind, _, product = word.partition(_OF)
    return f"{product} GPUs".lstrip() if kind == GPU else f"{word.removeprefix(_MIG)} slices"
