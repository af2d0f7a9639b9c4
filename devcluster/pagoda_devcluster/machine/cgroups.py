"""Makes and removes a cluster's control group in every hierarchy of this machine, v1 (one per controller) and v2."""

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from pagoda_devcluster.cluster import waiting
from pagoda_devcluster.cluster.errors import MissingPrerequisiteError, StartError
from pagoda_devcluster.machine import mounts, processes

V2_CONTROLLERS = "+cpu +cpuset +memory +pids +io"


def hierarchies() -> list[Path]:
    return [mount.target for mount in mounts.current() if mount.kind in ("cgroup", "cgroup2")]


def create(name: str) -> None:
    """The kubelet refuses to start unless its root group exists everywhere."""
    for hierarchy in hierarchies():
        try:
            _create_in(hierarchy, name)
        except OSError as error:
            why = f"no control group can be made in {hierarchy} ({error.strerror})"
            raise MissingPrerequisiteError(f"{why}: run outside of a container") from error


def _create_in(hierarchy: Path, name: str) -> None:
    group = hierarchy / name
    group.mkdir(exist_ok=True)
    if (hierarchy / "cgroup.controllers").exists():
        _delegate(hierarchy)
        _delegate(group)
    else:
        _inherit_cpuset(hierarchy, group)


def _delegate(group: Path) -> None:
    """v2: hand down what this machine has (in a hybrid layout the unified hierarchy has no controllers)."""
    have = (group / "cgroup.controllers").read_text().split()
    wanted = [entry for entry in V2_CONTROLLERS.split() if entry[1:] in have]
    if wanted:
        (group / "cgroup.subtree_control").write_text(" ".join(wanted))


def _inherit_cpuset(parent: Path, group: Path) -> None:
    """v1: a new group has no processors until it is given some, and no process can enter it."""
    for file in ("cpuset.cpus", "cpuset.mems"):
        if (parent / file).exists():
            (group / file).write_text((parent / file).read_text())


def existing(name: str) -> list[Path]:
    return [hierarchy / name for hierarchy in hierarchies() if (hierarchy / name).is_dir()]


def remove(name: str) -> list[Path]:
    """Empty the groups of processes, then remove them deepest first; a group is busy until its last process is reaped."""
    groups = existing(name)
    processes.end_all(pid for group in groups for pid in members(group))
    for group in groups:
        if not waiting.until(partial(_removed, group), 60):
            raise StartError(f"control group {group} does not go: it holds {members(group)}")
    return groups


def members(group: Path) -> list[int]:
    return [int(pid) for folder in _inner_first(group) for pid in (folder / "cgroup.procs").read_text().split()]


def _removed(group: Path) -> bool:
    for folder in _inner_first(group):
        with suppress(OSError):
            folder.rmdir()
    return not group.exists()


def _inner_first(group: Path) -> Iterator[Path]:
    yield from sorted((folder for folder in [group, *group.rglob("*")] if folder.is_dir()), key=lambda folder: -len(folder.parts))
