"""The route of the README: `kubectl apply` of the example, tokens by the real openai client, and why they came from where they did."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from openai import NotFoundError, OpenAI
from pagoda_contracts.names import HEADER_REQUEST_ID, HEADER_ROUTE, PORT_DAEMON_HTTP
from pagoda_contracts.route import parse_route
from pagoda_devcluster.demo import install
from pydoc_answers import questions
from support.clients.streams import alone, together

pytestmark = pytest.mark.cluster

EXAMPLE = Path(__file__).parents[3] / "examples/01-quickstart"
SERVICE = "llama-tiny"


@pytest.fixture(scope="module")
def served(pagoda) -> Iterator[str]:
    """The example as it stands in the repository, in the namespace where a newcomer applies it."""
    install.claim(pagoda.builder, pagoda.cluster, pagoda.model, "default", SERVICE)
    install.claim_deps(pagoda.builder, pagoda.cluster, "default")
    pagoda.cluster.kubectl("apply", "-n", "default", "-f", str(EXAMPLE))
    line = pagoda.outcome("default", SERVICE)
    assert line.ready, line
    yield pagoda.url
    pagoda.cluster.kubectl("delete", "-n", "default", "-f", str(EXAMPLE), "--ignore-not-found")


@pytest.fixture
def client(served) -> Iterator[OpenAI]:
    with OpenAI(base_url=served, api_key="unused", max_retries=0, timeout=300) as client:
        yield client


def test_answers_are_what_python_documents(client):
    """The model learned these by heart, so any wrong token anywhere on the route shows."""
    for qa in questions()[::9]:
        answer = client.chat.completions.create(model=SERVICE, messages=[{"role": "user", "content": qa.question}], temperature=0)
        assert answer.choices[0].message.content == qa.answer
        assert answer.choices[0].finish_reason == "stop"
        assert answer.usage.completion_tokens > 0


def test_a_stream_carries_the_same_answer_and_says_its_route(client, pagoda):
    qa = questions()[0]
    raw = client.chat.completions.with_raw_response.create(
        model=SERVICE, messages=[{"role": "user", "content": qa.question}], temperature=0, stream=True
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in raw.parse() if chunk.choices)
    route = parse_route(raw.headers[HEADER_ROUTE])
    pods = pagoda.get("pods", "-n", "default", "-l", "app.kubernetes.io/component=replica")["items"]
    assert text == qa.answer
    assert route.endpoint.split(":")[0] in [pod["status"]["podIP"] for pod in pods]
    assert (route.attempt, route.reason) == (1, "only-endpoint")


def test_the_command_line_says_why_a_request_went_where_it_went(client, pagoda):
    raw = client.completions.with_raw_response.create(model=SERVICE, prompt="x", max_tokens=1)
    route, request_id = parse_route(raw.headers[HEADER_ROUTE]), raw.headers[HEADER_REQUEST_ID]
    path = f"{pagoda.cluster.bin}{os.pathsep}{os.environ['PATH']}"
    argv = [Path(sys.executable).parent / "pagoda", "why", f"request/{request_id}", f"--kubeconfig={pagoda.cluster.kubeconfig}"]
    page = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=300, env={**os.environ, "PATH": path}).stdout
    assert page.startswith(f"request {request_id}: 200 after ")
    assert f"  replica: {route.endpoint}\n  reason: only-endpoint: it was the only replica" in page


def test_the_gateway_is_the_only_way_in(served, pagoda):
    """Straight to the replica's Service, its OpenAI API and its metrics want a token; the gateway had one for every answer above."""
    address = pagoda.get("service", "-n", "default", SERVICE)["spec"]["clusterIP"]
    with httpx.Client(
        base_url=f"http://{address}:{PORT_DAEMON_HTTP}", trust_env=False, timeout=300, headers={"authorization": "Bearer sk-guess"}
    ) as straight:
        assert [straight.get(path).status_code for path in ("/v1/models", "/metrics", "/load", "/health")] == [401, 401, 401, 200]
        assert straight.post("/v1/completions", json={"model": SERVICE, "prompt": "x"}).status_code == 401
    (policy,) = pagoda.get("networkpolicies", "-n", "default")["items"]
    assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]


def test_models_lists_the_served_name(client):
    assert SERVICE in [model.id for model in client.models.list()]


def test_an_unknown_model_is_named(client):
    with pytest.raises(NotFoundError) as refusal:
        client.chat.completions.create(model="no-such-model", messages=[{"role": "user", "content": "hi"}])
    assert refusal.value.code == "model_not_found"
    assert "no-such-model" in refusal.value.message


async def test_32_concurrent_streams_equal_32_single_runs_token_by_token(served):
    asked = [qa.question for qa in questions()[:32]]
    single = await alone(served, SERVICE, asked)
    concurrent = await together(served, SERVICE, asked)
    overlap = max(sum(other.in_flight_at(stream.started) for other in concurrent) for stream in concurrent)
    assert [stream.error for stream in [*single.values(), *concurrent]] == [None] * 64
    assert {stream.question: stream.said for stream in concurrent} == {question: stream.said for question, stream in single.items()}
    assert overlap >= 16, "the streams did not run together"


def test_the_service_is_listed_as_a_person_reads_it(pagoda, served):
    header, row = pagoda.cluster.kubectl("get", "inferenceservices", "-n", "default").splitlines()[:2]
    assert header.split() == ["NAME", "READY", "REASON", "REPLICAS", "DESIRED", "ACCELERATOR", "AGE"]
    assert row.split()[:6] == [SERVICE, "True", "Available", "1", "1", "cpu[0]"]
