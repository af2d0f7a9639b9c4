"""What is there: the state file, the processes that carry the cluster's mark, and what the API server says of itself and the node."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pagoda_devcluster.client.api import Api
from pagoda_devcluster.cluster import waiting
from pagoda_devcluster.cluster.errors import ApiError, NotRunningError
from pagoda_devcluster.cluster.process import Process
from pagoda_devcluster.cluster.settings import Settings
from pagoda_devcluster.cluster.spec import KIND, ClusterSpec, from_json
from pagoda_devcluster.fake.nodes import SELECTOR
from pagoda_devcluster.kind import render
from pagoda_devcluster.kind import run as kind
from pagoda_devcluster.machine.processes import leader, of_cluster
from pagoda_devcluster.render.control_plane import control_plane_processes, fake_kubelet, fronts
from pagoda_devcluster.render.node_config import init_process, node_processes

PATIENCE_SECONDS = 45


@dataclass(frozen=True)
class Status:
    """A cluster as found; `spec` is None where there is no readable state."""

    name: str
    spec: ClusterSpec | None = None
    pids: dict[str, int | None] | None = None
    api_ready: bool = False
    node_ready: bool = False
    server: str = ""
    """Where it is not the spec's."""

    @property
    def up(self) -> bool:
        """All of it: a cluster without its scheduler is not up."""
        if self.spec is None or not self.pids or None in self.pids.values():
            return False
        return self.api_ready and (self.node_ready or not self.spec.has_node)

    @property
    def undecided(self) -> bool:
        """Everything lives and something is not ready: a busy machine looks like this for a while."""
        return not self.up and bool(self.pids) and None not in (self.pids or {}).values()


def all_processes(spec: ClusterSpec) -> list[Process]:
    players = ([fronts(spec)] if spec.serve else []) + ([fake_kubelet(spec)] if spec.fakes else [])
    return control_plane_processes(spec) + players + ([init_process(spec), *node_processes(spec)] if spec.has_node else [])


def load_spec(root: Path) -> ClusterSpec | None:
    """None also for a state that a killed run left half-written or an older version wrote: it is cleared like none."""
    try:
        return from_json((root / "cluster.json").read_text())
    except (OSError, ValueError, KeyError, TypeError):
        return None


def status_of(settings: Settings, name: str) -> Status:
    spec = load_spec(settings.cluster(name))
    if spec is None:
        return Status(name)
    if spec.provider == KIND:
        found = kind.look(spec)
        return Status(name, spec, found.pids, found.api_ready, found.node_ready, found.server)
    running = of_cluster(spec.root)
    pids = {process.name: leader(running, process) for process in all_processes(spec)}
    if pids["kube-apiserver"] is None or not spec.paths.kubeconfig.exists():
        return Status(name, spec, pids)
    with Api(spec) as api:
        ready = api.ready()
        return Status(name, spec, pids, ready, ready and spec.has_node and node_ready(api, spec))


def settled(settings: Settings, name: str) -> Status:
    """The status after a while of patience: nothing is refused, or started anew, because the machine was busy for two seconds."""
    found = [status_of(settings, name)]

    def decided() -> bool:
        found.append(status_of(settings, name))
        return not found[-1].undecided

    if found[0].undecided:
        waiting.until(decided, PATIENCE_SECONDS, every=0.5)
    return found[-1]


def node_ready(api: Api, spec: ClusterSpec) -> bool:
    """Ready, and the taint that kept pods away until then is gone."""
    try:
        node = api.get(f"/api/v1/nodes/{spec.node_name}")
    except (NotRunningError, ApiError):
        return False
    return node is not None and condition_true(node) and not node["spec"].get("taints")


def fakes_ready(api: Api, spec: ClusterSpec) -> bool:
    """All of them, and no taint keeps pods away."""
    found = (api.get(f"/api/v1/nodes?labelSelector={SELECTOR}") or {"items": []})["items"]
    return len(found) == spec.fakes and all(condition_true(node) and not node["spec"].get("taints") for node in found)


def condition_true(node: dict[str, Any]) -> bool:
    conditions = node.get("status", {}).get("conditions", [])
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def require_running(settings: Settings, name: str) -> ClusterSpec:
    """The spec of a cluster whose processes all live; else what is wrong with it."""
    found = settled(settings, name)
    if found.spec is None:
        raise NotRunningError(f"no cluster {name!r} is up: run `pagoda-devcluster up --name {name}`")
    if not found.up:
        raise NotRunningError(f"{name} is not healthy ({trouble(found)}): run `pagoda-devcluster up --name {name}`")
    return found.spec


def require_node(settings: Settings, name: str) -> ClusterSpec:
    spec = require_running(settings, name)
    if not spec.has_node:
        raise NotRunningError(f"{name} has no kubelet node: run `pagoda-devcluster up --name {name} --nodes kubelet`")
    return spec


def trouble(found: Status) -> str:
    dead = [process for process, pid in (found.pids or {}).items() if pid is None]
    if dead:
        return f"not running: {', '.join(dead)}"
    return "the API server is not ready" if not found.api_ready else "the node is not ready"


def as_json(found: Status) -> dict[str, Any]:
    """The contract of `status --json`."""
    document: dict[str, Any] = {"name": found.name, "up": found.up}
    spec = found.spec
    if spec is None:
        return document
    node = {"name": spec.node_name, "ready": found.node_ready, "address": str(spec.net.node)} if spec.has_node else None
    if spec.provider == KIND:
        node = {"name": render.node_name(spec), "ready": found.node_ready, "address": None}
    return document | {
        "provider": spec.provider,
        "nodes": spec.nodes_text,
        "serve": spec.serve,
        "processes": [{"name": name, "state": "running" if pid else "dead", "pid": pid} for name, pid in (found.pids or {}).items()],
        "api_ready": found.api_ready,
        "server": found.server or spec.server,
        "node": node,
        "kubeconfig": str(spec.paths.kubeconfig),
        "context": spec.context,
        "audit_log": str(spec.paths.audit_log),
        "bin": str(spec.bin),
        "folder": str(spec.root),
        "logs": str(spec.paths.logs),
        "service_cidr": str(spec.net.service_cidr),
        "pod_cidr": str(spec.net.pod_cidr),
    }
