"""Planned events under open-loop load: no client sees an error, and every stream equals its undisturbed run token by token."""

import asyncio
import json
import time

import pytest
from pagoda_operator.api.state import PODS
from pydoc_answers import questions
from support.clients.streams import Load, alone, open_client, open_loop, stream_chat
from support.kube.client import Kube

pytestmark = pytest.mark.cluster

NAME = "drained"


@pytest.fixture
def served(pagoda, namespace):
    # The default of 30 s is a promise to requests that can end in it; beside busy cores 128 tokens may not.
    line = pagoda.serve(namespace, NAME, pagoda.model, replicas=2, drain={"timeout": "5m"})
    assert line.ready, line
    return namespace


@pytest.fixture
def kube(pagoda):
    """Without a process of kubectl's, which ends long after the server has accepted what it asked for."""
    made = Kube(pagoda.running.kubeconfig)
    yield made
    made.close()


async def kubectl(pagoda, *argv):
    return await asyncio.to_thread(pagoda.cluster.kubectl, *argv)


async def test_a_pod_deleted_under_load_fails_no_stream(pagoda, kube, served):
    # Long ones, so that some are always under way: by themselves the answers take 30 ms.
    load = Load([qa.question for qa in questions()[:16]], per_second=20, tokens=128, most=16)
    undisturbed = await alone(pagoda.url, NAME, load.questions, load.tokens)
    for _ in range(5):  # some deletion comes while a stream is on its pod
        streams, caught, late = await deleted_under(load, pagoda, kube, served)
        assert [stream.error for stream in streams if stream.error] == []
        assert [stream.question for stream in streams if stream.said != undisturbed[stream.question].said] == []
        assert late == []
        if caught:
            break
        await kubectl(
            pagoda, "wait", f"inferenceservice/{NAME}", "-n", served, "--for=jsonpath={.status.readyReplicas}=2", "--timeout=300s"
        )
    assert caught, "no stream was on a pod when its deletion was accepted: the test proves nothing"


async def deleted_under(load, pagoda, kube, served):
    """All streams; those that were on the pod when its deletion was accepted; those that it ended after it was gone."""
    pods = pagoda.get("pods", "-n", served, "-l", "app.kubernetes.io/component=replica")["items"]
    pod = next(pod for pod in pods if "deletionTimestamp" not in pod["metadata"])
    accepted, gone = [], []

    def ask_for_its_end():
        kube.delete(PODS, served, pod["metadata"]["name"])
        accepted.append(
            time.monotonic()
        )  # here, and not when the loop has come round to it: by then a stream may have been read to its end

    async def delete():
        await asyncio.to_thread(ask_for_its_end)
        await kubectl(pagoda, "wait", f"pod/{pod['metadata']['name']}", "-n", served, "--for=delete", "--timeout=300s")
        await alone(pagoda.url, NAME, load.questions[:1])  # what had come by then is read by now
        gone.append(time.monotonic())

    streams = await open_loop(pagoda.url, NAME, load, delete)
    endpoint = f"{pod['status']['podIP']}:8000"
    here = [stream for stream in streams if stream.route and stream.route.endpoint == endpoint]
    return streams, [one for one in here if one.in_flight_at(accepted[0])], [one for one in here if one.ended > gone[0]]


async def test_a_request_without_any_replica_is_held_until_there_is_one(pagoda, served):
    await kubectl(pagoda, "scale", f"inferenceservice/{NAME}", "-n", served, "--replicas=0")
    await kubectl(pagoda, "wait", "pods", "-n", served, "-l", "app.kubernetes.io/component=replica", "--for=delete", "--timeout=300s")
    qa = questions()[0]
    async with open_client(pagoda.url) as client:
        held = asyncio.create_task(stream_chat(client, NAME, qa.question))
        await kubectl(pagoda, "scale", f"inferenceservice/{NAME}", "-n", served, "--replicas=1")
        stream = await held
    assert stream.error is None
    assert stream.text == qa.answer
    assert stream.route is not None
    assert stream.route.held_ms > 0


async def test_a_rollout_under_load_fails_no_stream(pagoda, served):
    asked = [qa.question for qa in questions()[:16]]
    undisturbed = await alone(pagoda.url, NAME, asked)
    there = pagoda.get("pods", "-n", served)["items"]
    before = {pod["metadata"]["uid"]: f"{pod['status']['podIP']}:8000" for pod in there}
    old_pods = [pod["metadata"]["name"] for pod in there]
    replaced = []

    async def change():
        patch = json.dumps({"spec": {"engine": {"maxConcurrency": 32}}})
        await kubectl(pagoda, "patch", "inferenceservice", NAME, "-n", served, "--type=merge", "-p", patch)
        await asyncio.to_thread(pagoda.outcome, served, NAME)
        for pod in old_pods:  # the service is Ready before the last of them has drained
            await kubectl(pagoda, "wait", f"pod/{pod}", "-n", served, "--for=delete", "--timeout=300s")
        replaced.append(time.monotonic())

    streams = await open_loop(pagoda.url, NAME, Load(asked, per_second=10, most=16), change)
    assert [stream.error for stream in streams if stream.error] == []
    assert [stream.question for stream in streams if stream.said != undisturbed[stream.question].said] == []
    old = [stream for stream in streams if stream.route and stream.route.endpoint in before.values()]
    assert [stream for stream in old if stream.ended < replaced[0]], "no stream ran on an old replica: the test proves nothing"
    pods = pagoda.get("pods", "-n", served)["items"]
    new = {f"{pod['status']['podIP']}:8000" for pod in pods if pod["metadata"]["uid"] not in before}
    assert {stream.route.endpoint for stream in streams[-20:]} <= new
