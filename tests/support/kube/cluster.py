"""A dev cluster for a test: started under a name of its own and removed at the end, or the one that PAGODA_TEST_CLUSTER names.

Everything goes through `pagoda-devcluster`, and every kubectl call to this cluster's kubeconfig and context: no test can touch another one.
"""

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from pagoda_devcluster.client import audit

ELSEWHERE = ("--context", "--kubeconfig", "--server", "-s", "--cluster", "--user", "--token")
# `up` may have to compile everything first: 7 minutes on 2 idle cores.
UP_SECONDS = 1500


@dataclass(frozen=True)
class Cluster:
    """A running cluster as a test sees it."""

    name: str
    kubeconfig: Path
    bin: Path
    audit_log: Path
    status: dict[str, Any]

    def kubectl(self, *args: str, input: str | None = None) -> str:  # noqa: A002 - as in subprocess
        """Standard output of kubectl against this cluster. A failure raises with kubectl's own words."""
        refuse_elsewhere(args)
        check_context(self.kubeconfig, f"pagoda-{self.name}")
        own = ["--kubeconfig", str(self.kubeconfig), "--context", f"pagoda-{self.name}"]
        # kubectl remembers for minutes which kinds an address has, and the next cluster may get this one's.
        own += ["--cache-dir", str(self.kubeconfig.parent / "kubectl")]
        return run([str(self.bin / "kubectl"), *own, *args], stdin=input)

    def create_namespace(self, name: str) -> None:
        """One in which pods can be made: until a controller has made its ServiceAccount, the API server refuses them."""
        self.kubectl("create", "namespace", name)
        self.kubectl("wait", "serviceaccount/default", "-n", name, "--for=create", "--timeout=300s")

    def get(self, *args: str) -> dict[str, Any]:
        """`kubectl get … -o json`, parsed."""
        found: dict[str, Any] = json.loads(self.kubectl("get", *args, "-o", "json"))
        return found

    def helm(self, *args: str) -> str:
        refuse_elsewhere(args)
        return run([str(self.bin / "helm"), "--kubeconfig", str(self.kubeconfig), "--kube-context", f"pagoda-{self.name}", *args])

    def tool(self, *args: str) -> str:
        """A `pagoda-devcluster` command for this cluster."""
        return run([devcluster(), *args, "--name", self.name])

    def audit(
        self, user: str | None = None, since: datetime | float | None = None, verbs: str | Collection[str] = "write"
    ) -> list[dict[str, Any]]:
        """Finished requests, oldest first. `verbs`: "write", "read", "all", or the verbs themselves."""
        with self.audit_log.open() as log:  # hundreds of MB at the end of a long run: only lines that can be of that user are parsed
            return audit.select((line for line in log if user is None or user in line), user, since, verbs)


@contextmanager
def running_cluster(nodes: str = "kubelet", gpu_layout: Path | None = None, *, serve: bool = False) -> Iterator[Cluster]:
    """`nodes`: "control-plane" (5 s, no pods run), "kubelet", or "fake:N" (6 s, pods pretend; `serve`: and answer). One with GPUs or fakes
    is always its own."""
    reused = os.environ.get("PAGODA_TEST_CLUSTER")
    if reused and not gpu_layout and not nodes.startswith("fake"):
        yield existing(reused, nodes)
        return
    name = f"test-{os.getpid()}-{secrets.token_hex(2)}"
    try:
        layout = ["--gpu-layout", str(gpu_layout)] if gpu_layout else []
        # Where a Docker engine answers, auto would be kind, which shows a test neither the host's routes nor its processes.
        run(
            [devcluster(), "up", "--name", name, "--nodes", nodes, "--provider", "native", *layout, *(["--serve"] if serve else [])],
            seconds=UP_SECONDS,
        )
        yield existing(name, nodes)
    finally:
        run([devcluster(), "down", "--name", name])


def existing(name: str, nodes: str) -> Cluster:
    """The running cluster `name`; one with a kubelet node also serves a test that needs none."""
    done = subprocess.run([devcluster(), "status", "--json", "--name", name], capture_output=True, text=True, check=False)
    status = json.loads(done.stdout)
    if not status["up"] or (nodes == "kubelet" and status["nodes"] != "kubelet"):
        raise RuntimeError(f"cluster {name!r} is not up with --nodes {nodes}: run `pagoda-devcluster up --name {name} --nodes {nodes}`")
    return Cluster(name, Path(status["kubeconfig"]), Path(status["bin"]), Path(status["audit_log"]), status)


def devcluster() -> str:
    """The console script beside this interpreter: `python -m` from the root would put the component folders on the path."""
    return str(Path(sys.executable).parent / "pagoda-devcluster")


def run(argv: list[str], stdin: str | None = None, seconds: float = 600) -> str:
    done = subprocess.run(argv, input=stdin, capture_output=True, text=True, check=False, timeout=seconds, env=environment())
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv)} → {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return done.stdout


def environment() -> dict[str, str]:
    """Without the shell's cluster and proxies: kubectl would obey both."""
    dropped = {"KUBECONFIG", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"}
    return {key: value for key, value in os.environ.items() if key.upper() not in dropped}


def refuse_elsewhere(args: Collection[str]) -> None:
    """What follows `--` belongs to the command in the pod."""
    for argument in args:
        if argument == "--":
            return
        if argument.partition("=")[0] in ELSEWHERE:
            raise ValueError(f"{argument}: a test talks to its own cluster only")


def check_context(kubeconfig: Path, expected: str) -> None:
    current = json.loads(kubeconfig.read_text())["current-context"]
    if current != expected:
        raise ValueError(f"{kubeconfig} points at {current}, not at {expected}: a test talks to its own cluster only")
