"""From one replica to none and back with a real operator, gateway and daemon front: a request runs while the operator dies at every step,
another lands there, and a leader that was followed by another gives up.

Callers are not told apart here; the daemon's table of who may give orders is opened for everybody, as the operator's role stands in it.
"""

import asyncio
import json
from contextlib import asynccontextmanager
from functools import partial

import httpx
import pytest
from pagoda_contracts.names import ANNOTATION_DELETION_COST, ANNOTATION_DRAIN_DEADLINE, GRPC_SET_STATE, ROLE_OPERATOR
from pagoda_daemon.api.access.caller import ROLE_ANYBODY
from pagoda_daemon.api.access.roles import METHODS
from pagoda_daemon.health.drain import Until
from pagoda_operator.api.state import DEPLOYMENTS
from support.kube.fake_kubelet import fake_kubelet
from support.kube.operator_process import OperatorProcess
from support.kube.operator_under_test import under_test
from support.servers.gateway_process import start_gateway
from support.servers.local_front import NAME as MODEL

# A life of an operator costs seconds, each step two of them.
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]
TOKENS = 40
# A replica that is asked so often how many requests are left was not let go at the first answer.
_ASKED = 3


@pytest.fixture
async def kubelet(real, tmp_path, monkeypatch, gate, orders):
    monkeypatch.setitem(METHODS, GRPC_SET_STATE, frozenset((ROLE_ANYBODY, ROLE_OPERATOR)))
    model = {"uri": "pvc://models", "servedNames": [MODEL]}
    await asyncio.to_thread(real.apply, model=model, drain={"timeout": "30m"}, health={"progressTimeout": "30m"})
    async with fake_kubelet(real, tmp_path) as made:
        yield made


async def until(look, what):
    """A look costs a request to the API server, so it is taken ten times a second, off the loop."""
    async with asyncio.timeout(300):
        while not (found := await asyncio.to_thread(look)):
            await asyncio.sleep(0.1)
    return found


def replicas(real):
    return sum(body["spec"]["replicas"] for body in real.kube.list(DEPLOYMENTS, real.namespace))


def staying(real):
    return [pod for pod in real.pods() if "deletionTimestamp" not in pod["metadata"]]


def settled(real, reason="Available"):
    status = real.service().get("status", {})
    ready = next((found for found in status.get("conditions", []) if found["type"] == "Ready"), {})
    return status.get("observedGeneration") == real.service()["metadata"]["generation"] and ready.get("reason") == reason


async def live(real, account, look, what):
    """A whole operator until the cluster is as wished."""
    operator = await asyncio.to_thread(OperatorProcess, account, "--resync", "1s")
    try:
        await until(look, what)
    finally:
        await asyncio.to_thread(operator.stop)
    assert operator.events("reconcile_bug") == []


async def ask(client):
    """Its status, its last line, whether it tells of an error, and how many tokens came."""
    body = {"model": MODEL, "prompt": "x", "max_tokens": TOKENS, "ignore_eos": True, "stream": True}
    async with client.stream("POST", "/v1/completions", json=body | {"stream_options": {"include_usage": True}}) as answer:
        lines = [line async for line in answer.aiter_lines() if line.startswith("data: ")]
    tokens = json.loads(lines[-2].removeprefix("data: "))["usage"]["completion_tokens"] if len(lines) > 1 else 0
    return answer.status_code, lines[-1] if lines else "", "error" in "".join(lines), tokens


WHOLE = (200, "data: [DONE]", False, TOKENS)


@asynccontextmanager
async def dying(account, writes):
    """An operator that is killed after so many writes, or at the end."""
    operator = await asyncio.to_thread(OperatorProcess, account, "--resync", "1s", program=under_test(die_after_writes=writes))
    try:
        yield lambda: operator.process.poll() is not None
    finally:
        operator.process.kill()
        await asyncio.to_thread(operator.stop)


async def at_work(replica, request):
    """The request is on the replica, and runs there for as long as the gate is shut."""
    async with asyncio.timeout(300):
        while not replica.in_flight:
            await asyncio.sleep(0.05)
    assert not request.done()


async def to_none(real, account, replica, hold, writes):
    """An operator takes the only replica away, on which a request runs, and dies after so many writes: while it runs, or once it may end.
    Whether there was nothing left to write."""
    gate, orders = hold
    orders.clear()
    async with dying(account, writes) as dead:
        await until(lambda: dead() or not replicas(real) or len(orders) >= _ASKED, "a death, or a wait for the request")
        # However far it got: the request runs, and its replica has not been let go.
        assert (replica.in_flight, await asyncio.to_thread(replicas, real)) == (1, 1)
        if not dead():
            assert replica.drain.draining
            gate.set()
            await until(lambda: dead() or settled(real, "ScaledToZero"), "a death")
        return not dead()


async def test_a_request_at_every_step_of_one_to_none_is_answered(real, account, kubelet, gate, orders):
    await live(real, account, partial(settled, real), "the first replica")
    seen = set()
    with start_gateway("--kubeconfig", str(real.cluster.kubeconfig), "--hold-timeout", "300s") as gateway:
        async with httpx.AsyncClient(base_url=gateway.url, timeout=900) as client:
            for writes in range(1, 12):
                (before,) = await asyncio.to_thread(staying, real)
                replica = kubelet.containers[before["metadata"]["uid"]].running.front.front.replica
                gate.clear()
                running = asyncio.create_task(ask(client))  # is there before the first step
                await at_work(replica, running)
                await asyncio.to_thread(real.edit, replicas=0)
                finished = await to_none(real, account, replica, (gate, orders), writes)
                landing = asyncio.create_task(ask(client))  # lands at this one
                asked = await asyncio.to_thread(replicas, real)
                # As the controllers leave it: a pod that is to go may bear its note still.
                await until(lambda wanted=asked: len(staying(real)) == wanted, f"{asked} pods stay")
                notes = [set(pod["metadata"].get("annotations", {})) for pod in await asyncio.to_thread(staying, real)]
                seen.add((asked, any(ANNOTATION_DRAIN_DEADLINE in note for note in notes), gate.is_set()))
                await asyncio.to_thread(real.edit, replicas=1)
                await live(real, account, lambda: settled(real) and len(staying(real)) == 1, "the burst is served")
                if not gate.is_set():  # it was turned back with the request on it
                    assert replica.in_flight
                    assert not running.done()
                    gate.set()
                assert [await running, await landing] == [WHOLE, WHOLE], f"after {writes} writes"
                (after,) = await asyncio.to_thread(staying, real)
                assert not {ANNOTATION_DRAIN_DEADLINE, ANNOTATION_DELETION_COST} & set(after["metadata"].get("annotations", {}))
                if asked:  # nothing was removed yet: it was turned back, not replaced
                    assert after["metadata"]["uid"] == before["metadata"]["uid"]
                if finished:
                    break
            else:
                pytest.fail("eleven writes did not suffice for one replica")
    # It died with the request on a replica that was on its way out, and after that one was gone.
    assert {(1, True, False), (0, False, True)} <= seen, seen


async def test_an_operator_that_another_leader_followed_gives_up(real, account, kubelet):
    await live(real, account, partial(settled, real), "the first replica")
    (container,) = kubelet.containers.values()
    container.running.front.front.replica.drain = container.running.front.front.replica.drain.begin(Until(1), 5).turn_back(5)
    await asyncio.to_thread(real.edit, replicas=0)
    operator = await asyncio.to_thread(OperatorProcess, account, "--resync", "1s")  # without a Lease: epoch 0
    try:
        await until(lambda: operator.process.poll() is not None, "its end")
    finally:
        await asyncio.to_thread(operator.stop)
    assert operator.process.returncode == 1, operator.lines[-40:]
    assert operator.events("superseded"), operator.lines[-40:]
    assert (await asyncio.to_thread(replicas, real), container.running.front.front.replica.accepting) == (1, True)
