"""Brings Pagoda onto a running dev cluster: images and claims in, chart installed. Used by the demo and by the e2e tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pagoda_devcluster.cluster.errors import BuildError, StartError
from pagoda_devcluster.demo import recipe
from pagoda_devcluster.demo.build import ImageBuilder, archive, run, site_packages
from pagoda_devcluster.demo.recipe import Component

NAMESPACE = "pagoda-system"
RELEASE = "pagoda"
IMAGES = (recipe.OPERATOR, recipe.GATEWAY, recipe.FETCH, recipe.DAEMON_THIN)


@dataclass(frozen=True)
class Cluster:
    """A running dev cluster, driven through its own command line. Where its files are is asked once: that takes a process a second."""

    name: str

    def tool(self, *argv: str) -> str:
        """Output of a `pagoda-devcluster` command for this cluster."""
        return run([str(Path(sys.executable).parent / "pagoda-devcluster"), *argv, "--name", self.name])

    @cached_property
    def kubeconfig(self) -> str:
        return self.tool("kubeconfig")

    @cached_property
    def bin(self) -> Path:
        return Path(self.tool("bin"))

    def kubectl(self, *argv: str) -> str:
        """Output of kubectl against this cluster and no other."""
        return run([str(self.bin / "kubectl"), "--kubeconfig", self.kubeconfig, *argv])

    def helm(self, *argv: str) -> str:
        """Output of helm against this cluster and no other."""
        return run([str(self.bin / "helm"), "--kubeconfig", self.kubeconfig, *argv])


def load_images(builder: ImageBuilder, cluster: Cluster) -> dict[Component, str]:
    """The thin set of images, built where needed; their names, as read once: an edit meanwhile must not name what was never built."""
    names = {}
    for component in IMAGES:
        name, file = archive(builder, component)
        builder.say(f"loading {name}")
        cluster.tool("load-image", str(file))
        names[component] = name
    return names


def claim(builder: ImageBuilder, cluster: Cluster, directory: Path, namespace: str, name: str) -> None:
    """A read-only claim on a folder of this machine."""
    builder.say(f"claim {namespace}/{name} holds {directory.name}")
    cluster.tool("load-model", str(directory), "--claim", f"{namespace}/{name}")


def claim_deps(builder: ImageBuilder, cluster: Cluster, namespace: str) -> None:
    """The daemon's dependencies for the replicas of one namespace."""
    claim(builder, cluster, site_packages(builder, recipe.DAEMON), namespace, recipe.DEPS_CLAIM)


def install_chart(builder: ImageBuilder, cluster: Cluster, images: dict[Component, str], extra: Iterable[str] = ()) -> None:
    """`helm upgrade --install`, waiting until operator and gateway are ready."""
    builder.say("helm upgrade --install pagoda charts/pagoda")
    with tempfile.NamedTemporaryFile("w", suffix=".json") as values:
        json.dump(recipe.chart_values(images), values)
        values.flush()
        chart = str(builder.root / "charts/pagoda")
        where = ["--namespace", NAMESPACE, "--create-namespace"]
        try:
            cluster.helm("upgrade", "--install", RELEASE, chart, *where, "--values", values.name, "--wait", "--timeout", "10m", *extra)
        except BuildError as error:
            raise StartError(f"{error}\n{_what_pods_say(cluster)}") from error


def api_key(cluster: Cluster, tenant: str) -> str:
    """An API key for a day, made as an admin makes it: by `pagoda key create`."""
    argv = ["key", "create", "--tenant", tenant, "--expires-in", "24h", "--kubeconfig", cluster.kubeconfig]
    environment = {**os.environ, "PATH": f"{cluster.bin}{os.pathsep}{os.environ.get('PATH', '')}"}
    program = str(Path(sys.executable).parent / "pagoda")
    done = subprocess.run([program, *argv], capture_output=True, text=True, check=False, env=environment)
    if done.returncode != 0:
        raise StartError(f"`pagoda key create` exited {done.returncode}: {done.stderr.strip()}")
    return done.stdout.strip()


def _what_pods_say(cluster: Cluster) -> str:
    """Helm only says that time ran out; the pods say why."""
    pods = cluster.kubectl("get", "pods", "-n", NAMESPACE)
    selector = f"app.kubernetes.io/instance={RELEASE}"
    logs = cluster.kubectl("logs", "-n", NAMESPACE, "-l", selector, "--tail=3", "--prefix", "--ignore-errors")
    return f"{pods}\n{logs}"


def gateway_url(cluster: Cluster) -> str:
    """The OpenAI base URL, reachable from this machine: its route to the Service range leads into the node."""
    address = cluster.kubectl("get", "service", f"{RELEASE}-gateway", "-n", NAMESPACE, "-o", "jsonpath={.spec.clusterIP}")
    return f"http://{address}:8080/v1"


def train_tiny(root: Path) -> Path:
    """The quickstart's model, trained where the cache lacks it; progress goes to the terminal."""
    done = subprocess.run([sys.executable, str(root / "examples/train_tiny.py")], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise StartError(f"examples/train_tiny.py exited {done.returncode}: see above")
    return Path(done.stdout.strip())
