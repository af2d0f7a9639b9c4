"""The entry point: parses the command line, calls one function, prints. Errors end here, as one line and an exit code."""

import json
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.table import Table

from pagoda_devcluster import maintenance
from pagoda_devcluster.binaries import build as builder
from pagoda_devcluster.binaries import recipe
from pagoda_devcluster.cluster.errors import EXIT_DOWN, DevClusterError, NotRunningError, UsageError, exit_code
from pagoda_devcluster.cluster.settings import from_environment
from pagoda_devcluster.cluster.spec import KIND, ClusterSpec, Nodes, parse_nodes
from pagoda_devcluster.gpus import layout
from pagoda_devcluster.kind import run as kind
from pagoda_devcluster.machine import images, limits
from pagoda_devcluster.machine.processes import init_of, of_cluster
from pagoda_devcluster.maintenance import Name
from pagoda_devcluster.providers import choice as providers
from pagoda_devcluster.providers import models
from pagoda_devcluster.providers.choice import Asked
from pagoda_devcluster.providers.status import Status, as_json, require_node, status_of, trouble
from pagoda_devcluster.render.request import Request

app = typer.Typer(no_args_is_help=True, add_completion=False, help="A whole Kubernetes on one machine, for the demo and the tests.")
maintenance.register(app)


def progress() -> Console:
    """Progress goes to stderr: stdout holds only what a script wants to read."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


@app.command()
def up(
    name: Name = "dev",
    nodes: Annotated[
        str, typer.Option(help="control-plane: API server only, no root. kubelet: one node that runs pods. fake:N: nodes that pretend to.")
    ] = Nodes.KUBELET.value,
    gpu_layout: Annotated[Path | None, typer.Option(metavar="FILE", help="Node classes with GPUs; see devcluster/layouts/.")] = None,
    serve: Annotated[bool, typer.Option("--serve", help="fake:N only: replicas on fake nodes can be dialled (root).")] = False,
    provider: Annotated[Asked, typer.Option(help="auto: kind where a Docker engine answers, else native. kind is unproven.")] = Asked.AUTO,
    install: Annotated[bool, typer.Option("--install", help="Install missing Debian packages.")] = False,
) -> None:
    """Start a cluster, or confirm that it is up. Prints the path of its kubeconfig."""
    settings = from_environment()
    settings.cluster(name)
    request = request_of(name, nodes, install, gpu_layout, serve)
    found = providers.up(providers.chosen(provider, settings, request), settings, request, progress())
    print(_spec(found).paths.kubeconfig)


def request_of(name: str, nodes: str, install: bool, gpu_layout: Path | None, serve: bool = False) -> Request:
    kind, fakes = parse_nodes(nodes)
    if gpu_layout and kind is Nodes.CONTROL_PLANE:
        raise UsageError("--gpu-layout needs nodes: --nodes kubelet or fake:N")
    if serve and kind is not Nodes.FAKE:
        raise UsageError("--serve needs nodes that pretend: --nodes fake:N (pods of a kubelet node answer for themselves)")
    played = layout.read(gpu_layout) if gpu_layout else layout.without_gpus(kind is Nodes.FAKE)
    return Request(name, kind, install, fakes, played, serve)


@app.command()
def down(name: Name = "dev") -> None:
    """Remove a cluster and every trace of it; the compiled binaries stay."""
    settings = from_environment()
    settings.cluster(name)
    removed = providers.down(settings, name, progress())
    print(f"{name}: removed {', '.join(removed)}" if removed else f"{name}: nothing to remove")


@app.command()
def status(name: Name = "dev", as_document: Annotated[bool, typer.Option("--json", help="For scripts.")] = False) -> None:
    """Show what runs. Exit code 0: up; 3: down."""
    found = status_of(from_environment(), name)
    if as_document:
        print(json.dumps(as_json(found), indent=2))
    else:
        _show(found)
    raise typer.Exit(0 if found.up else EXIT_DOWN)


@app.command()
def kubeconfig(name: Name = "dev") -> None:
    """Print the path of the kubeconfig, also of a cluster that needs looking into."""
    found = _spec(status_of(from_environment(), name))
    if not found.paths.kubeconfig.exists():
        raise NotRunningError(f"{name} has no kubeconfig yet: run `pagoda-devcluster up --name {name}`")
    print(found.paths.kubeconfig)


@app.command("bin")
def bin_folder(name: Name = "dev") -> None:
    """Print the folder that holds kubectl, helm and kubeconform, for PATH."""
    settings = from_environment()
    found = status_of(settings, name)
    folder = found.spec.bin if found.spec else builder.folder_of(recipe.of_checkout(), settings.binaries)
    if not (folder / "kubectl").exists():
        raise NotRunningError("the binaries are not built: run `pagoda-devcluster build`")
    print(folder)


@app.command()
def build() -> None:
    """Compile the binaries; `up` does it too. Once: about 7 minutes on 2 cores."""
    print(builder.ensure(recipe.of_checkout(), from_environment().binaries, progress()))


@app.command()
def load_image(file: Annotated[Path, typer.Argument(help="An OCI or docker archive.")], name: Name = "dev") -> None:
    """Give the node an image out of an archive. Prints the image's name."""
    spec = require_node(from_environment(), name)
    for image in kind.load(spec, file) if spec.provider == KIND else images.load(spec, _init(spec), file):
        print(image)


@app.command()
def load_model(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A model, or any folder pods may read.")],
    claim: Annotated[str, typer.Option(help="NAMESPACE/NAME of the claim to make.")],
    name: Name = "dev",
    capacity: Annotated[str, typer.Option(help="What volume and claim say; nothing enforces it.")] = "10Gi",
) -> None:
    """Show a folder of this machine to pods as a bound, read-only claim, without copying. Mount it with `readOnly: true`."""
    wanted = models.parse_claim(claim)
    spec = require_node(from_environment(), name)
    if spec.provider == KIND:
        raise UsageError("a kind node sees no folder that was not mounted when it was made: use --provider native for load-model")
    found = models.check_folder(folder)
    models.load(spec, wanted, folder.resolve(), capacity)
    if found.outside:
        progress().print(f"note: {len(found.outside)} links lead out of the folder and dangle in a pod, e.g. {found.outside[0]}")
    print(f"{wanted} is bound and shows {folder.resolve()}")


def main() -> None:
    try:
        app(standalone_mode=True)
    except DevClusterError as error:
        fail(error)
    except OSError as error:
        # A folder that may not be written: the file and the reason say what to do.
        fail(DevClusterError(str(error)))


def fail(error: DevClusterError) -> NoReturn:
    """One line, whatever the error had in it."""
    line = " ".join(f"pagoda-devcluster: {error}{limits.disk_hint(from_environment().home)}".split())
    Console(stderr=True, highlight=False, soft_wrap=True, markup=False).print(line)
    sys.exit(exit_code(error))


def _spec(found: Status) -> ClusterSpec:
    if found.spec is None:
        raise NotRunningError(f"no cluster {found.name!r} is up: run `pagoda-devcluster up --name {found.name}`")
    return found.spec


def _init(spec: ClusterSpec) -> int:
    init = init_of(of_cluster(spec.root))
    if init is None:
        raise NotRunningError(f"the node of {spec.name} is gone: run `pagoda-devcluster up --name {spec.name}`")
    return init


def _show(found: Status) -> None:
    console = Console(highlight=False, soft_wrap=True)
    if found.spec is None:
        console.print(f"{found.name}: down")
        return
    unproven = " (provider kind, unproven)" if found.spec.provider == KIND else ""
    console.print(f"{found.name}: {'up' if found.up else 'down, ' + trouble(found)}{unproven}")
    table = Table("process", "pid", box=None)
    for process, pid in (found.pids or {}).items():
        table.add_row(process, str(pid) if pid else "dead")
    console.print(table)
    if found.spec.has_node:
        console.print(f"node {found.spec.node_name}: {'ready' if found.node_ready else 'not ready'}")
    console.print(f"kubeconfig {found.spec.paths.kubeconfig}")


if __name__ == "__main__":
    main()
