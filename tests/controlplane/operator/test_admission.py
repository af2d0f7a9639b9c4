"""The chart's admission policy: whoever has the operator's account writes only what is Pagoda's. All other tests of this folder show that
the operator works under it."""

import json

import pytest
from pagoda_contracts.names import COMPONENT_JWKS, LABEL_COMPONENT, LABEL_NAME, LABEL_SERVICE_UID, NODE_POOLS_CONFIG_MAP
from pagoda_operator.api.state import (
    CONFIG_MAPS,
    CORE_SERVICES,
    DEPLOYMENTS,
    DISRUPTION_BUDGETS,
    NETWORK_POLICIES,
    PODS,
    PROFILES,
    RESOURCE_QUOTAS,
    Resource,
)
from pagoda_operator.client.requests import object_path, path_of
from support.kube.client import eventually
from support.kube.operator_process import NAMESPACE, USER

pytestmark = pytest.mark.cluster

SECRETS = Resource("v1", "Secret", "secrets")
POLICY = "ValidatingAdmissionPolicy 'pagoda-operator'"
LABELS = {"app": "theirs"}
CONTAINER = {
    "name": "c",
    "image": "localhost/c:1",
    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
}
POD = {"securityContext": {"runAsNonRoot": True, "runAsUser": 1, "seccompProfile": {"type": "RuntimeDefault"}}, "containers": [CONTAINER]}
SELECTOR = {"matchLabels": LABELS}
FOREIGN = {
    CONFIG_MAPS: {"data": {"a": "b"}},
    PODS: {"spec": POD},
    CORE_SERVICES: {"spec": {"ports": [{"port": 80}]}},
    RESOURCE_QUOTAS: {"spec": {"hard": {"pods": "1000"}}},
    DEPLOYMENTS: {"spec": {"replicas": 0, "selector": SELECTOR, "template": {"metadata": {"labels": LABELS}, "spec": POD}}},
    NETWORK_POLICIES: {"spec": {"podSelector": SELECTOR}},
    DISRUPTION_BUDGETS: {"spec": {"maxUnavailable": 1, "selector": SELECTOR}},
}
MINE = {"metadata": {"labels": {LABEL_SERVICE_UID: "mine"}}}
TOUCH = {"metadata": {"annotations": {"a": "b"}}}


class Thief:
    """Has the operator's account. Each answer is a status, 0 if the policy refused."""

    def __init__(self, kube):
        self._kube = kube

    def create(self, resource, namespace, body):
        return self._ask("POST", path_of(resource, namespace), body, "application/json")

    def patch(self, resource, namespace, name, body):
        return self._ask("PATCH", object_path(resource, {"namespace": namespace, "name": name}), body, "application/merge-patch+json")

    def delete(self, resource, namespace, name):
        return self._ask("DELETE", object_path(resource, {"namespace": namespace, "name": name}), {}, "application/json")

    def _ask(self, method, path, body, kind):
        headers = {"Impersonate-User": USER, "Content-Type": kind}
        answer = self._kube.request(method, path, content=json.dumps(body), headers=headers)
        return 0 if answer.status_code == 403 and POLICY in answer.text else answer.status_code


@pytest.fixture
def thief(kube, real):
    thief = Thief(kube)
    kube.create(CONFIG_MAPS, real.namespace, made(CONFIG_MAPS, "first"))
    eventually(lambda: thief.patch(CONFIG_MAPS, real.namespace, "first", MINE) == 0, "the API server goes by the policy")
    return thief


def made(resource, name, labels=LABELS):
    head = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": name, "labels": labels}}
    return head | FOREIGN.get(resource, {})


def test_what_is_not_pagoda_s_is_neither_made_nor_changed_nor_deleted(real, thief):
    for resource in FOREIGN:
        before = real.kube.create(resource, real.namespace, made(resource, "theirs"))["metadata"]
        answers = (thief.create(resource, real.namespace, made(resource, "more")), thief.patch(resource, real.namespace, "theirs", MINE))
        assert (resource.kind, answers) == (resource.kind, (0, 0))
        assert thief.delete(resource, real.namespace, "theirs") in (0, 403)  # some kinds it may not delete at all
        after = real.kube.get(resource, real.namespace, "theirs")["metadata"]
        assert (after["uid"], after["labels"], after.get("deletionTimestamp")) == (before["uid"], LABELS, None)
    real.kube.delete(PODS, real.namespace, "theirs", grace=0)
    assert thief.create(SECRETS, real.namespace, made(SECRETS, "more")) == 403
    assert thief.create(PROFILES, "", made(PROFILES, "more") | {"spec": {"images": {"daemon": "localhost/daemon:1"}}}) == 0
    assert thief.patch(PROFILES, "", real.namespace, TOUCH) == 0


def test_of_a_replica_it_changes_nothing_that_pagoda_goes_by_and_no_child_is_given_away(real, operator, thief):
    real.apply()
    (pod,) = real.serve()
    real.reported(Ready="Available")
    name = pod["metadata"]["name"]
    assert thief.patch(PODS, real.namespace, name, TOUCH) == 200
    # What webhooks of others add to the operator's own request must not stop it.
    added = {"labels": {"theirs.example/a": "b"}, "finalizers": ["theirs.example/c"]}
    assert thief.patch(PODS, real.namespace, name, {"metadata": TOUCH["metadata"] | added}) == 200
    ours = (LABEL_SERVICE_UID, LABEL_COMPONENT, "pod-template-hash")
    others = (
        *({"labels": {"theirs.example/a": "c", label: value}} for label in ours for value in (None, "other")),
        *({"labels": {label: ""}} for label in ("serving.pagoda.dev/new", "app.kubernetes.io/new")),
        {"finalizers": None},
        {"ownerReferences": None},
    )
    for patch in (*({"metadata": meta} for meta in others), {"spec": {"activeDeadlineSeconds": 5}}):
        assert (patch, thief.patch(PODS, real.namespace, name, patch)) == (patch, 0)
    (child,) = real.kube.list(DEPLOYMENTS, real.namespace)
    disowned = {"metadata": {"labels": {LABEL_SERVICE_UID: None}, "ownerReferences": None}}
    assert thief.patch(DEPLOYMENTS, real.namespace, child["metadata"]["name"], disowned) == 0
    real.kube.merge(PODS, real.namespace, name, {"metadata": {"finalizers": None}})
    assert thief.delete(PODS, real.namespace, name) == 200


def test_the_config_maps_without_an_owner_are_written_where_they_belong(real, thief):
    jwks = {LABEL_NAME: "pagoda", LABEL_COMPONENT: COMPONENT_JWKS}
    for namespace, name, labels, answer in (
        (real.namespace, "keys", jwks, 200),
        (real.namespace, "others-keys", jwks | {LABEL_NAME: "other"}, 0),
        (real.namespace, NODE_POOLS_CONFIG_MAP, LABELS, 0),
        (NAMESPACE, NODE_POOLS_CONFIG_MAP, LABELS, 200),
    ):
        real.kube.create(CONFIG_MAPS, namespace, made(CONFIG_MAPS, name, labels))
        assert (name, thief.patch(CONFIG_MAPS, namespace, name, TOUCH)) == (name, answer)
    real.kube.delete(CONFIG_MAPS, NAMESPACE, NODE_POOLS_CONFIG_MAP)
