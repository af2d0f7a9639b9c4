"""What an admin's audit log and a cleaner's inventory see: no writes at rest, nothing left after a delete, no outage without operator."""

import json
import time

import httpx
import pytest
from pydoc_answers import questions
from support.judges.rights import GATEWAY, OPERATOR, granted, used
from support.kube.client import eventually

pytestmark = pytest.mark.cluster

KINDS = "deployments,replicasets,pods,configmaps,services,controllerrevisions,poddisruptionbudgets"
QUIET_SECONDS, CALM_SECONDS = 30, 10


def test_the_operator_writes_nothing_at_rest_and_the_gateway_never(pagoda, namespace):
    assert pagoda.serve(namespace, "quiet", pagoda.model).ready
    eventually(lambda: "Available" in reported_by_events(pagoda, namespace), "the operator's last write, the Event of that word")
    assert pagoda.running.audit(user=OPERATOR, verbs="write"), "the audit log shows no write at all: it counts nothing"
    # What others do still, a busy controller or the end of an earlier test's namespace, is no rest yet; an operator that writes again and
    # again never is quiet for so long.
    eventually(lambda: not written(pagoda, time.time() - CALM_SECONDS), "no write for a while")
    since = time.time()
    time.sleep(QUIET_SECONDS)  # the thing under test is that nothing happens while time passes
    assert written(pagoda, since) == []
    assert pagoda.running.audit(user=GATEWAY, verbs="read"), "the gateway was never seen: its account has another name"
    assert pagoda.running.audit(user=GATEWAY) == []


def test_the_gateway_reads_what_its_roles_name_and_nothing_else(pagoda):
    """Lists only: a watch is in the audit log at its end. The whole comparison is in tests/controlplane/operator/test_rights.py."""
    name, namespace = GATEWAY.rpartition(":")[2], GATEWAY.split(":")[2]
    roles = [pagoda.running.get("clusterrole", name), pagoda.running.get("role", name, "-n", namespace)]
    rights = granted(roles)
    assert {right.verb for right in rights} == {"list", "watch"}
    found = used(pagoda.running.audit(user=GATEWAY, verbs=["list"]))
    assert sorted(found) == sorted(right for right in rights if right.verb == "list")


def written(pagoda, since):
    """By the operator; the leader renews its Lease."""
    found = [(event["verb"], event["objectRef"]) for event in pagoda.running.audit(user=OPERATOR, since=since)]
    return [what for what in found if what[1]["resource"] != "leases"]


def reported_by_events(pagoda, namespace):
    return [event["reason"] for event in pagoda.running.get("events.events.k8s.io", "-n", namespace)["items"]]


def test_a_deleted_service_leaves_nothing(pagoda, namespace):
    # Kubernetes' own, which it puts into every namespace some time after it is made.
    eventually(lambda: "configmap/kube-root-ca.crt" in everything(pagoda, namespace), "the cluster's CA")
    before = everything(pagoda, namespace)
    assert pagoda.serve(namespace, "gone", pagoda.model).ready
    pagoda.cluster.kubectl("delete", "inferenceservice", "gone", "-n", namespace, "--cascade=foreground", "--timeout=300s")
    # The keys belong to all services of a namespace, so none of them waits for their end.
    eventually(lambda: everything(pagoda, namespace) == before, "nothing is left")


def everything(pagoda, namespace):
    return pagoda.running.kubectl("get", KINDS, "-n", namespace, "-o", "name").split()


@pytest.fixture
def without_operator(pagoda):
    """Its Deployment deleted; afterwards it is there again."""
    where = ("-n", "pagoda-system")
    body = pagoda.get("deployment", "pagoda-operator", *where)

    def delete():
        pagoda.cluster.kubectl("delete", "deployment", "pagoda-operator", *where, "--cascade=foreground", "--timeout=300s")
        assert pagoda.get("pods", *where, "-l", "app.kubernetes.io/component=operator")["items"] == []

    yield delete
    meta = {
        name: value
        for name, value in body["metadata"].items()
        if name not in ("uid", "resourceVersion", "creationTimestamp", "managedFields")
    }
    pagoda.running.kubectl("apply", "-f", "-", input=json.dumps(body | {"metadata": meta, "status": {}}))
    pagoda.cluster.kubectl("rollout", "status", "deployment/pagoda-operator", *where, "--timeout=300s")


def test_without_its_operator_a_service_answers_on_and_a_lost_pod_comes_back(pagoda, namespace, without_operator):
    assert pagoda.serve(namespace, "orphan", pagoda.model).ready
    without_operator()
    known = questions()[0]
    body = {"model": "orphan", "messages": [{"role": "user", "content": known.question}], "temperature": 0}

    def answer():
        reply = httpx.post(f"{pagoda.url}/chat/completions", json=body, timeout=300)
        return reply.json()["choices"][0]["message"]["content"]

    assert answer() == known.answer
    pagoda.cluster.kubectl("delete", "pods", "-n", namespace, "-l", "app.kubernetes.io/component=replica", "--wait=true", "--timeout=300s")
    assert answer() == known.answer, "held by the gateway until the Deployment's next pod serves"
