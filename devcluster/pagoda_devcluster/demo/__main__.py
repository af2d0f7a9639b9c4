"""`pagoda-demo up|down|images`: what `make demo`, `make demo-down` and `make images` run."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from pagoda_devcluster.cluster.errors import DevClusterError, StartError, exit_code
from pagoda_devcluster.demo import build, install, recipe, show

CLUSTER = "demo"
NAMESPACE = "default"
SERVICE = "llama-tiny"
TENANT = "demo"
QUESTION = "What is the with statement?"

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)


def main() -> None:
    """Door: every failure is one line and an exit code."""
    try:
        app()
    except DevClusterError as error:
        Console(stderr=True).print(f"[red]error:[/red] {error}", highlight=False)
        sys.exit(exit_code(error))


def _builder() -> build.ImageBuilder:
    """This checkout and the user's cache; each step is said with the seconds since the start."""
    root = Path(__file__).resolve().parents[3]
    if not (root / "charts/pagoda").is_dir():
        raise StartError("pagoda-demo runs from a checkout: install it with `make setup`")
    cache = Path(os.environ.get("PAGODA_CACHE") or Path.home() / ".cache/pagoda")
    console, start = Console(stderr=True), time.monotonic()
    return build.ImageBuilder(
        root, cache, lambda text: console.print(f"[dim]{time.monotonic() - start:5.1f} s[/dim]  {text}", highlight=False, soft_wrap=True)
    )


@app.command()
def up(
    question: Annotated[str, typer.Option(help="What to ask the model.")] = QUESTION,
) -> None:
    """A cluster, the chart, the quickstart's service, and a streamed chat."""
    try:
        _up(_builder(), question)
    except KeyboardInterrupt:
        Console(stderr=True).print("\ninterrupted: `make demo` takes up where it stopped, `make demo-down` removes it")
        raise typer.Exit(130) from None


def _up(builder: build.ImageBuilder, question: str) -> None:
    cluster = _cluster(builder)
    model = install.train_tiny(builder.root)
    images = install.load_images(builder, cluster)
    install.claim(builder, cluster, model, NAMESPACE, SERVICE)
    install.claim_deps(builder, cluster, NAMESPACE)
    install.install_chart(builder, cluster, images)
    builder.say("kubectl apply -f examples/01-quickstart/")
    cluster.kubectl("apply", "-n", NAMESPACE, "-f", str(builder.root / "examples/01-quickstart"))
    for line in show.watch(cluster, NAMESPACE, SERVICE, seconds=300):
        builder.say(f"[bold]{SERVICE}[/bold] {line.reason}: {line.message}")
        if line.stalled:
            raise StartError(f"{SERVICE} is Stalled: {line.message}")
    _chat(builder, install.gateway_url(cluster), install.api_key(cluster, TENANT), question)
    _next_commands(cluster)


def _cluster(builder: build.ImageBuilder) -> install.Cluster:
    """The demo's cluster, its progress shown by the tool that makes it. Packages first: the images need buildah."""
    builder.say(f"dev cluster {CLUSTER!r}: a real Kubernetes on this machine")
    # Native: the chat goes to a ClusterIP and the model is a folder of this machine; a kind node shows neither.
    up = ["up", "--name", CLUSTER, "--provider", "native", "--install"]
    done = subprocess.run([str(Path(sys.executable).parent / "pagoda-devcluster"), *up], check=False)
    if done.returncode != 0:
        raise StartError(f"`pagoda-devcluster up --name {CLUSTER} --install` exited {done.returncode}: see above")
    return install.Cluster(CLUSTER)


def _chat(builder: build.ImageBuilder, url: str, key: str, question: str) -> None:
    builder.say(f"the openai client asks {url} for {SERVICE!r}")
    argv = [str(builder.root / "examples/chat.py"), "--base-url", url, "--model", SERVICE, "--question", question]
    if subprocess.run([sys.executable, "-P", *argv], check=False, env={**os.environ, "OPENAI_API_KEY": key}).returncode != 0:
        raise StartError("the chat failed: see above")


def _next_commands(cluster: install.Cluster) -> None:
    kubectl = f"{cluster.bin / 'kubectl'} --kubeconfig {cluster.kubeconfig}"
    console = Console()
    console.print("\nNext:")
    for command in (
        f"{kubectl} get pisvc -o wide",
        f"{kubectl} scale pisvc/{SERVICE} --replicas=2",
        "make demo-down",
    ):
        console.print(f"  {command}", highlight=False, soft_wrap=True)


@app.command()
def down() -> None:
    """Remove the demo's cluster; built binaries, images and the trained model stay cached."""
    install.Cluster(CLUSTER).tool("down")


@app.command()
def images(
    full: Annotated[bool, typer.Option(help="The daemon's image with all its dependencies, instead of the thin one.")] = False,
) -> None:
    """Build operator, gateway, fetch and daemon images; prints each archive and the name inside."""
    builder = _builder()
    for component in (recipe.OPERATOR, recipe.GATEWAY, recipe.FETCH, recipe.DAEMON if full else recipe.DAEMON_THIN):
        name, file = build.archive(builder, component)
        print(file, name)
