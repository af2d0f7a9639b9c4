"""Devices of dynamic resource allocation: ResourceSlices, the ResourceClaims that use them, and what outlasts a node. Pure.

`parse_slice` and `parse_claim` are the caches' parsers. Selectors are CEL, which the scheduler evaluates. The few forms that are usual for
devices are evaluated here too; any other is left to the scheduler (`None`: may match).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, NamedTuple

from pagoda_contracts.units import parse_quantity

from pagoda_placement.values import Json

_NAME: Final = r"\[['\"](?P<domain>[^'\"]+)['\"]\]\.(?P<name>\w+)"
_EQUAL: Final = re.compile(rf"device\.attributes{_NAME}\s*==\s*(?P<quote>['\"])(?P<value>[^'\"]*)(?P=quote)")
_TEXT_TEST: Final = re.compile(
    rf"device\.attributes{_NAME}\.(?P<how>startsWith|contains|endsWith)\((?P<quote>['\"])(?P<value>[^'\"]*)(?P=quote)\)"
)
_DRIVER: Final = re.compile(r"device\.driver\s*==\s*['\"](?P<value>[^'\"]*)['\"]")
_QUANTITY: Final = r"quantity\(['\"](?P<value>[^'\"]+)['\"]\)"
_LEAST: Final = (
    re.compile(rf"device\.capacity{_NAME}\s*>=\s*{_QUANTITY}"),
    re.compile(rf"device\.capacity{_NAME}\.compareTo\({_QUANTITY}\)\s*>=\s*0"),
)
# Attributes of one device, not of its kind: a node that comes back has others.
_OF_ONE_DEVICE: Final = re.compile("uuid|serial|minor|index|pci|address", re.IGNORECASE)
# A selector may name any attribute, so all others are kept; a node of 56 slices has a handful of kinds. With 32 attributes of 64
# characters each, a slice's limit, 32 pools stay below the 1 MiB of a ConfigMap.
_MAX_KINDS: Final = 8
# The API server's limit of devices in one slice.
_MAX_DEVICES: Final = 128
_KIND: Final = ("type", "productName", "profile")


class DeviceId(NamedTuple):
    """Names one device in the cluster."""

    driver: str
    pool: str
    device: str


@dataclass(frozen=True)
class SliceDevice:
    """One device. Attributes of a domain other than the driver's carry it in their name."""

    id: DeviceId
    node: str
    attributes: Mapping[str, Any]
    capacity: Mapping[str, str]

    @property
    def memory(self) -> int | None:
        """In bytes; None if the driver does not publish it."""
        text = self.capacity.get("memory")
        return int(parse_quantity(text)) if text else None

    def text(self, name: str) -> str:
        """Returns an attribute as text; empty if absent."""
        return str(self.attributes.get(name, ""))


@dataclass(frozen=True)
class Slice:
    """A ResourceSlice of one node. An older generation of its pool is stale."""

    driver: str
    pool: str
    generation: int
    devices: tuple[SliceDevice, ...]


@dataclass(frozen=True)
class Claim:
    """The devices that are allocated to a ResourceClaim."""

    name: str
    namespace: str
    devices: tuple[DeviceId, ...]


def parse_slice(body: Json) -> Slice:
    """Returns the slice. Devices of no single node have an empty node: placement does not see them, the scheduler does."""
    spec = body["spec"]
    node, driver, pool = spec.get("nodeName", ""), spec.get("driver", ""), spec.get("pool") or {}
    name = str(pool.get("name", ""))
    found = tuple(_device(one, DeviceId(driver, name, one["name"]), node) for one in spec.get("devices") or ())
    return Slice(driver, name, int(pool.get("generation", 0)), found)


def _device(body: Json, device_id: DeviceId, node: str) -> SliceDevice:
    attributes = {name: next(iter(typed.values()), "") for name, typed in (body.get("attributes") or {}).items()}
    capacity = {name: str(entry["value"]) for name, entry in (body.get("capacity") or {}).items()}
    return SliceDevice(device_id, node, attributes, capacity)


def parse_claim(body: Json) -> Claim | None:
    """Returns the claim, None while nothing is allocated to it."""
    allocation = (body.get("status") or {}).get("allocation") or {}
    results = (allocation.get("devices") or {}).get("results") or ()
    allocated = tuple(DeviceId(one["driver"], one["pool"], one["device"]) for one in results if not one.get("adminAccess"))
    return Claim(body["metadata"]["name"], body["metadata"].get("namespace", ""), allocated) if allocated else None


def devices(slices: Iterable[Slice]) -> tuple[SliceDevice, ...]:
    """Returns the devices of each pool's newest generation."""
    known = tuple(slices)
    newest: dict[tuple[str, str], int] = {}
    for one in known:
        pool = (one.driver, one.pool)
        newest[pool] = max(one.generation, newest.get(pool, 0))
    return tuple(device for one in known if one.generation == newest[one.driver, one.pool] for device in one.devices)


def selects(selector: str, device: SliceDevice) -> bool | None:
    """Whether a selector matches a device; None if only the scheduler can evaluate it."""
    verdicts = [_selects(part.strip().strip("()").strip(), device) if "||" not in part else None for part in selector.split("&&")]
    return False if False in verdicts else None if None in verdicts else True


def _selects(part: str, device: SliceDevice) -> bool | None:
    # The call's last bracket was stripped with the group's.
    text = part + ")" if part.count("(") > part.count(")") else part
    if found := _DRIVER.fullmatch(text):
        return device.id.driver == found["value"]
    if found := _EQUAL.fullmatch(text):
        return device.text(_local(device, found)) == found["value"]
    if found := _TEXT_TEST.fullmatch(text):
        have, value = device.text(_local(device, found)), found["value"]
        return {"startsWith": have.startswith, "endsWith": have.endswith, "contains": have.__contains__}[found["how"]](value)
    least = next((found for form in _LEAST if (found := form.fullmatch(text))), None)
    return _at_least(device, least) if least else None


def _local(device: SliceDevice, found: re.Match[str]) -> str:
    """Slices leave out the driver's own domain."""
    name, domain = found["name"], found["domain"]
    return name if domain == device.id.driver else f"{domain}/{name}"


def _at_least(device: SliceDevice, found: re.Match[str]) -> bool | None:
    have = device.capacity.get(_local(device, found))
    try:
        wanted = parse_quantity(found["value"])
    except ValueError:
        return None
    return (parse_quantity(have) if have else Decimal(0)) >= wanted


@dataclass(frozen=True)
class Published:
    """So many equal devices, as a DRA driver publishes them for a node, without the attributes of one device."""

    driver: str
    count: int
    attributes: Mapping[str, Any]
    capacity: Mapping[str, str]

    @property
    def identity(self) -> list[Any]:
        """What makes it another kind. A newer driver does not."""
        return [self.driver, *(self.attributes.get(name, "") for name in _KIND), self.capacity.get("memory", ""), self.count]

    def written(self) -> dict[str, Any]:
        """Returns it as JSON."""
        return vars(self) | {"attributes": dict(self.attributes), "capacity": dict(self.capacity)}


def published(slices: Iterable[Slice]) -> dict[str, tuple[Published, ...]]:
    """Returns the kinds of devices by node."""
    by_kind: dict[tuple[str, ...], list[SliceDevice]] = defaultdict(list)
    for device in devices(slices):
        if device.node:
            names = tuple(device.text(name) for name in _KIND)
            by_kind[device.node, device.id.driver, *names, device.capacity.get("memory", "")].append(device)
    found: dict[str, list[Published]] = defaultdict(list)
    for _, alike in sorted(by_kind.items()):
        found[alike[0].node].append(_common(alike))
    return {node: tuple(kinds[:_MAX_KINDS]) for node, kinds in found.items()}


def _common(alike: list[SliceDevice]) -> Published:
    first, *others = alike
    attributes = {
        name: value
        for name, value in sorted(first.attributes.items())
        if not _OF_ONE_DEVICE.search(name) and all(other.attributes.get(name) == value for other in others)
    }
    capacity = {name: value for name, value in sorted(first.capacity.items()) if all(o.capacity.get(name) == value for o in others)}
    return Published(first.id.driver, min(len(alike), _MAX_DEVICES), attributes, capacity)


def as_slices(node: str, kinds: Iterable[Published]) -> tuple[Slice, ...]:
    """Returns the slices of a node that is gone, in pools of a name that no driver uses."""
    found = []
    for number, kind in enumerate(kinds):
        ids = [DeviceId(kind.driver, f"gone/{node}/{number}", str(device)) for device in range(kind.count)]
        devices_ = tuple(SliceDevice(one, node, kind.attributes, kind.capacity) for one in ids)
        found.append(Slice(kind.driver, f"gone/{node}/{number}", 0, devices_))
    return tuple(found)


def read_published(entries: Any) -> tuple[Published, ...]:
    """Returns what was written; ValueError, KeyError or TypeError if it cannot be read."""
    return tuple(_read_one(one) for one in entries[:_MAX_KINDS])


def _read_one(one: Any) -> Published:
    attributes = {str(name): value for name, value in one["attributes"].items() if isinstance(value, str | bool | int)}
    capacity = {str(name): str(value) for name, value in one["capacity"].items()}
    return Published(str(one["driver"]), min(int(one["count"]), _MAX_DEVICES), attributes, capacity)
