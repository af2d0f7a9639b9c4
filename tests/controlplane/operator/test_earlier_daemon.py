"""Daemons of the version before serve on under today's operator and gateway: real processes of 0.1 in a whole life on a real API server.

They know 0.1's messages only: fields that came later are dropped by them, methods that came later are unknown to them.
"""

import asyncio
import json
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import grpc
import httpx
import pytest
from pagoda_contracts.names import (
    ANNOTATION_DRAIN_DEADLINE,
    GRPC_SET_STATE,
    HEADER_ROUTE,
    LEASE_OPERATOR,
    ROLE_GATEWAY,
    ROLE_OPERATOR,
    TOKEN_AUDIENCE,
)
from pagoda_contracts.pb.daemon_pb2 import PHASE_READY, TARGET_SERVING, SetStateRequest, SetStateResponse
from pagoda_contracts.route import parse_route
from pagoda_operator.state import CONTROLLER_REVISIONS
from support.kube.client import eventually
from support.kube.earlier_operator import unpack
from support.kube.namespace import NAME
from support.kube.operator_process import ACCOUNT, LEASES, NAMESPACE, OperatorProcess
from support.kube.paper_kubelet import paper_kubelet
from support.kube.ward import endpoints
from support.servers.earlier_daemon import EarlierDaemons
from support.servers.gateway_process import start_gateway

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]
GATEWAY = "pagoda-gateway"
LATE, GONE = grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE
ACCOUNTS = {ROLE_GATEWAY: f"{NAMESPACE}/{GATEWAY}", ROLE_OPERATOR: f"{NAMESPACE}/{ACCOUNT}"}
# Enough steps of 20 ms that a stream outlives an order and its being taken back on any machine: four minutes.
LONG = 12_000
ENGINE = {"maxModelLen": 2 * LONG, "kvCache": {"size": "64Mi"}}


class Installation:
    """What the chart gives operator and gateway: their accounts' tokens, and who they are to replicas."""

    def __init__(self, kube, folder):
        self.folder = folder
        for account in (ACCOUNT, GATEWAY):
            path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{account}/token"
            made = kube.post(path, {"spec": {"expirationSeconds": 3600, "audiences": [TOKEN_AUDIENCE]}})["status"]["token"]
            self.token(account).write_text(made)
        self.keys, self.callers = folder / "keys.json", folder / "callers.json"
        self.keys.write_text(json.dumps(kube.read("/openid/v1/jwks")))
        self.callers.write_text(json.dumps(ACCOUNTS))

    def token(self, account):
        return self.folder / f"{account}.token"

    def gateway(self, kubeconfig):
        known = ("--token", str(self.token(GATEWAY)), "--token-keys", str(self.keys), "--operator", ACCOUNTS[ROLE_OPERATOR])
        return start_gateway("--kubeconfig", str(kubeconfig), *known)

    @asynccontextmanager
    async def operator(self, account, gateway, identity):
        """Today's, leading."""
        options = ("--resync", "1s", "--gateways", f"127.0.0.1:{gateway.demand}", "--namespace", NAMESPACE, "--identity", identity)
        own = {"PAGODA_TOKEN": str(self.token(ACCOUNT)), "PAGODA_CALLERS": str(self.callers)}
        running = await asyncio.to_thread(OperatorProcess, account, *options, **own)
        try:
            await asyncio.to_thread(eventually, lambda: running.events("leading"), f"{identity} leads")
            yield running
        finally:
            await asyncio.to_thread(running.stop)
        assert running.events("reconcile_bug") == []


@pytest.fixture
def installation(kube, tmp_path):
    return Installation(kube, tmp_path)


@pytest.fixture
def gateway(installation, real):
    with installation.gateway(real.cluster.kubeconfig) as running:
        yield running


@pytest.fixture
async def client(gateway):
    async with httpx.AsyncClient(base_url=gateway.url, timeout=400, trust_env=False) as made:
        yield made


@pytest.fixture
async def daemons(real, tmp_path):
    made = await asyncio.to_thread(EarlierDaemons, real, tmp_path)
    async with paper_kubelet(real, tmp_path, made.start):
        yield made


async def until(look, what):
    """Looked at off the loop, ten times a second."""
    async with asyncio.timeout(300):
        while not (found := await asyncio.to_thread(look)):
            await asyncio.sleep(0.1)
    return found


def settled(real, replicas):
    body = real.service()
    status = body.get("status", {})
    ready = next((line for line in status.get("conditions", []) if line["type"] == "Ready"), {})
    wanted = "Available" if replicas else "ScaledToZero"
    fresh = status.get("observedGeneration") == body["metadata"]["generation"] and ready.get("reason") == wanted
    return fresh and status.get("readyReplicas", 0) == replicas and len(real.pods()) == replicas


async def heard(gateway, real, count):
    """By today's gateway, from 0.1's State."""
    await until(lambda: endpoints(gateway, "ready", f"{real.namespace}/{NAME}") == count, "their states are heard")


def uids(real):
    return {pod["metadata"]["uid"] for pod in real.pods()}


def asked(tokens):
    return {"model": NAME, "prompt": "x", "max_tokens": tokens, "ignore_eos": True, "stream": True}


async def ask(client, tokens=20, started=None):
    """The stream is whole."""
    lines = []
    async with client.stream("POST", "/v1/completions", json=asked(tokens)) as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data: "):
                lines.append(line)
                if started:
                    started.set()
    assert (answer.status_code, lines[-1], "error" in "".join(lines)) == (200, "data: [DONE]", False), (answer.status_code, lines)


async def scaled_to_none(real, client):
    """While four streams run, all of which end as if nothing had been."""
    events = [asyncio.Event() for _ in range(4)]
    streams = [asyncio.create_task(ask(client, 100, event)) for event in events]
    async with asyncio.timeout(300):
        await asyncio.gather(*(event.wait() for event in events))
    await asyncio.to_thread(real.edit, replicas=0)
    await asyncio.gather(*streams)
    await until(lambda: settled(real, 0), "all have gone")


async def woken(real, client):
    """A request that comes while there is none waits for the next one."""
    held = asyncio.create_task(ask(client))
    await asyncio.to_thread(real.edit, replicas=1)
    await held


class Anchor:
    """A stream that goes on for as long as the test wants. It is read all the time: a replica ends one whose client takes nothing."""

    def __init__(self, client):
        self._stream = client.stream("POST", "/v1/completions", json=asked(LONG))
        self._tokens, self._more, self._reading = 0, asyncio.Condition(), None

    async def __aenter__(self):
        answer = await self._stream.__aenter__()
        assert answer.status_code == 200
        self.endpoint = parse_route(answer.headers[HEADER_ROUTE]).endpoint
        self._reading = asyncio.create_task(self._read(answer))
        await self.goes_on(1)
        return self

    async def __aexit__(self, *error):
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        await self._stream.__aexit__(*error)

    async def _read(self, answer):
        try:
            async for line in answer.aiter_lines():
                assert "error" not in line
                self._tokens += line.startswith("data: {")
                async with self._more:
                    self._more.notify_all()
        finally:
            async with self._more:
                self._more.notify_all()

    async def goes_on(self, more=20):
        """That many tokens more, none of them an error."""
        wanted = self._tokens + more
        async with asyncio.timeout(300), self._more:
            await self._more.wait_for(lambda: self._reading.done() or self._tokens >= wanted)
        assert not self._reading.done(), self._reading.exception() or "it is over"


@asynccontextmanager
async def anchored(client, gateway, real, replicas):
    """A stream on each: the gateway sends the next one to who has less to do, unless the machine holds that one up just then."""
    async with AsyncExitStack() as stack:
        anchors = {}
        for _ in range(10 * replicas):
            await heard(gateway, real, replicas)
            anchor = await stack.enter_async_context(Anchor(client))
            anchors.setdefault(anchor.endpoint, anchor)
            if len(anchors) == replicas:
                break
        assert len(anchors) == replicas, "it does not know which has less to do"
        yield anchors.values()


async def set_state(address, installation, **order):
    """An order in the operator's name."""
    token = installation.token(ACCOUNT).read_text()
    async with grpc.aio.insecure_channel(address) as channel:
        method = channel.unary_unary(
            GRPC_SET_STATE, request_serializer=SetStateRequest.SerializeToString, response_deserializer=SetStateResponse.FromString
        )
        return await method(SetStateRequest(**order), metadata=(("authorization", f"Bearer {token}"),), timeout=300)


def epoch_of(kube):
    return kube.get(LEASES, NAMESPACE, LEASE_OPERATOR)["spec"]["leaseTransitions"]


async def test_what_0_1_started_serves_on_grows_and_goes_under_todays_operator(real, account, installation, gateway, client, daemons):
    """0.1 wrote revision and DaemonConfig, without callers: it gives no orders, and its daemons take none. They drain by their deletion."""
    earlier = await asyncio.to_thread(partial(OperatorProcess, account, "--resync", "1s", program=unpack(daemons.folder / "operator")))
    try:
        await asyncio.to_thread(real.apply, engine=ENGINE)
        await until(lambda: settled(real, 1), "it serves under 0.1")
    finally:
        await asyncio.to_thread(earlier.stop)
    before, pinned = uids(real), real.kube.list(CONTROLLER_REVISIONS, real.namespace)
    async with installation.operator(account, gateway, "today") as operator:
        await asyncio.to_thread(real.edit, replicas=2)
        await until(lambda: settled(real, 2), "a second one of 0.1 beside it")
        await heard(gateway, real, 2)
        assert before < uids(real)
        assert [revision["data"] for revision in real.kube.list(CONTROLLER_REVISIONS, real.namespace)] == [one["data"] for one in pinned]
        async with anchored(client, gateway, real, 2):
            pass
        await scaled_to_none(real, client)
        await until(lambda: operator.events("order_refused"), "that 0.1 took no order")
        assert {uid: replica.process.returncode for uid, replica in daemons.replicas.items()} == dict.fromkeys(daemons.replicas, 0)
        await woken(real, client)


async def test_0_1_obeys_todays_operator_who_drains_it_turns_it_back_and_scales_it_to_none(
    real, account, installation, gateway, client, daemons, kube
):
    """The image is 0.1's still where the operator is today's: today's DaemonConfig, tokens and orders."""
    await asyncio.to_thread(real.apply, engine=ENGINE, drain={"timeout": "5m"})
    async with installation.operator(account, gateway, "first"):
        await until(lambda: settled(real, 1), "the first one serves")
        await ask(client)
        epoch = epoch_of(kube)
    async with installation.operator(account, gateway, "second") as operator:
        assert epoch_of(kube) > epoch
        epoch = epoch_of(kube)
        await asyncio.to_thread(real.edit, replicas=2)
        await until(lambda: settled(real, 2), "the second one serves")
        await heard(gateway, real, 2)
        pair = uids(real)
        async with anchored(client, gateway, real, 2) as anchors:
            await asyncio.to_thread(real.edit, replicas=1)
            (victim,) = await until(lambda: [uid for uid in pair if daemons.orders(uid)], "one is told to drain")
            assert daemons.orders(victim) == [(True, epoch)]
            await asyncio.to_thread(real.edit, replicas=2)
            await until(lambda: daemons.orders(victim) == [(True, epoch), (False, epoch)], "it is turned back")
            await until(lambda: settled(real, 2), "both serve")
            assert uids(real) == pair
            for anchor in anchors:
                await anchor.goes_on()
        assert not any(ANNOTATION_DRAIN_DEADLINE in pod["metadata"].get("annotations", {}) for pod in real.pods())
        await fenced(daemons.replicas[victim].grpc, installation, epoch)
        await scaled_to_none(real, client)
        assert [daemons.orders(uid)[-1] for uid in pair] == [(True, epoch)] * 2
        assert [daemons.replicas[uid].process.returncode for uid in pair] == [0, 0]
        await woken(real, client)
        said = [event for name in ("order_refused", "daemon_silent", "superseded") for event in operator.events(name)]
        # An order that a busy machine was late with is given again; one that comes when the process has just ended finds nobody.
        assert [event for event in said if event.get("code") not in (LATE.name, GONE.name)] == []


async def fenced(address, installation, epoch):
    """What makes it 0.1: it does not know `pod_uid`, which today's would refuse. Its answer is one that is understood, its refusal too."""
    answer = await set_state(address, installation, target=TARGET_SERVING, epoch=epoch, pod_uid="another's")
    assert (answer.phase, answer.epoch) == (PHASE_READY, epoch)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await set_state(address, installation, target=TARGET_SERVING, epoch=epoch - 1)
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
