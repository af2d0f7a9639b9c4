"""What is counted of runs and writes, and that a scrape tells it."""

import asyncio
import contextlib
import urllib.request

import pytest
from pagoda_contracts import metrics as words
from pagoda_operator.errors import Conflict
from pagoda_operator.metrics import Gauges, Metrics
from pagoda_operator.queue import Outcome
from pagoda_operator.state import DEPLOYMENTS, Key


def scrape(metrics):
    server = metrics.serve(0)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_address[1]}/metrics", timeout=60) as answer:
            return answer.read().decode().splitlines()
    finally:
        server.shutdown()
        server.server_close()


async def test_runs_errors_writes_and_gauges_are_told():
    metrics, outcomes = Metrics(), iter([Outcome(), Outcome(again=0.0), Outcome(gone=True), Conflict("stale")])

    async def reconcile(_key):
        found = next(outcomes)
        if isinstance(found, Exception):
            raise found
        return found

    run = metrics.timed(reconcile)
    for _ in range(3):
        await run(Key("ns", "a"))
    with pytest.raises(Conflict):
        await run(Key("ns", "a"))
    metrics.wrote(DEPLOYMENTS, "patch", {})
    metrics.read_again()
    sampling = asyncio.create_task(
        metrics.sample(Gauges(lambda: 3, lambda: 1.5, lambda: True, lambda: 7, lambda _: {"/apis/apps/v1/deployments": 2.0}, lambda: 5))
    )
    await asyncio.sleep(0)
    sampling.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await sampling
    lines = scrape(metrics)
    for line in (
        'pagoda_operator_reconciles_total{outcome="settled"} 1.0',
        'pagoda_operator_reconciles_total{outcome="again"} 1.0',
        'pagoda_operator_reconciles_total{outcome="gone"} 1.0',
        'pagoda_operator_reconciles_total{outcome="failed"} 1.0',
        "pagoda_operator_reconcile_seconds_count 4.0",
        'pagoda_operator_errors_total{class="Conflict"} 1.0',
        'pagoda_operator_writes_total{kind="Deployment",verb="patch"} 1.0',
        "pagoda_operator_reads_again_total 1.0",
        'pagoda_operator_watch_age_seconds{kind="deployments"} 2.0',
        "pagoda_operator_queue 3.0",
        "pagoda_operator_queue_age_seconds 1.5",
        "pagoda_operator_events_waiting 5.0",
        "pagoda_operator_leader 1.0",
        "pagoda_operator_epoch 7.0",
    ):
        assert line in lines
    told = {line.split()[2] for line in lines if line.startswith("# TYPE") and not line.split()[2].endswith("_created")}
    assert told == {metric.name + ("_total" if metric.kind == "counter" else "") for metric in words.OPERATOR}
