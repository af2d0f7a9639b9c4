"""Injected faults in a real engine process: each is told apart on the other side of the wire, and takes no more with it than it must."""

from __future__ import annotations

from pathlib import Path

import pytest
from pagoda_contracts.launch import DaemonConfig, EngineConfig, Fault, ModelConfig, SimulatedWorker
from pagoda_contracts.launch import TestingConfig as ForTests
from pagoda_daemon.core.batch import NOT_FINITE
from pagoda_daemon.core.messages import Failed, Heartbeat, Ready, Submit
from pagoda_daemon.core.sampling import Sampling
from pagoda_daemon.engine.build import build_worker
from pagoda_daemon.health.replica import Limits, Replica, live
from pagoda_daemon.runner.faulty import EXIT_CODE
from pagoda_daemon.simulated.device.worker import SimulatedWorker as SimulatedDevice
from pagoda_daemon.simulated.device.worker import expected_tokens
from support.engine.front import engine_process

PROMPT = (1, 2, 3)


def faulty(*faults: Fault, step_ms: float = 0.0) -> DaemonConfig:
    return DaemonConfig(
        model=ModelConfig(path="/nowhere", served_names=("m",)),
        engine=EngineConfig(max_model_len=1024, max_concurrency=8),
        testing=ForTests(simulated=SimulatedWorker(step_ms=step_ms), faults=faults),
    )


def request(name: str, count: int = 20) -> Submit:
    return Submit(name, PROMPT, Sampling(count))


@pytest.mark.deep
def test_a_row_that_is_not_finite_ends_one_request(tmp_path: Path) -> None:
    names = [f"r{index}" for index in range(4)]
    with engine_process(tmp_path, faulty(Fault(kind="nan", at_step=5))) as (end, _):
        end.until(Ready)
        end.send(*map(request, names))
        ends = end.ends_of(*names)
        broken = [name for name in names if ends[name].finish_reason == "error"]
        assert [ends[name].error for name in broken] == [NOT_FINITE]
        assert all(end.tokens(name) == expected_tokens(PROMPT, 20, 256) for name in names if name not in broken)


@pytest.mark.deep
def test_a_step_that_raises_ends_its_requests_and_the_engine_goes_on(tmp_path: Path) -> None:
    with engine_process(tmp_path, faulty(Fault(kind="error", at_step=5))) as (end, process):
        end.until(Ready)
        end.send(request("in it"))
        ended = end.end_of("in it")
        assert (ended.finish_reason, ended.error) == ("error", "the engine could not compute this request")
        end.send(request("after"))
        assert end.end_of("after").finish_reason == "length"
        assert process.poll() is None


@pytest.mark.deep
def test_a_device_that_stays_broken_ends_the_engine(tmp_path: Path) -> None:
    with engine_process(tmp_path, faulty(Fault(kind="fatal", at_step=2))) as (end, process):
        end.until(Ready)
        end.send(request("r"))
        assert end.end_of("r").finish_reason == "error"
        failed = end.until(Failed)
        assert "fails its probe" in failed.message
        assert not failed.permanent
        assert process.wait() == 1


@pytest.mark.deep
def test_an_engine_that_is_gone_leaves_its_code(tmp_path: Path) -> None:
    with engine_process(tmp_path, faulty(Fault(kind="exit", at_step=2))) as (end, process):
        end.until(Ready)
        end.send(request("r"))
        assert process.wait() == EXIT_CODE


@pytest.mark.deep
def test_a_hung_device_shows_as_an_overdue_step_while_heartbeats_go_on(tmp_path: Path) -> None:
    with engine_process(tmp_path, faulty(Fault(kind="hang", at_step=3))) as (end, process):
        end.until(Ready)
        end.send(request("r"))
        stuck = end.until(Heartbeat, lambda beat: beat.step_started_ms > 0 and beat.sent_at_ms - beat.step_started_ms > 1000)
        assert stuck.step_started_ms > 0
        later = end.until(Heartbeat, lambda beat: beat.sent_at_ms > stuck.sent_at_ms)
        assert later.step_started_ms == stuck.step_started_ms
        soon, late = (later.step_started_ms / 1000 + age for age in (1, Limits().step + 1))
        assert live(front_of(later, soon), soon, Limits()).ok
        verdict = live(front_of(later, late), late, Limits())
        assert not verdict.ok
        assert "has run for 121" in verdict.why
        process.kill()


def front_of(beat: Heartbeat, now: float) -> Replica:
    """What a front knows from that beat on; its own loop turns and the engine beats on."""
    replica = Replica(
        born=beat.step_started_ms / 1000 + 60, step_started=beat.step_started_ms / 1000, predicted_step_ms=beat.predicted_step_ms
    )
    replica.limits = Ready(1024, 256, 16, 64, 8)
    replica.loop_beat = replica.engine_beat = now
    return replica


def test_nothing_is_faulty_unless_asked() -> None:
    assert build_worker(faulty(), lambda _done: None).__class__ is SimulatedDevice
