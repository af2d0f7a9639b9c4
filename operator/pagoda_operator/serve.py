"""Wires watches, queue, workers and probes, and ends the process when any of them ends. Called by the door.

Restart is the recovery path for what nobody expected, and the one tested most.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from datetime import UTC, datetime
from typing import Any

import kopf
import structlog

from pagoda_operator import probes
from pagoda_operator.cluster import KubeCluster, connect, watch_session
from pagoda_operator.defaults import DEFAULT_KEY
from pagoda_operator.handlers import register
from pagoda_operator.queue import Door, KeyedQueue
from pagoda_operator.reconcile import Reconciler
from pagoda_operator.settings import Settings

# Reads dominate a reconcile: four in flight keep an API server and one core busy.
_WORKERS = 4
# Services, profiles, Deployments, pods, and the CRDs that Kopf looks for.
_WATCHED_KINDS = 5


async def run(settings: Settings) -> int:
    """Run until a signal (0) or until a part ends on its own (1)."""
    configuration = await connect(settings.kubeconfig)
    cluster = KubeCluster(configuration)
    queue = KeyedQueue(settings.resync, random.Random())  # noqa: S311 (spreads load)
    vitals = probes.Vitals(_WATCHED_KINDS, queue.oldest)
    reconciler = Reconciler(cluster, settings, lambda: datetime.now(UTC))
    queue.add(DEFAULT_KEY)
    registry = kopf.OperatorRegistry()
    register(registry, Door(queue), configuration.host, lambda: watch_session(configuration, vitals.watched))
    server = probes.serve(vitals, settings.probes_port)
    parts = [vitals.beat(), *(queue.work(reconciler.reconcile) for _ in range(_WORKERS))]
    try:
        return await _first_end(kopf.operator(registry=registry, clusterwide=True, standalone=True), parts)
    finally:
        server.shutdown()
        await cluster.close()


async def _first_end(watching: Coroutine[Any, Any, None], parts: list[Coroutine[Any, Any, None]]) -> int:
    tasks = [asyncio.create_task(part) for part in parts]
    watcher = asyncio.create_task(watching)  # after the others: Kopf cancels whatever starts after it
    done, _ = await asyncio.wait([watcher, *tasks], return_when=asyncio.FIRST_COMPLETED)
    failures = [error for task in done if (error := task.exception()) is not None]
    for error in failures:
        structlog.get_logger().error("part_ended", error=repr(error))
    for task in (watcher, *tasks):
        task.cancel()
    await asyncio.gather(watcher, *tasks, return_exceptions=True)
    return 0 if done == {watcher} and not failures else 1
