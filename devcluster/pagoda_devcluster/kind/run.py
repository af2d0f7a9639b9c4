"""Runs what `render.py` renders: the kind provider's part of `up`, `down`, `status` and `load-image`. Unproven on a real engine.

Called by `providers/` and `__main__`. kind is compiled like every other binary, and only here.
"""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from pagoda_devcluster.binaries import build, recipe
from pagoda_devcluster.binaries.recipe import Binary, pinned
from pagoda_devcluster.cluster.errors import MissingPrerequisiteError, NotRunningError, StartError
from pagoda_devcluster.cluster.settings import Settings
from pagoda_devcluster.cluster.spec import KIND, ClusterSpec, to_json
from pagoda_devcluster.gpus.layout import NodeClass, as_stored, digest
from pagoda_devcluster.kind import render
from pagoda_devcluster.machine import images
from pagoda_devcluster.machine.processes import last_lines
from pagoda_devcluster.render.request import Request

UNPROVEN = "provider kind is unproven: what it runs is tested, on a Docker engine nothing was"
# An engine that hangs must not hang `up --provider auto`, which asks it each time.
ENGINE_SECONDS = 5
SERVER = ("config", "view", "--minify", "-o", "jsonpath={.clusters[0].cluster.server}")
CLIENTS = frozenset({"kubectl", "helm"})


@dataclass(frozen=True)
class Found:
    """A cluster of this provider as it is."""

    pids: dict[str, int | None]
    api_ready: bool = False
    node_ready: bool = False
    server: str = ""


def engine() -> str:
    """The version of the Docker engine that answers; empty where none does."""
    try:
        done = subprocess.run(render.ENGINE, capture_output=True, text=True, check=False, timeout=ENGINE_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def kind_binary(folder: Path) -> Binary:
    """Its version is in the file's name: another one is another file beside it."""
    version = pinned((folder / "kind" / "go.mod").read_text(), "sigs.k8s.io/kind")
    return Binary(f"kind-{version}", "sigs.k8s.io/kind", "kind", version_arguments=("version",), version_text=version)


def prepare(_settings: Settings, _request: Request, console: Console) -> None:
    console.print(f"note: {UNPROVEN}")
    if not engine():
        raise MissingPrerequisiteError("no Docker engine answers: start one, or use --provider native")


def binaries(settings: Settings, console: Console) -> Path:
    """Only the clients and kind: the servers are in kind's own node image."""
    found = recipe.of_checkout()
    wanted = [*(one for one in found.binaries if one.name in CLIENTS), kind_binary(found.folder)]
    return build.ensure(found, settings.binaries, console, wanted)


def begin(settings: Settings, request: Request, folder: Path, console: Console) -> None:
    spec = spec_of(settings, request, folder)
    played = request.layout.kubelet_class if request.layout else None
    write_files(spec, request, played)
    console.print("  kind creates the cluster …")
    run(render.create_command(spec, kind_of(spec)))
    run(render.rename_command(spec))
    if played:
        for command in render.gpu_commands(spec, played):
            run(command)


def spec_of(settings: Settings, request: Request, folder: Path) -> ClusterSpec:
    """Slot 0: its networks are inside of Docker's, where no other cluster sees them."""
    layout = digest(request.layout) if request.layout else ""
    return ClusterSpec(request.name, 0, request.nodes, settings.cluster(request.name), folder, provider=KIND, layout=layout)


def write_files(spec: ClusterSpec, request: Request, played: NodeClass | None) -> None:
    spec.paths.config.mkdir(parents=True)
    spec.paths.state.write_text(to_json(spec))
    if request.layout:
        spec.paths.layout.write_text(as_stored(request.layout))
    for file, text in render.files(spec, played).items():
        file.write_text(text)


def delete(spec: ClusterSpec) -> list[str]:
    """What was removed. Without an engine nothing could be, and a folder that says what is left must stay."""
    if not engine():
        raise MissingPrerequisiteError(f"{spec.name} is a kind cluster and no Docker engine answers: start it, then run this again")
    run(render.delete_command(spec, kind_of(spec)))
    return ["containers"]


def load(spec: ClusterSpec, archive: Path) -> list[str]:
    names = images.names_in(archive)
    run(render.load_command(spec, kind_of(spec), archive))
    return [images.qualified(name) for name in names]


def look(spec: ClusterSpec) -> Found:
    pids = {render.node_name(spec): render.parse_pid(_output(render.inspect_command(spec)))}
    if None in pids.values() or not spec.paths.kubeconfig.exists():
        return Found(pids)
    ready = _output(render.kubectl(spec, "get", "--raw", "/readyz")) == "ok"
    nodes = json.loads(_output(render.kubectl(spec, "get", "nodes", "-o", "json")) or '{"items": []}')["items"] if ready else []
    return Found(pids, ready, bool(nodes) and all(map(is_ready, nodes)), _output(render.kubectl(spec, *SERVER)))


def is_ready(node: dict[str, Any]) -> bool:
    return any(one["type"] == "Ready" and one["status"] == "True" for one in node.get("status", {}).get("conditions", []))


def kind_of(spec: ClusterSpec) -> Path:
    """The one that is there: a cluster is deleted by a newer kind as well as by the one that made it."""
    found = sorted(spec.bin.glob("kind-v*"))
    if not found:
        raise NotRunningError(f"no kind is in {spec.bin}: run `pagoda-devcluster up --provider kind --name {spec.name}` again")
    return found[-1]


def run(argv: list[str]) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise StartError(f"`{' '.join([Path(argv[0]).name, *argv[1:3]])}` failed: {last_lines(done.stderr or done.stdout)}")


def _output(argv: list[str]) -> str:
    """Empty where the command failed: what cannot be asked is not there."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
