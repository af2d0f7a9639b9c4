"""A fleet of nodes that pretend, under the real scheduler and the real controllers. Needs no root."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pagoda_devcluster.binaries import recipe
from pagoda_devcluster.cluster import waiting
from pagoda_devcluster.fake.plays import PLAY, PLAY_PODS
from support.kube.client import eventually
from support.kube.cluster import Cluster, running_cluster

pytestmark = pytest.mark.cluster

FILE = recipe.of_checkout().folder / "layouts" / "h100-mixed.yaml"
MIG = "nvidia.com/mig-3g.40gb"
CLASS = "devcluster.pagoda.dev/class"


@pytest.fixture(scope="module")
def fleet() -> Iterator[Cluster]:
    with running_cluster("fake:12", FILE) as running:
        yield running


@pytest.fixture
def space(fleet: Cluster, new_namespace: Callable[[Cluster], Any]) -> Iterator[Any]:
    created = new_namespace(fleet)
    yield created
    fleet.kubectl("annotate", "nodes", "--all", f"{PLAY}-", f"{PLAY_PODS}-")
    fleet.kubectl("delete", "namespace", created.name, "--wait=false")


def deploy(space: Any, name: str, replicas: int, limits: dict[str, int] | None = None, **annotations: str) -> None:
    security = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    container = {"name": "main", "image": "none", "resources": {"limits": limits or {}}, "securityContext": security}
    pod_security = {"runAsNonRoot": True, "runAsUser": 65534, "seccompProfile": {"type": "RuntimeDefault"}}
    metadata = {"labels": {"app": name}, "annotations": {f"devcluster.pagoda.dev/{key}": value for key, value in annotations.items()}}
    template = {
        "metadata": metadata,
        "spec": {"containers": [container], "securityContext": pod_security, "terminationGracePeriodSeconds": 1},
    }
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template}
    body = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}
    space.kubectl("apply", "-f", "-", input=json.dumps(body))


def wait(space: Any, what: str, condition: str, *more: str) -> None:
    space.kubectl("wait", what, f"--for={condition}", "--timeout=300s", *more)


def pods(space: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(space.kubectl("get", "pods", "-o", "json"))["items"]
    return found


def test_every_node_is_ready_and_offers_what_its_class_has(fleet):
    nodes = fleet.get("nodes")["items"]
    counts = {name: sum(node["metadata"]["labels"][CLASS] == name for node in nodes) for name in ("h100-mixed", "h100-whole", "cpu")}
    assert counts == {"h100-mixed": 4, "h100-whole": 4, "cpu": 4}
    assert {node["status"]["allocatable"].get(MIG) for node in nodes if node["metadata"]["labels"][CLASS] != "h100-mixed"} == {None}
    # Each kubelet publishes its own a moment after it said that it is ready.
    eventually(lambda: len(fleet.get("resourceslices.resource.k8s.io")["items"]) == 8, "a slice of devices for each node that has some")


def test_a_deployment_becomes_available_and_its_pods_have_addresses_of_their_own(space):
    deploy(space, "web", 60)
    wait(space, "deployment/web", "condition=Available")
    addresses = [pod["status"]["podIP"] for pod in pods(space)]
    assert len(set(addresses)) == 60


def test_slices_are_taken_only_where_the_layout_offers_them(space, fleet):
    deploy(space, "slices", 9, {MIG: 1})
    wait(space, "deployment/slices", "jsonpath={.status.readyReplicas}=8")
    classes = {node["metadata"]["name"]: node["metadata"]["labels"][CLASS] for node in fleet.get("nodes")["items"]}
    placed = [classes[pod["spec"]["nodeName"]] for pod in pods(space) if "nodeName" in pod["spec"]]
    assert placed == ["h100-mixed"] * 8
    left = next(pod["metadata"]["name"] for pod in pods(space) if "nodeName" not in pod["spec"])
    wait(space, f"pod/{left}", "jsonpath={.status.conditions[0].reason}=Unschedulable")


def test_a_claim_is_allocated_by_the_real_scheduler(space):
    chosen = "device.attributes['gpu.nvidia.com'].profile == '3g.40gb'"
    exactly = {"deviceClassName": "mig.nvidia.com", "selectors": [{"cel": {"expression": chosen}}]}
    claim = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "mine"}}
    space.kubectl("apply", "-f", "-", input=json.dumps(claim | {"spec": {"devices": {"requests": [{"name": "s", "exactly": exactly}]}}}))
    space.pod("claimant", resourceClaims=[{"name": "gpu", "resourceClaimName": "mine"}])
    wait(space, "pod/claimant", "condition=Ready")


@pytest.mark.parametrize(
    ("play", "path", "value"),
    [
        ("image-pull-backoff", "state.waiting.reason", "ImagePullBackOff"),
        ("crash-loop", "state.waiting.reason", "CrashLoopBackOff"),
        ("oom-killed", "lastState.terminated.reason", "OOMKilled"),
    ],
)
def test_a_ready_pod_fails_and_recovers(space, play, path, value):
    deploy(space, "web", 1)
    wait(space, "deployment/web", "condition=Available")
    space.kubectl("annotate", "pods", "--all", f"{PLAY}={play}")
    wait(space, "pods", f"jsonpath={{.status.containerStatuses[0].{path}}}={value}", "--all")
    wait(space, "deployment/web", "condition=Available=False")
    space.kubectl("annotate", "pods", "--all", f"{PLAY}-")
    wait(space, "deployment/web", "condition=Available")


def test_a_pod_is_stuck_terminating_until_it_is_let_go(space):
    deploy(space, "web", 1, play="stuck-terminating")
    wait(space, "deployment/web", "condition=Available")
    (pod,) = pods(space)
    name = pod["metadata"]["name"]
    space.kubectl("scale", "deployment/web", "--replicas=0")
    wait(space, f"pod/{name}", "jsonpath={.metadata.deletionTimestamp}")
    with pytest.raises(RuntimeError, match=r"timed out|deadline exceeded"):
        space.kubectl("wait", f"pod/{name}", "--for=delete", "--timeout=3s")
    space.kubectl("annotate", "pod", name, f"{PLAY}-")
    wait(space, f"pod/{name}", "delete")


def test_a_node_goes_down_with_its_pods_and_comes_back(space, fleet):
    deploy(space, "web", 1)
    wait(space, "deployment/web", "condition=Available")
    (pod,) = pods(space)
    node = pod["spec"]["nodeName"]
    fleet.kubectl("annotate", "node", node, f"{PLAY}=not-ready")
    wait(space, f"node/{node}", "condition=Ready=Unknown")
    wait(space, f"pod/{pod['metadata']['name']}", "condition=Ready=False")
    # By the real node controller, as for a real node.
    wait(space, f"node/{node}", "jsonpath={.spec.taints[?(@.effect=='NoExecute')].key}=node.kubernetes.io/unreachable")
    fleet.kubectl("annotate", "node", node, f"{PLAY}-")
    wait(space, f"pod/{pod['metadata']['name']}", "condition=Ready")


def test_without_devices_nothing_lands_until_they_are_back(space, fleet):
    fleet.kubectl("annotate", "nodes", "--all", f"{PLAY}=no-devices")
    wait(space, "nodes", f"jsonpath={{.status.allocatable.{MIG.replace('.', chr(92) + '.')}}}=0", "-l", f"{CLASS}=h100-mixed")
    deploy(space, "slices", 1, {MIG: 1})
    space.wait_for_pods("app=slices", "jsonpath={.status.conditions[0].reason}=Unschedulable")
    fleet.kubectl("annotate", "nodes", "--all", f"{PLAY}-")
    wait(space, "deployment/slices", "condition=Available")


def test_a_fleet_at_rest_writes_nothing(space, fleet):
    """Between two marks in the log: what a fake kubelet would send for its own sake is a heartbeat, and there is none. By the times at
    which the API server received them: it may log the last write of before after the first mark."""
    deploy(space, "web", 20)
    wait(space, "deployment/web", "condition=Available")
    wait(space, "deployment/web", "jsonpath={.status.readyReplicas}=20")
    begin = mark(fleet, space, "begin")
    wait(space, "deployment/web", "condition=Available")
    end = mark(fleet, space, "end")
    received = [event["requestReceivedTimestamp"] for event in played(fleet, space.name)]
    assert len(received) > 20
    assert [time for time in received if begin < time < end] == []


def mark(fleet: Cluster, space: Any, name: str) -> str:
    """When the API server heard of a ConfigMap that is made now."""
    space.kubectl("create", "configmap", name)

    def times() -> list[str]:
        made = (event for event in fleet.audit(user="kubernetes-admin") if event["objectRef"].get("name") == name)
        return [event["requestReceivedTimestamp"] for event in made]

    assert waiting.until(lambda: bool(times()), 300)
    return times()[-1]


def played(fleet: Cluster, namespace: str) -> list[dict[str, Any]]:
    """Writes to nodes and to this namespace; those of earlier tests may still be going."""
    writes = fleet.audit(user="pagoda-devcluster-player")
    return [event for event in writes if event["objectRef"].get("namespace", namespace) == namespace]
