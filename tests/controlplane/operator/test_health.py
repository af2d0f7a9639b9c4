"""Frozen replicas: real daemons at the pods' addresses, a real gateway that hears them, the operator that hears the gateway."""

import time
from contextlib import ExitStack

import httpx
import pytest
from pagoda_contracts.launch import Fault
from pagoda_contracts.names import HEADER_ROUTE
from pagoda_contracts.route import parse_route
from support.kube.client import eventually
from support.kube.namespace import NAME
from support.kube.operator_process import running_operator
from support.kube.operator_under_test import under_test
from support.kube.ward import Ward, endpoints
from support.servers.gateway_process import start_gateway

pytestmark = pytest.mark.cluster
# A test on a slow machine may outlast the two minutes that are between two replacements.
PATIENT = under_test(replace_every_s=1200)


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


def test_a_frozen_replica_is_out_of_routing_and_replaced_and_the_next_one_waits(real, cluster, account, tmp_path):
    with ExitStack() as stack:
        gateway = stack.enter_context(start_gateway("--kubeconfig", str(cluster.kubeconfig)))
        options = ("--resync", "5m", "--gateways", f"127.0.0.1:{gateway.demand}")
        operator = stack.enter_context(running_operator(account, *options, program=PATIENT))
        ward = Ward(real, tmp_path, stack)
        real.apply(replicas=2)
        first, second = ward.admit(2)
        real.told(Ready="Available")
        eventually(lambda: endpoints(gateway, "ready") == 2, "both are heard")
        all_answer(gateway, ward.daemons[first].http, ward.daemons[second].http)

        frozen_at = time.monotonic()
        frozen = ward.freeze(first)
        eventually(lambda: endpoints(gateway, "silent") == 1, "one is silent")
        print("unrouted_s", round(time.monotonic() - frozen_at, 2))
        assert frozen not in {ask(gateway) for _ in range(6)}
        eventually(lambda: len(ward.names() - {first, second}) == 1, "a replacement exists")
        print("replaced_s", round(time.monotonic() - frozen_at, 2))
        assert ward.deleted() == {first}
        health = real.service()["status"]["health"]["lastReplacement"]
        assert (health["pod"], health["why"]) == (first, "Silent: no gateway hears from it: silent")

        third = next(iter(set(ward.admit(2)) - {first, second}))
        eventually(lambda: endpoints(gateway, "ready") == 2, "the replacement is heard")
        assert real.told(Degraded="Well")["Degraded"]["status"] == "False"
        ward.freeze(second)
        line = real.told(Degraded="ReplacementHeld")["Degraded"]
        assert "one replica in 1200 s" in line["message"]
        operator.stop()
        stack.enter_context(running_operator(account, *options, program=PATIENT))
        eventually(lambda: endpoints(gateway, "silent") == 1, "still silent")
        assert ward.names() == {second, third}
        assert ask(gateway) == ward.daemons[third].http


def test_a_replica_whose_canary_is_wrong_gets_no_request_and_is_replaced(real, cluster, account, tmp_path):
    with ExitStack() as stack:
        gateway = stack.enter_context(start_gateway("--kubeconfig", str(cluster.kubeconfig)))
        stack.enter_context(running_operator(account, "--resync", "5m", "--gateways", f"127.0.0.1:{gateway.demand}"))
        ward = Ward(real, tmp_path, stack)
        real.apply(replicas=2)
        wrong, right = ward.admit(2, Fault(kind="wrong", at_step=5))
        real.told(Ready="Available")
        eventually(lambda: endpoints(gateway, "ready") == 2, "both are heard")
        # Its steps break the device, so it must get some.
        eventually(lambda: ask(gateway) and endpoints(gateway, "deep-check") == 1, "the canary is wrong")
        assert {ask(gateway) for _ in range(6)} == {ward.daemons[right].http}
        eventually(lambda: len(ward.names() - {wrong, right}) == 1, "a replacement exists")
        assert ward.deleted() == {wrong}
        health = real.service()["status"]["health"]["lastReplacement"]
        assert (health["pod"], health["why"]) == (wrong, "DeepCheckFailed: the answer to its canary prompt is wrong or late")
        eventually(lambda: real.service()["status"]["readyReplicas"] == 1, "the status counts only the other")
