"""Planned events under open-loop load: no client sees an error, and every stream equals its undisturbed run token by token."""

import asyncio
import json
import time

import pytest
from pydoc_answers import questions
from streams import Load, alone, open_client, open_loop, stream_chat

pytestmark = pytest.mark.cluster

NAME = "drained"


@pytest.fixture
def served(pagoda, namespace):
    line = pagoda.serve(namespace, NAME, pagoda.model, replicas=2)
    assert line.ready, line
    return namespace


async def kubectl(pagoda, *argv):
    return await asyncio.to_thread(pagoda.cluster.kubectl, *argv)


async def test_a_pod_deleted_under_load_fails_no_stream(pagoda, served):
    asked = [qa.question for qa in questions()[:16]]
    undisturbed = await alone(pagoda.url, NAME, asked)
    pod = pagoda.get("pods", "-n", served, "-l", "app.kubernetes.io/component=replica")["items"][0]
    accepted, gone = [], []

    async def delete():
        await kubectl(pagoda, "delete", "pod", pod["metadata"]["name"], "-n", served, "--wait=false")
        accepted.append(time.monotonic())
        await kubectl(pagoda, "wait", f"pod/{pod['metadata']['name']}", "-n", served, "--for=delete", "--timeout=90s")
        gone.append(time.monotonic())

    streams = await open_loop(pagoda.url, NAME, Load(asked, per_second=20), delete)
    endpoint = f"{pod['status']['podIP']}:8000"
    here = [stream for stream in streams if stream.route and stream.route.endpoint == endpoint]
    caught = [stream for stream in here if stream.in_flight_at(accepted[0])]
    assert [stream.error for stream in streams if stream.error] == []
    assert [stream.question for stream in streams if stream.said != undisturbed[stream.question].said] == []
    assert caught, "no stream was on the pod when its deletion was accepted: the test proves nothing"
    assert [stream for stream in here if stream.ended > gone[0]] == []


async def test_a_request_without_any_replica_is_held_until_there_is_one(pagoda, served):
    await kubectl(pagoda, "scale", f"inferenceservice/{NAME}", "-n", served, "--replicas=0")
    await kubectl(pagoda, "wait", "pods", "-n", served, "-l", "app.kubernetes.io/component=replica", "--for=delete", "--timeout=90s")
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
    before = {pod["metadata"]["uid"]: f"{pod['status']['podIP']}:8000" for pod in pagoda.get("pods", "-n", served)["items"]}
    replaced = []

    async def change():
        patch = json.dumps({"spec": {"engine": {"maxConcurrency": 32}}})
        await kubectl(pagoda, "patch", "inferenceservice", NAME, "-n", served, "--type=merge", "-p", patch)
        await asyncio.to_thread(pagoda.outcome, served, NAME)
        replaced.append(time.monotonic())

    streams = await open_loop(pagoda.url, NAME, Load(asked, per_second=10), change)
    assert [stream.error for stream in streams if stream.error] == []
    assert [stream.question for stream in streams if stream.said != undisturbed[stream.question].said] == []
    old = [stream for stream in streams if stream.route and stream.route.endpoint in before.values()]
    assert [stream for stream in old if stream.ended < replaced[0]], "no stream ran on an old replica: the test proves nothing"
    pods = pagoda.get("pods", "-n", served)["items"]
    new = {f"{pod['status']['podIP']}:8000" for pod in pods if pod["metadata"]["uid"] not in before}
    assert {stream.route.endpoint for stream in streams[-20:]} <= new
