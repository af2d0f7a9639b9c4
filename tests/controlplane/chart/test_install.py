"""Install, upgrade, roll back and uninstall with Helm itself, around a service that serves; and what deletions leave behind: nothing."""

import uuid
from pathlib import Path

import pytest
from pagoda_contracts.metrics import OPERATOR_RECONCILES
from pagoda_contracts.names import GROUP, LABEL_SERVICE, LEASE_OPERATOR
from pagoda_operator.api.state import (
    CHILD_RESOURCES,
    CONFIG_MAPS,
    CONTROLLER_REVISIONS,
    CORE_SERVICES,
    DEPLOYMENTS,
    LEASES,
    PODS,
    SERVICES,
    Resource,
)
from support.kube.chart import CHART, NAMESPACE, RELEASE
from support.kube.client import Kube, eventually
from support.kube.cluster import running_cluster
from support.kube.fake_api import service_body
from support.kube.namespace import NAME, NAMESPACES, Real
from support.kube.operator_process import USER, NodeWithoutKubelet, kubeconfig, running_operator

pytestmark = pytest.mark.cluster

BEFORE = Path(__file__).parents[2] / "data/v0.1/chart.tgz"
CRDS = Resource("apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions")
REPLICA_SETS = Resource("apps/v1", "ReplicaSet", "replicasets")
SERVICE_ACCOUNTS = Resource("v1", "ServiceAccount", "serviceaccounts")
RUNS = f"{OPERATOR_RECONCILES.name}_total"
ROLES = Resource("rbac.authorization.k8s.io/v1", "ClusterRole", "clusterroles")


@pytest.fixture
def cluster():
    """One of its own: what is installed and uninstalled here is the whole cluster's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PAGODA_TEST_CLUSTER", raising=False)
        with running_cluster(nodes="control-plane") as running:
            yield running


@pytest.fixture
def kube(cluster):
    hands = Kube(cluster.kubeconfig)
    yield hands
    hands.close()


@pytest.fixture
def harness(cluster, kube):
    """A place for a service; its namespace is made once the CRDs are there."""
    node = NodeWithoutKubelet(kube)
    node.register()
    yield Real(cluster, kube, node, f"in-{uuid.uuid4().hex[:8]}")
    node.leave()


@pytest.fixture
def helm(cluster):
    where = ["--namespace", NAMESPACE]

    def run(command, *arguments):
        return cluster.helm(command, RELEASE, *arguments, *where)

    return run


def install(helm, cluster, *options):
    helm("install", str(CHART), "--create-namespace", *options)
    cluster.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=300s")


def serving(harness, account):
    """The service serves and its operator is gone again: what happens now happens to a running service alone."""
    with running_operator(account, "--resync", "1s"):
        harness.prepare()
        harness.apply()
        harness.serve()
        harness.reported(Ready="Available", Reconciling="Settled")


def looked(operator):
    """It has been at the service: what is told of that may be another one's word."""
    eventually(lambda: operator.counted(RUNS) >= 5, "five runs")


def alive(harness):
    """The service and all that serves it: uids, and what the pods are made from."""
    found = {}
    for resource in (SERVICES, DEPLOYMENTS, CONTROLLER_REVISIONS, CONFIG_MAPS, PODS):
        for body in harness.kube.list(resource, harness.namespace, LABEL_SERVICE if resource != SERVICES else ""):
            content = body.get("data") or body["spec"].get("template")
            found[resource.kind, body["metadata"]["name"]] = (body["metadata"]["uid"], content)
    return found


def crds(kube):
    return sorted(body["metadata"]["name"] for body in kube.list(CRDS, "") if body["spec"]["group"] == GROUP)


def collected(harness):
    """Waits until the garbage collector knows the kind: it looks for new ones every 30 s, and what it never knew it never misses."""
    owner = harness.kube.create(SERVICES, harness.namespace, service_body("known", harness.namespace))
    reference = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": "known", "uid": owner["metadata"]["uid"]}
    head = {"name": "known", "ownerReferences": [reference]}
    harness.kube.create(CONFIG_MAPS, harness.namespace, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": head})
    harness.kube.delete(SERVICES, harness.namespace, "known")
    eventually(lambda: harness.kube.get(CONFIG_MAPS, harness.namespace, "known") is None, "the garbage collector knows services")


def gone(harness):
    """Whether nothing of any service is left in any namespace."""
    harness.end_pods()
    return not any(harness.kube.list(resource, "", LABEL_SERVICE) for resource in (*CHILD_RESOURCES, REPLICA_SETS, PODS))


def led(kube):
    """What an operator that was elected leaves in its namespace."""
    spec = {"holderIdentity": "", "leaseTransitions": 7}
    body = {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": {"name": LEASE_OPERATOR}, "spec": spec}
    kube.create(LEASES, NAMESPACE, body)


def left(kube):
    """What is there of ours in the operator's own namespace, which Helm made and leaves."""
    kinds = (LEASES, CONFIG_MAPS, DEPLOYMENTS, CORE_SERVICES, SERVICE_ACCOUNTS)
    names = [(resource.kind, body["metadata"]["name"]) for resource in kinds for body in kube.list(resource, NAMESPACE)]
    return [found for found in names if found[1] not in ("kube-root-ca.crt", "default")]


def knows(kube, word):
    """Whether the services' CRD has a field of the status."""
    (version,) = (kube.get(CRDS, "", f"{SERVICES.plural}.{GROUP}") or {})["spec"]["versions"]
    return word in version["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]


def test_from_the_chart_before_to_this_one_and_back_a_service_serves_on(cluster, kube, helm, harness, tmp_path):
    helm("install", str(BEFORE), "--create-namespace")
    cluster.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=300s")
    helm("upgrade", str(CHART))
    eventually(lambda: knows(kube, "readyExpectedAt"), "the new CRDs")
    serving(harness, kubeconfig(kube, tmp_path))
    before = alive(harness)
    assert len(before) == 5
    helm("rollback", "1")
    eventually(lambda: not knows(kube, "readyExpectedAt"), "the CRDs before")
    assert alive(harness) == before
    helm("upgrade", str(CHART), "--set", "gateway.replicas=3")
    assert alive(harness) == before
    assert (kube.get(DEPLOYMENTS, NAMESPACE, f"{RELEASE}-gateway") or {})["spec"]["replicas"] == 3
    with running_operator(kubeconfig(kube, tmp_path), "--resync", "1s") as operator:
        looked(operator)
        harness.reported(Ready="Available", Reconciling="Settled")
        assert operator.events("reconcile_bug") == []
    assert alive(harness) == before
    asked = cluster.audit(user=USER, verbs="all")
    assert [e for e in asked if e.get("responseStatus", {}).get("code") == 403] == []  # a watch that was cut off has none


def test_uninstalled_it_leaves_crds_and_services_and_takes_them_along_only_where_asked(cluster, kube, helm, harness, tmp_path):
    install(helm, cluster)
    serving(harness, kubeconfig(kube, tmp_path))
    before = alive(harness)
    led(kube)
    helm("uninstall")
    assert kube.get(LEASES, NAMESPACE, LEASE_OPERATOR), "its count outlasts the release as long as replicas know it"
    assert [role["metadata"]["name"] for role in kube.list(ROLES, "") if role["metadata"]["name"].startswith(RELEASE)] == []
    assert (len(crds(kube)), alive(harness)) == (4, before)
    install(helm, cluster)
    assert alive(harness) == before
    with running_operator(kubeconfig(kube, tmp_path), "--resync", "1s") as operator:
        looked(operator)
        harness.reported(Ready="Available", Reconciling="Settled")
    assert alive(harness) == before
    collected(harness)
    helm("upgrade", str(CHART), "--set", "crds.keep=false")
    helm("uninstall")
    eventually(lambda: crds(kube) == [], "the CRDs go")
    eventually(lambda: gone(harness), "and with them all services and replicas")
    eventually(lambda: left(kube) == [], "nothing left in the operator's namespace")


def test_a_deleted_namespace_and_a_deleted_service_leave_nothing_behind(cluster, kube, helm, harness, tmp_path):
    install(helm, cluster)
    with running_operator(kubeconfig(kube, tmp_path), "--resync", "1s") as operator:
        harness.prepare()
        for _ in range(2):
            harness.apply()
            harness.serve()
            harness.reported(Ready="Available", Reconciling="Settled")
            kube.delete(SERVICES, harness.namespace, NAME)
            eventually(lambda: gone(harness), "the service's children go")
        harness.apply()
        harness.serve()
        harness.reported(Ready="Available")
        kube.delete(NAMESPACES, "", harness.namespace)
        eventually(lambda: gone(harness) and kube.get(NAMESPACES, "", harness.namespace) is None, "the namespace goes")
        assert gone(harness)
        assert operator.events("reconcile_bug") == []
