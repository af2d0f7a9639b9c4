"""Nodes with devices on a real API server, played by the test: what placement reads, and what the kubelet of an inspecting pod tells."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pagoda_devcluster.gpus import devices, dra, labels, layout
from pagoda_devcluster.gpus.layout import NodeClass
from pagoda_operator.api.state import NODES, PODS, PROFILES, RESOURCE_CLAIM_TEMPLATES, RESOURCE_SLICES, Resource
from pagoda_operator.decide.render.inspection import CONTAINER
from support.harness.placing import LLAMA_CONFIG
from support.kube.client import Body, Kube, eventually
from support.kube.fake_api import running
from support.kube.namespace import Real
from support.kube.operator_process import NodeWithoutKubelet

LAYOUT = Path(__file__).parents[3] / "devcluster/layouts/h100-mixed.yaml"
TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
TOLERATION = {"key": "nvidia.com/gpu", "operator": "Exists"}
CLASSES = Resource(dra.API, "DeviceClass", "deviceclasses")
MIXED, WHOLE, _ = layout.parse(LAYOUT.read_text(), str(LAYOUT)).classes
REPORT = json.dumps({"config": LLAMA_CONFIG})


@contextmanager
def device_node(kube: Kube, played: NodeClass, name: str, **room: str) -> Iterator[NodeWithoutKubelet]:
    """A node of a layout's class, with other room beside its devices where told; its taint keeps the other tests' pods away."""
    meta, capacity = {"name": name, "labels": labels.labels_of(played)}, devices.allocatable(played, name) | room
    fake = NodeWithoutKubelet(kube, name, {"metadata": meta, "spec": {"taints": [TAINT]}, "status": {"capacity": capacity}})
    fake.register()
    try:
        yield fake
    finally:
        fake.leave()


@contextmanager
def device_driver(kube: Kube, played: NodeClass, name: str) -> Iterator[None]:
    """What a DRA driver publishes for that node, and the classes that it comes with."""
    live = kube.get(NODES, "", name)
    placed = dra.resource_slice(played, name, live["metadata"]["uid"]) if live else None
    assert placed is not None
    kube.create(RESOURCE_SLICES, "", placed[1])
    made = [kube.create(CLASSES, "", body) for _, body in dra.device_classes()]
    try:
        yield
    finally:
        kube.delete(RESOURCE_SLICES, "", placed[1]["metadata"]["name"])
        for one in made:
            kube.delete(CLASSES, "", one["metadata"]["name"])


def tolerate(real: Real) -> Real:
    """The namespace's profile bears the taint and can inspect."""
    spec = {"images": {"daemon": "localhost/daemon:1", "fetch": "localhost/fetch:1"}, "tolerations": [TOLERATION]}
    real.kube.merge(PROFILES, "", real.namespace, {"spec": spec})
    return real


def inspecting(real: Real) -> Body | None:
    found = [pod for pod in real.pods() if pod["metadata"]["name"].startswith("tiny-inspect-")]
    return found[0] if found else None


def reported_by_inspection(real: Real, code: int = 0, message: str = REPORT) -> Body:
    """Waits for the inspecting pod and says what its kubelet would: how the container ended, with what in its termination message."""
    pod = eventually(lambda: inspecting(real), "an inspecting pod")
    ended = {"exitCode": code, "message": message, "startedAt": None, "finishedAt": None}
    reported = {"name": CONTAINER, "state": {"terminated": ended}, "image": "i", "imageID": "", "ready": False, "restartCount": 0}
    status = {"phase": "Failed" if code else "Succeeded", "containerStatuses": [reported]}
    real.kube.merge(PODS, real.namespace, pod["metadata"]["name"], {"status": status}, "status")
    return pod


def inspected(real: Real, config: Any = LLAMA_CONFIG) -> Body:
    """A model of 1.2 B parameters, or another one; the pod that told it is gone."""
    pod = reported_by_inspection(real, message=json.dumps({"config": config}))
    eventually(lambda: inspecting(real) is None, "the inspecting pod gone")
    return pod


def replicas(real: Real, fake: NodeWithoutKubelet, count: int) -> list[Body]:
    """Pods of the service on a node, as the scheduler bound them."""
    return fake.placed(real.namespace, count, "app.kubernetes.io/component=replica")


def templates_gone(real: Real) -> bool:
    """Plays the kubelets: pods that have a node get ready, deleted ones end; whether the last claim template went."""
    for pod in real.pods():
        if pod["spec"].get("nodeName") and "deletionTimestamp" not in pod["metadata"]:
            real.node.report(pod, running(ready=True))
    real.end_pods()
    return not real.kube.list(RESOURCE_CLAIM_TEMPLATES, real.namespace)
