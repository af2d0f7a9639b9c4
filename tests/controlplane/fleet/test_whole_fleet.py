"""The whole product on a fleet that pretends: operator, gateway, and replicas that answer on fake nodes. Only the tokens are false."""

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from openai import OpenAI
from pagoda_contracts.names import HEADER_ROUTE, PORT_DAEMON_HTTP
from pagoda_operator.api.state import SERVICES
from support.kube.client import Kube, eventually
from support.kube.cluster import Cluster, running_cluster
from support.kube.daemon_processes import endpoints
from support.kube.namespace import NAME, Real
from support.kube.operator_process import NodeWithoutKubelet, install_role, kubeconfig, running_operator
from support.servers.gateway_process import start_gateway

pytestmark = pytest.mark.cluster

REPLICAS, REQUESTS, TOKENS = 4, 24, 20


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running_cluster("fake:3", serve=True) as running:
        install_role(running)
        yield running


@pytest.fixture
def harness(cluster, tmp_path) -> Iterator[Real]:
    """A namespace with a profile and bound claims, and the operator beside it."""
    kube = Kube(cluster.kubeconfig)
    real = Real(cluster, kube, NodeWithoutKubelet(kube), f"fleet-{uuid.uuid4().hex[:8]}")
    real.prepare()
    with running_operator(kubeconfig(kube, tmp_path), "--resync", "1s") as operator:
        yield real
        assert operator.events("reconcile_bug") == []
        kube.delete(SERVICES, real.namespace, NAME)  # until it is gone it holds its name, and the next test's service would stall
    kube.close()


def generated(address: str) -> int:
    lines = httpx.get(f"http://{address}:{PORT_DAEMON_HTTP}/metrics", trust_env=False, timeout=60).text.splitlines()
    return next(int(float(line.rpartition(" ")[2])) for line in lines if line.startswith("vllm:generation_tokens_total{"))


def addresses(harness: Real) -> list[str]:
    return [pod["status"]["podIP"] for pod in harness.pods() if "deletionTimestamp" not in pod["metadata"]]


def ask(url: str) -> tuple[str, str]:
    """Why it was routed so, and how it ended."""
    client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    said = [{"role": "user", "content": "hello"}]
    raw = client.chat.completions.with_raw_response.create(
        model=NAME, messages=said, max_tokens=TOKENS, stream=True, extra_body={"ignore_eos": True}
    )
    *_, last = raw.parse()
    return raw.headers[HEADER_ROUTE], last.choices[0].finish_reason


def test_a_service_becomes_ready_and_a_gateway_spreads_its_load_over_replicas_that_answer(harness):
    harness.apply(replicas=REPLICAS)
    harness.reported(Ready="Available")
    with start_gateway("--kubeconfig", str(harness.cluster.kubeconfig)) as gateway:
        eventually(lambda: gateway.probe("/readyz") == 200, "gateway ready")
        eventually(lambda: endpoints(gateway, "ready") == REPLICAS, "all are heard: requests would go to the first one else")
        with ThreadPoolExecutor(REQUESTS) as pool:
            answers = list(pool.map(ask, [gateway.url] * REQUESTS))
        gateway.terminate()
        assert gateway.wait() == 0
    assert [end for _, end in answers] == ["length"] * REQUESTS
    served = [generated(address) for address in addresses(harness)]
    assert sum(served) == REQUESTS * TOKENS
    # The picker's business is elsewhere; here: the replicas really are several.
    assert sum(count > 0 for count in served) > 1
    assert len({route.partition("endpoint=")[2].partition(";")[0] for route, _ in answers}) > 1


def test_a_service_that_shrinks_and_goes_leaves_no_front(harness):
    harness.apply(replicas=2)
    harness.reported(Ready="Available")
    before = addresses(harness)
    harness.edit(replicas=1)
    eventually(lambda: len(addresses(harness)) == 1, "one replica left")
    (left,) = addresses(harness)
    (gone,) = set(before) - {left}
    eventually(lambda: not answers(gone), "the other has drained")
    assert answers(left)
    harness.clean()
    eventually(lambda: not answers(left), "nothing of it answers")


def answers(address: str) -> bool:
    try:
        return httpx.get(f"http://{address}:{PORT_DAEMON_HTTP}/health", trust_env=False, timeout=60).status_code == 200
    except httpx.HTTPError:
        return False
