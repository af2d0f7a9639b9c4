"""/metrics as Prometheus' own linter reads it (what `promtool check metrics` runs), and against the buckets of vLLM's dashboards."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from pagoda_contracts import metrics as names
from pagoda_daemon.core.messages import Life, Ready, RowOutput, Submit
from pagoda_daemon.core.sampling import Sampling
from pagoda_daemon.health.device import DeviceHealth, DeviceIdentity, DeviceReading
from pagoda_daemon.health.replica import Replica
from pagoda_daemon.metrics import Counts, Exposition, Slo

MODULE = Path(__file__).parents[2] / "devcluster"
# What a name that others read forces on us: a colon in every one of vLLM's, and its histogram that is called a total.
COLON = "metric names should not contain ':'"
WITHOUT_SERIES = (names.ACCEPTED_PER_POSITION, names.ESTIMATED_FLOPS, names.ESTIMATED_READS, names.ESTIMATED_WRITES)
SLIP = f'{names.ITERATION_TOKENS.name}: non-counter metrics should not have "_total" suffix'


@pytest.fixture(scope="session")
def linter(tmp_path_factory):
    assert shutil.which("go"), "Go builds the linter, as it builds the dev cluster"
    target = tmp_path_factory.mktemp("promlint") / "promlint"
    environment = {**os.environ, "CGO_ENABLED": "0", "GOWORK": "off"}
    subprocess.run(["go", "build", "-mod=readonly", "-o", str(target), "./promlint"], cwd=MODULE, check=True, env=environment)
    return target


def problems(linter: Path, exposition: bytes) -> list[str]:
    done = subprocess.run([str(linter)], input=exposition, capture_output=True, check=False)
    assert done.returncode in (0, 3), done.stderr
    found = done.stdout.decode().splitlines()
    assert bool(found) == (done.returncode == 3)
    return found


def busy() -> bytes:
    counts = Counts(slo=Slo(1.0, 1.0))
    record = counts.open(Submit("r", (1, 2), Sampling(max_tokens=8)), 0.0, 0.1)
    counts.hear(record, RowOutput("r", (1,), life=Life(1.0, 2.0)), 0.2)
    record.end(0, "stop", 3)
    counts.close(record, 0.5)
    identity = DeviceIdentity("GPU-1", 'H100 "SXM"', "580.95.05")
    device = DeviceHealth(DeviceReading(identity, 3, 10, 41, 2, 2, True, False, ("power brake",), {79: 1}))
    exposition = Exposition('m"\\', Replica(born=0.0, limits=Ready(64, 8, 16, 40, 2), device=device), counts)
    exposition.http.add("/v1/models", "GET", 200, 0.1)
    return exposition.text(1.0, 1.7e9)


def test_the_linter_finds_only_what_vllms_names_force(linter):
    found = problems(linter, busy())
    assert sorted(found) == sorted([*(f"{written(metric)}: {COLON}" for metric in names.DAEMON_VLLM if metric not in WITHOUT_SERIES), SLIP])


def written(metric: names.Metric) -> str:
    return f"{metric.name}_total" if metric.kind == "counter" else metric.name


def test_the_linter_finds_a_planted_fault(linter):
    spoilt = (
        busy()
        .replace(b"pagoda_daemon_steps_total", b"pagoda_daemon_steps")
        .replace(b"pagoda_daemon_queue_seconds", b"pagoda_daemon_queueMs")
    )
    own = [line for line in problems(linter, spoilt) if line.startswith("pagoda_")]
    assert any("_total" in line for line in own)
    assert any("camelCase" in line for line in own)
