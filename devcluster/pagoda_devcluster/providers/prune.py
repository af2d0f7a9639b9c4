"""What a home has that nothing needs: dead clusters and binaries of older recipes. Deciding is pure; removing goes the way of `down`.

A cluster is dead when no process of it lives. One that another command works on (its lock is taken) is left alone, and so are binaries
that any cluster of this home was started from.
"""

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from pagoda_devcluster.binaries import build
from pagoda_devcluster.cluster.locks import is_held
from pagoda_devcluster.cluster.settings import Settings
from pagoda_devcluster.machine import processes
from pagoda_devcluster.providers import choice as providers
from pagoda_devcluster.providers.status import load_spec


@dataclass(frozen=True)
class Found:
    """A home as it is: folders of clusters (alive or dead, with what they run from) and of binaries."""

    clusters: tuple["Cluster", ...]
    binaries: tuple[Path, ...]


@dataclass(frozen=True)
class Cluster:
    """One folder below clusters/."""

    name: str
    alive: bool
    busy: bool
    bin: Path | None


@dataclass(frozen=True)
class Prunable:
    """What goes."""

    clusters: tuple[str, ...]
    binaries: tuple[Path, ...]


def decide(found: Found, current: Path | None) -> Prunable:
    """`current` is the folder this checkout would use; None where there is no checkout, and then no binaries go."""
    dead = tuple(cluster.name for cluster in found.clusters if not cluster.alive and not cluster.busy)
    used = {cluster.bin for cluster in found.clusters if cluster.name not in dead} | {current}
    unused = tuple(folder for folder in found.binaries if current is not None and folder not in used)
    return Prunable(dead, unused)


def look(settings: Settings) -> Found:
    alive = {Path(root) for root, _ in processes.marked()}
    clusters = [_cluster(settings, folder, folder in alive) for folder in _folders(settings.clusters)]
    return Found(tuple(clusters), tuple(_folders(settings.binaries)))


def _cluster(settings: Settings, folder: Path, alive: bool) -> Cluster:
    spec = load_spec(folder)
    alive = alive or providers.lives_elsewhere(spec)
    return Cluster(folder.name, alive, is_held(settings.lock(folder.name)), spec.bin if spec else None)


def _folders(parent: Path) -> Iterable[Path]:
    return sorted(path for path in parent.iterdir() if path.is_dir()) if parent.is_dir() else []


def remove(settings: Settings, prunable: Prunable, console: Console) -> Prunable:
    """What went. Under each cluster's own lock, and under the build's, so that nothing is taken from a process that just began."""
    clusters = tuple(name for name in prunable.clusters if providers.down_if_dead(settings, name, console))
    if not prunable.binaries:
        return Prunable(clusters, ())
    with build.alone(settings.binaries, console):
        used = {cluster.bin for cluster in look(settings).clusters}
        unused = tuple(folder for folder in prunable.binaries if folder not in used)
        for folder in unused:
            shutil.rmtree(folder)
    return Prunable(clusters, unused)


def size_of(folder: Path) -> int:
    """Bytes; a name that vanishes meanwhile counts nothing."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
