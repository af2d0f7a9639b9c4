"""A control plane of its own (no kubelet: the tests are the kubelet), the operator's account, a namespace per test."""

import threading
import uuid

import pytest
from pagoda_daemon.api.grpc.control import Control
from pagoda_daemon.simulated.device.worker import SimulatedWorker, simulated_limits
from support.kube.client import Kube
from support.kube.cluster import running_cluster
from support.kube.namespace import Real
from support.kube.operator_process import NodeWithoutKubelet, install_role, kubeconfig, running_operator


@pytest.fixture(scope="package")
def cluster():
    # Never the cluster that PAGODA_TEST_CLUSTER names: its kubelet would speak for the pods, its operator for the services.
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PAGODA_TEST_CLUSTER", raising=False)
        with running_cluster(nodes="control-plane") as running:
            install_role(running)
            yield running


@pytest.fixture(scope="package")
def kube(cluster):
    hands = Kube(cluster.kubeconfig)
    yield hands
    hands.close()


@pytest.fixture(scope="package")
def node(kube):
    node_without_kubelet = NodeWithoutKubelet(kube)
    node_without_kubelet.register()
    yield node_without_kubelet
    node_without_kubelet.leave()


@pytest.fixture(scope="package")
def account(kube, tmp_path_factory):
    return kubeconfig(kube, tmp_path_factory.mktemp("account"))


@pytest.fixture
def real(cluster, kube, node):
    """A fresh namespace under Pod Security `restricted`, and a profile of its own."""
    harness = Real(cluster, kube, node, f"op-{uuid.uuid4().hex[:8]}")
    harness.prepare()
    yield harness
    harness.clean()


@pytest.fixture(scope="module")
def operator(account):
    with running_operator(account, "--resync", "1s") as process:
        yield process
    assert process.events("reconcile_bug") == []


@pytest.fixture
def gate(monkeypatch):
    """Holds every step of the simulated engines while it is cleared."""
    held = threading.Event()
    held.set()
    monkeypatch.setattr(SimulatedWorker, "of", lambda config: SimulatedWorker(simulated_limits(config), 1.0, lambda _: held.wait()))
    yield held
    held.set()


@pytest.fixture
def orders(monkeypatch):
    """All that daemons were told, as it came."""
    heard, obey = [], Control.set_state

    async def noted(control, caller, request, context):
        answer = await obey(control, caller, request, context)
        heard.append(request)
        return answer

    monkeypatch.setattr(Control, "set_state", noted)
    return heard
