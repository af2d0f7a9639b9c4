"""What a dev cluster could leave on this machine, and the command line that a test drives it with."""

import os
import subprocess
from contextlib import suppress
from pathlib import Path

from pagoda_devcluster.machine.processes import state_of
from support.kube import cluster as support

HOME = Path(os.environ.get("PAGODA_DEVCLUSTER_HOME") or Path.home() / ".cache/pagoda/devcluster")
SYSCTLS = ("vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops", "net/ipv4/ip_forward")
# Where node software writes to when nobody stops it: /run/containerd, /var/lib/kubelet, /var/log/pods, /etc/cni and whatever else.
PLACES = ("/etc", "/run", "/var")
# Package managers and caches, which others use meanwhile.
ELSEWHERE = ("/var/cache", "/var/lib/apt", "/var/lib/dpkg", "/var/log/apt", "/var/tmp")  # noqa: S108


def output(*argv: str) -> list[str]:
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()


def inventory(name: str) -> dict[str, object]:
    """Everything on this machine that a cluster could leave behind; what other clusters own is left out by name."""
    # Below each controller's hierarchy (v1) or below the one there is (v2).
    top = Path("/sys/fs/cgroup")
    groups = [path for path in (top / f"pagoda-{name}", *top.glob(f"*/pagoda-{name}")) if path.exists()]
    return {
        "processes": marked(name),
        "links": [link for link in listed("/sys/class/net") if link == link_of(name)],
        "routes": [line for line in output("ip", "route", "show", "table", "all") if link_of(name) in line],
        "mounts": [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if f"/clusters/{name}/" in line],
        "tables": output("nft", "list", "tables"),
        "groups": groups,
        "sysctls": {name: Path("/proc/sys", name).read_text() for name in SYSCTLS},
        "paths": paths_in_places(),
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


def paths_in_places() -> frozenset[str]:
    """Every path there is, without what is mounted below."""
    found = set()
    for place in PLACES:
        for folder, below, files in os.walk(place):
            here = Path(folder)
            found |= {str(here / one) for one in (*below, *files)}
            below[:] = [one for one in below if str(here / one) not in ELSEWHERE and not os.path.ismount(here / one)]
    return frozenset(found)


def in_namespaces_of(init: int) -> set[tuple[str, str]]:
    """Processes in the node of process 1 `init`, pods included, of which none carries a mark."""
    node = Path(f"/proc/{init}/ns/pid").readlink()
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if node in ((folder / "ns" / "pid").readlink(), (folder / "ns" / "pid_for_children").readlink()):
                found.add(identity(folder))
    return found


def identity(folder: Path) -> tuple[str, str]:
    """Number and start: numbers come again."""
    return folder.name, (folder / "stat").read_text().rpartition(")")[2].split()[19]


def alive() -> set[tuple[str, str]]:
    """Without those that have ended and that nobody has asked for yet."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if state_of(folder) not in "ZX":
                found.add(identity(folder))
    return found


def up_command(name: str, *argv: str) -> list[str]:
    """Native, also where a Docker engine answers."""
    return [support.devcluster(), "up", "--name", name, "--provider", "native", *argv]


def tool(*argv: str, home: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = up_command(argv[argv.index("--name") + 1], *argv[1:]) if argv[0] == "up" else [support.devcluster(), *argv]
    env = os.environ | ({"PAGODA_DEVCLUSTER_HOME": str(home)} if home else {})
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=600, env=env)
