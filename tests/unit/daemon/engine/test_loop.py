"""The engine's loop in a thread, with workers that fail."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pagoda_contracts.launch import EngineConfig
from pagoda_daemon.core.batch import LAST_SAMPLED, StepPlan, StepResult, WorkerLimits
from pagoda_daemon.core.messages import Failed, Heartbeat, Loading, Ready, RowOutput, StepOutput, Submit
from pagoda_daemon.core.sampling import Sampling
from pagoda_daemon.engine import loop
from pagoda_daemon.engine.build import Progress
from pagoda_daemon.engine.exits import EXIT_FAILED, EXIT_OK
from pagoda_daemon.engine.loop import STEP_FAILED, Engine
from pagoda_daemon.engine.wire import Wire
from pagoda_daemon.runner.worker import Worker
from pagoda_daemon.scheduler.admission import Arrival, submit
from pagoda_daemon.scheduler.state import State
from pagoda_daemon.simulated.device.worker import SimulatedWorker, expected_tokens
from structlog.testing import capture_logs
from support.engine.front import Front, front

LIMITS = WorkerLimits(64, 4, 97, 64)
CURSED = 13
CONFIG = EngineConfig(max_concurrency=4)


class Touchy(SimulatedWorker):
    """Raises on a token; afterwards its probe passes or not."""

    def __init__(self, *, survives: bool) -> None:
        super().__init__(LIMITS)
        self._survives = survives
        self._hurt = False

    def execute(self, plan: StepPlan) -> StepResult:
        if CURSED in plan.token_ids:
            self._hurt = True
            raise RuntimeError("device says no")
        return super().execute(plan)

    def probe(self) -> None:
        if self._hurt and not self._survives:
            raise RuntimeError("still no")


def real_ms() -> float:
    return time.monotonic() * 1000


@contextlib.contextmanager
def engine(
    folder: Path,
    build: Callable[[Progress], Worker],
    clock_ms: Callable[[], float] = real_ms,
    *,
    orphaned: bool = False,
    config: EngineConfig = CONFIG,
) -> Iterator[tuple[Front, list[int]]]:
    """A running loop; the list holds its exit code once the block is left. An orphan is not told to shut down."""
    codes: list[int] = []

    def work() -> None:
        wire = Wire(end.inbox, end.outbox)
        codes.append(Engine(wire, config, build, clock_ms).run(lambda: orphaned))
        wire.close()

    with front(folder) as end:
        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield end, codes
        finally:
            while thread.is_alive():
                if not orphaned:
                    end.shut_down()
                thread.join(timeout=0.05)


def test_a_step_that_raises_ends_its_requests_and_the_engine_goes_on(tmp_path: Path) -> None:
    with capture_logs() as logs, engine(tmp_path, lambda _: Touchy(survives=True)) as (end, codes):
        end.until(Ready)
        end.send(Submit("bad", (CURSED,), Sampling(5)))
        failed = end.end_of("bad")
        assert (failed.finish_reason, failed.error) == ("error", STEP_FAILED)
        assert "device says no" not in STEP_FAILED
        end.send(Submit("good", (1,), Sampling(5)))
        end.end_of("good")
        assert end.tokens("good") == expected_tokens((1,), 5, 97)
    assert codes == [EXIT_OK]
    assert [(line["requests"], line["error"], str(line["exc_info"])) for line in logs] == [
        (["bad"], "RuntimeError: device says no", "device says no")
    ]


class Measured(SimulatedWorker):
    """Notes how many tokens each step has."""

    def __init__(self, limits: WorkerLimits) -> None:
        super().__init__(limits)
        self.tokens: list[int] = []

    def execute(self, plan: StepPlan) -> StepResult:
        self.tokens.append(plan.token_ids.size)
        return super().execute(plan)


@pytest.mark.parametrize(
    ("device", "config", "most"), [("", CONFIG, 512), ("GPU-1", CONFIG, 2048), ("GPU-1", EngineConfig(token_budget=512), 512)]
)
def test_a_step_has_as_many_tokens_as_suit_the_device_if_none_are_set(tmp_path: Path, device: str, config: EngineConfig, most: int) -> None:
    worker = Measured(WorkerLimits(1024, 4, 97, 4096, device=device))
    with engine(tmp_path, lambda _: worker, config=config) as (end, _):
        end.until(Ready)
        end.send(Submit("long", (1,) * 3000, Sampling(1)))
        end.end_of("long")
    assert max(worker.tokens) == most


def test_a_worker_that_fails_its_probe_ends_the_engine(tmp_path: Path) -> None:
    with engine(tmp_path, lambda _: Touchy(survives=False)) as (end, codes):
        end.until(Ready)
        end.send(Submit("bad", (CURSED,), Sampling(5)))
        assert end.end_of("bad").finish_reason == "error"
        failed = end.until(Failed)
        assert failed.permanent is False
        assert "device says no" in failed.message
    assert codes == [EXIT_FAILED]


def test_a_load_that_raises_is_no_permanent_failure(tmp_path: Path) -> None:
    def build(_: Progress) -> Worker:
        raise OSError("disk says no")

    with capture_logs() as logs, engine(tmp_path, build) as (end, codes):
        failed = end.until(Failed)
        assert (failed.reason, failed.message, failed.permanent) == ("OSError", "disk says no", False)
    assert codes == [EXIT_FAILED]
    assert [type(line["exc_info"]) for line in logs] == [OSError]


def test_progress_is_reported_while_the_load_goes_on(tmp_path: Path) -> None:
    heard = threading.Event()

    def build(progress: Progress) -> Worker:
        progress(0.5)
        heard.wait()
        return SimulatedWorker(LIMITS)

    with engine(tmp_path, build) as (end, _):
        end.until(Loading, lambda m: m.progress == 0.5)
        assert not any(isinstance(m, Ready) for m in end.heard)
        heard.set()
        end.until(Ready)


def test_shutdown_while_loading_ends_at_once(tmp_path: Path) -> None:
    never = threading.Event()

    def build(_: Progress) -> Worker:
        never.wait()
        return SimulatedWorker(LIMITS)

    with engine(tmp_path, build) as (end, codes):
        end.until(Loading)
    assert codes == [EXIT_OK]
    never.set()


def test_a_repeated_request_id_is_dropped_and_the_first_goes_on(tmp_path: Path) -> None:
    with engine(tmp_path, lambda _: SimulatedWorker(LIMITS)) as (end, _):
        end.until(Ready)
        end.send(Submit("a", (1,), Sampling(20)), Submit("a", (2,), Sampling(3)))
        end.end_of("a")
        assert end.tokens("a") == expected_tokens((1,), 20, 97)


def test_a_refused_request_is_answered_at_once(tmp_path: Path) -> None:
    with engine(tmp_path, lambda _: SimulatedWorker(LIMITS)) as (end, _):
        end.until(Ready)
        end.send(Submit("big", (1,) * 60, Sampling(10)))
        refused = end.end_of("big")
        assert refused.error is not None
        assert refused.error.startswith("never_fits: ")


def test_an_orphan_ends_by_itself(tmp_path: Path) -> None:
    with engine(tmp_path, lambda _: SimulatedWorker(LIMITS), orphaned=True) as (end, codes):
        end.until(Ready)
    assert codes == [EXIT_FAILED]


def test_outputs_come_only_with_steps_that_have_some(tmp_path: Path) -> None:
    with engine(tmp_path, lambda _: SimulatedWorker(LIMITS)) as (end, _):
        end.until(Ready)
        end.send(Submit("a", (1,) * 40, Sampling(3)))
        end.end_of("a")
        assert all(m.outputs for m in end.heard if isinstance(m, StepOutput))


class Watched(SimulatedWorker):
    """Its steps last as long as they say, by a clock that nothing else moves."""

    def __init__(self, step_ms: float) -> None:
        super().__init__(LIMITS, step_ms, self.work)
        self.unknown, self.now_ms = 0, 0.0

    def work(self, seconds: float) -> None:
        self.now_ms += 1000 * seconds

    def execute(self, plan: StepPlan) -> StepResult:
        self.unknown += bool((plan.token_ids == LAST_SAMPLED).any())
        return super().execute(plan)


def test_a_step_that_was_planned_ahead_is_as_old_as_the_end_of_the_one_before(tmp_path: Path) -> None:
    """Else a busy engine would look like a hung one after as long as it is busy."""
    worker = Watched(8.0)
    with engine(tmp_path, lambda _: worker, lambda: worker.now_ms) as (end, _):
        end.until(Ready)
        end.send(Submit("a", (1, 2, 3), Sampling(60)))
        end.end_of("a")
        busy = [m for m in end.heard if isinstance(m, Heartbeat) and m.step_started_ms]
    assert worker.unknown > 40, "no step was planned ahead"
    assert len(busy) >= 3
    # The device may be a step further than the loop that tells of it.
    assert max(m.sent_at_ms - m.step_started_ms for m in busy) <= 4 * 8


def test_short_steps_are_planned_one_ahead_and_long_ones_are_not(tmp_path: Path) -> None:
    for step_ms, ahead in ((1.0, True), (40.0, False)):
        worker = Watched(step_ms)
        folder = tmp_path / str(step_ms)
        folder.mkdir()
        with engine(folder, lambda _, worker=worker: worker, lambda worker=worker: worker.now_ms) as (end, _):
            end.until(Ready)
            end.send(Submit("a", (1, 2, 3), Sampling(20)))
            end.end_of("a")
            assert end.tokens("a") == expected_tokens((1, 2, 3), 20, 97)
        # Before the first step was measured it is planned ahead as well.
        assert (worker.unknown > 10) is ahead


def seeds_given(folder: Path, monkeypatch: pytest.MonkeyPatch, seed: int | None) -> list[int]:
    """To three requests that bring none, by one engine."""
    given: list[int] = []

    def noting(state: State, message: Submit, arrival: Arrival) -> RowOutput | None:
        given.append(arrival.seed)
        return submit(state, message, arrival)

    monkeypatch.setattr(loop, "submit", noting)
    config = EngineConfig(max_concurrency=4, seed=seed)
    with engine(folder, lambda _: SimulatedWorker(LIMITS), config=config) as (end, _):
        end.until(Ready)
        for name in ("a", "b", "c"):
            end.send(Submit(name, (1,), Sampling(1)))
            end.end_of(name)
    return given


def test_an_engine_with_a_seed_gives_the_same_seeds_after_each_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [seeds_given(tmp_path, monkeypatch, seed) for seed in (7, 7, 8, None, None)]
    assert found[0] == found[1]
    assert len({tuple(one) for one in found}) == 4
    assert all(len(set(one)) == 3 for one in found)
