"""A node as placement sees it: what devices it offers, whether pods may come, what its driver and mig-manager say. Pure.

`parse_node` is the cache's parser of nodes. Values compare equal while nothing changes that is decided by, so that
a kubelet's heartbeat is no news.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

from pagoda_contracts.names import (
    ANNOTATION_DEVICE_FAULT,
    LABEL_CUDA,
    LABEL_DRIVER,
    LABEL_GPU_COUNT,
    LABEL_GPU_MEMORY,
    LABEL_GPU_PRODUCT,
    LABEL_GPU_REPLICAS,
    LABEL_MIG_CAPABLE,
    LABEL_MIG_CONFIG,
    LABEL_MIG_CONFIG_STATE,
    LABEL_MIG_STRATEGY,
    MIG_DISABLED,
    MIG_INVALID,
    RESOURCE_GPU,
    RESOURCE_MIG_PREFIX,
)
from pagoda_contracts.units import read_quantity

from pagoda_operator.inventory.mig import SHARED, Profile, of_product, of_resource
from pagoda_operator.inventory.slices import Published
from pagoda_operator.inventory.values import Json, digest, unix

MIB: Final = 1 << 20
# mig-manager is at work on the node: its devices are coming back.
MIG_AT_WORK: Final = ("pending", "rebooting")
MIG_FAILED: Final = "failed"
# Prefixes of taints that go again by themselves, or with their node: Kubernetes' own while a node is cordoned, silent or short of
# something, a cloud's until a node is its own, and what node autoscalers write on nodes that come or go.
PASSING_TAINTS: Final = (
    "node.kubernetes.io/",
    "node.cloudprovider.kubernetes.io/",
    "ToBeDeletedByClusterAutoscaler",
    "DeletionCandidateOfClusterAutoscaler",
    "startup-taint.cluster-autoscaler.kubernetes.io/",
    "status-taint.cluster-autoscaler.kubernetes.io/",
    "ignore-taint.cluster-autoscaler.kubernetes.io/",
    "karpenter.sh/disrupted",
    "karpenter.sh/disruption",
    "karpenter.sh/unregistered",
)
# Labels read off the node's devices and driver, which count by themselves.
_MEASURED: Final = ("nvidia.com/", "feature.node.kubernetes.io/")

# Node conditions by which a node says that its devices are not to be trusted. NVSentinel, the EKS agent and node problem detectors write
# them; anything else may write our annotation. Replicas that hold devices there are unhealthy (health.py). To keep new ones off such a
# node is up to a taint or a cordon, which all of these set: a pinned pod template cannot learn of it.
# True where something is broken: NVSentinel's (Gpu…Watch, SysLogs…), and those of node problem detectors.
_FAULT_IF_TRUE: Final = re.compile(
    r"Gpu\w+Watch|SysLogsS?XIDError|SysLogsGPUFallenOff|(?:GPU|Gpu|Nvidia|NVIDIA)?X[Ii][Dd]\w*Errors?|XIDErrors|GPUMissing|NVLinkStatusInactive"
)
# False where something is broken: EKS'.
_FAULT_IF_FALSE: Final = frozenset({"AcceleratedHardwareReady"})
_MAX_FAULT: Final = 200


class Taint(NamedTuple):
    """As in the node's spec."""

    key: str
    value: str
    effect: str


@dataclass(frozen=True)
class Offer:
    """Devices of one kind on one node. `memory` is one device's, in bytes; None where no label says it."""

    resource: str
    product: str
    label: str
    profile: Profile | None
    memory: int | None
    capacity: int
    allocatable: int
    shared: bool = False


@dataclass(frozen=True)
class Mig:
    """What mig-manager and GPU Feature Discovery say; `since`: when the state was last written, in Unix seconds."""

    strategy: str = ""
    config: str = ""
    state: str = ""
    capable: bool = False
    since: float | None = None

    @property
    def partitioned(self) -> bool:
        """Whether somebody asked for slices."""
        return self.capable and bool(self.config) and self.config != MIG_DISABLED


@dataclass(frozen=True)
class Node:
    """One node."""

    name: str
    labels: Mapping[str, str]
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    ready: bool = True
    offers: tuple[Offer, ...] = ()
    published: tuple[Published, ...] = ()
    """What DRA drivers offer on it; set by pools.py, since no node says it."""
    mig: Mig = Mig()
    driver: str = ""
    cuda: tuple[int, int] | None = None
    millicores: int = 0
    memory: int = 0
    """Allocatable, in bytes."""
    gpus: int | None = None
    """GPUs that the node has, partitioned or not; None where no label says it."""
    joined: float = 0.0
    """When the cluster got it, in Unix seconds."""
    gone: bool = False
    """Not there now: stands for those like it that were (pools.py)."""
    fault: str = ""
    """Why its devices are not to be trusted, in the words of those who watch devices."""

    @cached_property
    def pool(self) -> str:
        """Names what nodes have in common that one can stand for; empty where the node says nothing that lasts. Kept: 1,000 take 40 ms."""
        labelled = all(offer.memory or offer.profile for offer in self.offers)
        if not (self.offers or self.published) or not labelled or not self.ready or self.mig.state in (*MIG_AT_WORK, MIG_FAILED):
            return ""
        offers = [[one.resource, one.label, one.memory, one.capacity, one.shared] for one in self.offers]
        common = [(key, value) for key, value in lasting_labels(self) if not key.startswith(_MEASURED)]
        by_drivers = [[one.identity for one in self.published]] if self.published else []
        return digest([offers, common, lasting_taints(self), *by_drivers])

    @property
    def bare(self) -> bool:
        """Whether slices were asked for and no device is offered at all."""
        return self.mig.partitioned and not self.offers

    @property
    def unhealthy(self) -> bool:
        """Whether devices are missing of those that there are."""
        return any(offer.allocatable < offer.capacity for offer in self.offers)

    @property
    def stranded(self) -> int:
        """GPUs that are certainly neither offered whole nor in slices: MIG is on and they have no partitions."""
        if not (self.mig.partitioned and self.mig.strategy == "mixed") or self.gpus is None or self.mig.state in MIG_AT_WORK:
            return 0
        # Each slice may be its GPU's only one: what remains beside as many GPUs as there are slices is stranded for sure.
        return max(0, self.gpus - sum(offer.capacity for offer in self.offers))


def lasting_labels(node: Node) -> list[tuple[str, str]]:
    """Without those that name the node itself or a moment."""
    return sorted((key, value) for key, value in node.labels.items() if value != node.name and "timestamp" not in key)


def lasting_taints(node: Node) -> list[Taint]:
    """Without those that pass."""
    return sorted(taint for taint in node.taints if not taint.key.startswith(PASSING_TAINTS))


def parse_node(body: Json) -> Node | None:
    """The cache's parser; every node counts, since CPU pods go anywhere."""
    meta, spec, status = body["metadata"], body.get("spec") or {}, body.get("status") or {}
    labels: Mapping[str, str] = meta.get("labels") or {}
    allocatable: Json = status.get("allocatable") or {}
    return Node(
        name=meta["name"],
        labels=dict(labels),
        taints=tuple(Taint(t.get("key", ""), t.get("value", ""), t.get("effect", "")) for t in spec.get("taints") or ()),
        unschedulable=bool(spec.get("unschedulable")),
        ready=any(c.get("type") == "Ready" and c.get("status") == "True" for c in status.get("conditions") or ()),
        offers=tuple(_offers(labels, status)),
        mig=_mig(labels, meta.get("managedFields") or ()),
        driver=_version(labels, LABEL_DRIVER),
        cuda=parse_version(_version(labels, LABEL_CUDA)),
        millicores=int(read_quantity(allocatable.get("cpu")) * 1000),
        memory=int(read_quantity(allocatable.get("memory"))),
        gpus=_whole_number(labels.get(LABEL_GPU_COUNT)),
        joined=unix(meta.get("creationTimestamp")) or 0.0,
        fault=device_fault(body),
    )


def _offers(labels: Mapping[str, str], status: Json) -> Iterator[Offer]:
    capacity, allocatable = status.get("capacity") or {}, status.get("allocatable") or {}
    for resource in sorted(capacity.keys() | allocatable.keys()):
        plain = resource.removesuffix(SHARED)
        if plain != RESOURCE_GPU and not plain.startswith(RESOURCE_MIG_PREFIX):
            continue
        have, healthy = int(read_quantity(capacity.get(resource))), int(read_quantity(allocatable.get(resource)))
        if have or healthy:
            yield _offer(labels, resource, max(have, healthy), healthy)


def _offer(labels: Mapping[str, str], resource: str, capacity: int, allocatable: int) -> Offer:
    label = labels.get(LABEL_GPU_PRODUCT, "")
    sliced = of_resource(resource)
    product, single = of_product(label.removesuffix("-SHARED"))
    name = resource.removesuffix(SHARED)
    memory = _whole_number(labels.get(f"{name}.memory" if sliced else LABEL_GPU_MEMORY))
    replicas = _whole_number(labels.get(f"{name}.replicas" if sliced else LABEL_GPU_REPLICAS)) or 1
    shared = resource.endswith(SHARED) or replicas > 1
    return Offer(resource, product, label, sliced or single, memory * MIB if memory else None, capacity, allocatable, shared)


def _mig(labels: Mapping[str, str], managed: Any) -> Mig:
    invalid = labels.get(LABEL_GPU_PRODUCT, "").endswith(MIG_INVALID)
    return Mig(
        strategy=labels.get(LABEL_MIG_STRATEGY, ""),
        config=labels.get(LABEL_MIG_CONFIG, ""),
        state=MIG_FAILED if invalid else labels.get(LABEL_MIG_CONFIG_STATE, ""),
        capable=labels.get(LABEL_MIG_CAPABLE) == "true",
        since=_written(managed) if labels.get(LABEL_MIG_CONFIG_STATE) in MIG_AT_WORK else None,
    )


def _written(managed: Any) -> float | None:
    """When the label with mig-manager's state was last written, by the server's own bookkeeping; a label carries no time."""
    field = f"f:{LABEL_MIG_CONFIG_STATE}"
    times = (unix(entry.get("time")) for entry in managed if field in _labels_of(entry))
    return max((time for time in times if time is not None), default=None)


def _labels_of(entry: Json) -> Json:
    found: Json = ((entry.get("fieldsV1") or {}).get("f:metadata") or {}).get("f:labels") or {}
    return found


def _version(labels: Mapping[str, str], names: tuple[str, ...]) -> str:
    """`580.95` from labels ending in .major and .minor, in the new spelling or the old one; `rev` is the old word for the third."""
    for name in names:
        if f"{name}.major" in labels:
            parts = [labels.get(f"{name}.{part}", "") for part in ("major", "minor")]
            third = labels.get(f"{name}.revision") or labels.get(f"{name}.rev") or ""
            return ".".join(part for part in (*parts, third) if part)
    return ""


def parse_version(text: str) -> tuple[int, int] | None:
    """Major and minor; None where there is no version."""
    major, _, rest = text.partition(".")
    minor = rest.partition(".")[0]
    return (int(major), int(minor or 0)) if major.isdigit() and (minor or "0").isdigit() else None


def _whole_number(text: Any) -> int | None:
    return int(str(text)) if text is not None and str(text).isdecimal() else None


def device_fault(node: Json) -> str:
    """What is wrong with the node's devices; empty if nothing reports a fault. The same words as long as nothing changes."""
    marked = str((node["metadata"].get("annotations") or {}).get(ANNOTATION_DEVICE_FAULT, ""))
    conditions = (node.get("status") or {}).get("conditions") or ()
    found_faults = sorted(f"{found['type']}: {found.get('reason', '')}" for found in conditions if _faulty(found))
    return "; ".join([marked] * bool(marked) + found_faults)[:_MAX_FAULT]


def _faulty(condition: Json) -> bool:
    kind, status = str(condition.get("type", "")), condition.get("status")
    return (status == "True" and _FAULT_IF_TRUE.fullmatch(kind) is not None) or (status == "False" and kind in _FAULT_IF_FALSE)
