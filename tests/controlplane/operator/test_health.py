"""Frozen replicas: real daemons at the pods' addresses, a real gateway that hears them, the operator that hears the gateway."""

import time
from contextlib import ExitStack

import httpx
import pytest
from pagoda_contracts.launch import Fault
from pagoda_contracts.names import ANNOTATION_DEVICE_FAULT, HEADER_ROUTE
from pagoda_contracts.route import parse_route
from pagoda_operator.api.state import PODS
from support.kube.client import eventually
from support.kube.daemon_processes import DaemonProcesses, endpoints
from support.kube.namespace import NAME
from support.kube.operator_process import running_operator
from support.servers.gateway_process import start_gateway

pytestmark = pytest.mark.cluster


def ask(gateway):
    """Who answered."""
    body = {"model": NAME, "prompt": "x", "max_tokens": 2}
    answer = httpx.post(f"{gateway.url}/v1/completions", json=body, timeout=300, trust_env=False)
    assert answer.status_code == 200, answer.text
    return parse_route(answer.headers[HEADER_ROUTE]).endpoint


def all_answer(gateway, *endpoints):
    """Until each of them has: one that the machine held up for a moment gets no request meanwhile."""
    seen = set()
    eventually(lambda: seen.add(ask(gateway)) or seen >= set(endpoints), "all answer")
    assert seen == set(endpoints)


def test_a_frozen_replica_is_out_of_routing_and_replaced_and_an_unhealthy_successor_is_not(real, cluster, account, tmp_path):
    with ExitStack() as stack:
        gateway = stack.enter_context(start_gateway("--kubeconfig", str(cluster.kubeconfig)))
        options = ("--resync", "5m", "--gateways", f"127.0.0.1:{gateway.demand}")
        operator = stack.enter_context(running_operator(account, *options))
        processes = DaemonProcesses(real, tmp_path, stack)
        real.apply(replicas=2)
        first, second = processes.admit(2)
        real.reported(Ready="Available")
        eventually(lambda: endpoints(gateway, "ready") == 2, "both are heard")
        all_answer(gateway, processes.daemons[first].http, processes.daemons[second].http)

        frozen_at = time.monotonic()
        frozen = processes.freeze(first)
        eventually(lambda: endpoints(gateway, "silent") == 1, "one is silent")
        print("unrouted_s", round(time.monotonic() - frozen_at, 2))
        assert frozen not in {ask(gateway) for _ in range(6)}
        eventually(lambda: len(processes.names() - {first, second}) == 1, "a successor is made beside it")
        print("succeeded_s", round(time.monotonic() - frozen_at, 2))
        assert (first in processes.names(), processes.deleted()) == (True, set())
        assert "Silent" in real.reported(Degraded="Silent")["Degraded"]["reason"]

        third = next(iter(set(processes.admit(3)) - {first, second}))
        eventually(lambda: processes.names() == {second, third}, "the frozen one goes when the successor is Ready")
        eventually(lambda: endpoints(gateway, "ready") == 2, "the successor is heard")
        assert real.reported(Degraded="Well")["Degraded"]["status"] == "False"
        processes.freeze(second)
        eventually(lambda: len(processes.names()) == 3, "a successor is made again")
        (fourth,) = processes.names() - {second, third}
        real.kube.merge(PODS, real.namespace, fourth, {"metadata": {"annotations": {ANNOTATION_DEVICE_FAULT: "Xid 79"}}})
        line = real.reported(Degraded="ReplacementDelayed")["Degraded"]
        assert f"The successor {fourth} is unhealthy as well" in line["message"]
        operator.stop()
        stack.enter_context(running_operator(account, *options))
        eventually(lambda: endpoints(gateway, "silent") == 1, "still silent")
        assert processes.names() == {second, third, fourth}
        assert ask(gateway) == processes.daemons[third].http


def test_a_replica_whose_canary_is_wrong_gets_no_request_and_is_replaced(real, cluster, account, tmp_path):
    with ExitStack() as stack:
        gateway = stack.enter_context(start_gateway("--kubeconfig", str(cluster.kubeconfig)))
        stack.enter_context(running_operator(account, "--resync", "5m", "--gateways", f"127.0.0.1:{gateway.demand}"))
        processes = DaemonProcesses(real, tmp_path, stack)
        real.apply(replicas=2)
        wrong, right = processes.admit(2, Fault(kind="wrong", at_step=5))
        real.reported(Ready="Available")
        eventually(lambda: endpoints(gateway, "ready") == 2, "both are heard")
        # Its steps break the device, so it must get some.
        eventually(lambda: ask(gateway) and endpoints(gateway, "deep-check") == 1, "the canary is wrong")
        assert {ask(gateway) for _ in range(6)} == {processes.daemons[right].http}
        eventually(lambda: len(processes.names() - {wrong, right}) == 1, "a successor is made beside it")
        assert wrong in processes.names()
        (new,) = set(processes.admit(3)) - {wrong, right}
        eventually(lambda: processes.names() == {right, new}, "the wrong one goes when the successor is Ready")


def test_without_a_gateway_the_operator_hears_replicas_itself_and_replaces_a_frozen_one(real, account, tmp_path):
    with ExitStack() as stack:
        stack.enter_context(running_operator(account, "--resync", "5m", "--read-replicas"))
        processes = DaemonProcesses(real, tmp_path, stack)
        real.apply(replicas=2, scaling={"mode": "Auto", "min": 0, "max": 2, "idleAfter": "1s"})
        first, second = processes.admit(2)
        real.reported(Ready="Available")
        processes.freeze(first)
        eventually(lambda: len(processes.names() - {first, second}) == 1, "a successor is made beside it")
        assert first in processes.names()
        assert "Silent" in real.reported(Degraded="Silent")["Degraded"]["reason"]
        (new,) = set(processes.admit(3)) - {first, second}
        eventually(lambda: processes.names() == {second, new}, "the frozen one goes when the successor is Ready")
