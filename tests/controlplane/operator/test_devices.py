"""Services on devices against a real API server and scheduler: nodes of the layout h100-mixed that no kubelet stands behind."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pagoda_devcluster.gpus import dra
from pagoda_operator.api.state import DEPLOYMENTS, PODS, RESOURCE_CLAIM_TEMPLATES, Resource
from support.harness.fake_nodes import MIXED, WHOLE, device_driver, device_node, inspected, replicas, templates_gone, tolerate
from support.harness.inventories import dra_of, gpu, mig
from support.harness.placing import ENGINE
from support.kube.client import eventually
from support.kube.fake_api import crashed, running

pytestmark = pytest.mark.cluster
# Of products that no other test's nodes have, which would be remembered.
SMALL, LARGE = (
    WHOLE.model_copy(update={"gpu": WHOLE.gpu.model_copy(update={"product": product, "memory_mib": size})})
    for product, size in (("Corp-X1", 1024), ("Corp-X1-Large", 81559))
)


@pytest.fixture
def service(real):
    return tolerate(real)


def asked(real):
    (deployment,) = real.kube.list(DEPLOYMENTS, real.namespace)
    return deployment["spec"]["template"]["spec"]


def pagoda(real, *words):
    """What the command line prints of the cluster."""
    own = [*words, "--namespace", real.namespace, "--kubeconfig", str(real.cluster.kubeconfig)]
    program = str(Path(sys.executable).parent / "pagoda")
    paths = f"{real.cluster.bin}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run([program, *own], capture_output=True, text=True, check=True, env=os.environ | {"PATH": paths})
    return done.stdout.splitlines()


def planned(real, folder):
    """What `pagoda plan` prints of the service as it is."""
    body = real.service()
    (folder / "service.json").write_text(json.dumps({name: body[name] for name in ("apiVersion", "kind", "metadata", "spec")}))
    return pagoda(real, "plan", "-f", str(folder / "service.json"))


def test_the_smallest_slice_that_fits_is_asked_for_and_the_scheduler_finds_it(service, operator):
    with device_node(service.kube, MIXED, "h100-a") as fake:
        service.apply(accelerators=[mig(least="1Gi")], engine=ENGINE, replicas=4)
        assert inspected(service)["spec"]["containers"][0]["args"] == ["inspect", "pvc://models/tiny"]
        pods = replicas(service, fake, 4)
        assert asked(service)["containers"][0]["resources"]["limits"] == {"nvidia.com/mig-1g.10gb": "1"}
        for pod in pods:
            service.node.report(pod, running(ready=True))
        service.reported(Ready="Available")
        reported = service.service()["status"]["placement"]
        assert (reported["chosen"], reported["device"]) == ("mig[0]", "mig-1g.10gb, 9.8 GiB")


def test_what_never_fits_stalls_with_numbers_and_a_new_node_resolves_it_at_once(service, operator):
    with device_node(service.kube, SMALL, "small-a"):
        service.apply(accelerators=[gpu("X1")], engine=ENGINE)
        inspected(service)
        reported = service.reported(Stalled="NoAccelerator")["Stalled"]["message"]
        assert re.search(r"gpu\[0\]: Corp-X1: needs \d\.\d GiB for weights \+ 1 request at 4,096 tokens, has 1\.0 GiB", reported)
        with device_node(service.kube, LARGE, "large-a") as fake:
            (pod,) = replicas(service, fake, 1)
            assert service.reported(Reconciling="PullingImage")
            service.node.report(pod, crashed(message="ConfigRejected: too large"))
            eventually(service.end_pods, "the replica that no restart would help goes")
            assert (
                "ConfigRejected: too large; its devices are given back" in service.reported(Stalled="ModelRejected")["Stalled"]["message"]
            )
            assert [body["spec"]["replicas"] for body in service.kube.list(DEPLOYMENTS, service.namespace)] == [0]


def test_slices_that_others_hold_are_waited_for_and_taken_when_they_are_free(service, operator, tmp_path):
    with device_node(service.kube, MIXED, "h100-a") as fake:
        holder = {"name": "c", "image": "i", "resources": {"limits": {"nvidia.com/mig-3g.40gb": "2"}}}
        body = {"metadata": {"name": "holder"}, "spec": {"nodeName": "h100-a", "containers": [holder]}}
        service.kube.create(PODS, "default", body)
        service.apply(accelerators=[mig("3g.40gb"), {"cpu": {"cores": "1", "memory": "1Gi"}}], engine=ENGINE)
        inspected(service)
        waiting = service.reported(Reconciling="WaitingForCapacity")["Reconciling"]["message"]
        assert "mig[0] since " in waiting
        assert "mig-3g.40gb: all 2 devices are in use" in waiting
        page = pagoda(service, "why", "service/tiny")
        assert f"service {service.namespace}/tiny: 0 of 1 replicas ready" in page
        assert "  chosen: mig[0] (mig-3g.40gb, 39.5 GiB)" in page
        assert any(line.startswith("  waiting for mig[0] since ") for line in page)
        assert json.loads("\n".join(pagoda(service, "why", "service/tiny", "-o", "json")))["placement"]["chosen"] == "mig[0]"
        plan = planned(service, tmp_path)
        assert plan[0].startswith(f"service {service.namespace}/tiny: WaitingForCapacity: waiting for mig[0] since ")
        assert "  mig[0]: no room now: mig-3g.40gb: all 2 devices are in use" in plan
        service.kube.delete(PODS, "default", "holder", grace=0)
        replicas(service, fake, 1)
        service.reported(Reconciling="PullingImage")
        assert planned(service, tmp_path)[0].endswith("mig[0] (mig-3g.40gb, 39.5 GiB): room for 2 replicas, 1 wanted")
        assert "waiting" not in service.service()["status"]["placement"]


def test_a_claim_is_made_for_each_pod_and_the_scheduler_allocates_the_slice_that_was_judged(service, operator):
    with device_node(service.kube, MIXED, "h100-a") as fake, device_driver(service.kube, MIXED, "h100-a"):
        service.apply(accelerators=[dra_of("mig.nvidia.com")], engine=ENGINE)
        inspected(service)
        replicas(service, fake, 1)
        (claims,) = service.kube.list(RESOURCE_CLAIM_TEMPLATES, service.namespace)
        assert "profile == '1g.10gb'" in json.dumps(claims["spec"])
        claim = Resource(dra.API, "ResourceClaim", "resourceclaims")
        (held,) = service.kube.list(claim, service.namespace)
        assert held["status"]["allocation"]["devices"]["results"][0]["device"].startswith("gpu-2-mig-1g-10gb")
        # What the model that was inspected really takes: 2.8 GiB.
        service.edit(accelerators=[{"cpu": {"cores": "1", "memory": "4Gi"}}])
        eventually(lambda: templates_gone(service), "no template left")
