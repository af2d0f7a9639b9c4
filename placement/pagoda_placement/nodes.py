"""A node as placement sees it: its devices, whether pods may come, and the reports of its driver and mig-manager. Pure.

`parse_node` is the cache's parser of nodes. Two values are equal if no decision can differ, so a kubelet's heartbeat changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

from pagoda_contracts.names import (
    ANNOTATION_DEVICE_FAULT,
    LABEL_CUDA,
    LABEL_DRIVER,
    LABEL_GPU_COUNT,
    LABEL_GPU_PRODUCT,
    LABEL_MIG_CAPABLE,
    LABEL_MIG_CONFIG,
    LABEL_MIG_CONFIG_STATE,
    LABEL_MIG_STRATEGY,
    MIG_DISABLED,
    MIG_INVALID,
)
from pagoda_contracts.units import read_quantity

from pagoda_placement.offers import Offer, offers, whole_number
from pagoda_placement.slices import Published
from pagoda_placement.values import Json, digest, parse_version, unix

# mig-manager reconfigures the node: its devices will come back.
MIG_AT_WORK: Final = ("pending", "rebooting")
MIG_FAILED: Final = "failed"
# Prefixes of taints that go by themselves or with their node: Kubernetes' own while a node is cordoned, silent or under pressure, a
# cloud's until it has initialized a node, and a node autoscaler's on nodes that come or go.
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

# Node conditions that report faulty devices. NVSentinel, the EKS agent and node problem detectors write them; any other tool may write our
# annotation. Replicas that use devices there are unhealthy (health.py). A taint or a cordon, which all of these set, keeps new ones off
# such a node: a pinned pod template cannot change.
# True means broken: NVSentinel's (Gpu…Watch, SysLogs…), and those of node problem detectors.
_FAULT_IF_TRUE: Final = re.compile(
    r"Gpu\w+Watch|SysLogsS?XIDError|SysLogsGPUFallenOff|(?:GPU|Gpu|Nvidia|NVIDIA)?X[Ii][Dd]\w*Errors?|XIDErrors|GPUMissing|NVLinkStatusInactive"
)
# False means broken: EKS'.
_FAULT_IF_FALSE: Final = frozenset({"AcceleratedHardwareReady"})
_MAX_FAULT: Final = 200


class Taint(NamedTuple):
    """As in the node's spec."""

    key: str
    value: str
    effect: str


def tolerated(taint: Taint, tolerations: Iterable[Mapping[str, Any]]) -> bool:
    """Kubernetes' rule: Exists without a key tolerates all taints, and no effect means all effects."""
    return any(_tolerates(one, taint) for one in tolerations)


def _tolerates(toleration: Mapping[str, Any], taint: Taint) -> bool:
    key, effect = toleration.get("key"), toleration.get("effect")
    if effect and effect != taint.effect:
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return not key or key == taint.key
    return bool(key == taint.key and (toleration.get("value") or "") == taint.value)


@dataclass(frozen=True)
class Mig:
    """The reports of mig-manager and GPU Feature Discovery. `since`: when the state was last written, in Unix seconds."""

    strategy: str = ""
    config: str = ""
    state: str = ""
    capable: bool = False
    since: float | None = None

    @property
    def partitioned(self) -> bool:
        """Whether slices were asked for."""
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
    """The devices of DRA drivers; set by pools.py, since they are in ResourceSlices."""
    mig: Mig = Mig()
    driver: str = ""
    cuda: tuple[int, int] | None = None
    millicores: int = 0
    memory: int = 0
    """Allocatable, in bytes."""
    gpus: int | None = None
    """GPUs that the node has, partitioned or not; None without a label that has it."""
    joined: float = 0.0
    """When it joined the cluster, in Unix seconds."""
    gone: bool = False
    """It does not exist now, and is an example of its node pool (pools.py)."""
    fault: str = ""
    """Why its devices are faulty, in the words of the tool that reports it."""

    @cached_property
    def pool(self) -> str:
        """A name for all nodes of one kind; empty while the node is not Ready or unlabelled. Cached: 1,000 take 40 ms."""
        labelled = all(offer.memory or offer.profile for offer in self.offers)
        if not (self.offers or self.published) or not labelled or not self.ready or self.mig.state in (*MIG_AT_WORK, MIG_FAILED):
            return ""
        offers = [[one.resource, one.label, one.memory, one.capacity, one.shared] for one in self.offers]
        common = [(key, value) for key, value in lasting_labels(self) if not key.startswith(_MEASURED)]
        by_drivers = [[one.identity for one in self.published]] if self.published else []
        return digest([offers, common, lasting_taints(self), *by_drivers])

    @property
    def bare(self) -> bool:
        """Whether slices were asked for and the node offers no device."""
        return self.mig.partitioned and not self.offers

    @property
    def unhealthy(self) -> bool:
        """Whether some devices are not allocatable."""
        return any(offer.allocatable < offer.capacity for offer in self.offers)

    @property
    def stranded(self) -> int:
        """GPUs that are certainly offered neither whole nor in slices: MIG is on and they have no partitions."""
        if not (self.mig.partitioned and self.mig.strategy == "mixed") or self.gpus is None or self.mig.state in MIG_AT_WORK:
            return 0
        # Each slice may be its GPU's only one: the GPUs beyond the number of slices are certainly stranded.
        return max(0, self.gpus - sum(offer.capacity for offer in self.offers))


def lasting_labels(node: Node) -> list[tuple[str, str]]:
    """Returns the labels without those that name the node itself or a time."""
    return sorted((key, value) for key, value in node.labels.items() if value != node.name and "timestamp" not in key)


def lasting_taints(node: Node) -> list[Taint]:
    """Returns the taints without those that go by themselves."""
    return sorted(taint for taint in node.taints if not taint.key.startswith(PASSING_TAINTS))


def parse_node(body: Json) -> Node | None:
    """The cache's parser. Every node counts, since CPU pods may go anywhere."""
    meta, spec, status = body["metadata"], body.get("spec") or {}, body.get("status") or {}
    labels: Mapping[str, str] = meta.get("labels") or {}
    allocatable: Json = status.get("allocatable") or {}
    return Node(
        name=meta["name"],
        labels=dict(labels),
        taints=tuple(Taint(t.get("key", ""), t.get("value", ""), t.get("effect", "")) for t in spec.get("taints") or ()),
        unschedulable=bool(spec.get("unschedulable")),
        ready=any(c.get("type") == "Ready" and c.get("status") == "True" for c in status.get("conditions") or ()),
        offers=tuple(offers(labels, status)),
        mig=_mig(labels, meta.get("managedFields") or ()),
        driver=_version(labels, LABEL_DRIVER),
        cuda=parse_version(_version(labels, LABEL_CUDA)),
        millicores=int(read_quantity(allocatable.get("cpu")) * 1000),
        memory=int(read_quantity(allocatable.get("memory"))),
        gpus=whole_number(labels.get(LABEL_GPU_COUNT)),
        joined=unix(meta.get("creationTimestamp")) or 0.0,
        fault=device_fault(body),
    )


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
    """Returns when the label with mig-manager's state was last written, by the node's managedFields; a label carries no time."""
    field = f"f:{LABEL_MIG_CONFIG_STATE}"
    metas = ((entry, (entry.get("fieldsV1") or {}).get("f:metadata") or {}) for entry in managed)
    times = (unix(entry.get("time")) for entry, meta in metas if field in (meta.get("f:labels") or {}))
    return max((time for time in times if time is not None), default=None)


def _version(labels: Mapping[str, str], names: tuple[str, ...]) -> str:
    """Returns `580.95` from labels that end in .major and .minor, in the new spelling or the old one (`rev` for `revision`)."""
    for name in names:
        if f"{name}.major" in labels:
            parts = [labels.get(f"{name}.{part}", "") for part in ("major", "minor")]
            third = labels.get(f"{name}.revision") or labels.get(f"{name}.rev") or ""
            return ".".join(part for part in (*parts, third) if part)
    return ""


def device_fault(node: Json) -> str:
    """Returns the fault of the node's devices, empty if none is reported."""
    marked = str((node["metadata"].get("annotations") or {}).get(ANNOTATION_DEVICE_FAULT, ""))
    conditions = (node.get("status") or {}).get("conditions") or ()
    found_faults = sorted(f"{found['type']}: {found.get('reason', '')}" for found in conditions if _faulty(found))
    return "; ".join([marked] * bool(marked) + found_faults)[:_MAX_FAULT]


def _faulty(condition: Json) -> bool:
    kind, status = str(condition.get("type", "")), condition.get("status")
    return (status == "True" and _FAULT_IF_TRUE.fullmatch(kind) is not None) or (status == "False" and kind in _FAULT_IF_FALSE)
