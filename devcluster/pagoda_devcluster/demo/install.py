"""Brings Pagoda onto a running dev cluster: images and claims in, chart installed. Used by the demo and by the e2e tests."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pagoda_devcluster.demo import recipe
from pagoda_devcluster.demo.build import Workshop, archive, run, site_packages

NAMESPACE = "pagoda-system"
RELEASE = "pagoda"
IMAGES = (recipe.OPERATOR, recipe.GATEWAY, recipe.DAEMON_THIN)


@dataclass(frozen=True)
class Cluster:
    """A running dev cluster, driven through its own command line."""

    name: str

    def tool(self, *argv: str) -> str:
        """Output of a `pagoda-devcluster` command for this cluster."""
        return run([str(Path(sys.executable).parent / "pagoda-devcluster"), *argv, "--name", self.name])

    @property
    def kubeconfig(self) -> str:
        return self.tool("kubeconfig")

    @property
    def bin(self) -> Path:
        return Path(self.tool("bin"))

    def kubectl(self, *argv: str) -> str:
        """Output of kubectl against this cluster and no other."""
        return run([str(self.bin / "kubectl"), "--kubeconfig", self.kubeconfig, *argv])

    def helm(self, *argv: str) -> str:
        """Output of helm against this cluster and no other."""
        return run([str(self.bin / "helm"), "--kubeconfig", self.kubeconfig, *argv])


def load_images(shop: Workshop, cluster: Cluster) -> None:
    """The three images of the thin set; those that the cluster has are left alone."""
    for component in IMAGES:
        file = archive(shop, component)
        shop.say(f"loading {recipe.image(shop.root, component)}")
        cluster.tool("load-image", str(file))


def claim(shop: Workshop, cluster: Cluster, directory: Path, namespace: str, name: str) -> None:
    """A read-only claim on a folder of this machine."""
    shop.say(f"claim {namespace}/{name} holds {directory.name}")
    cluster.tool("load-model", str(directory), "--claim", f"{namespace}/{name}")


def claim_deps(shop: Workshop, cluster: Cluster, namespace: str) -> None:
    """The daemon's dependencies for the replicas of one namespace."""
    claim(shop, cluster, site_packages(shop, recipe.DAEMON), namespace, recipe.DEPS_CLAIM)


def install_chart(shop: Workshop, cluster: Cluster, extra: Iterable[str] = ()) -> None:
    """`helm upgrade --install`, waiting until operator and gateway are ready."""
    shop.say("helm upgrade --install pagoda charts/pagoda")
    with tempfile.NamedTemporaryFile("w", suffix=".json") as values:
        json.dump(recipe.chart_values(shop.root), values)
        values.flush()
        chart = str(shop.root / "charts/pagoda")
        where = ["--namespace", NAMESPACE, "--create-namespace"]
        cluster.helm("upgrade", "--install", RELEASE, chart, *where, "--values", values.name, "--wait", "--timeout", "3m", *extra)


def gateway_url(cluster: Cluster) -> str:
    """The OpenAI base URL, reachable from this machine: its route to the Service range leads into the node."""
    address = cluster.kubectl("get", "service", f"{RELEASE}-gateway", "-n", NAMESPACE, "-o", "jsonpath={.spec.clusterIP}")
    return f"http://{address}:8080/v1"


def train_tiny(root: Path) -> Path:
    """The quickstart's model, trained where the cache lacks it; progress goes to the terminal."""
    done = subprocess.run([sys.executable, "-P", str(root / "examples/train_tiny.py")], stdout=subprocess.PIPE, text=True, check=True)
    return Path(done.stdout.strip())
