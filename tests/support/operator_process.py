"""The operator as a process against a real API server, with a ServiceAccount and the chart's own role, and a node that has no kubelet."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import yaml
from cluster import Cluster
from kube import Body, Kube, eventually
from pagoda_operator.state import PODS, Resource

CHART = Path(__file__).parents[2] / "charts/pagoda"
NAMESPACE = "pagoda-system"
ACCOUNT = "pagoda-operator"
USER = f"system:serviceaccount:{NAMESPACE}:{ACCOUNT}"
NODES = Resource("v1", "Node", "nodes")
LEASES = Resource("coordination.k8s.io/v1", "Lease", "leases")
NODE = "paper"
OPERATOR = str(Path(sys.executable).parent / "pagoda-operator")
# Each run of it lives for DIE_AFTER writes.
DYING = (sys.executable, "-P", str(Path(__file__).parent / "dying_operator.py"))


def install_role(cluster: Cluster) -> None:
    """CRDs, account and role as the chart writes them: what the operator may do is under test too."""
    text = cluster.helm("template", "pagoda", str(CHART), "--namespace", NAMESPACE)
    wanted = ("CustomResourceDefinition", "ClusterRole", "ClusterRoleBinding", "ServiceAccount")
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    documents = [namespace, *(found for found in yaml.safe_load_all(text) if found and found["kind"] in wanted)]
    cluster.kubectl("apply", "-f", "-", input=yaml.safe_dump_all(documents))
    cluster.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")


def kubeconfig(kube: Kube, folder: Path) -> Path:
    """A file that makes its bearer the operator's ServiceAccount."""
    path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{ACCOUNT}/token"
    token = kube.post(path, {"spec": {"expirationSeconds": 7200}})["status"]["token"]
    cluster = {"server": kube.server, "certificate-authority-data": kube.authority}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": {"token": token}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    file = folder / "operator.kubeconfig"
    file.write_text(json.dumps(document))
    return file


class OperatorProcess:
    """`pagoda-operator`, its log lines as they come."""

    def __init__(self, kubeconfig: Path, *options: str, program: tuple[str, ...] = (OPERATOR,), **environment: str) -> None:
        argv = [*program, "--kubeconfig", str(kubeconfig), "--probes-port", "0", *options]
        own = os.environ | {"PAGODA_NAMESPACE": NAMESPACE} | environment
        self.process = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True, env=own)
        self.lines: list[str] = []
        assert self.process.stderr is not None
        self._reader = threading.Thread(target=self._read, args=(self.process.stderr,), daemon=True)
        self._reader.start()

    def _read(self, stream: IO[str]) -> None:
        for line in stream:
            self.lines.append(line.rstrip())

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        """End it and return its exit status."""
        self.process.send_signal(how)
        code = self.process.wait(timeout=40)
        self._reader.join(timeout=10)
        if self.process.stderr is not None:
            self.process.stderr.close()
        return code

    def events(self, name: str) -> list[dict[str, Any]]:
        """Its structured log lines of one event."""
        parsed = [json.loads(line) for line in self.lines.copy() if line.startswith("{")]
        return [line for line in parsed if line["event"] == name]

    def resident_mib(self) -> int:
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") >> 20


@contextmanager
def running_operator(kubeconfig: Path, *options: str) -> Iterator[OperatorProcess]:
    operator = OperatorProcess(kubeconfig, *options)
    try:
        yield operator
    finally:
        operator.stop()


class PaperNode:
    """A Ready node whose pods do what the test says, and whose deleted pods end when the test says."""

    def __init__(self, kube: Kube) -> None:
        self.kube = kube
        self._gone = threading.Event()
        self._pulse = threading.Thread(target=self._breathe, daemon=True)

    def register(self) -> None:
        self.kube.create(NODES, "", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
        room = {"cpu": "64", "memory": "256Gi", "pods": "500"}
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "", "lastHeartbeatTime": _now()}
        self.kube.merge(NODES, "", NODE, {"status": {"capacity": room, "allocatable": room, "conditions": [ready]}}, "status")
        lease = {"metadata": {"name": NODE}, "spec": {"holderIdentity": NODE, "leaseDurationSeconds": 3600, "renewTime": _now()}}
        self.kube.create(LEASES, "kube-node-lease", {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"} | lease)

        self._pulse.start()

    def leave(self) -> None:
        self._gone.set()
        self._pulse.join(timeout=10)

    def _breathe(self) -> None:
        """A node that is silent for 40 s makes all its pods NotReady."""
        while not self._gone.wait(5):
            self.kube.merge(LEASES, "kube-node-lease", NODE, {"spec": {"renewTime": _now()}})

    def placed(self, namespace: str, count: int, selector: str = "") -> list[Body]:
        """Waits until so many pods that stay are bound to it."""

        def look() -> list[Body] | None:
            pods = [pod for pod in self.kube.list(PODS, namespace, selector) if "deletionTimestamp" not in pod["metadata"]]
            return pods if len(pods) == count and all(pod["spec"].get("nodeName") == NODE for pod in pods) else None

        return eventually(look, f"{count} pods on {NODE}")

    def tell(self, pod: Body, status: Body) -> None:
        """What a kubelet would say of the pod."""
        meta = pod["metadata"]
        self.kube.merge(PODS, meta["namespace"], meta["name"], {"status": status}, "status")

    def end_deleted(self, namespace: str) -> int:
        """What a kubelet does once the containers of deleted pods have ended."""
        going = [pod for pod in self.kube.list(PODS, namespace) if "deletionTimestamp" in pod["metadata"]]
        for pod in going:
            self.kube.delete(PODS, namespace, pod["metadata"]["name"], grace=0)
        return len(going)


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
