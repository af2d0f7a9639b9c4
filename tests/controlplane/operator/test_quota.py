"""TenantQuota against the real API server, scheduler and garbage collector, with the chart's own role."""

import re
import uuid

import pytest
from pagoda_contracts.names import ANNOTATION_DEVICE_FAULT, ANNOTATION_DEVICES, API_VERSION
from pagoda_operator.api.state import DEPLOYMENTS, PODS, PROFILES, QUOTAS, RESOURCE_CLAIMS, RESOURCE_QUOTAS
from support.kube.client import eventually
from support.kube.namespace import Real

pytestmark = pytest.mark.cluster
SLICE = "1g.10gb"
# Replicas run on CPU and are charged for a slice each by their profile.
TEMPLATE = {"metadata": {"annotations": {ANNOTATION_DEVICES: f"mig-{SLICE}=1"}}}


@pytest.fixture
def quota(real):
    """Two slices for the namespace."""
    real.kube.merge(PROFILES, "", real.namespace, {"spec": {"podTemplate": TEMPLATE}})
    devices = {"migSlices": [{"profile": SLICE, "count": 2}], "resourceQuota": True}
    spec = {"subjects": {"namespaces": [real.namespace]}, "devices": devices}
    body = {"apiVersion": API_VERSION, "kind": QUOTAS.kind, "metadata": {"name": real.namespace}, "spec": spec}
    yield real.kube.create(QUOTAS, "", body)
    real.kube.delete(QUOTAS, "", real.namespace)


def limit(real, count):
    devices = {"migSlices": [{"profile": SLICE, "count": count}]}
    real.kube.merge(QUOTAS, "", real.namespace, {"spec": {"devices": devices}})


def wanted(real):
    return [deployment["spec"]["replicas"] for deployment in real.kube.list(DEPLOYMENTS, real.namespace)]


def test_a_service_gets_what_its_tenant_has_left_and_says_what_is_missing(real, operator, quota):
    def reported():
        return real.kube.get(QUOTAS, "", real.namespace).get("status", {})

    def reported_held(count):
        return reported().get("usage", {}).get("migSlices") == [{"profile": SLICE, "count": count}]

    eventually(lambda: reported_held(0), "the quota's first status")
    (native,) = [
        found for found in real.kube.list(RESOURCE_QUOTAS, real.namespace) if found["metadata"]["name"] == f"pagoda-{real.namespace}"
    ]
    assert native["spec"]["hard"] == {f"requests.nvidia.com/mig-{SLICE}": "2"}
    real.apply(replicas=3)
    real.node.placed(real.namespace, 2)
    end = f"of 3 replicas ready: TenantQuota {real.namespace} allows 2 {SLICE} slices, and 2 are in use"
    eventually(lambda: real.reported(Stalled="QuotaExceeded")["Stalled"]["message"].endswith(end), "what is held is said")
    assert wanted(real) == [2]
    limit(real, 3)
    real.serve(3)
    assert real.reported(Ready="Available")["Stalled"]["status"] == "False"
    eventually(
        lambda: (
            real.kube.get(RESOURCE_QUOTAS, real.namespace, f"pagoda-{real.namespace}")["spec"]["hard"]
            == {f"requests.nvidia.com/mig-{SLICE}": "3"}
        ),
        "the native quota follows",
    )
    limit(real, 1)
    eventually(lambda: reported().get("conditions", [{}, {}])[1].get("reason") == "Draining", "the quota says that it drains")
    eventually(lambda: not real.end_pods() and wanted(real) == [1], "the service gives back")


def test_kubernetes_itself_refuses_a_pod_beyond_the_tenant_s_cap_whoever_makes_it(real, operator, quota):
    """Also one that the operator never hears of, and one that asks while it is away."""
    eventually(lambda: real.kube.list(RESOURCE_QUOTAS, real.namespace), "the native quota")
    word = f"requests.nvidia.com/mig-{SLICE}"
    eventually(
        lambda: [q for q in real.kube.list(RESOURCE_QUOTAS, real.namespace) if q.get("status", {}).get("used", {}).get(word) == "0"],
        "it is counted",
    )
    assert f"exceeded quota: pagoda-{real.namespace}" in refusal(real, PODS, holder("greedy", 3))
    real.kube.create(PODS, real.namespace, holder("modest", 2))
    assert re.search(r"used: .*=2, limited: .*=2", refusal(real, PODS, holder("late", 1)))
    real.kube.delete(PODS, real.namespace, "modest", grace=0)


def test_kubernetes_itself_refuses_a_claim_beyond_the_tenant_s_cap_on_gpus(real, operator, quota):
    """What its status says of words that it does not count is what the operator tells from: one such word is tried beside."""
    word = "mig.nvidia.com.deviceclass.resource.k8s.io/devices"
    real.kube.merge(QUOTAS, "", real.namespace, {"spec": {"devices": {"gpus": 3}}})

    def counted(name, key):
        found = real.kube.get(RESOURCE_QUOTAS, real.namespace, name)
        status = (found or {}).get("status", {})
        return status if key in status.get("hard", {}) and key in status.get("used", {}) else None

    status = eventually(lambda: counted(f"pagoda-{real.namespace}", word), "the native quota is counted")
    assert (status["hard"][word], status["used"][word]) == ("3", "0")
    real.kube.create(RESOURCE_CLAIMS, real.namespace, claim("modest", 3))
    reported = refusal(real, RESOURCE_CLAIMS, claim("late", 1))
    assert re.search(f"exceeded quota: pagoda-{real.namespace}.*{word}=1, used: {word}=3", reported)
    unheard = {"hard": {"big.unheard.example.com/devices": "1", "pods": "5"}}
    real.kube.create(RESOURCE_QUOTAS, real.namespace, {"metadata": {"name": "unheard"}, "spec": unheard})
    status = eventually(lambda: counted("unheard", "pods"), "the other one is counted")
    assert (status["hard"], status["used"].keys()) == (unheard["hard"], {"pods"})

    def ready():
        (line,) = [line for line in real.kube.get(QUOTAS, "", real.namespace)["status"]["conditions"] if line["type"] == "Ready"]
        return line["message"]

    eventually(lambda: ready() == "in force", "nothing is said to be uncounted")
    # By product, and one that nothing has.
    real.kube.merge(QUOTAS, "", real.namespace, {"spec": {"devices": {"gpus": {"H100": 3}}}})
    eventually(lambda: ready().endswith("does not limit H100 GPUs: it cannot distinguish products"), "the map is in force")
    usage = real.kube.get(QUOTAS, "", real.namespace)["status"]["usage"]
    assert (usage["gpuProducts"], "gpus" in usage) == ([{"product": "H100", "used": 0, "left": 3}], False)
    real.kube.merge(QUOTAS, "", real.namespace, {"spec": {"devices": {"gpus": {"H1000": 1}}}})
    eventually(lambda: ready().startswith("spec.devices.gpus.H1000: the catalogue has no GPU H1000"), "the field is named")
    real.kube.delete(RESOURCE_CLAIMS, real.namespace, "modest")


def refusal(real, resource, body):
    """Why it is not taken. An API server that has the quota and not yet its count says so, and is asked again."""
    said = []

    def reported():
        with pytest.raises(AssertionError) as error:
            real.kube.create(resource, real.namespace, body)
        said.append(str(error.value))
        return "status unknown" not in said[-1]

    eventually(reported, "the quota's word")
    return said[-1]


def claim(name, count):
    request = {"name": "devices", "exactly": {"deviceClassName": "mig.nvidia.com", "allocationMode": "ExactCount", "count": count}}
    return {"metadata": {"name": name}, "spec": {"devices": {"requests": [request]}}}


def test_an_unhealthy_replica_under_a_full_cap_stays_and_gets_a_successor_when_the_cap_grows(real, operator, quota):
    def within(cap):
        """All pods, those that end included, are never more than the cap: at each look."""
        pods = real.pods()
        assert len(pods) <= cap, [pod["metadata"]["name"] for pod in pods]
        return {pod["metadata"]["name"] for pod in pods if not pod["metadata"].get("deletionTimestamp")}

    real.apply(replicas=2)
    unhealthy, well = (pod["metadata"]["name"] for pod in real.serve(2))
    real.reported(Ready="Available")
    real.kube.merge(PODS, real.namespace, unhealthy, {"metadata": {"annotations": {ANNOTATION_DEVICE_FAULT: "Xid 79"}}})
    assert "has no room: TenantQuota" in real.reported(Degraded="ReplacementDelayed")["Degraded"]["message"]
    assert within(2) == {unhealthy, well}
    limit(real, 3)
    eventually(lambda: len(within(3)) == 3, "a successor is made beside it")
    real.serve(3)
    eventually(lambda: len(real.pods()) == 3 and unhealthy not in within(3), "the unhealthy one goes when the successor is Ready")
    real.end_pods()
    eventually(lambda: len(within(3)) == 2, "as many as are asked for")
    assert well in within(3)


@pytest.fixture
def other(cluster, kube, node):
    """A second namespace of the same tenant."""
    harness = Real(cluster, kube, node, f"op-{uuid.uuid4().hex[:8]}")
    harness.prepare(podTemplate=TEMPLATE)
    yield harness
    harness.clean()


def test_of_two_namespaces_that_race_for_one_slice_one_gets_it_and_a_cap_of_none_drains_to_the_end(real, other, operator, quota):
    both = (real, other)

    def held():
        """Slices of both: pods that end included, at each look no more than one."""
        pods = [pod for harness in both for pod in harness.pods()]
        assert len(pods) <= 1, [pod["metadata"]["name"] for pod in pods]
        return len(pods)

    def reported():
        return real.kube.get(QUOTAS, "", real.namespace).get("status", {})

    def winner():
        held()
        found = [harness for harness in both if sum(wanted(harness))]
        assert len(found) <= 1
        return found[0] if found else None

    devices = {"migSlices": [{"profile": SLICE, "count": 1}], "resourceQuota": False}
    spec = {"subjects": {"namespaces": [harness.namespace for harness in both]}, "devices": devices}
    real.kube.merge(QUOTAS, "", real.namespace, {"spec": spec})
    generation = real.kube.get(QUOTAS, "", real.namespace)["metadata"]["generation"]
    eventually(lambda: reported().get("observedGeneration") == generation, "the operator knows the cap")
    for harness in both:
        harness.apply(replicas=1, model={"uri": "pvc://models/tiny", "servedNames": [harness.namespace]})
    first = eventually(winner, "one of them gets it")
    loser = next(harness for harness in both if harness is not first)
    loser.reported(Stalled="QuotaExceeded")
    eventually(lambda: held() == 1, "its replica is there")
    first.edit(replicas=0)
    eventually(lambda: [pod for pod in first.pods() if pod["metadata"].get("deletionTimestamp")], "it gives back")
    assert winner() is None
    first.end_pods()
    eventually(lambda: winner() is loser, "the other gets it")
    first.edit(replicas=1)
    first.reported(Stalled="QuotaExceeded")
    limit(real, 0)
    eventually(lambda: [harness.end_pods() for harness in both] and not (held() or any(map(sum, map(wanted, both)))), "all is given back")
    for harness in both:
        harness.reported(Stalled="QuotaExceeded")
    real.kube.merge(QUOTAS, "", real.namespace, {"spec": {"weight": 2}})  # a changed spec is answered at once
    eventually(lambda: reported()["conditions"][1]["status"] == "False", "nothing drains any more")
    assert reported()["usage"]["migSlices"] == [{"profile": SLICE, "count": 0}]


def holder(name, count):
    """A stranger's pod of the namespace, as Pod Security `restricted` wants it."""
    resources = {"requests": {f"nvidia.com/mig-{SLICE}": str(count)}, "limits": {f"nvidia.com/mig-{SLICE}": str(count)}}
    confined = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    container = {"name": "c", "image": "i", "resources": resources, "securityContext": confined}
    security = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    return {"metadata": {"name": name}, "spec": {"containers": [container], "securityContext": security}}
