"""Times a warm dev cluster: `up` with each kind of nodes and `down`, and what a fleet of fake nodes does and costs; prints one JSON object.

Needs root and compiled binaries (`pagoda-devcluster build`). Goals: control plane 10 s, kubelet node 25 s.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

ROUNDS = 3
NAME = "fleet-bench"
FAKES, PODS = 100, 500
SERVED = 100
REST_SECONDS = 10.0
TOOL = str(Path(sys.executable).parent / "pagoda-devcluster")
KINDS: dict[str, tuple[str, ...]] = {
    "up_control_plane_s": ("--nodes", "control-plane"),
    "up_kubelet_s": ("--nodes", "kubelet"),
    "up_fake_100_s": ("--nodes", f"fake:{FAKES}"),
}


def seconds(*argv: str) -> float:
    """Wall clock of one command, as a person waits for it."""
    start = time.monotonic()
    subprocess.run([TOOL, *argv, "--name", NAME], check=True, capture_output=True)
    return time.monotonic() - start


def up(*nodes: str) -> float:
    """Native, also where a Docker engine answers: the figures are that provider's."""
    return seconds("up", "--provider", "native", *nodes)


def main() -> None:
    """Runs the rounds; a cluster left by an interrupted run is removed first."""
    subprocess.run([TOOL, "build"], check=True, capture_output=True)
    seconds("down")
    times: dict[str, list[float]] = {key: [] for key in (*KINDS, "down_s")}
    for _ in range(ROUNDS):
        for key, nodes in KINDS.items():
            times[key].append(up(*nodes))
            times["down_s"].append(seconds("down"))
    medians = {key: round(statistics.median(values), 2) for key, values in times.items()}
    figures = medians | fake_nodes() | served()
    print(json.dumps({"bench": "devcluster", "cores": os.cpu_count(), "rounds": ROUNDS, **figures, "all": times}))


def fake_nodes() -> dict[str, float]:
    """One Deployment of `PODS` pods on the fake nodes, all Ready after 0 s, and then nothing to do."""
    with Running("--nodes", f"fake:{FAKES}") as cluster:
        cluster.apply(deployment("crowd", PODS, {"name": "main", "image": "none"}, []))
        start = time.monotonic()
        cluster.wait("crowd", PODS)
        spread = time.monotonic() - start
        return {"fake_500_pods_ready_s": round(spread, 1), "fake_kubelet_rest_cores": cluster.rest("fake-kubelet"), **cluster.memory()}


def served() -> dict[str, float]:
    """`SERVED` replicas that answer, in one process."""
    config = {"model": {"path": "/models", "servedNames": ["bench"]}}
    mount = {"name": "config", "mountPath": "/etc/replica"}
    container = {"name": "main", "image": "none", "args": ["--config", "/etc/replica/config.json"], "volumeMounts": [mount]}
    with Running("--nodes", f"fake:{FAKES}", "--serve") as cluster:
        cluster.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"config.json": json.dumps(config)}})
        cluster.apply(deployment("crowd", SERVED, container, [{"name": "config", "configMap": {"name": "c"}}]))
        start = time.monotonic()
        cluster.wait("crowd", SERVED)
        spread = time.monotonic() - start
        resident = cluster.memory()["fronts_rss_mib"]
        return {"served_100_ready_s": round(spread, 1), "fronts_rest_cores": cluster.rest("fronts"), "fronts_rss_mib": resident}


def deployment(name: str, replicas: int, container: dict[str, Any], volumes: list[dict[str, Any]]) -> dict[str, Any]:
    """Pods that are Ready at once: what is timed is the machinery, not the play."""
    metadata = {"labels": {"app": name}, "annotations": {"devcluster.pagoda.dev/ready-after": "0"}}
    template = {"metadata": metadata, "spec": {"containers": [container], "volumes": volumes}}
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}


class Running:
    """A cluster for one measurement."""

    def __init__(self, *nodes: str) -> None:
        self._nodes = nodes

    def __enter__(self) -> Self:
        up(*self._nodes)
        done = subprocess.run([TOOL, "status", "--json", "--name", NAME], check=True, capture_output=True)
        self._status: dict[str, Any] = json.loads(done.stdout)
        return self

    def __exit__(self, *_: object) -> None:
        seconds("down")

    def kubectl(self, *args: str, stdin: str | None = None) -> None:
        argv = [f"{self._status['bin']}/kubectl", "--kubeconfig", self._status["kubeconfig"], *args]
        subprocess.run(argv, input=stdin, text=True, check=True, capture_output=True)

    def apply(self, body: dict[str, Any]) -> None:
        self.kubectl("apply", "-f", "-", stdin=json.dumps(body))

    def wait(self, name: str, ready: int) -> None:
        self.kubectl("wait", f"deployment/{name}", f"--for=jsonpath={{.status.readyReplicas}}={ready}", "--timeout=300s")

    def pid(self, process: str) -> int | None:
        return next((int(one["pid"]) for one in self._status["processes"] if one["name"] == process), None)

    def rest(self, process: str) -> float:
        """Cores used with nothing to do."""
        pid = self.pid(process)
        time.sleep(2)
        before = cpu_seconds(pid)
        time.sleep(REST_SECONDS)
        return round((cpu_seconds(pid) - before) / REST_SECONDS, 3)

    def memory(self) -> dict[str, float]:
        """Resident MiB of what plays the fleet."""
        found = {name: self.pid(name) for name in ("fake-kubelet", "fronts")}
        return {f"{name.replace('-', '_')}_rss_mib": rss_mib(pid) for name, pid in found.items() if pid}


def cpu_seconds(pid: int | None) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(round(int(line.split()[1]) / 1024) for line in lines if line.startswith("VmRSS:"))


if __name__ == "__main__":
    main()
