"""Runs watches, queue, workers and probes side by side, and ends the process when any of them ends. Called by the door; built by parts.py.

Restart is the recovery path for what nobody expected, and the one tested most.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any

import kopf
import structlog
from pagoda_kube.api import KubernetesApi

from pagoda_operator.api.errors import ClusterError
from pagoda_operator.api.state import Resource
from pagoda_operator.client.again import Again
from pagoda_operator.client.cluster import KubeCluster, connect
from pagoda_operator.client.watching import watch_session
from pagoda_operator.lead.leader import Alone, Leadership, Lease, Means
from pagoda_operator.run.settings import Settings
from pagoda_operator.serve import probes
from pagoda_operator.serve.feeds import PERHAPS, Feeds
from pagoda_operator.serve.handlers import register
from pagoda_operator.serve.own_loop import OwnLoop
from pagoda_operator.serve.parts import core, parts

# Half of the deadline, as client-go's. With 3 s an API server short of CPU that took up to 2.9 s for a renewal cost the Lease.
_RENEWAL_TIMEOUT = 5.0
# For the end of the Lease's connections.
_FAREWELL = 5.0
# Between two tries to ask an API server that does not answer what it serves.
_ASK_AGAIN = 2.0


async def run(settings: Settings) -> int:
    """Run until a signal (0) or until a part ends on its own (1)."""
    configuration = await connect(settings.kubeconfig)
    apart = OwnLoop("lease")
    lease_client = await apart.do(_lease_client(settings))
    means = Means(apart=apart.do)
    lease: Leadership = Lease(lease_client, settings.lease_namespace, settings.identity, means) if settings.lease_namespace else Alone()
    again = Again(time.monotonic, random.Random())  # noqa: S311 (spreads load)
    made = core(settings, lease, partial(KubeCluster, configuration, again=again))
    servers = [probes.serve(made.vitals, settings.probes_port), made.metrics.serve(settings.metrics_port)]
    structlog.get_logger().info("serving", probes=servers[0].server_address[1], metrics=servers[1].server_address[1])
    beat = asyncio.create_task(made.vitals.beat())  # before the first question to an API server that may be away
    registry, api = kopf.OperatorRegistry(), KubernetesApi(configuration)
    register(registry, made.caches, configuration.host, lambda: watch_session(configuration, made.vitals.watched))
    feeds = Feeds(api, made.caches, made.vitals, await _present(made.cluster), settings.resync)
    try:
        return await _first_end(kopf.operator(registry=registry, clusterwide=True, standalone=True), [beat, *parts(made, feeds)])
    finally:
        await lease.release(answered=made.cluster.answered)
        for server in servers:
            server.shutdown()
        await asyncio.gather(made.cluster.close(), api.close())
        with suppress(TimeoutError):  # a loop that hangs keeps nobody
            await asyncio.wait_for(apart.do(lease_client.close()), _FAREWELL)
        apart.close()


async def _lease_client(settings: Settings) -> KubeCluster:
    """A loop and connections of its own and short tries: a renewal must wait for nothing else."""
    return KubeCluster(await connect(settings.kubeconfig), timeout=_RENEWAL_TIMEOUT)


async def _present(cluster: KubeCluster) -> frozenset[Resource]:
    """Which of the kinds that not every cluster has are there; a cluster that gets them later is upgraded, which restarts us."""
    while True:
        try:
            return frozenset([resource for resource in PERHAPS if await cluster.serves(resource)])
        except ClusterError as error:
            structlog.get_logger().warning("api_server_silent", error=str(error))
            await asyncio.sleep(_ASK_AGAIN)


async def _first_end(watching: Coroutine[Any, Any, None], parts: list[Awaitable[None]]) -> int:
    tasks = [asyncio.ensure_future(part) for part in parts]
    watcher = asyncio.create_task(watching)  # after the others: Kopf cancels whatever starts after it
    done, _ = await asyncio.wait([watcher, *tasks], return_when=asyncio.FIRST_COMPLETED)
    failures = [error for task in done if (error := task.exception()) is not None]
    for error in failures:
        structlog.get_logger().error("part_ended", error=repr(error))
    for task in (watcher, *tasks):
        task.cancel()
    await asyncio.gather(watcher, *tasks, return_exceptions=True)
    return 0 if done == {watcher} and not failures else 1
