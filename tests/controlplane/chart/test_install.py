"""Install, upgrade, roll back and uninstall with Helm itself, around a service that serves; and what deletions leave behind: nothing."""

import json
import threading
import uuid
from contextlib import contextmanager, suppress
from functools import partial
from itertools import groupby
from pathlib import Path

import httpx
import pytest
import yaml
from pagoda_contracts.launch import AuthConfig, DaemonConfig
from pagoda_contracts.metrics import OPERATOR_RECONCILES
from pagoda_contracts.names import (
    DAEMON_CONFIG_KEY,
    GROUP,
    JWKS_CONFIG_MAP,
    LABEL_SERVICE,
    LEASE_OPERATOR,
    ROLE_GATEWAY,
    TOKEN_AUDIENCE,
)
from pagoda_daemon.api.access.auth import Guard
from pagoda_operator.api.state import (
    CHILD_RESOURCES,
    CONFIG_MAPS,
    CONTROLLER_REVISIONS,
    CORE_SERVICES,
    DEPLOYMENTS,
    LEASES,
    NETWORK_POLICIES,
    PODS,
    SERVICES,
    Resource,
)
from support.kube import kserve
from support.kube.chart import CHART, NAMESPACE, RELEASE, images, profile, rendered, the
from support.kube.client import Kube, eventually
from support.kube.cluster import running_cluster
from support.kube.fake_api import running, service_body
from support.kube.namespace import NAME, NAMESPACES, Real
from support.kube.operator_process import USER, NodeWithoutKubelet, kubeconfig, running_operator
from support.suite.tour import blocks

pytestmark = pytest.mark.cluster

BEFORE = Path(__file__).parents[2] / "data/v0.1/chart.tgz"
CRDS = Resource("apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions")
REPLICA_SETS = Resource("apps/v1", "ReplicaSet", "replicasets")
SERVICE_ACCOUNTS = Resource("v1", "ServiceAccount", "serviceaccounts")
RUNS = f"{OPERATOR_RECONCILES.name}_total"
SECRETS = Resource("v1", "Secret", "secrets")
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


# As whoever installed the build of 67b5cc9 set them.
OWN_VALUES = {
    "operator": {"image": "registry.example.com/pagoda/operator:0.1.0", "pod": {"nodeSelector": {"pool": "system"}}},
    "gateway": {"image": "registry.example.com/pagoda/gateway:0.1.0", "replicas": 3, "resources": {"limits": {"memory": "3Gi"}}},
    "defaultProfile": {
        "images": {name: f"registry.example.com/pagoda/{name}:0.1.0" for name in ("daemon", "fetch")},
        "nodeSelector": {"pool": "gpu"},
        "egress": [{"cidr": "198.51.100.0/24", "ports": [443]}],
    },
    "auth": {"metrics": {"accounts": ["monitoring/prometheus"]}},
}
UPGRADING, WITH_IMAGES, *_ = blocks("docs/operations/upgrade.md")


def installed(cluster):
    """What the release holds now."""
    return [body for body in yaml.safe_load_all(cluster.helm("get", "manifest", RELEASE, "--namespace", NAMESPACE)) if body]


def kept_its_values(objects):
    """Whether a value of each kind is still as it was set, beside defaults that the chart before did not have."""
    pods = {name: the(objects, "Deployment", f"{RELEASE}-{name}")["spec"] for name in ("operator", "gateway")}
    operator, gateway = (pods[name]["template"]["spec"] for name in ("operator", "gateway"))
    assert (operator["nodeSelector"], operator["securityContext"]["runAsNonRoot"]) == ({"pool": "system"}, True)
    assert (pods["gateway"]["replicas"], gateway["containers"][0]["resources"]["limits"]) == (3, {"memory": "3Gi"})
    assert {"name": "PAGODA_LAME_DUCK", "value": "10s"} in gateway["containers"][0]["env"]
    own = OWN_VALUES["defaultProfile"]
    assert [profile(objects)[name] for name in ("nodeSelector", "egress", "devices")] == [own["nodeSelector"], own["egress"], []]


def test_from_the_chart_before_to_this_one_and_back_a_service_serves_on(cluster, kube, helm, harness, tmp_path):
    """By the commands of docs/operations/upgrade.md, from the chart of 67b5cc9 with values that its users set."""
    values = tmp_path / "values.json"
    values.write_text(json.dumps(OWN_VALUES))
    helm("install", str(BEFORE), "--create-namespace", "--values", str(values))
    cluster.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=300s")
    UPGRADING.run(cluster)
    kept_its_values(installed(cluster))
    assert {image.rpartition(":")[2] for image in images(installed(cluster))} == {"0.1.0"}, "images that are named stay"
    eventually(lambda: knows(kube, "adapterNames"), "the new CRDs")
    serving(harness, kubeconfig(kube, tmp_path))
    before = alive(harness)
    assert len(before) == 5
    helm("rollback", "1")
    eventually(lambda: not knows(kube, "adapterNames"), "the CRDs before")
    assert alive(harness) == before
    WITH_IMAGES.run(cluster, {"REGISTRY": "registry.example.com"})
    kept_its_values(installed(cluster))
    assert sorted(images(installed(cluster))) == sorted(f"registry.example.com/{image}" for image in images(rendered(cluster)))
    assert alive(harness) == before
    with running_operator(kubeconfig(kube, tmp_path), "--resync", "1s") as operator:
        looked(operator)
        harness.reported(Ready="Available", Reconciling="Settled")
        assert operator.events("reconcile_bug") == []
    assert alive(harness) == before
    asked = cluster.audit(user=USER, verbs="all")
    assert [e for e in asked if e.get("responseStatus", {}).get("code") == 403] == []  # a watch that was cut off has none


class Kubelet:
    """Makes each pod on the node ready, and ends the deleted ones: a reader of the page has nodes."""

    def __init__(self, kube, node):
        self._kube, self._node, self._over = kube, node, threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self):
        self._thread.start()

    def __exit__(self, *_):
        self._over.set()
        self._thread.join()

    def _run(self):
        while not self._over.wait(0.3):
            with suppress(httpx.TransportError, AssertionError):
                for pod in self._kube.list(PODS, ""):
                    if "deletionTimestamp" in pod["metadata"]:
                        self._kube.delete(PODS, pod["metadata"]["namespace"], pod["metadata"]["name"], grace=0)
                    elif pod["spec"].get("nodeName") and pod["status"]["phase"] == "Pending":
                        self._node.report(pod, running(ready=True))


@contextmanager
def operated(kube, folder, release=RELEASE, namespace=NAMESPACE):
    """The release's operator as a process, with the account and the callers that the chart gave it."""
    callers = folder / f"{release}.json"
    callers.write_text(kube.get(CONFIG_MAPS, namespace, f"{release}-operator")["data"]["callers.json"])
    account = kubeconfig(kube, folder, f"{release}-operator", namespace)
    with running_operator(account, "--resync", "1s", PAGODA_CALLERS=str(callers), PAGODA_NAMESPACE=namespace) as operator:
        yield operator
        assert operator.events("reconcile_bug") == []


def role(harness, folder, release, namespace):
    """What a replica takes a release's gateway for, by the DaemonConfig that it was made with and the files that are mounted now."""
    token = harness.cluster.kubectl("create", "token", f"{release}-gateway", "-n", namespace, "--audience", TOKEN_AUDIENCE)
    for name, text in harness.kube.get(CONFIG_MAPS, harness.namespace, JWKS_CONFIG_MAP)["data"].items():
        (folder / name).write_text(text)
    (deployment,) = harness.kube.list(DEPLOYMENTS, harness.namespace)
    text = harness.kube.get(CONFIG_MAPS, harness.namespace, deployment["metadata"]["name"])["data"][DAEMON_CONFIG_KEY]
    tokens = DaemonConfig.model_validate_json(text).auth.tokens
    files = {field: str(folder / Path(getattr(tokens, field)).name) for field in ("jwks_file", "subjects_file")}
    return Guard(AuthConfig(tokens=tokens.model_copy(update=files))).identify(f"Bearer {token.strip()}").role


def callers_spaces(harness):
    """Namespaces whose pods the service's NetworkPolicy lets in to the API."""
    peers = harness.kube.get(NETWORK_POLICIES, harness.namespace, NAME)["spec"]["ingress"][0]["from"]
    return {peer["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"] for peer in peers}


@pytest.fixture
def tour(cluster):
    """The page's commands by heading, each to be run with what a reader puts into it."""
    page = {head: list(found) for head, found in groupby(blocks("docs/operations/install.md"), lambda block: block.heading)}
    assert [block.not_run for found in page.values() for block in found if block.not_run] == ["it needs a pod and the cluster's DNS"]
    yield lambda heading: [partial(block.run, cluster, {"REGISTRY": "registry.example.com", "llama": NAME}) for block in page.pop(heading)]
    assert page == {}, "all commands of the page were run"


@pytest.mark.timeout(900)
def test_a_tour_of_the_page_on_installation(cluster, kube, helm, harness, tour, tmp_path):
    """Each command of docs/operations/install.md in its order: an uninstall leaves services serving, the next install takes them over under
    another name and in another namespace, and all goes only if it is asked for. KServe's kind of the same name was there before."""
    kserve.install(cluster)
    harness = Real(cluster, kube, harness.node, "models")
    with Kubelet(kube, harness.node):
        for install in tour("Install, values, upgrade, uninstall"):
            install()
        for beside in tour("Two installs in one cluster"):
            beside()
        cluster.helm("uninstall", "blue", "--namespace", "pagoda-blue")
        with operated(kube, tmp_path):
            harness.prepare()
            harness.apply()
            said = [wait() for wait in tour("Waiting and reading")]
            harness.reported(Ready="Available", Reconciling="Settled")
        assert said[0].count("condition met") == 2
        before = alive(harness)
        led(kube)
        ended(harness, tour("Upgrade and uninstall"), tmp_path)
        assert (len(crds(kube)), alive(harness)) == (4, before)
        moved(harness, tour("Another name or namespace"), tmp_path)
        assert alive(harness) == before
        cluster.helm("uninstall", "models", "--namespace", "serving")
        helm("install", str(CHART), "--take-ownership")
        collected(harness)
        for remove in tour("Removing everything"):
            remove()
        eventually(lambda: crds(kube) == [], "the CRDs go")
        assert kube.get(CRDS, "", kserve.NAME)
        eventually(lambda: gone(harness), "and with them all services and replicas")
        eventually(lambda: left(kube) == [], "nothing left in the operator's namespace")


def ended(harness, commands, folder):
    """The release goes; a client with a token of the gateway's account is let in until that goes, too."""
    uninstall, let_in, _, shut_out = commands
    uninstall()
    assert harness.kube.get(LEASES, NAMESPACE, LEASE_OPERATOR), "its count outlasts the release as long as replicas know it"
    assert [body["metadata"]["name"] for body in harness.kube.list(ROLES, "") if body["metadata"]["name"].startswith(RELEASE)] == []
    let_in()
    assert (role(harness, folder, RELEASE, NAMESPACE), callers_spaces(harness)) == (ROLE_GATEWAY, {NAMESPACE})
    shut_out()


def moved(harness, commands, folder):
    """The replica serves callers of the new release by what the new operator writes, though it was made for those of the earlier one."""
    (move,), kube = commands, harness.kube
    move()
    assert kube.get(LEASES, "serving", LEASE_OPERATOR)["spec"]["leaseTransitions"] == 7
    assert kube.get(SECRETS, "serving", "pagoda-first-key")["data"] == kube.get(SECRETS, NAMESPACE, "pagoda-first-key")["data"]
    with operated(kube, folder, "models", "serving") as operator:
        looked(operator)
        harness.reported(Ready="Available", Reconciling="Settled")
        eventually(lambda: role(harness, folder, "models", "serving") == ROLE_GATEWAY, "the replica lets the new gateway in")
        eventually(lambda: callers_spaces(harness) == {"serving"}, "and so does its NetworkPolicy")


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
