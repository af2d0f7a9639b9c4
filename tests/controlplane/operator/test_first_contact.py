"""The first service on clusters as providers make them, with the chart's default profile: the operator with a real API server and
scheduler, nodes of the platforms' layouts. test_platforms.py asks the scheduler about services on all of them."""

from contextlib import contextmanager

import pytest
from pagoda_operator.api.state import DEPLOYMENTS, PROFILES
from support.harness.fake_nodes import inspected, replicas
from support.harness.inventories import gpu
from support.harness.placing import ENGINE
from support.harness.platforms import default_profile, nodes
from support.kube.client import eventually
from support.kube.fake_api import running
from support.kube.operator_process import NodeWithoutKubelet

pytestmark = pytest.mark.cluster


@pytest.fixture
def service(real):
    real.kube.merge(
        PROFILES, "", real.namespace, {"spec": default_profile(images={"daemon": "localhost/d:1", "fetch": "localhost/f:1"})["spec"]}
    )
    return real


@contextmanager
def joined(service, layout, name, **size):
    """A node of one of the layout's classes, as large as the machine is."""
    (body,) = [one for one in nodes(layout, 0) if one["metadata"]["name"] == name]
    devices = {key: count for key, count in body["status"]["capacity"].items() if "/" in key}
    labels = {key: value for key, value in body["metadata"]["labels"].items() if key != "kubernetes.io/hostname"}
    own = {"metadata": {"labels": labels}, "spec": body["spec"], "status": {"capacity": devices | size}}
    fake = NodeWithoutKubelet(service.kube, f"{layout.rpartition('/')[2]}-{name}", own)
    fake.register()
    try:
        yield fake
    finally:
        fake.leave()


def served(service, fake):
    (pod,) = replicas(service, fake, 1)
    service.node.report(pod, running(ready=True))
    service.reported(Ready="Available")


def test_the_first_node_of_a_pool_comes_for_the_pod_that_waits_for_it(service, operator):
    with joined(service, "platforms/gke-zero", "cpu", cpu="1m"):
        service.apply(accelerators=[gpu("L4")], engine=ENGINE)
        inspected(service)
        waits = service.reported(Reconciling="WaitingForNodes")["Reconciling"]["message"]
        assert "the pods ask for 1 nvidia.com/gpu on a node with cloud.google.com/gke-accelerator=nvidia-l4" in waits
        (pod,) = eventually(service.pods, "the pod that an autoscaler sees")
        before = [one["metadata"]["name"] for one in service.kube.list(DEPLOYMENTS, service.namespace)]
        with joined(service, "platforms/gke-zero", "l4", cpu="7910m", memory="28Gi") as fake:
            served(service, fake)
            assert [one["metadata"]["name"] for one in service.pods()] == [pod["metadata"]["name"]]
            assert [one["metadata"]["name"] for one in service.kube.list(DEPLOYMENTS, service.namespace)] == before


def test_gpus_that_no_discovery_labels_are_found_by_their_machine_type_behind_a_taint(service, operator):
    with joined(service, "platforms/aks", "a100", cpu="23", memory="200Gi") as fake:
        service.apply(accelerators=[gpu("A100")], engine=ENGINE)
        inspected(service)
        served(service, fake)
        assert service.service()["status"]["placement"]["device"] == "NVIDIA-A100-80GB-PCIe, 74.5 GiB"
