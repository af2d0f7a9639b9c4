"""One cluster with Pagoda installed for all scenarios; each scenario has a namespace of its own. At the end its audit log
is asked whether any request of an account of ours was refused."""

from __future__ import annotations

import json
import os
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pagoda_devcluster.demo import install
from pagoda_devcluster.demo.build import ImageBuilder
from pagoda_devcluster.demo.show import Line, watch
from support.judges.rights import GATEWAY, OPERATOR, nothing_refused
from support.kube.cluster import Cluster, running_cluster
from support.kube.services import service

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Pagoda:
    """An installed Pagoda and the ways a user reaches it."""

    builder: ImageBuilder
    cluster: install.Cluster
    running: Cluster
    url: str
    model: Path

    def namespace(self) -> str:
        """A fresh namespace under Pod Security `restricted` with the daemon's dependencies in it."""
        name = f"e2e-{uuid.uuid4().hex[:8]}"
        self.cluster.kubectl("create", "namespace", name)
        self.cluster.kubectl("label", "namespace", name, "pod-security.kubernetes.io/enforce=restricted")
        install.claim_deps(self.builder, self.cluster, name)
        return name

    def apply(self, namespace: str, manifest: dict[str, object]) -> None:
        self.running.kubectl("apply", "-n", namespace, "-f", "-", input=json.dumps(manifest))

    def serve(self, namespace: str, name: str, model: Path, **spec: object) -> Line:
        """Claims the model, applies a service and waits for what becomes of it."""
        install.claim(self.builder, self.cluster, model, namespace, name)
        self.apply(namespace, service(name, **spec))
        return self.outcome(namespace, name)

    def outcome(self, namespace: str, name: str) -> Line:
        *_, last = watch(self.cluster, namespace, name, seconds=600)
        return last

    def get(self, *argv: str) -> dict[str, object]:
        return json.loads(self.cluster.kubectl("get", *argv, "-o", "json"))


@pytest.fixture(scope="session")
def pagoda() -> Iterator[Pagoda]:
    """Installs what `make demo` installs, by the same functions."""
    cache = Path(os.environ.get("PAGODA_CACHE") or Path.home() / ".cache/pagoda")
    builder = ImageBuilder(ROOT, cache, lambda text: print(text, file=sys.stderr))
    model = install.train_tiny(ROOT)
    with running_cluster(nodes="kubelet") as running:
        cluster = install.Cluster(running.name)
        install.install_chart(builder, cluster, install.load_images(builder, cluster), ["--set", "gateway.auth.anonymous=true"])
        since = time.time()
        yield Pagoda(builder, cluster, running, install.gateway_url(cluster), model)
        nothing_refused(running, (OPERATOR, GATEWAY), since)


@pytest.fixture
def namespace(pagoda: Pagoda) -> Iterator[str]:
    name = pagoda.namespace()
    yield name
    # Services first, and waited for: until one is gone it holds its served names, and the next test's service of that name would stall.
    pagoda.cluster.kubectl("delete", "inferenceservices", "--all", "-n", name, "--timeout=300s")
    pagoda.cluster.kubectl("delete", "namespace", name, "--wait=false")
