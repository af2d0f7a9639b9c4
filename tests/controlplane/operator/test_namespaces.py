"""An operator that serves some namespaces only, or one class of services only: it touches nothing else."""

import time

import pytest
import yaml
from pagoda_contracts.names import LABEL_CLASS, LABEL_SERVICE
from pagoda_operator.api.state import CHILD_RESOURCES, DEPLOYMENTS, PODS, SERVICES
from support.judges.rights import nothing_refused
from support.kube.chart import CHART, NAMESPACE
from support.kube.client import eventually
from support.kube.fake_api import service_body
from support.kube.namespace import NAME
from support.kube.operator_process import kubeconfig, running_operator

pytestmark = pytest.mark.cluster
RELEASE = "some"
ACCOUNT = f"{RELEASE}-operator"


@pytest.fixture
def elsewhere(cluster, real):
    """A service in a namespace that is not served, and a pod that looks like its replica."""
    name = f"{real.namespace}-else"
    cluster.create_namespace(name)
    real.kube.create(SERVICES, name, service_body(NAME, name, profileRef={"name": real.namespace}))
    meta = {"name": "replica", "labels": {LABEL_SERVICE: NAME}}
    spec = {"containers": [{"name": "c", "image": "localhost/c:1"}], "nodeName": real.node.name}
    real.kube.create(PODS, name, {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
    yield name
    cluster.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture
def account(cluster, kube, real, tmp_path):
    """The chart's own account and rights, as rendered for the served namespace."""
    options = ("--namespace", NAMESPACE, "--set", f"operator.namespaces={{{real.namespace}}}")
    templates = ("--show-only", "templates/operator-rbac.yaml", "--show-only", "templates/operator.yaml")
    text = cluster.helm("template", RELEASE, str(CHART), *options, *templates)
    bodies = [body for body in yaml.safe_load_all(text) if body and body["kind"] not in ("Deployment", "PodDisruptionBudget", "ConfigMap")]
    cluster.kubectl("apply", "-f", "-", input=yaml.safe_dump_all(bodies))
    yield kubeconfig(kube, tmp_path, ACCOUNT)
    cluster.kubectl("delete", "-f", "-", input=yaml.safe_dump_all(bodies))


def test_the_chart_s_roles_are_enough_and_nothing_elsewhere_is_touched(cluster, real, account, elsewhere):
    since = time.time()
    before = real.kube.get(SERVICES, elsewhere, NAME)
    options = ("--resync", "1s", "--namespace", NAMESPACE, "--namespaces", f"{NAMESPACE},{real.namespace}")
    with running_operator(account, *options) as operator:
        real.apply()
        real.serve()
        real.reported(Ready="Available")
        real.edit(engine={"maxModelLen": 128})
        real.serve(2)
        eventually(lambda: not real.end_pods() and len(real.pods()) == 1, "the old revision goes")
        real.reported(Ready="Available", Reconciling="Settled")
        assert operator.events("reconcile_bug") == []
        assert real.kube.get(SERVICES, elsewhere, NAME) == before
        assert real.kube.list(DEPLOYMENTS, elsewhere) == []
        assert [pod["metadata"].get("deletionTimestamp") for pod in real.kube.list(PODS, elsewhere)] == [None]
    nothing_refused(cluster, [f"system:serviceaccount:{NAMESPACE}:{ACCOUNT}"], since)


CLASS, OTHER = "blue", "blue-tiny"


def ready(real, name):
    found = real.kube.get(SERVICES, real.namespace, name) or {}
    return any((line["type"], line["status"]) == ("Ready", "True") for line in found.get("status", {}).get("conditions", ()))


def owned(real, name):
    """The service as it is, and its children: which ones, and how often their specs were changed."""
    children = [body["metadata"] for kind in CHILD_RESOURCES for body in real.kube.list(kind, real.namespace, f"{LABEL_SERVICE}={name}")]
    service = real.kube.get(SERVICES, real.namespace, name)["metadata"]["resourceVersion"]
    return service, sorted((meta["uid"], meta.get("generation")) for meta in children)


def test_two_installs_live_in_one_cluster_and_each_acts_on_its_own_class(real, kube, tmp_path):
    chart_s = kubeconfig(kube, tmp_path)
    body = service_body(OTHER, real.namespace, profileRef={"name": real.namespace})
    body["metadata"]["labels"] = {LABEL_CLASS: CLASS}
    real.kube.create(SERVICES, real.namespace, body)
    real.apply()
    with running_operator(chart_s, "--resync", "1s", "--no-lease", PAGODA_SERVICE_CLASS=CLASS) as blue:
        real.serve()
        eventually(lambda: ready(real, OTHER), "the service of the class is Ready")
        assert [pod["metadata"]["labels"][LABEL_CLASS] for pod in real.pods()] == [CLASS]
        assert "status" not in real.service()
        assert blue.events("reconcile_bug") == []
    before = owned(real, OTHER)
    assert len(before[1]) == 5
    with running_operator(chart_s, "--resync", "1s", "--no-lease") as plain:
        real.serve(2)
        real.reported(Ready="Available")
        assert (owned(real, OTHER), plain.events("reconcile_bug")) == (before, [])
    real.kube.delete(SERVICES, real.namespace, OTHER)
