"""What an admin's audit log and a cleaner's inventory see: no writes at rest, nothing left after a delete."""

import time

import pytest

pytestmark = pytest.mark.cluster

OPERATOR = "system:serviceaccount:pagoda-system:pagoda-operator"
GATEWAY = "system:serviceaccount:pagoda-system:pagoda-gateway"
KINDS = "deployments,replicasets,pods,configmaps,services,controllerrevisions,poddisruptionbudgets"
QUIET_SECONDS = 30


def test_the_operator_writes_nothing_at_rest_and_the_gateway_never(pagoda, namespace):
    assert pagoda.serve(namespace, "quiet", pagoda.model).ready
    assert pagoda.running.audit(user=OPERATOR, verbs="write"), "the audit log shows no write at all: it counts nothing"
    since = time.time()
    time.sleep(QUIET_SECONDS)  # the thing under test is that nothing happens while time passes
    assert [(event["verb"], event["objectRef"]) for event in pagoda.running.audit(user=OPERATOR, since=since)] == []
    assert pagoda.running.audit(user=GATEWAY, verbs="read"), "the gateway was never seen: its account has another name"
    assert pagoda.running.audit(user=GATEWAY) == []


def test_a_deleted_service_leaves_nothing(pagoda, namespace):
    before = pagoda.cluster.kubectl("get", KINDS, "-n", namespace, "-o", "name")
    assert pagoda.serve(namespace, "gone", pagoda.model).ready
    pagoda.cluster.kubectl("delete", "inferenceservice", "gone", "-n", namespace, "--cascade=foreground", "--timeout=90s")
    assert pagoda.cluster.kubectl("get", KINDS, "-n", namespace, "-o", "name") == before
