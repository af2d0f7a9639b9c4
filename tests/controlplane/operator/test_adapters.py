"""A LoraAdapter from `kubectl apply` to the last answer by it: real operator, gateway, daemon fronts and fetch sidecar; the engines compute
nothing, but each adapter changes their tokens in its own way.

Callers are not told apart here; the daemon's table of who may give orders is opened for everybody, as the operator's role stands in it.
"""

import asyncio
import signal
from contextlib import AsyncExitStack
from functools import partial

import httpx
import pytest
from pagoda_contracts.launch import DaemonConfig, Listen
from pagoda_contracts.names import API_VERSION, DAEMON_CONFIG_KEY, GRPC_SET_ADAPTERS, GRPC_SET_STATE, PORT_FETCH, ROLE_OPERATOR
from pagoda_daemon.api.access.caller import ROLE_ANYBODY
from pagoda_daemon.api.access.roles import METHODS
from pagoda_daemon.simulated.device.worker import expected_tokens, read_digest
from pagoda_daemon.simulated.replicas.text import VOCAB
from pagoda_operator.api.state import ADAPTERS, CONFIG_MAPS, NAMESPACES, PODS
from support.engine.adapter_files import write_adapter
from support.kube.fake_kubelet import PATIENT, InLoop, fake_kubelet
from support.kube.operator_process import OperatorProcess
from support.servers.adapter_sidecar import adapter_sidecar
from support.servers.gateway_process import start_gateway
from support.servers.local_front import NAME as MODEL
from support.servers.local_front import local_config, local_front

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]
PROMPT = list(range(5, 45))
WANTED = {"maxLoaded": 2, "allowFrom": {"namespaces": "Selector", "selector": {"matchLabels": {"team": "blue"}}}}


class Cluster:
    """What a user does and sees."""

    def __init__(self, real, claims, gateway):
        self.real, self.claims, self.gateway = real, claims, gateway

    def apply(self, name, folder, namespace="", **spec):
        wanted = {"serviceRef": {"name": "tiny"}, "source": {"uri": f"pvc://models/{folder}"}, "placement": {"mode": "Eager"}}
        body = {"apiVersion": API_VERSION, "kind": "LoraAdapter", "metadata": {"name": name}, "spec": wanted | spec}
        return self.real.kube.create(ADAPTERS, namespace or self.real.namespace, body)

    def status(self, name, namespace=""):
        """Conditions by type, and the rest, once they are about the newest generation."""
        found = self.real.kube.get(ADAPTERS, namespace or self.real.namespace, name)
        status = found.get("status", {})
        if status.get("observedGeneration") != found["metadata"]["generation"]:
            return None
        return status | {one["type"]: (one["status"], one["reason"], one["message"]) for one in status["conditions"]}

    async def reported(self, name, reason, loaded=0, namespace=""):
        def look():
            status = self.status(name, namespace)
            return status if status and status["Ready"][1] == reason and status["loaded"] >= loaded else None

        return await until(look, f"{name} {reason}")

    async def ask(self, model):
        body = {"model": model, "prompt": PROMPT, "max_tokens": 8, "ignore_eos": True, "return_token_ids": True}
        async with httpx.AsyncClient(trust_env=False, timeout=300) as http:
            answer = await http.post(f"{self.gateway.url}/v1/completions", json=body)
        return tuple(answer.json()["choices"][0]["token_ids"]) if answer.status_code == 200 else answer.status_code

    async def ask_until(self, end, model, answers):
        """At least twice: before and after the end."""
        answers.append(await self.ask(model))
        while not end.is_set():
            answers.append(await self.ask(model))
        answers.append(await self.ask(model))

    async def models(self):
        async with httpx.AsyncClient(trust_env=False, timeout=300) as http:
            cards = (await http.get(f"{self.gateway.url}/v1/models")).json()["data"]
        return {card["id"]: card.get("parent") for card in cards}

    def expected(self, folder):
        adapter = read_digest(self.claims / "models" / folder, None).digest if folder else ""
        return expected_tokens(PROMPT, 8, VOCAB, adapter)


async def until(look, what):
    async with asyncio.timeout(300):
        while not (found := await asyncio.to_thread(look)):
            await asyncio.sleep(0.1)
    assert found, what
    return found


@pytest.fixture
async def here(real, account, tmp_path, monkeypatch):
    roles = frozenset((ROLE_ANYBODY, ROLE_OPERATOR))
    for method in (GRPC_SET_STATE, GRPC_SET_ADAPTERS):
        monkeypatch.setitem(METHODS, method, roles)
    claims = tmp_path / "claims"
    for name in ("one", "two"):
        write_adapter(claims / "models" / name, name.encode())
    async with AsyncExitStack() as stack:
        sidecar = await stack.enter_async_context(adapter_sidecar(claims, tmp_path / "store"))

        async def start(pod, ip, folder):
            volume = next(one for one in pod["spec"]["volumes"] if one["name"] == "config")
            found = await asyncio.to_thread(real.kube.get, CONFIG_MAPS, real.namespace, volume["configMap"]["name"])
            adapters = DaemonConfig.model_validate_json(found["data"][DAEMON_CONFIG_KEY]).adapters
            assert adapters.fetch_port == PORT_FETCH
            own = adapters.model_copy(update={"fetch_port": sidecar})
            config = local_config(folder, adapters=own, health=PATIENT, drain_timeout="5m")
            config = config.model_copy(update={"listen": Listen(host=ip, probes=0, run_dir=str(folder))})
            inner = AsyncExitStack()
            return InLoop(await inner.enter_async_context(local_front(config)), inner)

        model = {"uri": "pvc://models", "servedNames": [MODEL]}
        await asyncio.to_thread(real.apply, replicas=2, model=model, adapters=WANTED, health={"progressTimeout": "30m"})
        operators = [await asyncio.to_thread(OperatorProcess, account)]
        stack.callback(partial(end_last, operators))
        (tmp_path / "pods").mkdir()
        await stack.enter_async_context(fake_kubelet(real, tmp_path / "pods", start))
        gateway = stack.enter_context(start_gateway("--kubeconfig", str(real.cluster.kubeconfig)))
        made = Cluster(real, claims, gateway)
        made.operators, made.account = operators, account
        await until(lambda: ready(real), "the service is ready")
        yield made
        assert all(operator.events("reconcile_bug") == [] for operator in operators)


def end_last(operators):
    operators[-1].stop()


def ready(real):
    conditions = real.service().get("status", {}).get("conditions", [])
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


async def test_an_adapter_is_applied_answers_is_updated_in_place_and_deleted(here):
    await asyncio.to_thread(here.apply, "pirate", "one")
    status = await here.reported("pirate", "Resident", loaded=2)
    assert {one["state"] for one in status["endpoints"]} == {"Loaded"}
    assert len(status["endpoints"]) == 2
    assert await here.ask("pirate") == here.expected("one")
    assert await here.ask(MODEL) == here.expected("")
    assert (await here.models()) == {MODEL: None, "pirate": MODEL}

    first = status["digest"]
    source, updated, answers = {"spec": {"source": {"uri": "pvc://models/two"}}}, asyncio.Event(), []
    load = asyncio.gather(*(here.ask_until(updated, "pirate", answers) for _ in range(4)))
    async with asyncio.timeout(300):
        while not answers:  # on a busy machine the change may be faster than the first request
            await asyncio.sleep(0.01)
    await asyncio.to_thread(here.real.kube.merge, ADAPTERS, here.real.namespace, "pirate", source)
    after = await here.reported("pirate", "Resident", loaded=2)
    updated.set()
    await load
    # Every answer is of one version as a whole, and none failed.
    assert set(answers) == {here.expected("one"), here.expected("two")}
    assert after["digest"] != first
    assert await here.ask("pirate") == here.expected("two")

    await asyncio.to_thread(here.real.kube.delete, ADAPTERS, here.real.namespace, "pirate")
    async with asyncio.timeout(300):
        while await here.models() != {MODEL: None}:
            await asyncio.sleep(0.1)
    assert await here.ask("pirate") == 404
    assert await here.ask(MODEL) == here.expected("")


async def test_an_adapter_is_back_after_restarts_of_operator_and_pod_and_one_that_no_replica_can_load_says_why(here):
    await asyncio.to_thread(here.apply, "pirate", "one", placement={"mode": "Replicas", "replicas": 1})
    (place,) = (await here.reported("pirate", "Resident", loaded=1))["endpoints"]
    await asyncio.to_thread(here.operators[0].stop, signal.SIGKILL)
    await asyncio.to_thread(here.real.kube.delete, PODS, here.real.namespace, place["pod"])
    here.operators.append(await asyncio.to_thread(OperatorProcess, here.account))

    def moved():
        status = here.status("pirate")
        return status["Ready"][0] == "True" and {one["pod"] for one in status["endpoints"]} != {place["pod"]}

    await until(moved, "it is on another replica")
    assert await here.ask("pirate") == here.expected("one")

    await asyncio.to_thread(here.apply, "lost", "none")
    status = await here.reported("lost", "AdapterRejected")
    assert "pvc://models/none: no such folder" in status["Stalled"][2]
    assert {one["state"] for one in status["endpoints"]} == {"Failed"}
    await asyncio.to_thread(here.apply, "later", "one", placement={"mode": "OnDemand"})
    status = await here.reported("later", "Resident", loaded=0)
    assert {one["state"] for one in status["endpoints"]} == {"OnDisk"}
    assert "later" in await here.models()
    assert await here.ask("later") == here.expected("one")  # a request loads it


async def test_another_namespace_attaches_an_adapter_once_its_labels_are_those_that_the_service_allows(here):
    guest, kube = f"{here.real.namespace}-guest", here.real.kube
    await asyncio.to_thread(kube.create, NAMESPACES, "", {"metadata": {"name": guest}})
    try:
        reference = {"name": "tiny", "namespace": here.real.namespace}
        await asyncio.to_thread(here.apply, "foreign", "two", guest, serviceRef=reference)
        await here.reported("foreign", "NotAllowed", namespace=guest)
        await asyncio.to_thread(kube.merge, NAMESPACES, "", guest, {"metadata": {"labels": {"team": "blue"}}})
        await here.reported("foreign", "Resident", 2, guest)
        assert await here.ask("foreign") == here.expected("two")
    finally:
        await asyncio.to_thread(kube.delete, NAMESPACES, "", guest)
