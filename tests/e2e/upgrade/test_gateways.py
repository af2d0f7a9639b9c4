"""The gateways' Deployment is replaced under open-loop load, behind its Service: no client sees an error, and no answer changes."""

import asyncio
import time

import pytest
from pagoda_devcluster.demo.install import NAMESPACE, RELEASE
from pydoc_answers import questions
from support.clients.streams import Load, alone, open_loop

pytestmark = pytest.mark.cluster

NAME = "kept"


def upgrade(pagoda):
    """By a value that changes the pods and nothing else. It stays: a rollback would restart the gateways for no test."""
    flags = ("--namespace", NAMESPACE, "--reset-then-reuse-values", "--wait", "--timeout", "10m")
    chart = str(pagoda.builder.root / "charts/pagoda")
    pagoda.cluster.helm("upgrade", RELEASE, chart, *flags, "--set", "gateway.resources.requests.cpu=60m")


def gateways(pagoda):
    """Names of their pods, those that are leaving too."""
    found = pagoda.get("pods", "-n", NAMESPACE, "-l", "app.kubernetes.io/component=gateway")["items"]
    return {pod["metadata"]["name"] for pod in found}


async def test_gateways_are_upgraded_behind_their_service_and_no_client_sees_it(pagoda, namespace):
    assert pagoda.serve(namespace, NAME, pagoda.model).ready
    load = Load([qa.question for qa in questions()[:16]], per_second=15, tokens=64, most=16)
    undisturbed = await alone(pagoda.url, NAME, load.questions, load.tokens)
    old, gone = gateways(pagoda), []

    async def replace():
        await asyncio.to_thread(upgrade, pagoda)
        for pod in old:
            await asyncio.to_thread(pagoda.cluster.kubectl, "wait", f"pod/{pod}", "-n", NAMESPACE, "--for=delete", "--timeout=300s")
        gone.append(time.monotonic())

    streams = await open_loop(pagoda.url, NAME, load, replace)
    assert len(old) == 2
    assert not old & gateways(pagoda)
    assert [stream.error for stream in streams if stream.error] == []
    assert [stream.question for stream in streams if stream.said != undisturbed[stream.question].said] == []
    assert [stream for stream in streams if stream.started > gone[0]]
