"""`down` leaves nothing, and `up` starts over whatever a killed cluster left. Every test starts clusters of its own."""

import json
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import cluster as support
import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.skipif(os.geteuid() != 0, reason="a kubelet node needs root")]

HOME = Path(os.environ.get("PAGODA_DEVCLUSTER_HOME") or Path.home() / ".cache/pagoda/devcluster")
SYSCTLS = ("vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops", "net/ipv4/ip_forward")
# Fixed places that node software writes to when nobody stops it.
PLACES = (
    "/run/netns",
    "/run/containerd",
    "/var/lib/cni",
    "/var/lib/kubelet",
    "/var/lib/containerd",
    "/var/log/pods",
    "/var/log/containers",
)


def output(*argv: str) -> list[str]:
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()


def inventory(name: str) -> dict[str, object]:
    """Everything on this machine that a cluster could leave behind; what other clusters own is left out by name."""
    groups = [path for hierarchy in Path("/sys/fs/cgroup").glob("*") for path in [hierarchy / f"pagoda-{name}"] if path.exists()]
    return {
        "processes": marked(name),
        "links": [link for link in listed("/sys/class/net") if link == link_of(name)],
        "routes": [line for line in output("ip", "route") if link_of(name) in line],
        "mounts": [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if f"/clusters/{name}/" in line],
        "tables": output("nft", "list", "tables"),
        "groups": groups,
        "sysctls": {name: Path("/proc/sys", name).read_text() for name in SYSCTLS},
        "places": {place: listed(place) for place in PLACES if Path(place).exists()},
        "files": list((HOME / "clusters").glob(f"*{name}*")),
    }


def changed(before: dict[str, object], after: dict[str, object]) -> set[str]:
    return {key for key in before if before[key] != after[key]}


def listed(folder: str) -> list[str]:
    return sorted(path.name for path in Path(folder).iterdir())


def marked(name: str) -> list[int]:
    mark = f"PAGODA_DEVCLUSTER_CLUSTER={HOME}/clusters/{name}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def link_of(name: str) -> str:
    assert len(name) <= 11
    return f"pgd-{name}"


def tool(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([support.devcluster(), *argv], capture_output=True, text=True, check=False, timeout=600)


@pytest.fixture
def name() -> Iterator[str]:
    """A free name; what is there before the test must be there after it, and nothing else."""
    name = f"k{secrets.token_hex(3)}"
    before = inventory(name)
    assert before["processes"] == []
    yield name
    done = tool("down", "--name", name)
    assert done.returncode == 0, done.stderr
    assert inventory(name) == before


def pid_of(name: str, process: str) -> int:
    status = json.loads(tool("status", "--json", "--name", name).stdout)
    return next(entry["pid"] for entry in status["processes"] if entry["name"] == process)


def init_of(name: str) -> int:
    unshare = pid_of(name, "node-init")
    return int(Path(f"/proc/{unshare}/task/{unshare}/children").read_text().split()[0])


def kill(pid: int) -> None:
    """It may have ended with one that was killed before it."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def kill_all(name: str) -> list[int]:
    return marked(name)


def kill_node_init(name: str) -> list[int]:
    return [init_of(name)]


def kill_what_was_spawned(name: str) -> list[int]:
    """The nsenter of kubelet and containerd, whose children live on in the node."""
    return [pid_of(name, process) for process in ("kubelet", "containerd", "etcd")]


def kill_apiserver(name: str) -> list[int]:
    return [pid_of(name, "kube-apiserver")]


@pytest.mark.parametrize("victims", [kill_all, kill_node_init, kill_what_was_spawned, kill_apiserver])
def test_up_starts_cleanly_over_a_killed_cluster(name: str, victims: Callable[[str], list[int]]):
    assert tool("up", "--name", name).returncode == 0
    for pid in victims(name):
        kill(pid)
    assert tool("status", "--name", name).returncode == 3
    again = tool("up", "--name", name)
    assert again.returncode == 0, again.stderr
    assert tool("status", "--name", name).returncode == 0


@pytest.mark.parametrize("victims", [kill_all, kill_what_was_spawned])
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
    namespace.kubectl("wait", "pod/user", "--for=condition=Ready", "--timeout=60s")
    assert "weights" in namespace.kubectl("exec", "user", "--", "/probe", "read", "/model/config.json")
    for pid in victims(name):
        kill(pid)
    assert tool("down", "--name", name).returncode == 0
    assert (tmp_path / "config.json").read_text() == "weights"


@pytest.mark.parametrize("seconds", [0.4, 0.9, 1.6, 2.5, 4.0])
def test_down_removes_what_a_killed_up_had_begun(name: str, seconds: float):
    up = subprocess.Popen([support.devcluster(), "up", "--name", name], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(seconds)
    up.kill()
    up.wait()
    assert tool("status", "--name", name).returncode == 3


def test_up_on_a_running_cluster_confirms_it_and_starts_nothing(name: str):
    empty = inventory(name)
    first = tool("up", "--name", name)
    before = marked(name)
    # Everything else, mounts, nft tables, sysctls and fixed places among it, is as it was even while the cluster runs.
    assert changed(empty, inventory(name)) == {"processes", "links", "routes", "groups", "files"}
    second = tool("up", "--name", name)
    assert second.stdout == first.stdout
    assert "already up" in second.stderr
    assert marked(name) == before


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
