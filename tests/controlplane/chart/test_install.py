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
def world(cluster, kube):
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


def serving(world, account):
    """The service serves and its operator is gone again: what happens now happens to a running service alone."""
    with running_operator(account, "--resync", "1s"):
        world.prepare()
        world.apply()
        world.serve()
        world.told(Ready="Available", Reconciling="Settled")


def looked(operator):
    """It has been at the service: what is told of that may be another one's word."""
    eventually(lambda: operator.counted(RUNS) >= 5, "five runs")


def alive(world):
    """The service and all that serves it: uids, and what the pods are made from."""
    found = {}
    for resource in (SERVICES, DEPLOYMENTS, CONTROLLER_REVISIONS, CONFIG_MAPS, PODS):
        for body in world.kube.list(resource, world.namespace, LABEL_SERVICE if resource != SERVICES else ""):
            content = body.get("data") or body["spec"].get("template")
            found[resource.kind, body["metadata"]["name"]] = (body["metadata"]["uid"], content)
    return found


def crds(kube):
    return sorted(body["metadata"]["name"] for body in kube.list(CRDS, "") if body["spec"]["group"] == GROUP)


def collected(world):
    """Waits until the garbage collector knows the kind: it looks for new ones every 30 s, and what it never knew it never misses."""
    owner = world.kube.create(SERVICES, world.namespace, service_body("known", world.namespace))
    reference = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": "known", "uid": owner["metadata"]["uid"]}
    head = {"name": "known", "ownerReferences": [reference]}
    world.kube.create(CONFIG_MAPS, world.namespace, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": head})
    world.kube.delete(SERVICES, world.namespace, "known")
    eventually(lambda: world.kube.get(CONFIG_MAPS, world.namespace, "known") is None, "the garbage collector knows services")


def gone(world):
    """Whether nothing of any service is left in any namespace."""
    world.end_pods()
    return not any(world.kube.list(resource, "", LABEL_SERVICE) for resource in (*CHILD_RESOURCES, REPLICA_SETS, PODS))


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


def test_from_the_chart_before_to_this_one_and_back_a_service_serves_on(cluster, kube, helm, world, tmp_path):
    helm("install", str(BEFORE), "--create-namespace")
    cluster.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=300s")
    helm("upgrade", str(CHART))
    eventually(lambda: knows(kube, "readyExpectedAt"), "the new CRDs")
    serving(world, kubeconfig(kube, tmp_path))
    before = alive(world)
    assert len(before) == 5
    helm("rollback", "1")
    eventually(lambda: not knows(kube, "readyExpectedAt"), "the CRDs before")
    assert alive(world) == before
    helm("upgrade", str(CHART), "--set", "gateway.replicas=3")
    assert alive(world) == before
    assert (kube.get(DEPLOYMENTS, NAMESPACE, f"{RELEASE}-gateway") or {})["spec"]["replicas"] == 3
    with running_operator(kubeconfig(kube, tmp_path), "--resync", "1s") as operator:
        looked(operator)
        world.told(Ready="Available", Reconciling="Settled")
        assert operator.events("reconcile_bug") == []
    assert alive(world) == before
    asked = cluster.audit(user=USER, verbs="all")
    assert [e for e in asked if e.get("responseStatus", {}).get("code") == 403] == []  # a watch that was cut off has none


def test_uninstalled_it_leaves_crds_and_services_and_takes_them_along_only_where_asked(cluster, kube, helm, world, tmp_path):
    install(helm, cluster)
    serving(world, kubeconfig(kube, tmp_path))
    before = alive(world)
    led(kube)
    helm("uninstall")
    assert kube.get(LEASES, NAMESPACE, LEASE_OPERATOR), "its count outlasts the release as long as replicas know it"
    assert [role["metadata"]["name"] for role in kube.list(ROLES, "") if role["metadata"]["name"].startswith(RELEASE)] == []
    assert (len(crds(kube)), alive(world)) == (4, before)
    install(helm, cluster)
    assert alive(world) == before
    with running_operator(kubeconfig(kube, tmp_path), "--resync", "1s") as operator:
        looked(operator)
        world.told(Ready="Available", Reconciling="Settled")
    assert alive(world) == before
    collected(world)
    helm("upgrade", str(CHART), "--set", "crds.keep=false")
    helm("uninstall")
    eventually(lambda: crds(kube) == [], "the CRDs go")
    eventually(lambda: gone(world), "and with them all services and replicas")
    eventually(lambda: left(kube) == [], "nothing left in the operator's namespace")


def test_a_deleted_namespace_and_a_deleted_service_leave_nothing_behind(cluster, kube, helm, world, tmp_path):
    install(helm, cluster)
    with running_operator(kubeconfig(kube, tmp_path), "--resync", "1s") as operator:
        world.prepare()
        for _ in range(2):
            world.apply()
            world.serve()
            world.told(Ready="Available", Reconciling="Settled")
            kube.delete(SERVICES, world.namespace, NAME)
            eventually(lambda: gone(world), "the service's children go")
        world.apply()
        world.serve()
        world.told(Ready="Available")
        kube.delete(NAMESPACES, "", world.namespace)
        eventually(lambda: gone(world) and kube.get(NAMESPACES, "", world.namespace) is None, "the namespace goes")
        assert gone(world)
        assert operator.events("reconcile_bug") == []
