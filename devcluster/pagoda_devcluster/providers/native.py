"""The native provider: brings a cluster up out of processes on this machine, and takes any cluster away without a trace.

`providers.py` calls the parts: prerequisites, binaries, begin (slot → files → start), clear.
"""

import os
import shutil
import sys
from pathlib import Path

from rich.console import Console

from pagoda_devcluster.binaries import build, recipe
from pagoda_devcluster.cluster.errors import MissingPrerequisiteError, StartError, UsageError
from pagoda_devcluster.cluster.settings import Settings
from pagoda_devcluster.cluster.spec import KIND, ClusterSpec, Nodes, cgroup_name, link_name, to_json
from pagoda_devcluster.gpus.layout import as_stored, digest
from pagoda_devcluster.kind import run as kind
from pagoda_devcluster.machine import cgroups, limits, mounts, network, packages, processes, slots
from pagoda_devcluster.providers import start
from pagoda_devcluster.providers.status import load_spec
from pagoda_devcluster.render.node_config import HIDDEN_FOLDERS
from pagoda_devcluster.render.request import Request

# A node's own filesystem layers cannot lie on an overlay (a container's root): containerd then copies instead.
SNAPSHOTTERS = {"overlay": "native"}


def prepare(settings: Settings, request: Request, console: Console) -> None:
    """Refuse before anything is compiled or removed."""
    if request.nodes is Nodes.KUBELET:
        if not settings.is_root:
            raise MissingPrerequisiteError("a kubelet node needs root: use sudo, or --nodes control-plane, which does not")
        if any(settings.home.is_relative_to(hidden) for hidden in HIDDEN_FOLDERS):
            raise UsageError(f"PAGODA_DEVCLUSTER_HOME={settings.home} is not visible inside a node: choose a folder on a disk")
    if request.serve and not settings.is_root:
        raise MissingPrerequisiteError("--serve makes a route to the pods, which needs root: use sudo, or leave --serve out")
    installed = packages.ensure(request.nodes, request.install, settings.is_root, request.serve)
    if installed:
        console.print(f"installed {' '.join(installed)}")


def binaries(settings: Settings, console: Console) -> Path:
    return build.ensure(recipe.of_checkout(), settings.binaries, console)


def begin(settings: Settings, request: Request, folder: Path, console: Console) -> None:
    limits.check_inotify(request.nodes)
    limits.check_disk(settings.clusters, request.nodes)
    root = settings.cluster(request.name)
    root.mkdir(parents=True, mode=0o755)
    snapshotter = SNAPSHOTTERS.get(mounts.kind_of(mounts.current(), root.resolve()), "overlayfs")
    with slots.claimed(request.name, settings.clusters, request.nodes is Nodes.KUBELET or request.serve) as slot:
        spec = spec_of(request, slot, root, folder, snapshotter)
        spec.paths.state.write_text(to_json(spec))
        if request.layout:
            spec.paths.config.mkdir()
            spec.paths.layout.write_text(as_stored(request.layout))
        start.Starter(spec, console).run()


def spec_of(request: Request, slot: int, root: Path, binaries: Path, snapshotter: str) -> ClusterSpec:
    return ClusterSpec(
        request.name,
        slot,
        request.nodes,
        root,
        binaries,
        snapshotter=snapshotter,
        fakes=request.fakes,
        serve=request.serve,
        layout=digest(request.layout) if request.layout else "",
        python=sys.executable,
    )


def clear(settings: Settings, name: str) -> list[str]:
    """Remove everything of `name`, from a healthy cluster to any part of one that was killed. A native one needs no state file."""
    root = settings.cluster(name)
    refuse_namesake(root, name)
    refuse_foreign(root, settings)
    spec = load_spec(root)
    removed = kind.delete(spec) if spec and spec.provider == KIND else []
    removed += end_processes(root)
    if network.remove_link(link_name(name)):
        removed.append("link")
    if spec and spec.serve and network.close_pod_range(spec):
        removed.append("route")
    removed += [f"{len(groups)} control groups" for groups in [cgroups.remove(cgroup_name(name))] if groups]
    if root.exists():
        removed += [f"{len(left)} mounts" for left in [mounts.release(root)] if left]
        shutil.rmtree(root)
        removed.append("files")
    return removed


def refuse_namesake(root: Path, name: str) -> None:
    """Links and control groups are named after the cluster alone, and another home may have one of that name."""
    for other, _ in processes.marked():
        if other != str(root) and Path(other).name == name:
            raise UsageError(f"a cluster {name!r} of another home ({other}) runs on this machine: choose another --name")


def refuse_foreign(root: Path, settings: Settings) -> None:
    if root.exists() and root.stat().st_uid != os.geteuid() and not settings.is_root:
        raise MissingPrerequisiteError(f"{root} belongs to {root.owner()}: run this as that user, or with sudo")


def end_processes(root: Path) -> list[str]:
    """Process 1 of the node first: the kernel ends the whole node with it. Again until none is left, for what started meanwhile."""
    ended = 0
    while running := processes.of_cluster(root):
        ordered = sorted(running, key=lambda one: one.name != "node-init")
        if stuck := processes.end_all(one.pid for one in ordered):
            raise StartError(f"processes {stuck} do not end: they are stuck in the kernel, see /proc/{stuck[0]}/stack")
        ended += len(running)
    return [f"{ended} processes"] if ended else []
