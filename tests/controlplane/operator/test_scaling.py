"""Scaling on a real API server: demand as a gateway tells it in, Deployments' replicas out, and never a word in the spec."""

import json
import time
from datetime import UTC, datetime, timedelta

import pytest
from pagoda_operator.api.state import DEPLOYMENTS, PODS, SERVICES, Resource
from support.kube.client import eventually
from support.kube.fake_api import is_ready, running
from support.kube.namespace import NAME
from support.kube.operator_process import USER, running_operator
from support.servers.scripted_gateway import ScriptedGateway, Traffic, serving

pytestmark = pytest.mark.cluster

AUTOSCALERS = Resource("autoscaling/v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers")
BUSY = Traffic(rate=2.0, running=8, waiting=12)
QUICK = {
    "mode": "Auto",
    "min": 0,
    "max": 3,
    "idleAfter": "10s",
    "targets": {"queueDepth": 1},
    "behavior": {"scaleDown": {"stabilizationWindowSeconds": 20}},
}


@pytest.fixture
def gateway(real):
    def ready():
        return [pod["metadata"]["name"] for pod in real.pods() if is_ready(pod)]

    gateway = ScriptedGateway(real.namespace, NAME, ready)
    with serving(gateway) as gateway.address:
        yield gateway


def replicas(real):
    found = [deployment["spec"]["replicas"] for deployment in real.kube.list(DEPLOYMENTS, real.namespace)]
    return max(found, default=0)


def keep_serving(real):
    """The kubelet's part: what starts becomes ready, what was deleted ends."""
    real.end_pods()
    for pod in real.kube.list(PODS, real.namespace):
        if pod["spec"].get("nodeName") and not is_ready(pod) and "deletionTimestamp" not in pod["metadata"]:
            real.node.report(pod, running(ready=True))


def reaches(real, wanted):
    """Waits until so many replicas are wanted and serve, playing the kubelet meanwhile."""

    def look():
        keep_serving(real)
        return replicas(real) == wanted == sum(map(is_ready, real.pods()))

    try:
        eventually(look, f"{wanted} replicas")
    except AssertionError as error:
        raise AssertionError(f"{error}; {replicas(real)} are wanted, status {json.dumps(real.service().get('status'))}") from error


def shrunk(real):
    """When fewer than three were wanted first."""
    decisions = real.service()["status"]["scaling"]["lastDecisions"]
    return datetime.fromisoformat(next(one["time"] for one in decisions if one["from"] == 3))


def decisions(real):
    """The last five: from how many to how many."""
    return [(one["from"], one["desired"]) for one in real.service()["status"]["scaling"]["lastDecisions"]]


def written_to_the_spec(real, since):
    """Writes to the service that are not to its status."""
    return [
        (event["verb"], event["objectRef"])
        for event in real.cluster.audit(user=USER, since=since)
        if event["objectRef"]["resource"] == SERVICES.plural
        and event["objectRef"].get("namespace") == real.namespace
        and event["objectRef"].get("subresource") != "status"
    ]


def test_auto_wakes_grows_survives_a_restart_shrinks_and_sleeps(real, account, gateway):
    since = time.time()
    options = ("--resync", "300s", "--gateways", gateway.address)
    with running_operator(account, *options) as operator:
        real.apply(replicas=0, engine={"maxConcurrency": 4}, drain={"timeout": "1s"}, scaling=QUICK)
        real.reported(Ready="ScaledToZero")
        gateway.report(Traffic(held=1))
        reaches(real, 1)
        gateway.report(BUSY)
        reaches(real, 3)
        real.reported(Ready="Available")
        assert decisions(real)[0] == (0, 1)
        assert operator.events("reconcile_bug") == []
    gateway.report(Traffic(rate=0.2, running=1))
    restarted = datetime.now(UTC)
    with running_operator(account, *options) as operator:
        reaches(real, 1)
        assert shrunk(real) - restarted > timedelta(seconds=20), "a restart takes nothing away for a window"
        gateway.report(Traffic())
        reaches(real, 0)
        real.reported(Ready="ScaledToZero")
        assert operator.events("reconcile_bug") == []
    live, scaling = real.service(), real.service()["status"]["scaling"]
    assert (live["spec"]["replicas"], live["metadata"]["generation"]) == (0, 1)
    assert written_to_the_spec(real, since) == []
    assert decisions(real)[-1] == (1, 0)
    assert all(one["reason"] for one in scaling["lastDecisions"])


def test_manual_stays_and_an_hpa_moves_an_external_service(real, account, gateway):
    since = time.time()
    with running_operator(account, "--resync", "300s", "--gateways", gateway.address):
        real.apply(replicas=1)
        reaches(real, 1)
        gateway.report(BUSY)
        real.reported(Ready="Available")
        real.edit(scaling={"mode": "External", "min": 0, "idleAfter": "10s"})
        target = {"apiVersion": SERVICES.api_version, "kind": SERVICES.kind, "name": NAME}
        metric = {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}}
        scaler = {"scaleTargetRef": target, "minReplicas": 2, "maxReplicas": 4, "metrics": [metric]}
        body = {"apiVersion": AUTOSCALERS.api_version, "kind": AUTOSCALERS.kind, "metadata": {"name": NAME}, "spec": scaler}
        assert replicas(real) == 1, "neither a person's nor an HPA's service follows the queue"
        real.kube.create(AUTOSCALERS, real.namespace, body)
        reaches(real, 2)
        assert real.service()["spec"]["replicas"] == 2, "by the HPA, through the scale subresource"
        real.kube.delete(AUTOSCALERS, real.namespace, NAME)
        gateway.report(Traffic())
        real.edit(replicas=0)
        reaches(real, 0)
        gateway.report(Traffic(held=1))
        reaches(real, 1)
        assert real.service()["spec"]["replicas"] == 0
        # Said after it was done.
        eventually(lambda: "Requests are held" in real.service()["status"]["scaling"].get("reason", ""), "the reason is told")
    assert written_to_the_spec(real, since) == []
