"""Fake nodes out of a layout: names, addresses, objects and the status a kubelet would report. Pure."""

from dataclasses import dataclass
from datetime import datetime
from ipaddress import IPv4Address, IPv4Network

from pagoda_devcluster.cluster.spec import ROOMY_FAKES, ClusterSpec
from pagoda_devcluster.fake.plays import PREFIX, NodePlay, Object, complaint_of, node_plays
from pagoda_devcluster.fake.pods import subset, write_time
from pagoda_devcluster.gpus.devices import allocatable
from pagoda_devcluster.gpus.labels import labels_of
from pagoda_devcluster.gpus.layout import Layout, NodeClass

FAKE_LABEL = f"{PREFIX}/fake"
CLASS_LABEL = f"{PREFIX}/class"
SELECTOR = f"{FAKE_LABEL}=true"
PRESSURES = {
    "MemoryPressure": ("KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    "DiskPressure": ("KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    "PIDPressure": ("KubeletHasSufficientPID", "kubelet has sufficient PID available"),
}
# What the node controller writes into each condition of a node whose kubelet fell silent.
SILENT = ("Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status.")


@dataclass(frozen=True)
class FakeNode:
    """One of them. Its pods have the addresses of one network; the node itself has the first."""

    name: str
    number: int
    played: NodeClass
    network: IPv4Network

    @property
    def address(self) -> str:
        return str(self.network[1])

    @property
    def pods(self) -> int:
        """How many it takes: one without an address could not run."""
        return min(self.played.pods, self.network.num_addresses - 3)

    def pod_address(self, number: int) -> str:
        return str(self.network[2 + number])

    def number_of(self, address: str) -> int | None:
        """Which of its pod addresses that is; None where it is none."""
        if not address or (known := IPv4Address(address)) not in self.network:
            return None
        return int(known) - int(self.network[2])


def fake_nodes(spec: ClusterSpec, layout: Layout) -> list[FakeNode]:
    networks = spec.net.pod_cidr.subnets(new_prefix=24 if spec.fakes <= ROOMY_FAKES else 26)
    return [
        FakeNode(f"{spec.context}-fake-{number}", number, layout.class_of(number), network)
        for number, network in zip(range(spec.fakes), networks, strict=False)
    ]


def node_object(node: FakeNode) -> Object:
    labels = {
        "kubernetes.io/hostname": node.name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        FAKE_LABEL: "true",
        CLASS_LABEL: node.played.name,
    }
    metadata = {"name": node.name, "labels": labels | labels_of(node.played)}
    taints = [taint.model_dump() for taint in node.played.taints]
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata} | ({"spec": {"taints": taints}} if taints else {})


def node_status(node: FakeNode, found: Object, version: str, now: datetime) -> Object:
    """`no-devices`: capacity stays and nothing of it may be had, as when a plugin is gone."""
    plays = node_plays(found)
    capacity = {
        "cpu": str(node.played.cpu),
        "memory": f"{node.played.memory_gib}Gi",
        "pods": str(node.pods),
        "ephemeral-storage": "1000Gi",
    }
    extended = allocatable(node.played, node.name)
    offered = dict.fromkeys(extended, "0") if NodePlay.NO_DEVICES.value in plays else extended
    return {
        "capacity": capacity | extended,
        "allocatable": capacity | offered,
        "conditions": conditions(found, plays, now),
        "addresses": [{"type": "InternalIP", "address": node.address}, {"type": "Hostname", "address": node.name}],
        "nodeInfo": node_info(node, version),
    }


def node_info(node: FakeNode, version: str) -> Object:
    blank = dict.fromkeys(("machineID", "systemUUID", "bootID", "kernelVersion", "kubeProxyVersion"), "")
    known = {"architecture": "amd64", "operatingSystem": "linux", "osImage": "played", "containerRuntimeVersion": "fake://1"}
    return blank | known | {"kubeletVersion": version, "machineID": node.name}


def conditions(found: Object, plays: frozenset[str], now: datetime) -> list[Object]:
    """A heartbeat is not written: nothing waits for one (`--node-monitor-grace-period` is a day here)."""
    complaint = complaint_of(plays, NodePlay)
    before = found.get("status", {}).get("conditions", [])
    healthy = {kind: ("False", *words) for kind, words in PRESSURES.items()}
    healthy["Ready"] = ("True", "KubeletReady", complaint or "kubelet is posting ready status")
    down = NodePlay.NOT_READY.value in plays
    return [condition(before, kind, SILENT if down else words, now) for kind, words in healthy.items()]


def condition(before: list[Object], kind: str, words: tuple[str, str, str], now: datetime) -> Object:
    status, reason, message = words
    same = next((entry for entry in before if entry["type"] == kind and entry["status"] == status), None)
    times = same or {"lastTransitionTime": write_time(now), "lastHeartbeatTime": write_time(now)}
    kept = {key: times[key] for key in ("lastTransitionTime", "lastHeartbeatTime")}
    return {"type": kind, "status": status, "reason": reason, "message": message} | kept


def status_change(node: FakeNode, found: Object, version: str, now: datetime) -> Object | None:
    wanted = node_status(node, found, version, now)
    have = found.get("status", {})
    same = all(subset(value, have.get(key)) for key, value in wanted.items())
    return None if same else wanted
