"""Devices under quota: what a replica is charged, what a service's Deployments hold, and what quotas let it have. Pure.

Devices are whole GPUs and MIG slices by profile. A replica's own annotation names them, because its resources do not always: under MIG's
single strategy a slice is requested as `nvidia.com/gpu`, and a resource claim names no device.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from pagoda_contracts.names import (
    ANNOTATION_DEVICES,
    ANNOTATION_WITH_SUCCESSOR,
    LABEL_ACCELERATOR,
    LABEL_REVISION,
    LABEL_SERVICE_UID,
    RESOURCE_GPU,
    RESOURCE_MIG_PREFIX,
)
from pagoda_contracts.resources.placement import Accelerator
from pagoda_placement.values import Json

Devices = Mapping[str, int]
"""Word (`gpu`, `mig-1g.10gb`) → count; absent is 0."""

GPU: Final = "gpu"
_MIG: Final = "mig-"
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
    `extra`: whether one of them is the successor of an unhealthy replica."""

    name: str
    need: Devices
    target: int
    leaving: int = 0
    extra: bool = False

    def charge(self, target: int | None = None) -> Devices:
        """The devices in use or on their way with this target. Pods that leave keep their devices until they are gone."""
        return times(self.need, (self.target if target is None else target) + self.leaving)

    @property
    def lasting(self) -> Devices:
        """The devices in use after all pods that leave are gone."""
        return times(self.need, self.target)


def holdings(deployments: Iterable[Json], pods: Iterable[Json]) -> tuple[Holding, ...]:
    """Returns what one service has. Pods of every owner of its name count, also those of a deleted service of the same name."""
    alive = [pod for pod in pods if pod.get("status", {}).get("phase") not in _FINISHED]
    mine = {mark_of(body["spec"]["template"]["metadata"]): body for body in deployments}
    orphans = [pod for pod in alive if mark_of(pod["metadata"]) not in mine]
    made = [_holding(body, [pod for pod in alive if mark_of(pod["metadata"]) == mark]) for mark, body in mine.items()]
    return (*made, *(Holding(pod["metadata"]["name"], devices_of(pod["metadata"], pod.get("spec") or {}), 0, 1) for pod in orphans))


def _holding(deployment: Json, pods: list[Json]) -> Holding:
    """A pod above the target may be ending already, and a raised target would make another one beside it."""
    spec, meta = deployment["spec"], deployment["metadata"]
    target = 0 if "deletionTimestamp" in meta else int(spec.get("replicas", 1))
    staying = sum("deletionTimestamp" not in pod["metadata"] for pod in pods)
    leaving = len(pods) - min(staying, target)
    need = devices_of(spec["template"]["metadata"], spec["template"]["spec"])
    return Holding(meta["name"], need, target, leaving, with_successor(meta, target))


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


def written(devices: Devices) -> str:
    """Returns the annotation's value."""
    return ",".join(f"{word}={count}" for word, count in sorted(devices.items()) if count)


def devices_of(meta: Json, spec: Json) -> Devices:
    """Returns the devices of a pod or a pod template: by its annotation, else by the devices that its containers request."""
    said = (meta.get("annotations") or {}).get(ANNOTATION_DEVICES)
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
    return "GPUs" if word == GPU else f"{word.removeprefix(_MIG)} slices"
