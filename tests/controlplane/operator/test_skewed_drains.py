"""A drain ordered by operators whose clocks are five minutes off, one way and then the other: the stream that runs ends whole, and the
replica's deadline is its own.

Callers are not told apart here; the daemon's table of who may give orders is opened for everybody, as the operator's role stands in it.
"""

import asyncio
import json
from contextlib import asynccontextmanager
from functools import partial

import httpx
import pytest
from pagoda_contracts.names import GRPC_SET_STATE, PORT_DAEMON_HTTP, ROLE_OPERATOR
from pagoda_daemon.api.access.caller import ROLE_ANYBODY
from pagoda_daemon.api.access.roles import METHODS
from support.kube.fake_kubelet import fake_kubelet, in_loop
from support.kube.operator_process import OperatorProcess
from support.kube.operator_under_test import under_test
from support.servers.local_front import NAME as MODEL

pytestmark = [pytest.mark.cluster]

# Shorter than the skew, so that a deadline of the wrong clock has passed; long enough for an operator to start on a slow machine.
TIMEOUT_S = 240
STREAM = {"model": MODEL, "prompt": "x", "max_tokens": 60, "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}


@pytest.fixture
async def kubelet(real, tmp_path, monkeypatch, gate, orders):
    monkeypatch.setitem(METHODS, GRPC_SET_STATE, frozenset((ROLE_ANYBODY, ROLE_OPERATOR)))
    model = {"uri": "pvc://models", "servedNames": [MODEL]}
    await asyncio.to_thread(real.apply, model=model, drain={"timeout": f"{TIMEOUT_S}s"})
    async with fake_kubelet(real, tmp_path, partial(in_loop, drain_timeout=f"{TIMEOUT_S}s")) as made:
        yield made


@asynccontextmanager
async def skewed(account, seconds):
    operator = await asyncio.to_thread(OperatorProcess, account, "--resync", "1s", program=under_test(skew_s=seconds))
    try:
        yield operator
    finally:
        operator.process.kill()  # in the middle of the drain, as a leader dies
        await asyncio.to_thread(operator.stop)
        print(*operator.lines[-40:], sep="\n")  # shown where the test fails
    assert operator.events("reconcile_bug") == []


async def until(holds):
    async with asyncio.timeout(300):
        while not holds():
            await asyncio.sleep(0.05)


async def streamed(container):
    url = f"http://{container.ip}:{PORT_DAEMON_HTTP}/v1/completions"
    async with httpx.AsyncClient(timeout=600, trust_env=False) as client, client.stream("POST", url, json=STREAM) as answer:
        return answer.status_code, [line async for line in answer.aiter_lines() if line.startswith("data: ")]


@pytest.mark.parametrize("skews", [(-300, 300), (300, -300)])
async def test_a_stream_outlives_a_drain_by_operators_whose_clocks_are_wrong(skews, real, account, kubelet, gate, orders):
    first, second = skews
    async with skewed(account, first):
        await until(lambda: any(one.reported for one in kubelet.containers.values()))
        (container,) = kubelet.containers.values()
        replica, control = container.running.front.front.replica, container.running.front.front._control
        gate.clear()
        running = asyncio.create_task(streamed(container))
        await until(lambda: replica.in_flight == 1)
        await asyncio.to_thread(real.edit, replicas=0)
        await until(lambda: replica.drain.draining)
        left = control.left_s()
        assert 0 < left <= TIMEOUT_S
    orders.clear()
    async with skewed(account, second):
        # Whose clock is early holds the time for over and removes the pod, whose is late says the order again.
        await until(lambda: container.stopping or orders)
        assert container.stopping == (second > 0), orders
        assert replica.in_flight == 1
        assert 0 < control.left_s() < left
        gate.set()
        status, lines = await running
        assert (status, lines[-1], any("error" in line for line in lines)) == (200, "data: [DONE]", False)
        assert json.loads(lines[-2].removeprefix("data: "))["usage"]["completion_tokens"] == STREAM["max_tokens"]
