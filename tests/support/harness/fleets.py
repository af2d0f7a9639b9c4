"""First services on fleets of the platforms' layouts: a real API server has the nodes and the replicas' pods, and the real scheduler says
which nodes take them. Each service has nodes of its own, which a label keeps apart from those of all others. No operator may run, as it
would remember these node pools."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack

from pagoda_devcluster.gpus import dra
from pagoda_devcluster.gpus.devices import allocatable
from pagoda_devcluster.gpus.labels import labels_of
from pagoda_devcluster.gpus.layout import NodeClass
from pagoda_operator.api.state import NODES, PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_SLICES, Resource
from support.harness.fake_nodes import CLASSES
from support.harness.first_services import First
from support.harness.platforms import classes, template
from support.kube.client import Body, Kube, eventually
from support.kube.fake_api import copied
from support.kube.namespace import Real
from support.kube.operator_process import NodeWithoutKubelet

FLEET, HOSTNAME = "test.pagoda.dev/fleet", "kubernetes.io/hostname"


def judge(real: Real, services: Iterable[First]) -> None:
    """Fails if the scheduler gives a replica a node that the service does not name, or refuses one that it names: first with the nodes
    that are there, then with one of each pool that had none, at last for each node by itself."""
    with ExitStack() as ending:
        for _, body in dra.device_classes():
            _create(real.kube, ending, CLASSES, body)
        fleets = [_Fleet(real, service, ending) for service in services]
        ending.callback(_end_pods, real)  # before their nodes leave
        _join(real, fleets, late=False)
        replicas = {fleet.replica(): fleet for fleet in fleets}
        _scheduled(real, {pod: fleet.takers() for pod, fleet in replicas.items()})
        _join(real, fleets, late=True)
        found = _scheduled(real, {pod: fleet.takers() for pod, fleet in replicas.items()})
        others = [(fleet, node) for pod, fleet in replicas.items() for node in fleet.nodes if node != found[pod]]
        _scheduled(real, {fleet.replica(node): fleet.takers() & {node} for fleet, node in others})


class _Fleet:
    """The nodes of one service's cluster. `nodes`: those that have joined."""

    def __init__(self, real: Real, service: First, ending: ExitStack) -> None:
        self._real, self._service, self._ending = real, service, ending
        self._name = service.title.lower().replace(".", "-")
        self._made = service.service()
        self.nodes: dict[str, NodeClass] = {}
        for body in self._made.api.of(RESOURCE_CLAIM_TEMPLATES):
            own = {"metadata": {"name": body["metadata"]["name"]}, "spec": body["spec"]}
            _create(real.kube, ending, RESOURCE_CLAIM_TEMPLATES, own, real.namespace)

    def takers(self) -> set[str]:
        """The nodes that are said to take a replica."""
        return {node for node, played in self.nodes.items() if played.name in self._service.where}

    def join(self, *, late: bool) -> None:
        """The nodes of pools that have some, or those of pools without."""
        for played in classes(self._service.cluster):
            if late == (played.weight == 0):
                self._join(f"{self._name}.{played.name}", played)

    def _join(self, name: str, played: NodeClass) -> None:
        room = {"cpu": str(played.cpu), "memory": f"{played.memory_gib}Gi", "pods": str(played.pods)}
        taints = [taint.model_dump() for taint in played.taints]
        meta = {"labels": labels_of(played) | {FLEET: self._name, HOSTNAME: name}}
        body = {"metadata": meta, "spec": {"taints": taints}, "status": {"capacity": allocatable(played, name) | room}}
        node = NodeWithoutKubelet(self._real.kube, name, body)
        node.register()
        self._ending.callback(node.leave)
        self.nodes[name] = played
        if not played.device_plugin:
            live = self._real.kube.get(NODES, "", name)
            placed = dra.resource_slice(played, name, live["metadata"]["uid"]) if live else None
            assert placed is not None
            _create(self._real.kube, self._ending, RESOURCE_SLICES, placed[1])

    def replica(self, node: str = "") -> str:
        """A pod as the operator makes it, that may go to any of the nodes or to that one alone."""
        return self._pod(f"{node or self._name}-replica", template(self._made)["spec"], {HOSTNAME: node} if node else {FLEET: self._name})

    def probe(self, node: str) -> str:
        """A pod that nothing keeps off that node, once the scheduler knows the node."""
        spec = copied(template(self._made)["spec"])
        spec["tolerations"] = [{"key": taint.key, "operator": "Exists"} for taint in self.nodes[node].taints]
        for key in ("affinity", "resourceClaims"):
            spec.pop(key, None)
        for container in spec["containers"]:
            container.pop("resources")
        return self._pod(f"{node}-probe", spec, {HOSTNAME: node})

    def _pod(self, name: str, spec: Body, where: Body) -> str:
        pinned = spec | {"nodeSelector": spec.get("nodeSelector", {}) | where}
        meta = {"name": name, "labels": template(self._made)["metadata"]["labels"]}
        self._real.kube.create(PODS, self._real.namespace, {"metadata": meta, "spec": pinned})
        return name


def _create(kube: Kube, ending: ExitStack, resource: Resource, body: Body, namespace: str = "") -> None:
    kube.create(resource, namespace, body)
    ending.callback(kube.delete, resource, namespace, body["metadata"]["name"])


def _join(real: Real, fleets: list[_Fleet], *, late: bool) -> None:
    """Those that take no replica are probed, so that the scheduler refuses them for what they are, and not because it has not seen them."""
    before = {node for fleet in fleets for node in fleet.nodes}
    for fleet in fleets:
        fleet.join(late=late)
    unnamed = [(fleet, node) for fleet in fleets for node in fleet.nodes.keys() - before - fleet.takers()]
    _scheduled(real, {fleet.probe(node): {node} for fleet, node in unnamed})


def _scheduled(real: Real, wanted: Mapping[str, set[str]]) -> dict[str, str]:
    """The node of each pod, one of those that it may have; empty if it may have none and the scheduler found none."""
    found: dict[str, str] = {}
    words: dict[str, str] = {}

    def right() -> bool:
        for pod in real.pods():
            name, said = pod["metadata"]["name"], _unschedulable(pod)
            if node := pod["spec"].get("nodeName"):
                found[name] = node
            elif said:
                found[name], words[name] = "", said
        return all(found.get(pod) in (nodes or {""}) for pod, nodes in wanted.items())

    try:
        eventually(right, "the scheduler's verdict is ours")
    except AssertionError as error:
        wrong = {pod: (nodes, found.get(pod), words.get(pod)) for pod, nodes in wanted.items() if found.get(pod) not in (nodes or {""})}
        raise AssertionError(f"pod: our verdict, the scheduler's, its words: {wrong}") from error
    return found


def _unschedulable(pod: Body) -> str:
    conditions = pod["status"].get("conditions", [])
    return next((one["message"] for one in conditions if one["type"] == "PodScheduled" and one.get("reason") == "Unschedulable"), "")


def _end_pods(real: Real) -> None:
    real.kube.request("DELETE", f"/api/v1/namespaces/{real.namespace}/pods", json={"gracePeriodSeconds": 0})
    eventually(lambda: not real.pods(), "the pods are gone")
