"""`down` leaves nothing, and `up` starts over whatever a killed cluster left. Every test starts clusters of its own."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from support.kube import cluster as support
from support.kube.client import eventually
from support.kube.machine_leftovers import changed, inventory, marked, tool, up_command

pytestmark = [pytest.mark.cluster, pytest.mark.skipif(os.geteuid() != 0, reason="a kubelet node needs root")]
FULL = (pytest.mark.sweep, pytest.mark.full)  # the tool that tests use, not what users run: one of each kind in `make test`


def processes_of(name: str) -> dict[str, int]:
    """What the cluster keeps running, by name, with its process id."""
    status = json.loads(tool("status", "--json", "--name", name).stdout)
    return {entry["name"]: entry["pid"] for entry in status["processes"]}


def pid_of(name: str, process: str) -> int:
    return processes_of(name)[process]


def kill(pid: int) -> None:
    """It may have ended with one that was killed before it."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def kill_all(name: str) -> list[int]:
    return marked(name)


def kill_what_was_spawned(name: str) -> list[int]:
    """The nsenter of kubelet and containerd, whose children live on in the node."""
    return [pid_of(name, process) for process in ("kubelet", "containerd", "etcd")]


@pytest.mark.parametrize("victims", [kill_all, pytest.param(kill_what_was_spawned, marks=FULL)])
def test_up_starts_cleanly_over_a_killed_cluster(name: str, victims: Callable[[str], list[int]]):
    assert tool("up", "--name", name).returncode == 0
    for pid in victims(name):
        kill(pid)
    assert tool("status", "--name", name).returncode == 3
    again = tool("up", "--name", name)
    assert again.returncode == 0, again.stderr
    assert tool("status", "--name", name).returncode == 0


@pytest.mark.parametrize("victims", [kill_all, pytest.param(kill_what_was_spawned, marks=FULL)])
def test_the_folders_that_pods_had_mounted_outlive_the_cluster(
    name: str, victims: Callable[[str], list[int]], archives, new_namespace, tmp_path
):
    """What is removed below the cluster's folder is, seen from the node, the model itself."""
    (tmp_path / "config.json").write_text("weights")
    tmp_path.chmod(0o755)
    assert tool("up", "--name", name).returncode == 0
    running = support.existing(name, "kubelet")
    running.tool("load-image", str(archives.docker("pagoda-probe:1")))
    namespace = new_namespace(running)
    running.tool("load-model", str(tmp_path), "--claim", f"{namespace.name}/model")
    volume = {"name": "model", "persistentVolumeClaim": {"claimName": "model"}}
    namespace.pod("user", "serve", ":8000", "x", volumes=[volume], mounts=[{"name": "model", "mountPath": "/model"}])
    namespace.kubectl("wait", "pod/user", "--for=condition=Ready", "--timeout=300s")
    assert "weights" in namespace.kubectl("exec", "user", "--", "/probe", "read", "/model/config.json")
    for pid in victims(name):
        kill(pid)
    assert tool("down", "--name", name).returncode == 0
    assert (tmp_path / "config.json").read_text() == "weights"


@pytest.mark.parametrize("seconds", [0.9, 2.5, *(pytest.param(seconds, marks=FULL) for seconds in (0.4, 1.6, 4.0))])
def test_down_removes_what_a_killed_up_had_begun(name: str, seconds: float):
    up = subprocess.Popen(up_command(name), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(seconds)
    up.kill()
    # Where this process had to wait longer than it wanted to, all had begun and `up` was done, or killed with nothing left to do.
    done = up.wait() == 0
    assert tool("status", "--name", name).returncode in ((0,) if done else (0, 3))


def test_up_on_a_running_cluster_confirms_it_and_starts_nothing(name: str):
    empty = inventory(name)
    first = tool("up", "--name", name)
    running, before = processes_of(name), set(marked(name))
    # Everything else, mounts, nft tables, sysctls and fixed places among it, is as it was even while the cluster runs.
    assert changed(empty, inventory(name)) == {"processes", "links", "routes", "groups", "files"}
    second = tool("up", "--name", name)
    assert second.stdout == first.stdout
    assert "already up" in second.stderr
    assert processes_of(name) == running
    # Kubelet and containerd start helpers that live for milliseconds, and those bear the mark too: none that is new stays.
    eventually(lambda: set(marked(name)) <= before, "no process more than before")


def test_a_control_plane_alone_touches_neither_network_nor_control_groups(name: str, tmp_path: Path):
    before = inventory(name)
    assert tool("up", "--name", name, "--nodes", "control-plane").returncode == 0
    during = inventory(name)
    assert changed(before, during) == {"processes", "files"}
    assert tool("up", "--name", name, "--nodes", "kubelet").returncode == 2
    refused = tool("load-model", str(tmp_path), "--claim", "a/b", "--name", name)
    assert refused.returncode == 3
    assert "--nodes kubelet" in refused.stderr


def test_two_clusters_share_no_address(name: str):
    other = f"o{name[1:]}"
    try:
        assert tool("up", "--name", name).returncode == 0
        assert tool("up", "--name", other).returncode == 0
        states = [json.loads(tool("status", "--json", "--name", each).stdout) for each in (name, other)]
        assert all(state["up"] for state in states)
        for key in ("server", "service_cidr", "pod_cidr", "kubeconfig"):
            assert len({state[key] for state in states}) == 2
    finally:
        assert tool("down", "--name", other).returncode == 0
    assert tool("status", "--name", name).returncode == 0


def test_a_namesake_of_another_home_is_left_alone(name: str, tmp_path: Path):
    assert tool("up", "--name", name, "--nodes", "control-plane").returncode == 0
    elsewhere = os.environ | {"PAGODA_DEVCLUSTER_HOME": str(tmp_path)}
    refused = subprocess.run([support.devcluster(), "down", "--name", name], capture_output=True, text=True, check=False, env=elsewhere)
    assert refused.returncode == 2
    assert "another home" in refused.stderr
    assert tool("status", "--name", name).returncode == 0
