"""From one replica to none and back with a real operator, gateway and daemon front: a request lands at every step, the operator dies at
every step, and a leader that was followed by another gives up.

Callers are not told apart here; the daemon's table of who may give orders is opened for everybody, as the operator's role stands in it.
"""

import asyncio
from functools import partial

import httpx
import pytest
from gateway_process import start_gateway
from local_front import NAME as MODEL
from operator_process import DYING, OperatorProcess
from pagoda_contracts.names import ANNOTATION_DELETION_COST, ANNOTATION_DRAIN_DEADLINE, GRPC_SET_STATE, ROLE_OPERATOR
from pagoda_daemon.api.access import METHODS
from pagoda_daemon.api.caller import ROLE_ANYBODY
from pagoda_daemon.drain import Until
from pagoda_operator.state import DEPLOYMENTS
from paper_kubelet import paper_kubelet

# A life of an operator costs seconds, each step two of them.
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]
TOKENS = 40


@pytest.fixture
async def kubelet(real, tmp_path, monkeypatch):
    monkeypatch.setitem(METHODS, GRPC_SET_STATE, frozenset((ROLE_ANYBODY, ROLE_OPERATOR)))
    await asyncio.to_thread(real.apply, model={"uri": "pvc://models", "servedNames": [MODEL]}, drain={"timeout": "5m"})
    async with paper_kubelet(real, tmp_path) as made:
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
    """A whole operator until the world is as wished."""
    operator = await asyncio.to_thread(OperatorProcess, account, "--resync", "1s")
    try:
        await until(look, what)
    finally:
        await asyncio.to_thread(operator.stop)
    assert operator.events("reconcile_bug") == []


async def ask(client):
    body = {"model": MODEL, "prompt": "x", "max_tokens": TOKENS, "ignore_eos": True, "stream": True}
    async with client.stream("POST", "/v1/completions", json=body) as answer:
        lines = [line async for line in answer.aiter_lines() if line.startswith("data: ")]
    return answer.status_code, lines[-1] if lines else "", "error" in "".join(lines)


async def die(real, account, writes):
    """An operator that is killed after so many writes, or that found no more to write; whether all was done."""
    operator = await asyncio.to_thread(OperatorProcess, account, "--resync", "1s", program=DYING, DIE_AFTER=str(writes))
    try:
        await until(lambda: operator.process.poll() is not None or settled(real, "ScaledToZero"), "a death")
        return operator.process.poll() is None
    finally:
        operator.process.kill()
        await asyncio.to_thread(operator.stop)


async def test_a_request_at_every_step_of_one_to_none_is_answered(real, account, kubelet):
    await live(real, account, partial(settled, real), "the first replica")
    seen = set()
    with start_gateway("--kubeconfig", str(real.cluster.kubeconfig), "--hold-timeout", "300s") as gateway:
        async with httpx.AsyncClient(base_url=gateway.url, timeout=400) as client:
            for writes in range(1, 12):
                (before,) = await asyncio.to_thread(staying, real)
                running = asyncio.create_task(ask(client))  # lands before the first step
                await asyncio.to_thread(real.edit, replicas=0)
                finished = await die(real, account, writes)
                landing = asyncio.create_task(ask(client))  # lands at this one
                asked = await asyncio.to_thread(replicas, real)
                # As the controllers leave it: a pod that is to go may bear its note still.
                await until(lambda wanted=asked: len(staying(real)) == wanted, f"{asked} pods stay")
                notes = [set(pod["metadata"].get("annotations", {})) for pod in await asyncio.to_thread(staying, real)]
                seen.add((asked, any(ANNOTATION_DRAIN_DEADLINE in note for note in notes)))
                await asyncio.to_thread(real.edit, replicas=1)
                await live(real, account, lambda: settled(real) and len(staying(real)) == 1, "the burst is served")
                for answer in (await running, await landing):
                    assert answer == (200, "data: [DONE]", False), f"after {writes} writes"
                (after,) = await asyncio.to_thread(staying, real)
                assert not {ANNOTATION_DRAIN_DEADLINE, ANNOTATION_DELETION_COST} & set(after["metadata"].get("annotations", {}))
                if asked:  # nothing was removed yet: it was turned back, not replaced
                    assert after["metadata"]["uid"] == before["metadata"]["uid"]
                if finished:
                    break
            else:
                pytest.fail("eleven writes did not suffice for one replica")
    assert {(1, True), (0, False)} <= seen, seen


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
