"""GPUs that are played on the kubelet node: real scheduler, real kubelet, devices out of a layout file."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pagoda_devcluster.binaries import recipe
from pagoda_devcluster.gpus import devices, layout
from pagoda_devcluster.machine import processes
from pagoda_devcluster.providers.status import load_spec
from support.kube.client import Kube, eventually
from support.kube.cluster import Cluster, running_cluster
from support.kube.operator_process import NodeWithoutKubelet

pytestmark = [pytest.mark.cluster, pytest.mark.skipif(os.geteuid() != 0, reason="a kubelet node needs root")]

FILE = recipe.of_checkout().folder / "layouts" / "h100-mixed.yaml"
MIG = "nvidia.com/mig-3g.40gb"
SLICES = "resourceslices.resource.k8s.io"

START = """
import sys
from pathlib import Path
from pagoda_devcluster.render import node_config
from pagoda_devcluster.machine import processes
from pagoda_devcluster.providers import status
spec = status.load_spec(Path(sys.argv[1]))
kubelet = next(one for one in node_config.node_processes(spec) if one.name == "kubelet")
processes.spawn(spec, kubelet, int(sys.argv[2]))
"""


@pytest.fixture(scope="module")
def gpus(probe_binary: bytes, write_probe: Callable[[Path], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster("kubelet", FILE) as running:
        running.tool("load-image", str(write_probe(tmp_path_factory.mktemp("image"))))
        yield running


@pytest.fixture
def space(gpus: Cluster, new_namespace) -> Iterator[Any]:
    created = new_namespace(gpus)
    yield created
    gpus.kubectl("delete", "namespace", created.name, "--timeout=300s")


def node_of(gpus: Cluster) -> dict[str, Any]:
    return gpus.get("node", gpus.status["node"]["name"])


def test_the_node_offers_what_the_layout_says(gpus):
    node, played = node_of(gpus), layout.read(FILE).kubelet_class
    expected = devices.allocatable(played, "n")
    assert {name: count for name, count in node["status"]["allocatable"].items() if name.startswith("nvidia.com/")} == expected
    assert node["metadata"]["labels"]["nvidia.com/mig-3g.40gb.count"] == "2"
    assert {entry["metadata"]["name"] for entry in gpus.get("deviceclasses")["items"]} >= {"gpu.nvidia.com", "mig.nvidia.com"}
    (slice_,) = gpus.get(SLICES)["items"]
    assert len(slice_["spec"]["devices"]) == 10


def test_slices_are_given_out_once_and_then_there_are_none(space):
    for name in ("one", "two", "three"):
        space.pod(name, "serve", ":8000", "x", limits={MIG: 1})
    space.kubectl("wait", "pod/one", "pod/two", "--for=condition=Ready", "--timeout=300s")
    space.kubectl("wait", "pod/three", "--for=jsonpath={.status.conditions[0].reason}=Unschedulable", "--timeout=300s")
    given = [environment(space, name)["NVIDIA_VISIBLE_DEVICES"] for name in ("one", "two")]
    assert len(set(given)) == 2
    assert all(uuid.startswith("MIG-") for uuid in given)
    space.kubectl("delete", "pod", "one")
    space.kubectl("wait", "pod/three", "--for=condition=Ready", "--timeout=300s")
    assert environment(space, "three")["NVIDIA_VISIBLE_DEVICES"] == given[0]


@pytest.fixture
def decoy(gpus: Cluster) -> Iterator[str]:
    """A second node, with more room than the first and no GPU. Nothing runs there; that a pod is bound to it is the point. Its heart beats:
    one that is silent is tainted within a minute."""
    name, kube = "decoy", Kube(gpus.kubeconfig)
    room = {"cpu": "512", "memory": "4096Gi", "pods": "250"}
    fake = NodeWithoutKubelet(kube, name, {"metadata": {"labels": {"kubernetes.io/hostname": name}}, "status": {"capacity": room}})
    fake.register()
    eventually(lambda: not gpus.get("node", name)["spec"].get("taints"), "the decoy takes pods")
    yield name
    fake.leave()
    kube.close()


def test_a_slice_lands_only_on_the_node_whose_layout_offers_it(space, gpus, decoy, scheduling):
    # The decoy takes pods, or that nothing lands there would show nothing.
    space.pod("plain", "serve", ":8000", "x", nodeSelector={"kubernetes.io/hostname": decoy})
    space.kubectl("wait", "pod/plain", "--for=jsonpath={.spec.nodeName}=decoy", "--timeout=300s")
    for name in ("one", "two", "three"):
        space.pod(name, "serve", ":8000", "x", limits={MIG: 1})
    space.kubectl("wait", "pod/one", "pod/two", "--for=condition=Ready", "--timeout=300s")
    placed = {space.kubectl("get", "pod", name, "-o", "jsonpath={.spec.nodeName}") for name in ("one", "two")}
    assert placed == {gpus.status["node"]["name"]}
    space.kubectl("wait", "pod/three", "--for=jsonpath={.status.conditions[0].reason}=Unschedulable", "--timeout=300s")
    assert f"0/2 nodes are available: 2 Insufficient {MIG}" in scheduling(space, "three")
    # Nobody will confirm its end on a node that is none.
    space.kubectl("delete", "pod", "plain", "--force", "--grace-period=0")


def environment(space: Any, pod: str) -> dict[str, str]:
    raw = space.kubectl("exec", pod, "--", "/probe", "read", "/proc/1/environ").partition(" ")[2]
    return dict(entry.split("=", 1) for entry in raw.strip("\0\n").split("\0"))


def test_a_profile_that_the_layout_does_not_offer_is_found_nowhere(space):
    space.pod("wide", "serve", ":8000", "x", limits={"nvidia.com/mig-7g.80gb": 1})
    space.kubectl("wait", "pod/wide", "--for=jsonpath={.status.conditions[0].reason}=Unschedulable", "--timeout=300s")


def test_a_pod_with_a_claim_runs_on_the_slice_that_was_allocated(space):
    chosen = "device.attributes['gpu.nvidia.com'].profile == '2g.20gb'"
    exactly = {"deviceClassName": "mig.nvidia.com", "selectors": [{"cel": {"expression": chosen}}]}
    spec = {"devices": {"requests": [{"name": "slice", "exactly": exactly}]}}
    claim = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "mine"}, "spec": spec}
    space.kubectl("apply", "-f", "-", input=json.dumps(claim))
    space.pod("claimant", "serve", ":8000", "x", resourceClaims=[{"name": "gpu", "resourceClaimName": "mine"}])
    space.kubectl("wait", "pod/claimant", "--for=condition=Ready", "--timeout=300s")
    found = json.loads(space.kubectl("get", "resourceclaim", "mine", "-o", "json"))
    (result,) = found["status"]["allocation"]["devices"]["results"]
    assert "-mig-2g-20gb-" in result["device"]


def test_devices_outlive_a_kubelet_that_is_killed_and_started_anew(gpus, space):
    """Resources patched into a node's status would vanish here, and the kubelet wipes the node's slices as it starts."""
    space.pod("before", "serve", ":8000", "x", limits={MIG: 1})
    space.kubectl("wait", "pod/before", "--for=condition=Ready", "--timeout=300s")
    (slice_,) = gpus.get(SLICES)["items"]
    registered = registrations(gpus)
    restart_kubelet(gpus)
    # More of them where the kubelet was not ready for one.
    eventually(lambda: registrations(gpus) >= registered + 4, "its plugins registered anew")
    eventually(
        lambda: [one["metadata"]["uid"] for one in gpus.get(SLICES)["items"]] not in ([], [slice_["metadata"]["uid"]]), "slices anew"
    )
    eventually(lambda: node_of(gpus)["status"]["allocatable"].get(MIG) == "2", "devices again")
    space.pod("after", "serve", ":8000", "x", limits={MIG: 1})
    space.kubectl("wait", "pod/before", "pod/after", "--for=condition=Ready", "--timeout=300s")
    assert environment(space, "before") != environment(space, "after")
    assert json.loads(space.kubectl("get", "pod", "before", "-o", "json"))["status"]["containerStatuses"][0]["restartCount"] == 0


def registrations(gpus: Cluster) -> int:
    return gpus.tool("logs", "gpu-plugin", "-n", "1000").count(" registered ")


def restart_kubelet(gpus: Cluster) -> None:
    spec = load_spec(Path(gpus.status["folder"]))
    assert spec
    running = processes.of_cluster(spec.root)
    old = [one.pid for one in running if one.name == "kubelet" and one.command == "kubelet"]
    assert len(old) == 1
    os.kill(old[0], signal.SIGKILL)
    eventually(lambda: not any(one.name == "kubelet" for one in processes.of_cluster(spec.root)), "its end")
    # In a process of its own, which ends: the kubelet must not be this one's child.
    subprocess.run([sys.executable, "-P", "-c", START, str(spec.root), str(processes.init_of(running))], check=True)
