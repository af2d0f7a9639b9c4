"""What a replica is charged for: whole GPUs and MIG slices by profile, as sums. Pure; read by all of quota/ and render/pod.py.

A replica's own annotation says it, because its resources do not always: under MIG's single strategy a slice is requested as
`nvidia.com/gpu`, and a resource claim names no device. Pods without one (made before there were quotas) are read by their resources.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from pagoda_contracts.names import ANNOTATION_DEVICES, RESOURCE_GPU, RESOURCE_MIG_PREFIX
from pagoda_contracts.resources.placement import Accelerator

Devices = Mapping[str, int]
"""Word (`gpu`, `mig-1g.10gb`) → count; absent is 0."""

GPU: Final = "gpu"
_MIG: Final = "mig-"
_WORDS: Final = re.compile(r"(gpu|mig-[1-9][0-9]*g\.[1-9][0-9]*gb[.a-z-]*)=([1-9][0-9]{0,4})")


def slice_word(profile: str) -> str:
    """One word however the profile's attributes are written: `1g.5gb+me` and `1g.5gb.me` are the same slices."""
    return _MIG + profile.replace("+", ".")


def needs(accelerator: Accelerator, resolved: str = "") -> Devices:
    """Of one replica on this entry. A claimed device counts as a GPU, because a class may hand out either: max, not min. A slice by
    memory is the profile that placement resolved it to."""
    if accelerator.gpu is not None:
        return {GPU: accelerator.gpu.count}
    if accelerator.dra is not None:
        return {GPU: accelerator.dra.count}
    profile = (accelerator.mig.profile or resolved) if accelerator.mig is not None else ""
    return {slice_word(profile): 1} if profile else {}


def written(devices: Devices) -> str:
    """The annotation's value."""
    return ",".join(f"{word}={count}" for word, count in sorted(devices.items()) if count)


def held(meta: Mapping[str, Any], spec: Mapping[str, Any]) -> Devices:
    """Of a pod or a pod template: by its annotation, else by the devices that its containers request."""
    said = (meta.get("annotations") or {}).get(ANNOTATION_DEVICES)
    if said is not None and (found := _WORDS.findall(said)) and written(parsed := {word: int(count) for word, count in found}) == said:
        return parsed
    containers = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    return total(_requested(container.get("resources") or {}) for container in containers)


def _requested(resources: Mapping[str, Any]) -> Devices:
    asked = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
    counted = {GPU: asked.get(RESOURCE_GPU, 0)}
    slices = {slice_word(name.removeprefix(RESOURCE_MIG_PREFIX)): n for name, n in asked.items() if name.startswith(RESOURCE_MIG_PREFIX)}
    return {word: int(count) for word, count in (counted | slices).items() if int(count)}


def total(parts: Iterable[Devices]) -> dict[str, int]:
    """The sum."""
    found: dict[str, int] = {}
    for part in parts:
        for word, count in part.items():
            found[word] = found.get(word, 0) + count
    return found


def times(devices: Devices, count: int) -> Devices:
    """As many replicas."""
    return {word: one * count for word, one in devices.items() if count}


def most(left: Devices, right: Devices) -> Devices:
    """The larger of both, word by word."""
    return {word: max(left.get(word, 0), right.get(word, 0)) for word in left.keys() | right.keys()}


def spoken(word: str) -> str:
    """For people."""
    return "GPUs" if word == GPU else f"{word.removeprefix(_MIG)} slices"
