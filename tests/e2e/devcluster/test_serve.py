"""Fake nodes whose pods answer: what a client, a gateway's watch and the endpoints controller see of replicas that pretend. Needs root."""

import json
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from openai import APIConnectionError, OpenAI
from pagoda_contracts import launch
from pagoda_contracts.launch import DaemonConfig, EngineConfig, ModelConfig, SimulatedWorker
from pagoda_contracts.names import (
    DAEMON_CONFIG_DIR,
    DAEMON_CONFIG_KEY,
    GRPC_WATCH_STATE,
    PATH_READY,
    PORT_DAEMON_GRPC,
    PORT_DAEMON_HTTP,
    PORT_PROBES,
)
from pagoda_contracts.pb.daemon_pb2 import State, WatchStateRequest
from pagoda_devcluster.fake.plays import PLAY
from pagoda_devcluster.machine import processes
from support.kube.client import eventually
from support.kube.cluster import Cluster, running_cluster

pytestmark = pytest.mark.cluster

NAME = "pretended"
# Tokens of a stream that is broken off: a minute and a half.
LONG = 18_000
ROOMY = EngineConfig(max_model_len=20_000)


@pytest.fixture(scope="module")
def fleet() -> Iterator[Cluster]:
    with running_cluster("fake:3", serve=True) as running:
        yield running


@pytest.fixture
def space(fleet: Cluster, new_namespace: Callable[[Cluster], Any]) -> Iterator[Any]:
    created = new_namespace(fleet)
    yield created
    fleet.kubectl("delete", "namespace", created.name, "--wait=false")


def config(**changes: Any) -> DaemonConfig:
    testing = launch.TestingConfig(simulated=SimulatedWorker(step_ms=5.0))
    return DaemonConfig(model=ModelConfig(path="/models", served_names=(NAME,)), drain_timeout="5m", testing=testing, **changes)


def deploy(space: Any, replicas: int, text: str, **annotations: str) -> None:
    """As the operator renders a replica: the daemon reads its configuration out of a ConfigMap."""
    mount = {"name": "config", "mountPath": DAEMON_CONFIG_DIR, "readOnly": True}
    security = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    container = {"name": "daemon", "image": "none", "args": ["--config", f"{DAEMON_CONFIG_DIR}/{DAEMON_CONFIG_KEY}"]}
    spec = {
        "containers": [container | {"volumeMounts": [mount], "securityContext": security}],
        "volumes": [{"name": "config", "configMap": {"name": "replica"}}],
        "securityContext": {"runAsNonRoot": True, "runAsUser": 65534, "seccompProfile": {"type": "RuntimeDefault"}},
        "terminationGracePeriodSeconds": 330,
    }
    known = {f"devcluster.pagoda.dev/{key.replace('_', '-')}": value for key, value in annotations.items()}
    template = {"metadata": {"labels": {"app": "replica"}, "annotations": known}, "spec": spec}
    deployment = {"replicas": replicas, "selector": {"matchLabels": {"app": "replica"}}, "template": template}
    port = {"name": "http", "port": PORT_DAEMON_HTTP}
    objects = [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "replica"}, "data": {DAEMON_CONFIG_KEY: text}},
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "replica"}, "spec": deployment},
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "replica"}, "spec": {"selector": {"app": "replica"}, "ports": [port]}},
    ]
    space.kubectl("apply", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))


def available(space: Any, replicas: int, **changes: Any) -> list[str]:
    """The addresses of the Service's ready endpoints, once there are as many."""
    deploy(space, replicas, config(**changes).model_dump_json(by_alias=True, exclude_none=True), ready_after="0.5")
    space.kubectl("wait", "deployment/replica", f"--for=jsonpath={{.status.readyReplicas}}={replicas}", "--timeout=300s")
    deadline = time.monotonic() + 300
    while len(found := endpoints(space)) != replicas:
        assert time.monotonic() < deadline, found
    return found


def endpoints(space: Any) -> list[str]:
    slices = json.loads(space.kubectl("get", "endpointslices", "-l", "kubernetes.io/service-name=replica", "-o", "json"))["items"]
    ready = [one for part in slices for one in part.get("endpoints") or [] if one["conditions"]["ready"]]
    return sorted(one["addresses"][0] for one in ready)


def url(address: str, path: str = "/v1", port: int = PORT_DAEMON_HTTP) -> str:
    return f"http://{address}:{port}{path}"


def generated(address: str) -> float:
    """Tokens this very replica has generated, by its own count."""
    lines = httpx.get(url(address, "/metrics"), trust_env=False, timeout=300).text.splitlines()
    return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith("vllm:generation_tokens_total{"))


def ask(address: str, tokens: int) -> Any:
    client = OpenAI(base_url=url(address), api_key="none", max_retries=0)
    said = [{"role": "user", "content": "hello"}]
    extra = {"ignore_eos": True}
    return client.chat.completions.create(model=NAME, messages=said, max_tokens=tokens, stream=True, extra_body=extra)


def test_each_endpoint_of_a_service_streams_and_counts_for_itself(space):
    one, other = available(space, 2)
    assert one != other
    for address, tokens in ((one, 7), (other, 11)):
        chunks = list(ask(address, tokens))
        assert chunks[-1].choices[0].finish_reason == "length"
    assert (generated(one), generated(other)) == (7, 11)


async def test_each_endpoint_pushes_a_state_of_its_own(space):
    addresses = available(space, 2, revision="r1", engine=ROOMY)
    stream = ask(addresses[0], LONG)
    next(stream)
    states = [await first_state(address) for address in addresses]
    assert [(state.in_flight, state.revision, list(state.served_names)) for state in states] == [(1, "r1", [NAME]), (0, "r1", [NAME])]
    stream.close()


async def first_state(address: str) -> State:
    async with grpc.aio.insecure_channel(f"{address}:{PORT_DAEMON_GRPC}", options=[("grpc.enable_http_proxy", 0)]) as channel:
        watch = channel.unary_stream(
            GRPC_WATCH_STATE, request_serializer=WatchStateRequest.SerializeToString, response_deserializer=State.FromString
        )
        async for state in watch(WatchStateRequest(watcher="test")):
            return state
    raise AssertionError("no state came")


def test_a_pod_is_ready_when_its_front_is_and_not_before(space):
    text = config().model_dump_json(by_alias=True, exclude_none=True)
    deploy(space, 1, text, ready_after="3600")
    space.wait_for_pods("app=replica", "jsonpath={.status.phase}=Running")
    (address,) = addresses_of(space)
    answer = probed(address)
    assert (answer.status_code, answer.text.partition(",")[0]) == (503, "loading")
    refused = httpx.post(url(address, "/v1/completions"), json={"model": NAME, "prompt": "a"}, trust_env=False, timeout=300)
    assert (refused.status_code, endpoints(space)) == (503, [])


def addresses_of(space: Any) -> list[str]:
    return space.kubectl("get", "pods", "-l", "app=replica", "-o", "jsonpath={.items[*].status.podIP}").split()


def probed(address: str) -> httpx.Response:
    """Once somebody listens: the pod runs a moment before its daemon does."""
    deadline = time.monotonic() + 300
    while True:
        try:
            return httpx.get(url(address, PATH_READY, PORT_PROBES), trust_env=False, timeout=300)
        except httpx.ConnectError:
            assert time.monotonic() < deadline


def test_a_deleted_pod_finishes_its_stream_and_its_address_then_refuses(space):
    (address,) = available(space, 1, engine=ROOMY)
    # The long one holds the drain until it is seen: the other ends by itself, in ten seconds.
    stream, holds_it = ask(address, 2000), ask(address, LONG)
    next(stream)
    next(holds_it)
    space.kubectl("scale", "deployment/replica", "--replicas=0")
    while (answer := probed(address)).status_code == 200:
        pass
    assert answer.text.startswith("draining")
    assert list(stream)[-1].choices[0].finish_reason == "length"
    next(holds_it)
    holds_it.close()
    space.kubectl("wait", "pods", "--for=delete", "-l", "app=replica", "--timeout=300s")
    with pytest.raises(httpx.ConnectError):
        httpx.get(url(address, "/health"), trust_env=False, timeout=300)


def test_a_crash_breaks_the_stream_off_and_recovery_brings_the_front_back(space):
    (address,) = available(space, 1, engine=ROOMY)
    stream = ask(address, LONG)
    next(stream)
    space.kubectl("annotate", "pods", "-l", "app=replica", f"{PLAY}=crash-loop")
    with pytest.raises(APIConnectionError):
        list(stream)
    space.kubectl("wait", "deployment/replica", "--for=condition=Available=False", "--timeout=300s")
    space.kubectl("annotate", "pods", "-l", "app=replica", f"{PLAY}-")
    space.kubectl("wait", "deployment/replica", "--for=condition=Available", "--timeout=300s")
    assert len(list(ask(address, 3))) > 1


def test_an_impossible_configuration_is_shown_on_the_pod(space):
    deploy(space, 1, '{"model": {"path": "/models", "servedNames": []}}')
    shown = ("get", "pods", "-o", "jsonpath={.items[*].status.containerStatuses[0].state.waiting.message}")
    eventually(lambda: "config.model.servedNames" in space.kubectl(*shown), "what is wrong with it, on the pod")


def test_fifty_replicas_live_in_one_process(space, fleet):
    before = resident_mib(fleet)
    addresses = available(space, 50)
    assert len(set(addresses)) == 50
    assert {httpx.get(url(address, "/health"), trust_env=False, timeout=300).status_code for address in addresses} == {200}
    # 0.2 MiB a replica were measured; a process each would be 50 times 85. What it holds before is of all the tests before (215 were seen).
    assert resident_mib(fleet) - before < 50 * 85 / 10


def resident_mib(fleet: Cluster) -> float:
    pid = next(one["pid"] for one in fleet.status["processes"] if one["name"] == "fronts")
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS:"))


def test_down_takes_route_and_process_along():
    with running_cluster("fake:1", serve=True) as running:
        # Whoever may write to the socket has a process of root's listen where they like.
        assert stat.S_IMODE((Path(running.status["folder"]) / "fronts").stat().st_mode) == 0o700
        pid = next(one["pid"] for one in running.status["processes"] if one["name"] == "fronts")
        route = f"local {running.status['pod_cidr']} dev lo"
        assert route in routes()
    assert route not in routes()
    assert not processes.alive(pid)


def routes() -> str:
    return subprocess.run(["ip", "route", "show", "table", "local"], capture_output=True, text=True, check=True).stdout
