"""Nodes whose devices others call faulty, on a real API server: real daemons at the pods' addresses, a real gateway that hears them."""

from contextlib import ExitStack
from dataclasses import replace

import httpx
import pytest
from pagoda_contracts.names import HEADER_ROUTE
from pagoda_contracts.route import REASON_ONLY_UNSOUND, parse_route
from pagoda_operator.api.state import DEPLOYMENTS, NODES, PODS
from support.harness.fake_nodes import WHOLE, device_node, inspected, tolerate
from support.harness.inventories import gpu
from support.harness.placing import ENGINE
from support.kube.client import eventually
from support.kube.daemon_processes import DaemonProcesses, endpoints
from support.kube.namespace import NAME
from support.kube.operator_process import NodeWithoutKubelet, running_operator
from support.servers.gateway_process import start_gateway

pytestmark = pytest.mark.cluster

# What NVSentinel's health monitors and a node problem detector write of the same thing.
NVSENTINEL = {
    "type": "SysLogsXIDError",
    "reason": "SysLogsXIDErrorIsNotHealthy",
    "message": "ErrorCode:79 PCI:0000:0f:00 Recommended Action=RESTART_VM;",
}
DETECTOR = {"type": "XIDErrors", "reason": "XIDErrorsDetected", "message": "NVRM: Xid (PCI:0000:0f:00): 79, GPU has fallen off the bus."}
ONE_GPU = {"nvidia.com/gpu": "1"}


class Everywhere(NodeWithoutKubelet):
    """Replicas on whatever node."""

    def placed(self, namespace, count, selector="app.kubernetes.io/component=replica"):
        def look():
            pods = [pod for pod in self.kube.list(PODS, namespace, selector) if "deletionTimestamp" not in pod["metadata"]]
            return pods if len(pods) == count and all(pod["spec"].get("nodeName") for pod in pods) else None

        return eventually(look, f"{count} pods with a node")


def ail(kube, name, reported):
    """As who watches devices does: a condition beside the kubelet's, and no new pod there."""
    kept = [line for line in kube.get(NODES, "", name)["status"]["conditions"] if line["type"] != reported["type"]]
    kube.merge(NODES, "", name, {"status": {"conditions": [*kept, reported | {"status": "True"}]}}, "status")
    kube.merge(NODES, "", name, {"spec": {"unschedulable": True}})


def ask(gateway):
    """Who answered, and why that one."""
    body = {"model": NAME, "prompt": "x", "max_tokens": 2}
    answer = httpx.post(f"{gateway.url}/v1/completions", json=body, timeout=300, trust_env=False)
    assert answer.status_code == 200, answer.text
    return parse_route(answer.headers[HEADER_ROUTE])


def choices(gateway, count=6):
    """So many picks out of sound replicas: where the machine holds up the only one, the gateway rightly turns to who is left."""
    routes = []
    eventually(lambda: routes.append(ask(gateway)) or sum(map(chosen, routes)) >= count, f"{count} picks among the sound")
    return {route.endpoint for route in routes if chosen(route)}


def chosen(route):
    return route.reason != REASON_ONLY_UNSOUND


@pytest.fixture
def stage(real, cluster, account, tmp_path):
    """A gateway, an operator that hears it, and the replicas' daemons."""
    with ExitStack() as stack:
        gateway = stack.enter_context(start_gateway("--kubeconfig", str(cluster.kubeconfig)))
        options = ("--resync", "5m", "--gateways", f"127.0.0.1:{gateway.demand}")
        stack.enter_context(running_operator(account, *options))
        yield gateway, DaemonProcesses(replace(tolerate(real), node=Everywhere(real.kube)), tmp_path, stack), stack


def serve(real, processes, gateway, count):
    real.apply(accelerators=[gpu("H100", 1)], engine=ENGINE, replicas=count)
    inspected(real)
    names = processes.admit(count)
    real.reported(Ready="Available")
    eventually(lambda: endpoints(gateway, "ready") == count, "all are heard")
    return names


def test_the_only_replica_on_a_node_with_an_xid_serves_until_another_one_does(real, stage):
    gateway, processes, stack = stage
    stack.enter_context(device_node(real.kube, WHOLE, "h100-a"))
    (unhealthy,) = serve(real, processes, gateway, 1)
    stack.enter_context(device_node(real.kube, WHOLE, "h100-b"))
    ail(real.kube, "h100-a", NVSENTINEL)
    eventually(lambda: len(processes.names()) == 2, "another one is made beside it")
    eventually(lambda: endpoints(gateway, "device-fault") == 1, "the gateway knows")
    route = ask(gateway)
    assert (route.endpoint, route.reason) == (processes.daemons[unhealthy].http, REASON_ONLY_UNSOUND)
    assert real.reported(Degraded="DeviceFault")["Degraded"]["status"] == "True"
    assert unhealthy in processes.names()

    (new,) = set(processes.admit(2)) - {unhealthy}
    eventually(lambda: processes.names() == {new}, "the unhealthy one goes")
    # The gateway hears both later than the API server: that the one leaves, and that the other is there.
    eventually(lambda: (endpoints(gateway, "device-fault"), endpoints(gateway, "ready")) == (0, 1), "the gateway knows that too")
    assert ask(gateway).endpoint == processes.daemons[new].http
    (deployment,) = real.kube.list(DEPLOYMENTS, real.namespace)
    assert deployment["spec"]["replicas"] == 1
    assert real.reported(Degraded="Well", Ready="Available")["Degraded"]["status"] == "False"


def test_a_replica_on_a_node_with_an_xid_gets_no_request_where_another_serves_and_is_replaced(real, stage):
    gateway, processes, stack = stage
    for name in ("h100-a", "h100-b"):
        stack.enter_context(device_node(real.kube, WHOLE, name, **ONE_GPU))
    names = serve(real, processes, gateway, 2)
    nodes = {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in real.pods()}
    (unhealthy,) = (name for name in names if nodes[name] == "h100-a")
    (well,) = set(names) - {unhealthy}
    ail(real.kube, "h100-a", DETECTOR)
    eventually(lambda: endpoints(gateway, "device-fault") == 1, "the gateway knows")
    assert choices(gateway) == {processes.daemons[well].http}
    assert "has no node" in real.reported(Degraded="ReplacementDelayed")["Degraded"]["message"]
    assert unhealthy in processes.names(), "it stays until its successor serves"
    assert real.service()["status"]["faultyReplicas"] == [unhealthy]
    stack.enter_context(device_node(real.kube, WHOLE, "h100-c", **ONE_GPU))
    (new,) = set(processes.admit(3)) - {well, unhealthy}
    eventually(lambda: processes.names() == {well, new}, "it goes")
    assert real.reported(Degraded="Well", Ready="Available")["Degraded"]["status"] == "False"
    eventually(lambda: endpoints(gateway, "ready") == 2, "the replacement is heard")
    assert processes.names() == {well, new}
