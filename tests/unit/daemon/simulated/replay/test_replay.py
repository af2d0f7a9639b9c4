"""The simulator: its clock, its reports, its refusals, and what a step of the core costs."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from pagoda_contracts.launch import DaemonConfig, ModelConfig, SimulatedWorker
from pagoda_contracts.launch import TestingConfig as ForTests
from pagoda_daemon.core.batch import StepResult, WorkerLimits
from pagoda_daemon.core.errors import ConfigRejected
from pagoda_daemon.core.messages import Submit
from pagoda_daemon.core.sampling import Sampling
from pagoda_daemon.engine.build import build_worker
from pagoda_daemon.scheduler.admission import Arrival, submit
from pagoda_daemon.scheduler.commit import commit
from pagoda_daemon.scheduler.limits import Limits
from pagoda_daemon.scheduler.plan import plan
from pagoda_daemon.scheduler.state import State
from pagoda_daemon.simulated.device.pace import Pace
from pagoda_daemon.simulated.device.virtual import VirtualWorker
from pagoda_daemon.simulated.replay.command import main
from pagoda_daemon.simulated.replay.report import Objective, report
from pagoda_daemon.simulated.replay.run import Simulation
from pagoda_daemon.simulated.replay.trace import Job, drawn, read
from pagoda_sizing import roofline
from pagoda_sizing.devices import find
from pagoda_sizing.families import parse_model
from pagoda_sizing.fit import Demand

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
}
LIMITS = WorkerLimits(256, 16, 97, 2048)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    return path


def trace_file(folder: Path, *lines: dict) -> Path:
    path = folder / "trace.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines) + "\n\n")
    return path


def test_the_clock_is_the_devices(tmp_path: Path) -> None:
    worker = VirtualWorker(LIMITS, lambda step: 10.0 + step.tokens)
    outcome = Simulation([Job(5.0, 30, 3), Job(1000.0, 20, 1)], worker, Limits.of(LIMITS, 4, 64)).run()
    first, second = outcome.records
    assert (first.first_ms, first.last_ms, first.tokens) == (5.0 + 40.0, 5.0 + 40.0 + 2 * 11.0, 3)
    assert (second.first_ms, second.end) == (1030.0, "length")
    assert outcome.gaps_ms.tolist() == [11.0, 11.0]
    found = report(outcome, Objective(ttft_ms=35.0, itl_ms=11.0))
    assert (found.good_requests, found.ttft_ms.p99, found.itl_ms.p50) == (1, pytest.approx(39.9), 11.0)
    assert found.output_tokens_per_s == pytest.approx(4 / 1.030)


def test_a_shared_prefix_is_computed_once() -> None:
    jobs = [Job(100.0 * i, 300, 5, prefix="system", prefix_tokens=256) for i in range(5)]
    worker = VirtualWorker(LIMITS, lambda _: 1.0)
    outcome = Simulation(jobs, worker, Limits.of(LIMITS, 4, 512)).run()
    assert outcome.reused_tokens == 4 * 256
    again = Simulation(jobs, worker, Limits.of(LIMITS, 4, 512, prefix_caching=False)).run()
    assert again.reused_tokens == 0


@pytest.mark.deep
def test_no_gap_between_tokens_exceeds_one_step_of_a_full_budget() -> None:
    """Long prompts beside answers that run: chunks are cut to what the budget leaves."""
    worker = VirtualWorker(WorkerLimits(8192, 16, 97, 8192), lambda step: 1.0 + step.tokens)
    jobs = drawn(300, 2.0, seed=6)
    outcome = Simulation(jobs, worker, Limits.of(worker.limits, 32, 128)).run()
    assert outcome.preemptions == 0
    assert max(job.prompt_tokens for job in jobs) == 4096
    assert outcome.gaps_ms.size > 10_000
    assert outcome.gaps_ms.max() <= 1.0 + 128


@pytest.mark.deep
def test_a_run_is_the_same_every_time() -> None:
    def once() -> list[tuple]:
        worker = VirtualWorker(LIMITS, lambda step: 3.0 + 0.1 * step.tokens)
        outcome = Simulation(drawn(200, 60.0, seed=2), worker, Limits.of(LIMITS, 16, 256), seed=9).run()
        return [(record.first_ms, record.last_ms, record.end) for record in outcome.records]

    runs = once(), once()
    assert runs[0] == runs[1]
    assert {end for _, _, end in runs[0]} >= {"length"}


def test_the_pace_is_the_roofline_of_the_step(config: Path) -> None:
    pace = Pace.read(config, "h100")
    worker = VirtualWorker(pace.limits(16, 4096), pace.milliseconds)
    state = State(Limits.of(worker.limits, 64, 2048))
    for i in range(8):
        submit(state, Submit(str(i), (i,) * 1000, Sampling(50)), Arrival(0.0, 0))
    times = []
    for now in range(12):
        step = plan(state, float(now))
        assert step is not None
        times.append((step.tokens, worker.milliseconds(step)))
        commit(state, worker.compute(step), now + 1.0)
    assert times[0][0] == 2048
    model, device = parse_model(LLAMA), find("h100")
    decode = 1000 * roofline.seconds(roofline.decode_work(model, Demand(1006), 8), device, "bf16", roofline.TYPICAL)
    prefill = 1000 * roofline.seconds(roofline.prefill_work(model, Demand(1000), 2048), device, "bf16", roofline.TYPICAL)
    assert times[-1] == (8, pytest.approx(decode + 0.5, rel=0.02))
    assert times[0][1] == pytest.approx(prefill + 0.5, rel=0.1)


def test_the_command_prints_a_report(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = trace_file(tmp_path, *({"arrival_ms": 10 * i, "prompt_tokens": 500, "output_tokens": 20} for i in range(20)))
    main([str(trace), "--device", "h100", "--model", str(config), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert (found["requests"], found["ends"], found["preemptions"]) == (20, {"length": 20}, 0)
    assert 0 < found["itl_ms"]["p50"] <= found["itl_ms"]["p95"] <= found["itl_ms"]["p99"]
    assert 0 < found["kv_used_mean"] <= found["kv_used_peak"] < 1
    assert found["good_requests"] == 20
    main([str(trace), "--device", "h100", "--model", str(config)])
    assert "goodput" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ({"arrival_ms": 0, "prompt_tokens": 1}, "line 2: .*output_tokens"),
        ({"arrival_ms": -1, "prompt_tokens": 1, "output_tokens": 1}, "line 2: arrival_ms"),
        ({"arrival_ms": 0, "prompt_tokens": 1, "output_tokens": 1, "prio": 1}, "line 2: .*prio"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: dict, says: str) -> None:
    with pytest.raises(ConfigRejected, match=says):
        read(trace_file(tmp_path, {"arrival_ms": 0, "prompt_tokens": 1, "output_tokens": 1}, line))


def test_a_device_of_the_catalogue_stands_in_for_a_model(config: Path) -> None:
    testing = ForTests(simulated=SimulatedWorker(device="l4"))
    daemon = DaemonConfig(model=ModelConfig(path=str(config.parent), served_names=("m",)), testing=testing)
    worker = build_worker(daemon, lambda _: None)
    assert isinstance(worker, VirtualWorker)
    assert (worker.limits.vocab_size, worker.limits.max_model_len) == (128256, 8192)
    assert 2000 < worker.limits.blocks_total < 5000


def test_what_cannot_be_simulated_is_one_line_and_exit_2(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = trace_file(tmp_path, {"arrival_ms": 0, "prompt_tokens": 1, "output_tokens": 1})
    for arguments, says in (
        ([str(trace), "--device", "abacus", "--model", str(config)], "abacus"),
        ([str(trace), "--device", "t4", "--model", str(config)], "t4"),
        ([str(trace), "--device", "h100", "--model", str(tmp_path / "none.json")], "none.json"),
        ([str(tmp_path / "none.jsonl"), "--device", "h100", "--model", str(config)], "none.jsonl"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 2
        assert says in capsys.readouterr().err


def unit_of_work() -> float:
    """CPU seconds of 10,000 short hashes: what this machine, as busy as it is, makes of interpreted code. This thread's: those that earlier
    tests left behind compute too."""
    data, started = b"x" * 80, time.thread_time()
    for _ in range(10_000):
        hashlib.blake2b(data, digest_size=16).digest()
    return time.thread_time() - started


def cost_in_units(work) -> float:
    """CPU of `work` over a unit's, the better of two, with a unit before and after."""
    ratios = []
    for _ in range(2):
        before = unit_of_work()
        started = time.thread_time()
        work()
        spent = time.thread_time() - started
        ratios.append(spent / ((before + unit_of_work()) / 2))
    return min(ratios)


@pytest.mark.deep
def test_a_row_step_of_a_loaded_replica_costs_a_dozen_hashes(config: Path) -> None:
    pace = Pace.read(config, "h100")
    jobs = drawn(500, 400.0, seed=1)

    def work() -> None:
        worker = VirtualWorker(pace.limits(16, 8192), pace.milliseconds)
        outcome = Simulation(jobs, worker, Limits.of(worker.limits, 512, 2048)).run()
        work.row_steps = outcome.row_steps

    units = cost_in_units(work)
    # Measured: 10 to 12 hashes. 250,000 row-steps a second are 4 us each, a hash is 0.4 us.
    assert units * 10_000 / work.row_steps < 30


def test_planning_32_decodes_costs_a_few_hundred_hashes() -> None:
    state = State(Limits.of(WorkerLimits(4096, 16, 32_000, 2048), 32, 1024))
    for row in range(32):
        submit(state, Submit(str(row), tuple(range(row, row + 32)), Sampling(1500)), Arrival(0.0, 1))
    tokens = np.full(32, 7, np.int32)

    def work(steps: int = 300) -> None:
        for now in range(steps):
            step = plan(state, float(now))
            assert step is not None
            rows = step.rows[step.sample]
            commit(state, StepResult(rows, tokens[: rows.size]), now + 1.0)

    work(20)
    # Measured: 105 us of CPU a step, 250 hashes.
    assert cost_in_units(work) * 10_000 / 300 < 800


@pytest.mark.deep
def test_a_simulated_device_is_small() -> None:
    """Made and worked in a process of its own: interpreter, arrays and core together."""
    script = (
        "from pagoda_daemon.core.batch import WorkerLimits\n"
        "from pagoda_daemon.simulated.device.virtual import VirtualWorker\n"
        "from pagoda_daemon.scheduler.limits import Limits\n"
        "from pagoda_daemon.simulated.replay.run import Simulation\n"
        "from pagoda_daemon.simulated.replay.trace import drawn\n"
        "limits = WorkerLimits(28_000, 16, 128_256, 8192)\n"
        "worker = VirtualWorker(limits, lambda plan: 5.0 + 0.01 * plan.tokens)\n"
        "Simulation(drawn(300, 100.0, seed=1), worker, Limits.of(limits, 64, 512)).run()\n"
        "print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))\n"
    )
    said = subprocess.run([sys.executable, "-P", "-c", script], check=True, capture_output=True, text=True).stdout
    assert int(said) / 1024 <= 80
