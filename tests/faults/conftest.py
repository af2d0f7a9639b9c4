"""A control plane with fake nodes, whose pods become ready by themselves, and the fault proxy between it and the operator."""

import json
import time
import uuid

import pytest
from pagoda_contracts.names import ANNOTATION_DEVICES, API_VERSION
from pagoda_devcluster.fake.plays import READY_AFTER, STOP_AFTER
from pagoda_operator.api.state import PROFILES
from support.harness.capped_services import CHARGED, SLICES
from support.harness.service_life import PROFILE, harness_of, run
from support.judges.rights import nothing_refused
from support.kube.client import Kube
from support.kube.cluster import running_cluster
from support.kube.fault_plan import Plan
from support.kube.fault_proxy import FaultProxy
from support.kube.namespace import Real
from support.kube.operator_process import USER, NodeWithoutKubelet, install_role, kubeconfig


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    """A failure says how it is played again."""
    report = yield
    if report.failed:
        more = " --all" if item.get_closest_marker("full") else ""
        report.sections.append(("played again by", f"pytest -m ''{more} '{item.nodeid}'"))
    return report


@pytest.fixture(scope="package")
def cluster():
    with running_cluster(nodes="fake:2") as running:
        install_role(running)
        since = time.time()
        yield running
        nothing_refused(running, (USER,), since)


@pytest.fixture(scope="package")
def kube(cluster):
    hands = Kube(cluster.kubeconfig)
    yield hands
    hands.close()


@pytest.fixture(scope="package")
def proxy(kube):
    with FaultProxy(kube.server, kube.authority) as between:
        yield between


@pytest.fixture(scope="package")
def accounts(kube, proxy, tmp_path_factory):
    """The operator's own account, by way of each of the proxy's listeners."""
    files = [kubeconfig(kube, tmp_path_factory.mktemp("account")) for _ in proxy.addresses]
    for file, address in zip(files, proxy.addresses, strict=True):
        document = json.loads(file.read_text())
        document["clusters"][0]["cluster"] = {"server": address}
        file.write_text(json.dumps(document))
    return tuple(files)


@pytest.fixture(scope="package")
def account(accounts):
    return accounts[0]


@pytest.fixture(scope="package")
def profile(kube):
    """Of all services here: their pods are ready 0.1 s after they are bound. A tenant's are charged for, and hold what
    they have for 2 s more when they are deleted."""
    for reference, more in ((PROFILE, {}), (CHARGED, {ANNOTATION_DEVICES: f"{SLICES}=1", STOP_AFTER: "2"})):
        template = {"metadata": {"annotations": {READY_AFTER: "0.1"} | more}}
        spec = {"images": {"daemon": "localhost/daemon:1"}, "podTemplate": template}
        kube.create(PROFILES, "", {"apiVersion": API_VERSION, "kind": PROFILES.kind, "metadata": reference["profileRef"], "spec": spec})


@pytest.fixture
def place(cluster, kube, profile):
    """Makes namespaces with a profile of their own; each is removed at the end."""
    made = []

    def make():
        made.append(prepared(cluster, kube))
        return made[-1]

    yield make
    for real in made:
        real.clean()


@pytest.fixture(scope="package")
def undisturbed(cluster, kube, proxy, account, profile):
    """What a scenario ends in if nothing goes wrong. Each is run once, while no other operator is alive: two would share the Lease."""
    known = {}

    def ask(name):
        if name not in known:
            real = prepared(cluster, kube)
            with harness_of(real, proxy, account, lease=name != "capped") as harness:
                outcome = run(name, harness, Plan())
            real.clean()
            assert (outcome.broken, outcome.deaths) == ([], 0)
            known[name] = outcome
        return known[name]

    return ask


def prepared(cluster, kube):
    real = Real(cluster, kube, NodeWithoutKubelet(kube), f"fault-{uuid.uuid4().hex[:8]}")
    real.prepare()
    return real
