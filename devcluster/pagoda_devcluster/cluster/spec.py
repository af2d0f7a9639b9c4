"""What a cluster is: name, slot, nodes, and every address and path that follows from them. Pure; written to `cluster.json` once.

A *slot* is a number that makes two clusters on one machine disjoint: it selects the Service, pod and link networks and a loopback address.
"""

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from enum import StrEnum
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from pagoda_devcluster.cluster.errors import UsageError

SLOTS = 48
NATIVE, KIND = "native", "kind"
API_PORT = 6443
ETCD_PORT = 2379
# Each fake node has a /24 of the pod network; of more than `ROOMY_FAKES` each has a /26.
ROOMY_FAKES = 250
MOST_FAKES = 1000
# A label, short enough for `kube-controller-manager` subjects and for `pagoda-<name>` as a cgroup, context and node name.
NAME_PATTERN = re.compile(r"[a-z0-9]([-a-z0-9]{0,30}[a-z0-9])?")
# IFNAMSIZ is 16 with the final NUL.
LINK_NAME_LIMIT = 15


class Nodes(StrEnum):
    """How much of a cluster is started."""

    CONTROL_PLANE = "control-plane"
    KUBELET = "kubelet"
    FAKE = "fake"


@dataclass(frozen=True)
class Addresses:
    """The networks of one slot. Slot 0 has what every Kubernetes document shows: Services 10.96.0.0/16, DNS 10.96.0.10."""

    slot: int

    @property
    def service_cidr(self) -> IPv4Network:
        return IPv4Network(f"10.{96 + self.slot}.0.0/16")

    @property
    def pod_cidr(self) -> IPv4Network:
        return IPv4Network(f"10.{144 + self.slot}.0.0/16")

    @property
    def link_cidr(self) -> IPv4Network:
        return IPv4Network(f"10.192.{self.slot}.0/30")

    @property
    def host(self) -> IPv4Address:
        return self.link_cidr[1]

    @property
    def node(self) -> IPv4Address:
        return self.link_cidr[2]

    @property
    def loopback(self) -> IPv4Address:
        """All of 127/8 is bindable without any set-up: every cluster has the usual ports on an address of its own."""
        return IPv4Address(f"127.64.{self.slot}.1")

    @property
    def api_service(self) -> IPv4Address:
        return self.service_cidr[1]

    @property
    def dns_service(self) -> IPv4Address:
        return self.service_cidr[10]

    @property
    def networks(self) -> tuple[IPv4Network, ...]:
        return self.service_cidr, self.pod_cidr, self.link_cidr


@dataclass(frozen=True)
class Layout:
    """Where a cluster keeps its files; all of it goes with `down`."""

    root: Path

    @property
    def state(self) -> Path:
        return self.root / "cluster.json"

    @property
    def kubeconfig(self) -> Path:
        return self.root / "kubeconfig"

    @property
    def audit_log(self) -> Path:
        return self.root / "audit.log"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def pki(self) -> Path:
        return self.root / "pki"

    @property
    def config(self) -> Path:
        return self.root / "config"

    @property
    def layout(self) -> Path:
        return self.config / "gpu-layout.json"

    @property
    def fronts(self) -> Path:
        """The socket of the process that answers for fake nodes' pods, in a folder that no other user may enter: it runs as root."""
        return self.root / "fronts" / "socket"

    @property
    def etcd(self) -> Path:
        return self.root / "etcd"

    @property
    def node(self) -> Path:
        return self.root / "node"

    def log(self, process: str) -> Path:
        return self.logs / f"{process}.log"


@dataclass(frozen=True)
class ClusterSpec:
    """Everything the renderers need, decided before anything is started."""

    name: str
    slot: int
    nodes: Nodes
    root: Path
    bin: Path
    provider: str = NATIVE
    snapshotter: str = "overlayfs"
    fakes: int = 0
    serve: bool = False
    """Fake nodes' pods can be dialled."""
    layout: str = ""
    """Digest of the GPU layout in `config/gpu-layout.json`; empty without one."""
    python: str = ""
    """The interpreter that our own processes run under."""

    @property
    def net(self) -> Addresses:
        return Addresses(self.slot)

    @property
    def paths(self) -> Layout:
        return Layout(self.root)

    @property
    def has_node(self) -> bool:
        return self.nodes is Nodes.KUBELET

    @property
    def nodes_text(self) -> str:
        """As `--nodes` takes it."""
        return f"{self.nodes.value}:{self.fakes}" if self.nodes is Nodes.FAKE else self.nodes.value

    @property
    def api_address(self) -> IPv4Address:
        """The host's end of the link, so that pods reach it; without a node there is no link."""
        return self.net.host if self.has_node else self.net.loopback

    @property
    def server(self) -> str:
        return f"https://{self.api_address}:{API_PORT}"

    @property
    def node_name(self) -> str:
        return f"{context_name(self.name)}-node"

    @property
    def context(self) -> str:
        return context_name(self.name)

    @property
    def link(self) -> str:
        return link_name(self.name)

    @property
    def cgroup(self) -> str:
        return cgroup_name(self.name)


def parse_nodes(text: str) -> tuple[Nodes, int]:
    """`control-plane`, `kubelet` or `fake:N`."""
    kind, colon, count = text.partition(":")
    if kind == Nodes.FAKE.value and count.isdecimal() and 1 <= int(count) <= MOST_FAKES:
        return Nodes.FAKE, int(count)
    if not colon and kind in (Nodes.CONTROL_PLANE.value, Nodes.KUBELET.value):
        return Nodes(kind), 0
    raise UsageError(f"--nodes must be control-plane, kubelet or fake:N with N from 1 to {MOST_FAKES}, got {text!r}")


def context_name(name: str) -> str:
    return f"pagoda-{name}"


def cgroup_name(name: str) -> str:
    return f"pagoda-{name}"


def link_name(name: str) -> str:
    plain = f"pgd-{name}"
    if len(plain) <= LINK_NAME_LIMIT:
        return plain
    return f"pgd-{name[:4]}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"


def check_name(name: str) -> str:
    if not NAME_PATTERN.fullmatch(name):
        raise UsageError(f"cluster name {name!r}: use 1-32 characters out of a-z, 0-9 and '-', starting and ending with a letter or digit")
    return name


def preferred_slots(name: str) -> list[int]:
    """All slots in the order to try: `dev` has 0, others start at one of their own, so that addresses stay the same over restarts."""
    if name == "dev":
        return list(range(SLOTS))
    start = 1 + int(hashlib.sha256(name.encode()).hexdigest(), 16) % (SLOTS - 1)
    return [1 + (start - 1 + step) % (SLOTS - 1) for step in range(SLOTS - 1)] + [0]


def to_json(spec: ClusterSpec) -> str:
    return json.dumps(asdict(spec) | {"root": str(spec.root), "bin": str(spec.bin)}, indent=2) + "\n"


def from_json(text: str) -> ClusterSpec:
    raw = json.loads(text)
    return ClusterSpec(**raw | {"root": Path(raw["root"]), "bin": Path(raw["bin"]), "nodes": Nodes(raw["nodes"])})
