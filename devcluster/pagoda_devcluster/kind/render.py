"""What the kind provider would write and run: configuration, GPU objects and command lines. Pure; called by `run.py`.

One node that is control plane and worker at once, as the native provider's; kind has no control plane without a kubelet.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from pagoda_devcluster.cluster.spec import ClusterSpec
from pagoda_devcluster.gpus import devices, dra
from pagoda_devcluster.gpus.labels import labels_of
from pagoda_devcluster.gpus.layout import NodeClass
from pagoda_devcluster.render.control_plane import audit_policy

FIELD_MANAGER = "pagoda-devcluster"
POLICY = "/etc/kubernetes/pagoda/audit-policy.yaml"
AUDIT_LOG = "/var/log/kubernetes/audit.log"
# A kubelet that is given one of these as a label of its own refuses to start.
KUBELETS_OWN = ("kubernetes.io", "k8s.io")
READY_SECONDS = 180
ENGINE = ["docker", "version", "--format", "{{.Server.Version}}"]


@dataclass(frozen=True)
class Mount:
    """A file of the host, and where it is in the node and in the API server's pod."""

    name: str
    host: Path
    path: str
    read_only: bool


def mounts_of(spec: ClusterSpec) -> list[Mount]:
    """Files and not folders, so that the audit log lies where the native provider's does."""
    policy = Mount("pagoda-audit-policy", spec.paths.config / "audit-policy.yaml", POLICY, True)
    return [policy, Mount("pagoda-audit-log", spec.paths.audit_log, AUDIT_LOG, False)]


def config(spec: ClusterSpec, played: NodeClass | None) -> dict[str, Any]:
    node: dict[str, Any] = {
        "role": "control-plane",
        "extraMounts": [{"hostPath": str(one.host), "containerPath": one.path, "readOnly": one.read_only} for one in mounts_of(spec)],
        "kubeadmConfigPatches": [yaml.safe_dump(patch) for patch in audit_patches(spec)],
    }
    if played and (labels := first_labels(played)):
        node["labels"] = labels
    return {
        "kind": "Cluster",
        "apiVersion": "kind.x-k8s.io/v1alpha4",
        "networking": {
            "apiServerAddress": "127.0.0.1",
            "podSubnet": str(spec.net.pod_cidr),
            "serviceSubnet": str(spec.net.service_cidr),
        },
        "nodes": [node],
    }


def audit_patches(spec: ClusterSpec) -> list[dict[str, Any]]:
    """For both formats of kubeadm: a map of arguments up to Kubernetes 1.35, a list from 1.36 on. A patch for the other one is ignored."""
    arguments = {"audit-log-path": AUDIT_LOG, "audit-policy-file": POLICY, "audit-log-mode": "blocking", "audit-log-maxsize": "4096"}
    volumes = [
        {"name": one.name, "hostPath": one.path, "mountPath": one.path, "readOnly": one.read_only, "pathType": "File"}
        for one in mounts_of(spec)
    ]
    formats: dict[str, Any] = {
        "v1beta3": arguments,
        "v1beta4": [{"name": name, "value": value} for name, value in arguments.items()],
    }
    return [
        {
            "apiVersion": f"kubeadm.k8s.io/{version}",
            "kind": "ClusterConfiguration",
            "apiServer": {"extraArgs": extra, "extraVolumes": volumes},
        }
        for version, extra in formats.items()
    ]


def first_labels(played: NodeClass) -> dict[str, str]:
    """Those of the layout's class that the node has from its first second; what GPU Feature Discovery writes comes after it, as in life."""
    return {key: value for key, value in played.labels.items() if not key.partition("/")[0].endswith(KUBELETS_OWN)}


def gpu_objects(spec: ClusterSpec, played: NodeClass) -> dict[str, Any]:
    """Labels, DeviceClasses and the ResourceSlice, to be applied once the node is there."""
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node_name(spec), "labels": labels_of(played)}}
    placed = dra.resource_slice(played, node_name(spec), "")
    items = [node, *(body for _, body in dra.device_classes())]
    if placed:
        # Without an owner: the whole cluster goes at once, and the node's uid is not known here.
        items.append(placed[1] | {"metadata": {"name": placed[1]["metadata"]["name"]}})
    return {"apiVersion": "v1", "kind": "List", "items": items}


def gpu_status(spec: ClusterSpec, played: NodeClass) -> str:
    """A patch: what the node offers. It vanishes when that kubelet restarts; there is no device plugin here."""
    offered = devices.allocatable(played, node_name(spec))
    return json.dumps({"status": {"capacity": offered, "allocatable": offered}})


def files(spec: ClusterSpec, played: NodeClass | None) -> dict[Path, str]:
    rendered = {
        config_file(spec): yaml.safe_dump(config(spec, played)),
        spec.paths.config / "audit-policy.yaml": yaml.safe_dump(audit_policy()),
        # It must be there before Docker mounts it, or Docker makes a folder of that name.
        spec.paths.audit_log: "",
    }
    return rendered | ({gpu_file(spec): json.dumps(gpu_objects(spec, played), indent=2)} if played else {})


def config_file(spec: ClusterSpec) -> Path:
    return spec.paths.config / "kind.yaml"


def gpu_file(spec: ClusterSpec) -> Path:
    return spec.paths.config / "gpu-objects.json"


def node_name(spec: ClusterSpec) -> str:
    """Of the container and of the Kubernetes node; kind's choice."""
    return f"{spec.context}-control-plane"


def create_command(spec: ClusterSpec, kind: Path) -> list[str]:
    wait = ["--wait", f"{READY_SECONDS}s"]
    return [str(kind), "create", "cluster", *_which(spec), "--config", str(config_file(spec)), *_kubeconfig(spec), *wait]


def delete_command(spec: ClusterSpec, kind: Path) -> list[str]:
    return [str(kind), "delete", "cluster", *_which(spec), *_kubeconfig(spec)]


def load_command(spec: ClusterSpec, kind: Path, archive: Path) -> list[str]:
    return [str(kind), "load", "image-archive", str(archive), *_which(spec)]


def rename_command(spec: ClusterSpec) -> list[str]:
    """kind calls the context kind-pagoda-NAME; scripts and tests know it as pagoda-NAME, whichever the provider."""
    return kubectl(spec, "config", "rename-context", f"kind-{spec.context}", spec.context)


def gpu_commands(spec: ClusterSpec, played: NodeClass) -> list[list[str]]:
    apply = ["apply", "--server-side", "--force-conflicts", f"--field-manager={FIELD_MANAGER}", "-f", str(gpu_file(spec))]
    patch = ["patch", "node", node_name(spec), "--subresource=status", "--type=merge", "-p", gpu_status(spec, played)]
    return [kubectl(spec, *apply), kubectl(spec, *patch)]


def inspect_command(spec: ClusterSpec) -> list[str]:
    """Prints the number of the container's first process; 0 for one that has ended."""
    return ["docker", "inspect", "--type", "container", "--format", "{{.State.Pid}}", node_name(spec)]


def kubectl(spec: ClusterSpec, *arguments: str) -> list[str]:
    return [str(spec.bin / "kubectl"), *_kubeconfig(spec), *arguments]


def parse_pid(text: str) -> int | None:
    return int(text) if text.strip().isdecimal() and int(text) else None


def _which(spec: ClusterSpec) -> list[str]:
    return ["--name", spec.context]


def _kubeconfig(spec: ClusterSpec) -> list[str]:
    return ["--kubeconfig", str(spec.paths.kubeconfig)]
