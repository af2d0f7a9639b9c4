"""The starting half of the native provider: files, namespaces, processes, and waiting until pods can run."""

import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from rich.console import Console

from pagoda_devcluster.client import pki
from pagoda_devcluster.client.api import Api
from pagoda_devcluster.cluster import manifests, waiting
from pagoda_devcluster.cluster.errors import ApiError, NotRunningError, StartError
from pagoda_devcluster.cluster.process import Process
from pagoda_devcluster.cluster.spec import ClusterSpec
from pagoda_devcluster.gpus import devices, dra, layout
from pagoda_devcluster.gpus.labels import labels_of
from pagoda_devcluster.machine import cgroups, images, network, processes
from pagoda_devcluster.providers.status import fakes_ready, node_ready
from pagoda_devcluster.render import control_plane, node_config

# Measured on two idle cores: API server 3 s, node 9 s. These only end a start that hangs, on a machine that compiles
# or tests at the same time; a process that dies ends it at once.
API_SECONDS = 300
NODE_SECONDS = 300
FRONTS_SECONDS = 300
PART_SECONDS = 300


@dataclass
class Starter:
    """Holds what grows while a cluster comes up: the namespaces' process 1 and what was spawned."""

    spec: ClusterSpec
    console: Console
    began: float = field(default_factory=time.monotonic)
    init: int | None = None
    pids: dict[str, int] = field(default_factory=dict)

    def run(self) -> None:
        self.enter("files and keys")
        write_files(self.spec)
        etcd, apiserver, *managers = control_plane.control_plane_processes(self.spec)
        if self.spec.has_node:
            self.enter("namespaces and link")
            self.open_node()
        self.enter("etcd and API server")
        self.spawn(etcd)
        self.spawn(apiserver)
        if self.spec.has_node:
            self.spawn(node_config.containerd(self.spec))
        with Api(self.spec) as api:
            self.wait(api.ready, API_SECONDS, "kube-apiserver")
            self.enter("controllers")
            for process in managers:
                self.spawn(process)
            self.wait(lambda: service_accounts_ready(api), API_SECONDS, "kube-controller-manager")
            if self.spec.layout:
                place_device_classes(api)
            self.say("control plane ready")
            if self.spec.has_node:
                self.start_node(api)
            if self.spec.fakes:
                self.start_fakes(api)

    def open_node(self) -> None:
        """Namespaces, control groups and the link; a process can then be started inside."""
        cgroups.create(self.spec.cgroup)
        self.spawn(node_config.init_process(self.spec))
        self.wait(self.find_init, PART_SECONDS, "node-init")
        self.inside(["sh", str(self.spec.paths.config / "furnish.sh")])
        network.connect(self.spec, self.init or 0)

    def find_init(self) -> bool:
        """The pause program runs only after unshare has made all namespaces and mounted /proc."""
        self.init = processes.init_of(processes.of_cluster(self.spec.root))
        return self.init is not None

    def start_node(self, api: Api) -> None:
        self.enter("node")
        for path, body in manifests.dns_objects(self.spec):
            api.apply(path, body)
        _, *others = node_config.node_processes(self.spec)
        self.wait(self.containerd_answers, PART_SECONDS, "containerd")
        self.import_pause()
        for process in others:
            self.spawn(process)
        self.wait(lambda: node_ready(api, self.spec), NODE_SECONDS, "kubelet")
        self.wait(self.dns_ready, PART_SECONDS, "coredns")
        if self.spec.layout:
            self.wait(lambda: gpus_offered(api, self.spec), NODE_SECONDS, "gpu-plugin")
        self.say(f"node {self.spec.node_name} ready")

    def start_fakes(self, api: Api) -> None:
        self.enter("fake nodes")
        if self.spec.serve:
            network.open_pod_range(self.spec)
            self.spec.paths.fronts.parent.mkdir(mode=0o700)
            self.spawn(control_plane.fronts(self.spec))
            self.wait(self.spec.paths.fronts.exists, FRONTS_SECONDS, "fronts")
        self.spawn(control_plane.fake_kubelet(self.spec))
        self.wait(lambda: fakes_ready(api, self.spec), NODE_SECONDS, "fake-kubelet")
        self.say(f"{self.spec.fakes} fake nodes ready")

    def containerd_answers(self) -> bool:
        try:
            self.inside([*images.CTR, "version"])
        except StartError:
            return False
        return True

    def inside(self, argv: list[str], stdin: Path | None = None) -> str:
        if self.init is None:
            raise StartError("the node's namespaces are not open")
        return processes.inside(self.spec, self.init, argv, stdin)

    def import_pause(self) -> None:
        archive = self.spec.paths.config / "pause.tar"
        images.write_pause_archive(self.spec.bin / "pause", platform.machine(), archive)
        self.inside([*images.CTR, "images", "import", "-"], stdin=archive)

    def dns_ready(self) -> bool:
        try:
            return httpx.get(f"http://{self.spec.net.node}:8181/ready", timeout=1, trust_env=False).is_success
        except httpx.TransportError:
            return False

    def spawn(self, process: Process) -> None:
        self.pids[process.name] = processes.spawn(self.spec, process, self.init)

    def wait(self, condition: Callable[[], bool], seconds: float, culprit: str) -> None:
        """For `condition`; the death of anything spawned ends the waiting at once."""

        def met() -> bool:
            self.check_alive()
            return condition()

        waiting.require(met, seconds, lambda: f"{culprit} is not ready: {self.evidence(culprit)}")

    def check_alive(self) -> None:
        for name, pid in self.pids.items():
            if not processes.alive(pid):
                raise StartError(f"{name} ended: {self.evidence(name)}")

    def evidence(self, process: str) -> str:
        return f"{processes.log_tail(self.spec, process)} (see {self.spec.paths.log(process)})"

    def enter(self, phase: str) -> None:
        """Printed before it begins: a person who stops it there, or sees it hang, knows where."""
        self.console.print(f"  {phase} …")

    def say(self, what: str) -> None:
        self.console.print(f"  {what} after {time.monotonic() - self.began:.1f} s")


def write_files(spec: ClusterSpec) -> None:
    paths = spec.paths
    for folder in (paths.logs, paths.config / "cni", *(paths.node / part for part in ("kubelet", "containerd", "pods"))):
        folder.mkdir(parents=True, exist_ok=True)
    pki.create(spec)
    files = control_plane.control_plane_files(spec) | (node_config.node_files(spec) if spec.has_node else {})
    for file, text in (files | kubeconfigs(spec)).items():
        write_private(file, text)


def kubeconfigs(spec: ClusterSpec) -> dict[Path, str]:
    """One for each client certificate that is a component's, and the administrator's."""
    folder = spec.paths.pki
    authority = (folder / "ca.crt").read_bytes()
    users = ["kube-controller-manager", "kube-scheduler", pki.ADMIN.name]
    files = {}
    for user in users + (["kubelet", "kube-proxy", "coredns"] if spec.has_node else []):
        certificate, key = (folder / f"{user}.crt").read_bytes(), (folder / f"{user}.key").read_bytes()
        file = spec.paths.kubeconfig if user == pki.ADMIN.name else spec.paths.config / f"{user}.kubeconfig"
        files[file] = control_plane.kubeconfig(spec, user, authority, certificate, key)
    return files


def place_device_classes(api: Api) -> None:
    for path, body in dra.device_classes():
        api.apply(path, body)


def gpus_offered(api: Api, spec: ClusterSpec) -> bool:
    """Everything of the layout is where a scheduler or a person would look for it."""
    played = layout.stored(spec.paths.layout).kubelet_class
    node = api.get(f"/api/v1/nodes/{spec.node_name}") or {"metadata": {}, "status": {}}
    offered, labels = node["status"].get("allocatable", {}), node["metadata"].get("labels", {})
    expected = devices.allocatable(played, spec.node_name)
    placed = dra.resource_slice(played, spec.node_name, "")
    published = placed is None or api.get(placed[0]) is not None
    return published and expected.items() <= offered.items() and labels_of(played).items() <= labels.items()


def write_private(file: Path, text: str) -> None:
    file.touch(mode=0o600)
    file.write_text(text)


def service_accounts_ready(api: Api) -> bool:
    """Until then the API server refuses every pod in `default`."""
    try:
        return api.get("/api/v1/namespaces/default/serviceaccounts/default") is not None
    except (ApiError, NotRunningError):
        return False
