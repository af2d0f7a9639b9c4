"""Value, labels and unit of each metric after known events, by a fake clock."""

import asyncio
import contextlib
import urllib.request
from dataclasses import replace
from types import SimpleNamespace

import pytest
from pagoda_contracts import metrics as words
from pagoda_contracts.resources.meta import ObjectMeta
from pagoda_operator.api.errors import Conflict
from pagoda_operator.api.pods import Pod
from pagoda_operator.api.signals import EndpointSignal, Seen, ServiceSignals
from pagoda_operator.api.starts import Steps
from pagoda_operator.api.state import DEPLOYMENTS, Key, Observed
from pagoda_operator.run.queue import Outcome
from pagoda_operator.run.settings import Settings
from pagoda_operator.serve import process
from support.servers.loop_clock import LoopClock


def scrape(metrics):
    server = metrics.serve(0)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_address[1]}/metrics", timeout=60) as answer:
            return answer.read().decode().splitlines()
    finally:
        server.shutdown()
        server.server_close()


class Harness:
    """The operator's core as the process makes it, but for the API server, the Lease and the clock."""

    def __init__(self, monkeypatch):
        self.now = 5_000.0
        monkeypatch.setattr(process, "time", SimpleNamespace(monotonic=lambda: self.now, time=lambda: self.now))
        self.loop = LoopClock()
        self.loop.stop()
        self.lease = SimpleNamespace(epoch=7, leads=lambda: True, age=lambda: 9.0, guard=lambda: None)
        self.hooks = None
        self.core = process.core(Settings(), self.lease, self._connected)

    def _connected(self, hooks):
        self.hooks = hooks

    def later(self, seconds):
        self.now += seconds
        self.loop.skip(seconds)

    async def run(self, takes, outcome):
        """One run of that length."""

        async def reconcile(_key):
            self.later(takes)
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        await self.core.metrics.timed(reconcile)(Key("ns", "a"))

    async def reported(self):
        """All samples, without the times at which a series began."""
        gauges = process.gauges(self.core, SimpleNamespace(waiting=lambda: 5), SimpleNamespace(down=lambda: 3))
        sampling = asyncio.create_task(self.core.metrics.sample(gauges, self.core.liveness.ages))
        await asyncio.sleep(0)
        sampling.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await sampling
        return {line for line in scrape(self.core.metrics) if not line.startswith("#") and "_created" not in line}


async def test_every_metric_has_its_value_and_unit(monkeypatch):
    """The samples are compared as a whole: a metric that is added without a value here is missed."""
    harness = Harness(monkeypatch)
    await harness.run(0.75, Outcome())
    await harness.run(0.0, Outcome(again=0.0))
    await harness.run(0.0, Outcome(gone=True))
    with pytest.raises(Conflict):
        await harness.run(1.5, Conflict("stale"))
    harness.hooks.wrote(DEPLOYMENTS, "patch", {"metadata": {"name": "a", "namespace": "ns", "resourceVersion": "1"}})
    harness.hooks.again()
    replica = Pod("p", "r", "cpu", meta={"uid": "u"}, created=1_000.0)
    for seen in (replica, replace(replica, ready=True, ready_since=1_075.0, steps=Steps(1_002, 1_012, 1_052, 1_060)), replica):
        another = replace(seen, meta={"uid": "v"}, ready=True, ready_since=1_090.0)
        signals = ServiceSignals(endpoints={"p": EndpointSignal(Seen.FRESH, warm_s=4.0)})
        observed = Observed(ObjectMeta(name="a"), {}, pods=(seen, another), signals=signals, seen_starting=frozenset("u"))
        harness.core.metrics.started(observed)
    harness.core.liveness.watched("/apis/apps/v1/deployments", harness.now)
    harness.later(2.0)
    harness.core.queue._opened = asyncio.get_running_loop().time()
    for name in ("a", "b", "c"):
        harness.core.queue.add(Key("ns", name))
    harness.later(4.5)
    starts = words.OPERATOR_START_SECONDS.buckets
    took = {"scheduled": 2, "image": 18, "fetch": 40, "load": 11, "warm": 4}
    bounds = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
    assert await harness.reported() == {
        'pagoda_operator_reconciles_total{outcome="settled"} 1.0',
        'pagoda_operator_reconciles_total{outcome="again"} 1.0',
        'pagoda_operator_reconciles_total{outcome="gone"} 1.0',
        'pagoda_operator_reconciles_total{outcome="failed"} 1.0',
        "pagoda_operator_reconcile_seconds_count 4.0",
        "pagoda_operator_reconcile_seconds_sum 2.25",
        *(f'pagoda_operator_reconcile_seconds_bucket{{le="{bound}"}} {2.0 + (bound >= 0.75) + (bound >= 1.5)}' for bound in bounds),
        'pagoda_operator_reconcile_seconds_bucket{le="+Inf"} 4.0',
        *(f'pagoda_operator_start_seconds_count{{phase="{phase}"}} 1.0' for phase in took),
        *(f'pagoda_operator_start_seconds_sum{{phase="{phase}"}} {seconds}.0' for phase, seconds in took.items()),
        *(
            f'pagoda_operator_start_seconds_bucket{{le="{bound}",phase="{phase}"}} {float(seconds <= bound)}'
            for phase, seconds in took.items()
            for bound in starts
        ),
        *(f'pagoda_operator_start_seconds_bucket{{le="+Inf",phase="{phase}"}} 1.0' for phase in took),
        'pagoda_operator_errors_total{class="Conflict"} 1.0',
        'pagoda_operator_writes_total{kind="Deployment",verb="patch"} 1.0',
        "pagoda_operator_reads_again_total 1.0",
        'pagoda_operator_watch_age_seconds{kind="deployments"} 6.5',
        "pagoda_operator_queue 3.0",
        "pagoda_operator_queue_age_seconds 4.5",
        "pagoda_operator_events_waiting 5.0",
        "pagoda_operator_services_down 3.0",
        "pagoda_operator_leader 1.0",
        "pagoda_operator_epoch 7.0",
    }
    harness.lease.epoch, harness.lease.leads = 8, lambda: False
    assert {"pagoda_operator_leader 0.0", "pagoda_operator_epoch 8.0"} <= await harness.reported()


async def test_exactly_the_named_metrics_are_exported(monkeypatch):
    lines = scrape(Harness(monkeypatch).core.metrics)
    reported = {line.split()[2] for line in lines if line.startswith("# TYPE") and not line.split()[2].endswith("_created")}
    assert reported == {metric.name + ("_total" if metric.kind == "counter" else "") for metric in words.OPERATOR}
