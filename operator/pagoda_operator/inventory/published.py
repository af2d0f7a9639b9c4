"""Devices that a DRA driver publishes for a node, as what outlasts the node: kinds and numbers, without what is one device's own. Pure.

Called by `pools` for nodes that are remembered, and by `remembered` to give them back to placement as ResourceSlices.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pagoda_operator.inventory.slices import Slice, SliceDevice, Where, devices

# Attributes that say which device it is, not what kind: a node that comes back has others.
_OWN: Final = re.compile("uuid|serial|minor|index|pci|address", re.IGNORECASE)
# A selector may name any attribute, so all others are kept; a node of 56 slices has a handful of kinds. With 32 attributes of 64
# characters each, which is what a slice may hold, 32 pools stay below the 1 MiB of a ConfigMap.
_KINDS: Final = 8
# An API server takes no more devices in one slice.
_COUNT: Final = 128
_NAMING: Final = ("type", "productName", "profile")


@dataclass(frozen=True)
class Published:
    """So many devices that are alike."""

    driver: str
    count: int
    attributes: Mapping[str, Any]
    capacity: Mapping[str, str]

    @property
    def identity(self) -> list[Any]:
        """What makes it another kind; a newer driver does not."""
        return [self.driver, *(self.attributes.get(name, "") for name in _NAMING), self.capacity.get("memory", ""), self.count]

    def written(self) -> dict[str, Any]:
        """As JSON."""
        return vars(self) | {"attributes": dict(self.attributes), "capacity": dict(self.capacity)}


def published(slices: Iterable[Slice]) -> dict[str, tuple[Published, ...]]:
    """By node."""
    by_kind: dict[tuple[str, ...], list[SliceDevice]] = defaultdict(list)
    for device in devices(slices):
        if device.node:
            names = tuple(device.text(name) for name in _NAMING)
            by_kind[device.node, device.where.driver, *names, device.capacity.get("memory", "")].append(device)
    found: dict[str, list[Published]] = defaultdict(list)
    for _, alike in sorted(by_kind.items()):
        found[alike[0].node].append(_common(alike))
    return {node: tuple(kinds[:_KINDS]) for node, kinds in found.items()}


def _common(alike: list[SliceDevice]) -> Published:
    first, *others = alike
    attributes = {
        name: value
        for name, value in sorted(first.attributes.items())
        if not _OWN.search(name) and all(other.attributes.get(name) == value for other in others)
    }
    capacity = {name: value for name, value in sorted(first.capacity.items()) if all(o.capacity.get(name) == value for o in others)}
    return Published(first.where.driver, min(len(alike), _COUNT), attributes, capacity)


def as_slices(node: str, kinds: Iterable[Published]) -> tuple[Slice, ...]:
    """As if a driver published them; in a pool that no driver would call so."""
    return tuple(_slice(node, f"gone/{node}/{number}", kind) for number, kind in enumerate(kinds))


def _slice(node: str, pool: str, kind: Published) -> Slice:
    names = [Where(kind.driver, pool, str(number)) for number in range(kind.count)]
    return Slice(kind.driver, pool, 0, tuple(SliceDevice(where, node, kind.attributes, kind.capacity) for where in names))


def read(told: Any) -> tuple[Published, ...]:
    """What was written; ValueError, KeyError or TypeError where it is not ours."""
    return tuple(_read(one) for one in told[:_KINDS])


def _read(one: Any) -> Published:
    attributes = {str(name): value for name, value in one["attributes"].items() if isinstance(value, str | bool | int)}
    capacity = {str(name): str(value) for name, value in one["capacity"].items()}
    return Published(str(one["driver"]), min(int(one["count"]), _COUNT), attributes, capacity)
