"""The cluster's devices by class: how many exist, which of them a service's pods may use, and how many are free now. Pure.

Made of the caches, hence a view: it decides where new pods are tried, never that something is deleted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

from pagoda_contracts.names import (
    DEVICE_CLASS_GPU,
    DEVICE_CLASS_MIG,
    LABEL_SERVICE,
    LABEL_SERVICE_UID,
    RESOURCE_GPU,
    RESOURCE_MIG_PREFIX,
)
from pagoda_contracts.units import read_quantity

from pagoda_placement.nodes import MIG_AT_WORK, MIG_FAILED, Node
from pagoda_placement.offers import Offer, known_memory
from pagoda_placement.slices import Claim, Slice, SliceDevice, devices, selects
from pagoda_placement.terms import Block, Hint, Terms, blocked
from pagoda_placement.values import Json, Profile, parse_profile

# Each has an answer for every node: with as many selectors as services they would be most of our memory.
_MAX_KEPT: Final = 32


@dataclass(frozen=True)
class Occupant:
    """A pod that uses devices or claims of its node, or is ours. `node` is empty until it is bound."""

    namespace: str
    node: str
    service_uid: str
    devices: tuple[tuple[str, int], ...]
    claims: tuple[str, ...]


def parse_occupant(body: Json) -> Occupant | None:
    """The cache's parser of pods. A pod that is being deleted counts until it is gone; one that has finished does not."""
    meta, spec, status = body["metadata"], body.get("spec") or {}, body.get("status") or {}
    if status.get("phase") in ("Succeeded", "Failed"):
        return None
    labels = meta.get("labels") or {}
    asked, claims = _requested(spec), tuple(sorted(_claims(spec, status)))
    if not asked and not claims and LABEL_SERVICE not in labels:
        return None
    uid = labels.get(LABEL_SERVICE_UID, "")
    return Occupant(meta.get("namespace", ""), spec.get("nodeName", ""), uid, tuple(sorted(asked.items())), claims)


def _requested(spec: Json) -> Counter[str]:
    """The scheduler's rule: sidecars (init containers that stay) add to all containers after them, and an init container that ends needs
    its share only while it runs."""
    sidecars, peak, running = Counter[str](), Counter[str](), Counter[str]()
    for container in spec.get("initContainers") or ():
        if container.get("restartPolicy") == "Always":
            sidecars += _devices(container)
            peak |= sidecars
        else:
            peak |= sidecars + _devices(container)
    for container in spec.get("containers") or ():
        running += _devices(container)
    return (running + sidecars) | peak


def _devices(container: Json) -> Counter[str]:
    resources = container.get("resources") or {}
    wanted = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    found = {name: count for name, count in wanted.items() if name.startswith((RESOURCE_GPU, RESOURCE_MIG_PREFIX))}
    return Counter({name: int(read_quantity(count)) for name, count in found.items()})


def _claims(spec: Json, status: Json) -> list[str]:
    """Names of the ResourceClaims: given by the pod, or made from a template and named in its status."""
    made = {one["name"]: one.get("resourceClaimName") for one in status.get("resourceClaimStatuses") or ()}
    found = [(one.get("resourceClaimName") or made.get(one["name"])) for one in spec.get("resourceClaims") or ()]
    return [name for name in found if name]


@dataclass(frozen=True)
class Inventory:
    """All that placement knows of the cluster."""

    nodes: tuple[Node, ...] = ()
    occupants: tuple[Occupant, ...] = ()
    slices: tuple[Slice, ...] = ()
    claims: tuple[Claim, ...] = ()

    # Computed once for all services that are placed by the same view: at 1,000 nodes and 5,000 pods they take 25 ms.
    @cached_property
    def used(self) -> Counter[tuple[str, str]]:
        """By node and resource, the devices that pods use."""
        return _sum_by_node(self.occupants)

    @cached_property
    def own(self) -> Mapping[str, Counter[tuple[str, str]]]:
        """The same of each service's pods, by its uid."""
        mine: dict[str, list[Occupant]] = defaultdict(list)
        for pod in self.occupants:
            mine[pod.service_uid].append(pod)
        return {uid: _sum_by_node(pods) for uid, pods in mine.items() if uid}

    @cached_property
    def troubled(self) -> tuple[Node, ...]:
        """Nodes that a status may have to warn of."""
        states = (*MIG_AT_WORK, MIG_FAILED)
        found = (node for node in self.nodes if node.mig.state in states or node.stranded or node.bare or node.unhealthy)
        return tuple(sorted(found, key=lambda node: node.name))

    @cached_property
    def label_names(self) -> frozenset[str]:
        """The names of all labels of nodes."""
        return frozenset(name for node in self.nodes for name in node.labels)

    def blocks(self, terms: Terms) -> Mapping[str, Block | None]:
        """Why such pods may not use each node, None if they may. Few terms are different: a inventory has a handful of profiles."""
        key = repr((sorted(terms.selector.items()), [sorted(one.items(), key=str) for one in terms.tolerations], terms.cuda))
        if key not in self._blocks:
            if len(self._blocks) >= _MAX_KEPT:
                self._blocks.clear()
            self._blocks[key] = {node.name: blocked(node, terms) for node in self.nodes}
        return self._blocks[key]

    @cached_property
    def _blocks(self) -> dict[str, Mapping[str, Block | None]]:
        return {}

    @cached_property
    def products(self) -> Mapping[str, str]:
        """Node → the product of its whole GPUs, as far as labels name it."""
        found = ((node.name, offer) for node in self.nodes for offer in node.offers)
        return {name: offer.product for name, offer in found if offer.product and offer.resource.startswith(RESOURCE_GPU)}

    def kinds(self, hints: tuple[Hint, ...] = ()) -> Mapping[DeviceClass, list[tuple[Node, Offer]]]:
        """The nodes that offer each class of devices, with what a profile says of them."""
        if hints not in self._kinds:
            if len(self._kinds) >= _MAX_KEPT:
                self._kinds.clear()
            self._kinds[hints] = _by_kind(self.nodes, hints)
        return self._kinds[hints]

    @cached_property
    def _kinds(self) -> dict[tuple[Hint, ...], Mapping[DeviceClass, list[tuple[Node, Offer]]]]:
        return {}


@dataclass(frozen=True)
class Room:
    """One node's devices of a class. `free`: other services do not use them."""

    node: Node
    total: int
    free: int
    block: Block | None = None


@dataclass(frozen=True)
class DeviceClass:
    """Equal devices on any nodes. `label`: the labels of their nodes (values.py, `alternatives`). `expected`: no node offered them yet.
    `driver`: of devices that are claimed."""

    resource: str
    product: str
    label: str
    profile: Profile | None
    memory: int | None
    shared: bool = False
    expected: bool = False
    driver: str = ""
    rooms: tuple[Room, ...] = field(default=(), compare=False)

    @property
    def name(self) -> str:
        """For people: mig-1g.10gb, or the product."""
        return f"mig-{self.profile.name}" if self.profile else self.product or self.resource or self.driver

    @property
    def total(self) -> int:
        """How many devices exist."""
        return sum(room.total for room in self.rooms)


def _by_kind(nodes: Iterable[Node], hints: tuple[Hint, ...]) -> Mapping[DeviceClass, list[tuple[Node, Offer]]]:
    found: dict[DeviceClass, list[tuple[Node, Offer]]] = defaultdict(list)
    for node in sorted(nodes, key=lambda node: node.name):
        for offer in node.offers:
            told = _hinted(offer, node.labels, hints)
            memory = told.memory or known_memory(told.product, told.profile)
            found[DeviceClass(told.resource, told.product, told.label, told.profile, memory, told.shared)].append((node, offer))
    return found


def _hinted(offer: Offer, labels: Mapping[str, str], hints: Iterable[Hint]) -> Offer:
    """Returns the offer with what a profile says of the node's devices. What a label says comes first."""
    if offer.product or offer.memory is not None:
        return offer
    hint = next((one for one in hints if all(labels.get(key) == value for key, value in one.labels)), None)
    if hint is None:
        return offer
    label = ",".join(part for part in (offer.label, hint.label) if part)
    return replace(offer, product=hint.product, label=label, memory=None if offer.profile else hint.memory)


def classes(inventory: Inventory, terms: Terms) -> tuple[DeviceClass, ...]:
    """Returns the devices of device plugins, from small to large."""
    used, own = inventory.used, inventory.own.get(terms.service_uid, Counter())
    blocks = inventory.blocks(terms)

    def room(node: Node, offer: Offer) -> Room:
        place = node.name, offer.resource
        block = blocks[node.name]
        return Room(node, offer.capacity, 0 if block else max(0, offer.allocatable - used[place] + own[place]), block)

    return tuple(
        sorted(
            (replace(kind, rooms=tuple(room(*one) for one in found)) for kind, found in inventory.kinds(terms.devices).items()), key=_size
        )
    )


def claimable(inventory: Inventory, terms: Terms, class_name: str, selectors: tuple[str, ...]) -> tuple[DeviceClass, ...]:
    """Returns the devices that resource claims of a DeviceClass and selectors can get, from small to large. A device that only the
    scheduler can judge counts."""
    uid = terms.service_uid
    own = {(pod.namespace, name) for pod in inventory.occupants if uid and pod.service_uid == uid for name in pod.claims}
    allocated = {device_id for claim in inventory.claims if (claim.namespace, claim.name) not in own for device_id in claim.devices}
    blocks = inventory.blocks(terms)
    nodes = {node.name: (node, blocks[node.name]) for node in inventory.nodes}
    found: dict[DeviceClass, dict[str, list[bool]]] = defaultdict(lambda: defaultdict(list))
    for device in devices(inventory.slices):
        if device.node in nodes and _of_class(class_name, device) and all(selects(one, device) is not False for one in selectors):
            found[_class_of(device)][device.node].append(device.id not in allocated)
    made = []
    for kind, by_node in found.items():
        rooms = [Room(node, len(free), 0 if block else sum(free), block) for name, free in by_node.items() for node, block in [nodes[name]]]
        made.append(replace(kind, rooms=tuple(sorted(rooms, key=lambda room: room.node.name))))
    return tuple(sorted(made, key=_size))


def _size(kind: DeviceClass) -> tuple[int, int, str, str]:
    profile = kind.profile or Profile(0, 0, "")
    return kind.memory or 0, profile.slices, profile.attributes, kind.product


def _of_class(class_name: str, device: SliceDevice) -> bool:
    """The driver's own classes choose by type. Only the scheduler knows what other classes choose."""
    wanted = {DEVICE_CLASS_GPU: "gpu", DEVICE_CLASS_MIG: "mig"}.get(class_name)
    return wanted is None or (device.id.driver == DEVICE_CLASS_GPU and device.text("type") == wanted)


def _class_of(device: SliceDevice) -> DeviceClass:
    # NVIDIA's DRA driver publishes NVML's name, whose words have spaces between them. Labels of nodes have dashes.
    product, profile = device.text("productName").replace(" ", "-"), parse_profile(device.text("profile"))
    return DeviceClass("", product, "", profile, device.memory or known_memory(product, profile), driver=device.id.driver)


def _sum_by_node(occupants: Iterable[Occupant]) -> Counter[tuple[str, str]]:
    used: Counter[tuple[str, str]] = Counter()
    for pod in occupants:
        if pod.node:
            for resource, count in pod.devices:
                used[pod.node, resource] += count
    return used
