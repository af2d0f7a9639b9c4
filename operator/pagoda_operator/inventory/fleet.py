"""The cluster's devices by class: what there is, what of it a service's pods may use, and what is free now. Pure.

Made of the caches, hence a view: it decides where new pods are tried, never that something is deleted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, NamedTuple

from pagoda_contracts.names import DAEMON_CUDA, DEVICE_CLASS_GPU, DEVICE_CLASS_MIG, MIG_INVALID

from pagoda_operator.inventory.mig import Profile, parse_profile
from pagoda_operator.inventory.nodes import MIG_AT_WORK, MIG_FAILED, PASSING_TAINTS, Node, Offer, Taint, parse_version
from pagoda_operator.inventory.pods import Occupant
from pagoda_operator.inventory.slices import Claim, DeviceId, Slice, SliceDevice, devices, holds

_HARD: Final = ("NoSchedule", "NoExecute")
# Each answers for every node: with as many selectors as services they would be most of our memory.
_MAX_BLOCKS: Final = 32


@dataclass(frozen=True)
class Fleet:
    """All that placement knows of the cluster."""

    nodes: tuple[Node, ...] = ()
    occupants: tuple[Occupant, ...] = ()
    slices: tuple[Slice, ...] = ()
    claims: tuple[Claim, ...] = ()

    # Worked out once for all services that are placed by the same view: at 1,000 nodes and 5,000 pods they take 25 ms.
    @cached_property
    def used(self) -> Counter[tuple[str, str]]:
        """By node and resource, what pods hold."""
        return sum_by_node(self.occupants)

    @cached_property
    def own(self) -> Mapping[str, Counter[tuple[str, str]]]:
        """The same of each service's pods, by its uid."""
        mine: dict[str, list[Occupant]] = defaultdict(list)
        for pod in self.occupants:
            mine[pod.service_uid].append(pod)
        return {uid: sum_by_node(pods) for uid, pods in mine.items() if uid}

    @cached_property
    def troubled(self) -> tuple[Node, ...]:
        """Nodes that may have to be warned of."""
        found = (
            node for node in self.nodes if node.mig.state in (*MIG_AT_WORK, MIG_FAILED) or node.stranded or node.bare or node.unhealthy
        )
        return tuple(sorted(found, key=lambda node: node.name))

    def blocks(self, terms: Terms) -> Mapping[str, Block | None]:
        """What keeps such pods off each node. Few terms are different: a fleet has a handful of profiles."""
        key = repr((sorted(terms.selector.items()), [sorted(one.items(), key=str) for one in terms.tolerations], terms.cuda))
        if key not in self._blocks:
            if len(self._blocks) >= _MAX_BLOCKS:
                self._blocks.clear()
            self._blocks[key] = {node.name: blocked(node, terms) for node in self.nodes}
        return self._blocks[key]

    @cached_property
    def _blocks(self) -> dict[str, Mapping[str, Block | None]]:
        return {}

    @cached_property
    def kinds(self) -> Mapping[DeviceClass, list[tuple[Node, Offer]]]:
        """Who offers each class of devices."""
        found: dict[DeviceClass, list[tuple[Node, Offer]]] = defaultdict(list)
        for node in sorted(self.nodes, key=lambda node: node.name):
            for offer in node.offers:
                kind = DeviceClass(offer.resource, offer.product, offer.label, offer.profile, offer.memory, offer.shared)
                found[kind].append((node, offer))
        return found


class Terms(NamedTuple):
    """What a pod brings along: labels it asks of nodes, taints it bears, the CUDA version of its image."""

    selector: Mapping[str, str] = {}
    tolerations: tuple[Mapping[str, Any], ...] = ()
    cuda: str = DAEMON_CUDA
    # The service's own pods: what they hold is the service's to use.
    service_uid: str = ""


class Block(NamedTuple):
    """Why a node is of no use: `passing` where that ends without anybody's edit of the service."""

    why: str
    passing: bool


@dataclass(frozen=True)
class Room:
    """One node's devices of a class. `free` is what other services leave."""

    node: Node
    total: int
    free: int
    block: Block | None = None


@dataclass(frozen=True)
class DeviceClass:
    """Devices that are alike, wherever they are. `label`: the product label of their nodes."""

    resource: str
    product: str
    label: str
    profile: Profile | None
    memory: int | None
    shared: bool = False
    rooms: tuple[Room, ...] = field(default=(), compare=False)

    @property
    def name(self) -> str:
        """For people: mig-1g.10gb, or the product."""
        return f"mig-{self.profile.name}" if self.profile else self.product or self.resource

    @property
    def total(self) -> int:
        """Devices there are."""
        return sum(room.total for room in self.rooms)


def classes(fleet: Fleet, terms: Terms) -> tuple[DeviceClass, ...]:
    """What device plugins offer, from small to large."""
    used, own = fleet.used, fleet.own.get(terms.service_uid, Counter())
    blocks = fleet.blocks(terms)

    def room(node: Node, offer: Offer) -> Room:
        place = node.name, offer.resource
        block = blocks[node.name]
        return Room(node, offer.capacity, 0 if block else max(0, offer.allocatable - used[place] + own[place]), block)

    return tuple(sorted((replace(kind, rooms=tuple(room(*one) for one in found)) for kind, found in fleet.kinds.items()), key=_size))


def claimable(fleet: Fleet, terms: Terms, class_name: str, selectors: tuple[str, ...]) -> tuple[DeviceClass, ...]:
    """What resource claims of a DeviceClass and selectors can get, from small to large; what only the scheduler can judge counts."""
    allocated = _allocated(fleet, terms.service_uid)
    blocks = fleet.blocks(terms)
    nodes = {node.name: (node, blocks[node.name]) for node in fleet.nodes}
    found: dict[DeviceClass, dict[str, list[bool]]] = defaultdict(lambda: defaultdict(list))
    for device in devices(fleet.slices):
        if device.node in nodes and _of_class(class_name, device) and all(holds(one, device) is not False for one in selectors):
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
    """The classes that the driver ships choose by type; what others choose is the scheduler's to know."""
    wanted = {DEVICE_CLASS_GPU: "gpu", DEVICE_CLASS_MIG: "mig"}.get(class_name)
    return wanted is None or (device.id.driver == DEVICE_CLASS_GPU and device.text("type") == wanted)


def _class_of(device: SliceDevice) -> DeviceClass:
    product = device.text("productName")
    return DeviceClass("", product, "", parse_profile(device.text("profile")), device.memory)


def sum_by_node(occupants: Iterable[Occupant]) -> Counter[tuple[str, str]]:
    """What pods that have a node hold there."""
    used: Counter[tuple[str, str]] = Counter()
    for pod in occupants:
        if pod.node:
            for resource, count in pod.devices:
                used[pod.node, resource] += count
    return used


def _allocated(fleet: Fleet, mine: str) -> set[DeviceId]:
    """Devices that claims of other services hold."""
    own = {(pod.namespace, name) for pod in fleet.occupants if mine and pod.service_uid == mine for name in pod.claims}
    return {device_id for claim in fleet.claims if (claim.namespace, claim.name) not in own for device_id in claim.devices}


def blocked(node: Node, terms: Terms) -> Block | None:
    """What keeps the service's pods off a node; what does not pass comes first, since it is what somebody must cure."""
    found = [*_lasting(node, terms), *_passing(node, terms)]
    return found[0] if found else None


def _lasting(node: Node, terms: Terms) -> list[Block]:
    reasons = []
    missing = [f"{key}={value}" for key, value in terms.selector.items() if node.labels.get(key) != value]
    if missing:
        reasons.append(f"lacks the label {missing[0]}, which the profile or podTemplate requires")
    hard = (taint for taint in node.taints if taint.effect in _HARD and not taint.key.startswith(PASSING_TAINTS))
    reasons += [f"taint {_written(taint)} is not tolerated" for taint in hard if not tolerated(taint, terms.tolerations)]
    needed = parse_version(terms.cuda)
    if node.cuda is not None and needed is not None and node.cuda < needed:
        reasons.append(f"driver {node.driver} supports CUDA {node.cuda[0]}.{node.cuda[1]}, but the daemon needs {terms.cuda}")
    if node.mig.state == MIG_FAILED:
        reasons.append(f"MIG configuration {node.mig.config or MIG_INVALID.lstrip('-')} has failed")
    return [Block(why, passing=False) for why in reasons]


def _passing(node: Node, terms: Terms) -> list[Block]:
    if node.gone:
        return [Block("gone, but its node pool may scale up for pending pods", passing=True)]
    reasons = []
    if node.unschedulable:
        reasons.append("cordoned")
    if not node.ready:
        reasons.append("not ready")
    # Beside the two above, whose taints they are.
    passing = (taint for taint in node.taints if taint.effect in _HARD and taint.key.startswith(PASSING_TAINTS))
    reasons += [f"tainted {taint.key}, which is temporary" for taint in passing if not tolerated(taint, terms.tolerations)]
    if node.mig.state in MIG_AT_WORK:
        reasons.append(f"being reconfigured by mig-manager (mig.config.state is {node.mig.state})")
    return [Block(why, passing=True) for why in reasons]


def _written(taint: Taint) -> str:
    value = f"={taint.value}" if taint.value else ""
    return f"{taint.key}{value}:{taint.effect}"


def tolerated(taint: Taint, tolerations: Iterable[Mapping[str, Any]]) -> bool:
    """Kubernetes' rule: no key with Exists bears all, no effect all effects."""
    return any(_bears(one, taint) for one in tolerations)


def _bears(toleration: Mapping[str, Any], taint: Taint) -> bool:
    key, effect = toleration.get("key"), toleration.get("effect")
    if effect and effect != taint.effect:
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return not key or key == taint.key
    return bool(key == taint.key and (toleration.get("value") or "") == taint.value)
