"""The simulated worker: its stream depends on every token, its place and the blocks they are read from."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from pagoda_contracts.launch import DaemonConfig, EngineConfig, ModelConfig
from pagoda_contracts.launch import SimulatedWorker as Settings
from pagoda_contracts.launch import TestingConfig as ForTests
from pagoda_daemon.core.batch import StepPlan, StepResult, WorkerLimits
from pagoda_daemon.core.errors import ConfigRejected
from pagoda_daemon.engine.build import build_worker
from pagoda_daemon.simulated.device.worker import SimulatedWorker, expected_tokens, simulated_limits
from pagoda_daemon.simulated.replicas import engine as simulated_engine
from support.engine.drive import Drive

LIMITS = WorkerLimits(32, 4, 997, 64)


def test_streams_depend_on_each_token_and_its_place() -> None:
    base = expected_tokens((1, 2, 3), 8, 997)
    assert base != expected_tokens((2, 1, 3), 8, 997)
    assert base != expected_tokens((1, 2, 4), 8, 997)
    assert base == expected_tokens((1, 2, 3), 8, 997)
    assert expected_tokens((1, 2, 3, base[0]), 7, 997) == base[1:]
    assert len(set(expected_tokens((1,), 200, 997))) > 100


def test_a_block_read_in_the_wrong_order_changes_the_stream() -> None:
    class Swapped(SimulatedWorker):
        def execute(self, plan: StepPlan) -> StepResult:
            tables = plan.block_tables.copy()
            if tables.shape[1] > 1 and plan.tokens == 1:
                tables[:, [0, 1]] = tables[:, [1, 0]]
            return super().execute(dataclasses.replace(plan, block_tables=tables))

    drive = Drive(Swapped(LIMITS))
    drive.submit("a", range(8), 5)
    drive.drain()
    assert tuple(drive.tokens["a"]) != expected_tokens(range(8), 5, 997)


def test_each_step_lasts_its_time() -> None:
    pauses: list[float] = []
    drive = Drive(SimulatedWorker(LIMITS, step_ms=250, pause=pauses.append))
    drive.submit("a", [1], 3)
    drive.drain()
    assert pauses == [0.25] * 3


def config(**engine: object) -> DaemonConfig:
    return DaemonConfig(
        model=ModelConfig(path="/nowhere", served_names=("m",)),
        engine=EngineConfig.model_validate({"max_concurrency": 2, **engine}),
        testing=ForTests(simulated=Settings(vocab_size=50)),
    )


def test_limits_follow_the_configuration() -> None:
    assert simulated_limits(config(max_model_len=100)) == WorkerLimits(14, 16, 50, 100)
    assert simulated_limits(config(max_model_len=100, kv_bytes=8 * 16 * 3)).blocks_total == 3
    assert build_worker(config(max_model_len=100), lambda _: None).limits.vocab_size == 50


def test_a_pool_without_a_block_is_refused() -> None:
    with pytest.raises(ConfigRejected, match="kvBytes 5"):
        simulated_limits(config(kv_bytes=5))


def test_nothing_unwritten_is_read() -> None:
    worker = SimulatedWorker(LIMITS)
    drive = Drive(worker, token_budget=3)
    drive.submit("a", range(10), 4)
    read: list[int] = []
    original = worker._after
    worker._after = lambda table, length: read.append(length) or original(table, length)
    drive.drain()
    assert read == [10, 11, 12, 13]
    assert np.count_nonzero(worker._kv > 0) == 13


def test_a_simulated_model_reports_its_load_progress_each_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """A load that says nothing for long is taken for one that hangs."""

    class Clock:
        """Passes while somebody waits for the end."""

        now = 100.0

        def monotonic(self) -> float:
            return self.now

        def wait(self, seconds: float) -> bool:
            self.now += seconds
            return False

    clock, said = Clock(), list[float]()
    monkeypatch.setattr(simulated_engine, "time", clock)
    engine = object.__new__(simulated_engine.LocalEngine)  # without the thread that runs it
    engine._load_s, engine._config, engine._stop = 2.5, config(), clock  # type: ignore[assignment]
    engine._load(said.append)
    assert said == [0.0, 0.4, 0.8]
