"""The real engine process with the simulated worker, over the real wire."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from unittest.mock import create_autospec

import pytest
from pagoda_contracts.launch import DaemonConfig, EngineConfig, ModelConfig, SimulatedWorker
from pagoda_contracts.launch import TestingConfig as ForTests
from pagoda_contracts.names import EXIT_PERMANENT
from pagoda_daemon.core.errors import EngineDied
from pagoda_daemon.core.messages import Abort, Failed, Heartbeat, Loading, Ready, Shutdown, StepOutput, Submit
from pagoda_daemon.core.sampling import Sampling
from pagoda_daemon.engine.client import EngineClient
from pagoda_daemon.engine.start import wires
from pagoda_daemon.engine.stream import Stream
from pagoda_daemon.health.replica import Replica
from pagoda_daemon.simulated.device.worker import expected_tokens
from support.engine.front import PATIENCE_MS, engine_argv, engine_process, front

pytestmark = pytest.mark.deep  # real processes, seconds each


def simulated(step_ms: float = 0.0, **engine: object) -> DaemonConfig:
    return DaemonConfig(
        model=ModelConfig(path="/nowhere", served_names=("m",)),
        engine=EngineConfig.model_validate({"max_model_len": 1024, **engine}),
        testing=ForTests(simulated=SimulatedWorker(step_ms=step_ms)),
    )


def request(name: str, prompt: tuple[int, ...], count: int) -> Submit:
    return Submit(name, prompt, Sampling(count))


def test_requests_stream_to_their_end_and_shutdown_exits_0(tmp_path: Path) -> None:
    with engine_process(tmp_path, simulated(max_concurrency=8)) as (end, process):
        ready = end.until(Ready)
        assert (ready.max_model_len, ready.vocab_size, ready.max_concurrency) == (1024, 256, 8)
        assert isinstance(end.heard[0], Loading)
        prompts = {f"r{i}": (i, i + 1, 7) for i in range(20)}
        end.send(*(request(name, prompt, 30) for name, prompt in prompts.items()))
        open_names = set(prompts)
        while open_names:
            step = end.until(StepOutput)
            open_names -= {o.request_id for o in step.outputs if o.finish_reason == "length"}
        for name, prompt in prompts.items():
            assert end.tokens(name) == expected_tokens(prompt, 30, 256)
        assert step.stats.blocks_used == step.stats.running == step.stats.waiting == 0
        end.send(Shutdown())
        assert process.wait() == 0


def test_a_submit_before_ready_is_served(tmp_path: Path) -> None:
    with engine_process(tmp_path, simulated()) as (end, _):
        end.send(request("early", (1,), 2))
        end.until(Ready)
        assert end.end_of("early").finish_reason == "length"


def test_an_abort_ends_with_the_step_under_way(tmp_path: Path) -> None:
    with engine_process(tmp_path, simulated(step_ms=6000)) as (end, _):
        end.until(Ready)
        end.send(request("a", (1, 2), 500))
        end.until(StepOutput)
        end.send(Abort("a"), Abort("unknown"))
        assert end.end_of("a").finish_reason == "abort"
        last = end.heard[-1]
        assert isinstance(last, StepOutput)
        assert (last.stats.blocks_used, last.stats.running) == (0, 0)
        assert len(end.tokens("a")) <= 3, "the abort waited for more than the step under way"


def test_heartbeats_go_on_through_a_long_step_and_say_when_it_began(tmp_path: Path) -> None:
    with engine_process(tmp_path, simulated(step_ms=8000)) as (end, _):
        end.until(Ready)
        end.send(request("a", (1,), 1))
        end.end_of("a")
        end.until(Heartbeat, lambda beat: beat.stats.steps == 1)
        during = [m.step_started_ms for m in end.heard if isinstance(m, Heartbeat) and m.step_started_ms]
        assert len(during) >= 3
        assert len(set(during)) == 1
        last = end.heard[-1]
        assert isinstance(last, Heartbeat)
        assert last.step_started_ms == 0
        assert last.predicted_step_ms >= 8000


def test_an_idle_engine_blocks(tmp_path: Path) -> None:
    with engine_process(tmp_path, simulated()) as (end, process):
        end.until(Ready)
        end.until(Heartbeat)
        before = cpu_ticks(process.pid)
        first = end.until(Heartbeat)
        for _ in range(8):
            last = end.until(Heartbeat)
        assert last.sent_at_ms - first.sent_at_ms + 8 >= 8 * 250
        # 8 beats are 2 s, 200 ticks for a loop that spins; 2 were seen, on a slow machine they are more.
        assert cpu_ticks(process.pid) - before <= 20


def cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


def test_sigterm_is_the_fronts_to_judge(tmp_path: Path) -> None:
    with engine_process(tmp_path, simulated()) as (end, process):
        end.until(Ready)
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)
        end.send(request("after", (1,), 2))
        assert end.end_of("after").finish_reason == "length"


def test_a_bad_model_is_a_permanent_failure_with_exit_78(tmp_path: Path) -> None:
    config = DaemonConfig(model=ModelConfig(path=str(tmp_path / "missing"), served_names=("m",)))
    with engine_process(tmp_path, config) as (end, process):
        failed = end.until(Failed)
        assert (failed.reason, failed.permanent) == ("ModelRejected", True)
        assert "missing/config.json" in failed.message
        assert process.wait() == EXIT_PERMANENT


def test_an_impossible_pool_is_a_permanent_failure(tmp_path: Path) -> None:
    with engine_process(tmp_path, simulated(kv_bytes=10)) as (end, process):
        assert end.until(Failed).reason == "ConfigRejected"
        assert process.wait() == EXIT_PERMANENT


def test_an_unreadable_config_is_a_permanent_failure(tmp_path: Path) -> None:
    with front(tmp_path) as end:
        argv = engine_argv(tmp_path, simulated(), end)
        (tmp_path / "daemon.json").write_text("{")
        with subprocess.Popen(argv, stderr=subprocess.PIPE) as process:
            assert end.until(Failed).reason == "ConfigRejected"
            logged = json.loads(process.communicate()[1])
            assert process.returncode == EXIT_PERMANENT
    assert "Traceback" in logged["exception"]
    assert "model_validate_json" in logged["exception"]


def test_an_engine_whose_front_died_before_it_could_ask_for_a_signal_ends_at_once(tmp_path: Path) -> None:
    with front(tmp_path) as end:
        argv = [*engine_argv(tmp_path, simulated(), end), "--parent", "1"]
        assert subprocess.run(argv, timeout=PATIENCE_MS / 1000, check=False).returncode == -signal.SIGKILL


async def test_clients_of_an_engine_that_must_end_are_answered_while_it_still_runs(tmp_path: Path) -> None:
    process = create_autospec(subprocess.Popen, instance=True)
    process.poll.return_value = None
    client = EngineClient(process, wires(tmp_path), Replica(0.0))
    waiting = client._streams["r"] = Stream("r")
    client.condemn("a step has run for 121 s")
    with pytest.raises(EngineDied):
        await asyncio.wait_for(waiting.take(), PATIENCE_MS / 1000)
    process.kill.assert_not_called()
    client.close()


def test_the_engine_dies_with_a_killed_front(tmp_path: Path) -> None:
    spawner = "import os, subprocess, sys; mine = ['--parent', str(os.getpid())]; "
    spawner += "print(subprocess.Popen(sys.argv[1:] + mine).pid, flush=True); sys.stdin.read()"
    with front(tmp_path) as end:
        argv = [sys.executable, "-P", "-c", spawner, *engine_argv(tmp_path, simulated(step_ms=20), end)]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
            assert parent.stdout is not None
            engine = os.pidfd_open(int(parent.stdout.readline()))
            end.until(Ready)
            end.send(request("a", (1,), 900))
            end.until(StepOutput)
            parent.kill()
            gone = select.poll()
            gone.register(engine, select.POLLIN)
            assert gone.poll(PATIENCE_MS), "the engine outlived its front"
            os.close(engine)
