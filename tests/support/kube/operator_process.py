"""The operator as a process against a real API server, with a ServiceAccount and the chart's own role, and a node that has no kubelet."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import httpx
import yaml
from pagoda_operator.api.state import PODS, Resource
from support.kube.client import PATIENCE_S, Body, Kube, eventually
from support.kube.cluster import Cluster
from support.kube.forked_operator import ForkedOperator

CHART = Path(__file__).parents[3] / "charts/pagoda"
NAMESPACE = "pagoda-system"
ACCOUNT = "pagoda-operator"
USER = f"system:serviceaccount:{NAMESPACE}:{ACCOUNT}"
NODES = Resource("v1", "Node", "nodes")
LEASES = Resource("coordination.k8s.io/v1", "Lease", "leases")
NODE = "no-kubelet"
OPERATOR = str(Path(sys.executable).parent / "pagoda-operator")


def install_role(cluster: Cluster) -> None:
    """CRDs, account and role as the chart writes them: what the operator may do is under test too."""
    text = cluster.helm("template", "pagoda", str(CHART), "--namespace", NAMESPACE)
    roles = ("ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "ServiceAccount")
    policies = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
    wanted = ("CustomResourceDefinition", *roles, *policies, "FlowSchema")
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    documents = [namespace, *(found for found in yaml.safe_load_all(text) if found and found["kind"] in wanted)]
    cluster.kubectl("apply", "-f", "-", input=yaml.safe_dump_all(documents))
    cluster.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=300s")


def kubeconfig(kube: Kube, folder: Path, account: str = ACCOUNT, namespace: str = NAMESPACE) -> Path:
    """A file that makes its bearer a ServiceAccount of the chart's, the operator's where none is named."""
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
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
    file = folder / f"{account}.kubeconfig"
    file.write_text(json.dumps(document))
    return file


def by(event: Body, kubeconfig: Path) -> bool:
    """Whether an event of the audit log is of the token in this file, and not of another one of the same account."""
    claims = json.loads(kubeconfig.read_text())["users"][0]["user"]["token"].split(".")[1]
    credential = f"JTI={json.loads(base64.urlsafe_b64decode(claims + '=='))['jti']}"
    return bool(event["user"].get("extra", {}).get("authentication.kubernetes.io/credential-id") == [credential])


def started(argv: list[str], environment: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(argv, stderr=subprocess.PIPE, text=True, env=environment)


class OperatorProcess:
    """`pagoda-operator`, its log lines as they come. `program`: a command in the place of a fork."""

    def __init__(self, kubeconfig: Path, *options: str, program: tuple[str, ...] = (), **environment: str) -> None:
        options = ("--kubeconfig", str(kubeconfig), "--probes-port", "0", "--metrics-port", "0", *options)
        own = os.environ | {"PAGODA_NAMESPACE": NAMESPACE} | environment
        self.process = started([*program, *options], own) if program else ForkedOperator(options, own)
        self.lines: list[str] = []
        self._reported: list[dict[str, Any]] = []
        assert self.process.stderr is not None
        self._reader = threading.Thread(target=self._read, args=(self.process.stderr,), daemon=True)
        self._reader.start()

    def _read(self, stream: IO[str]) -> None:
        for line in stream:
            self.lines.append(line.rstrip())
            if line.startswith("{") and line.endswith("\n"):  # who is killed may leave half a line
                self._reported.append(json.loads(line))

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        """End it and return its exit status."""
        self.process.send_signal(how)
        code = self.process.wait(timeout=PATIENCE_S)
        self._reader.join(timeout=PATIENCE_S)
        if self.process.stderr is not None:
            self.process.stderr.close()
        return code

    def events(self, name: str) -> list[dict[str, Any]]:
        """Its structured log lines of one event."""
        return [line for line in self._reported.copy() if line["event"] == name]

    def counted(self, name: str) -> float:
        """The sum of one of its metrics over all labels; 0 before it answers, and after its end."""
        ports = self.events("serving")
        if not ports:
            return 0.0
        try:
            text = httpx.get(f"http://127.0.0.1:{ports[0]['metrics']}/metrics", trust_env=False, timeout=PATIENCE_S).text
        except httpx.TransportError:
            return 0.0
        return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.partition("{")[0].partition(" ")[0] == name)

    def resident_mib(self) -> int:
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") >> 20


@contextmanager
def running_operator(kubeconfig: Path, *options: str, **how: Any) -> Iterator[OperatorProcess]:
    """`how`: a program in its place, its environment."""
    operator = OperatorProcess(kubeconfig, *options, **how)
    try:
        yield operator
    finally:
        operator.stop()


class NodeWithoutKubelet:
    """A Ready node whose pods do what the test says, and whose deleted pods end when the test says."""

    def __init__(self, kube: Kube, name: str = NODE, body: Body | None = None) -> None:
        """`body`: labels, taints and room, as inventories.node makes them; 64 cores and nothing else where absent."""
        self.kube = kube
        self.name = name
        self._body = body or {}
        self._gone = threading.Event()
        self._pulse = threading.Thread(target=self._breathe, daemon=True)

    def register(self) -> None:
        meta = {"name": self.name, "labels": self._body.get("metadata", {}).get("labels", {})}
        spec = {"taints": self._body.get("spec", {}).get("taints", [])}
        self.kube.create(NODES, "", {"apiVersion": "v1", "kind": "Node", "metadata": meta, "spec": spec})
        room = {"cpu": "64", "memory": "256Gi", "ephemeral-storage": "1000Gi", "pods": "500"}
        room |= self._body.get("status", {}).get("capacity", {})
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "", "lastHeartbeatTime": _now()}
        self.kube.merge(NODES, "", self.name, {"status": {"capacity": room, "allocatable": room, "conditions": [ready]}}, "status")
        lease = {"metadata": {"name": self.name}, "spec": {"holderIdentity": self.name, "leaseDurationSeconds": 3600, "renewTime": _now()}}
        self.kube.create(LEASES, "kube-node-lease", {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"} | lease)

        self._pulse.start()

    def leave(self) -> None:
        self._gone.set()
        self._pulse.join(timeout=PATIENCE_S)
        self.kube.delete(NODES, "", self.name)
        self.kube.delete(LEASES, "kube-node-lease", self.name)

    def _breathe(self) -> None:
        """A node that is silent for 40 s makes all its pods NotReady."""
        while not self._gone.wait(5):
            # The API server is away, or has just begun and refuses: the next beat is soon enough.
            with suppress(httpx.TransportError, AssertionError):
                self.kube.merge(LEASES, "kube-node-lease", self.name, {"spec": {"renewTime": _now()}})

    def placed(self, namespace: str, count: int, selector: str = "") -> list[Body]:
        """Waits until so many pods that stay are bound to it."""

        def look() -> list[Body] | None:
            pods = [pod for pod in self.kube.list(PODS, namespace, selector) if "deletionTimestamp" not in pod["metadata"]]
            return pods if len(pods) == count and all(pod["spec"].get("nodeName") == self.name for pod in pods) else None

        return eventually(look, f"{count} pods on {self.name}")

    def report(self, pod: Body, status: Body) -> None:
        """What a kubelet would say of the pod, where it is there still."""
        meta = pod["metadata"]
        self.kube.merge_where_it_is(PODS, meta["namespace"], meta["name"], {"status": status}, "status")

    def end_deleted(self, namespace: str) -> int:
        """What a kubelet does once the containers of deleted pods have ended."""
        going = [pod for pod in self.kube.list(PODS, namespace) if "deletionTimestamp" in pod["metadata"]]
        for pod in going:
            self.kube.delete(PODS, namespace, pod["metadata"]["name"], grace=0)
        return len(going)


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
