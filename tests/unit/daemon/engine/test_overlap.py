"""The engine's loop with a device that computes by itself: it always has the next step before the one under way ends, and steps that raise
cost no other request a token."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence

import pytest
from pagoda_contracts.launch import EngineConfig
from pagoda_daemon.core.batch import WorkerLimits
from pagoda_daemon.core.messages import Failed, FromEngine, RowOutput, Shutdown, StepOutput, Submit
from pagoda_daemon.core.sampling import Sampling
from pagoda_daemon.engine.exits import EXIT_FAILED, EXIT_OK
from pagoda_daemon.engine.loop import STEP_FAILED, Engine
from pagoda_daemon.runner.worker import Worker
from pagoda_daemon.simulated.device.worker import SimulatedWorker, expected_tokens
from pagoda_daemon.simulated.replicas.engine import LocalWire
from structlog.testing import capture_logs
from support.engine.async_device import AsyncDevice

LIMITS = WorkerLimits(256, 4, 97, 256)
PROMPTS = {"a": (1, 2, 3), "b": (4,), "c": (5, 6, 7, 8, 9, 10), "d": (11, 12)}


class LocalRun:
    """An engine in the test's own thread: it runs until each of `submits` has ended, or it fails. Before it waits for anything, `rest` is
    called."""

    def __init__(self, worker: Worker, submits: Sequence[Submit]) -> None:
        self.outputs: list[RowOutput] = []
        self.failed: list[Failed] = []
        self._left = len(submits)
        ticks = itertools.count()
        self._wire = LocalWire(self._hear)
        self.engine = Engine(self._wire, EngineConfig(max_concurrency=8), lambda _: worker, lambda: next(ticks) * 1e-3)
        for submit in submits:
            self._wire.put(submit)

    def until_all_ended(self, rest: Callable[[], object]) -> int:
        """The exit code."""
        wait = self._wire.wait

        def rest_and_wait(timeout_ms: float) -> None:
            rest()
            wait(timeout_ms)

        self._wire.wait = rest_and_wait  # type: ignore[method-assign]
        with capture_logs():
            code = self.engine.run(lambda: False)
        self.engine._device._thread.join()
        self._wire.close()
        return code

    def _hear(self, message: FromEngine) -> None:
        if isinstance(message, StepOutput):
            self.outputs += message.outputs
            self._left -= sum(output.finish_reason is not None for output in message.outputs)
            if not self._left:
                self._wire.put(Shutdown())
        elif isinstance(message, Failed):
            self.failed.append(message)

    def tokens(self, name: str) -> tuple[int, ...]:
        return tuple(token for output in self.outputs if output.request_id == name for token in output.token_ids)

    def end(self, name: str) -> RowOutput:
        (end,) = (output for output in self.outputs if output.request_id == name and output.finish_reason)
        return end


def one_at_a_time(run: LocalRun, worker: AsyncDevice) -> Callable[[], None]:
    """The slowest device there is: a step ends only when the loop has nothing left to do but wait for it."""

    def rest() -> None:
        state = run.engine._state
        if state is not None:
            taken = state.totals.steps
            worker.await_launches(taken + len(state.in_flight))
            # The failed ones of a few steps are told of together, when none is on its way.
            failing = any(step in worker.bad_ends or step in worker.bad_launches for step in range(taken, taken + len(state.in_flight)))
            worker.let_end(taken + (len(state.in_flight) if failing else 1))

    return rest


def submits(answer: int) -> list[Submit]:
    """Of the lengths `answer`, `answer` - 7, ...; one is stopped by a token when nobody knows."""
    made = [Submit(name, prompt, Sampling(answer - 7 * place)) for place, (name, prompt) in enumerate(PROMPTS.items())]
    stop = expected_tokens(PROMPTS["b"], answer // 2, LIMITS.vocab_size)[-1]
    made[1] = Submit("b", PROMPTS["b"], Sampling(answer, stop_token_ids=(stop,)))
    return made


def test_while_requests_decode_the_device_always_has_the_next_step_and_tokens_are_those_of_a_synchronous_worker() -> None:
    worker = AsyncDevice(LIMITS)
    run, plain = LocalRun(worker, submits(120)), LocalRun(SimulatedWorker(LIMITS), submits(120))
    assert run.until_all_ended(one_at_a_time(run, worker)) == plain.until_all_ended(lambda: None) == EXIT_OK
    assert worker.launched >= 120
    assert worker.overlapped > 0.9 * worker.launched
    assert worker.most_under_way == 2
    for name, prompt in PROMPTS.items():
        assert run.tokens(name) == plain.tokens(name)
        assert run.tokens(name) == expected_tokens(prompt, len(run.tokens(name)), LIMITS.vocab_size)
        assert run.end(name).finish_reason == plain.end(name).finish_reason
    assert run.end("b").finish_reason == "stop"


@pytest.mark.parametrize("seed", range(12))
def test_steps_that_raise_now_and_then_end_requests_that_were_alone_in_them_and_touch_no_other(seed: int) -> None:
    luck = random.Random(seed)
    bad = luck.sample(range(120), 12)
    worker = AsyncDevice(LIMITS, bad_launches=bad[:6], bad_ends=bad[6:])
    run = LocalRun(worker, submits(60))
    assert run.until_all_ended(one_at_a_time(run, worker)) == EXIT_OK
    for name, prompt in PROMPTS.items():
        told, end = run.tokens(name), run.end(name)
        assert told == expected_tokens(prompt, len(told), LIMITS.vocab_size)
        assert end.finish_reason in ("stop", "length") or end.error == STEP_FAILED


@pytest.mark.parametrize("where", ["bad_launches", "bad_ends"])
def test_a_fault_that_does_not_come_again_ends_no_request_that_was_in_company(where: str) -> None:
    worker = AsyncDevice(LIMITS, **{where: [10]})
    run = LocalRun(worker, submits(40))
    assert run.until_all_ended(one_at_a_time(run, worker)) == EXIT_OK
    assert {run.end(name).finish_reason for name in PROMPTS} == {"stop", "length"}
    assert run.tokens("a") == expected_tokens(PROMPTS["a"], 40, LIMITS.vocab_size)


def test_a_device_that_fails_its_probe_ends_the_engine_though_the_next_step_was_launched() -> None:
    worker = AsyncDevice(LIMITS, bad_ends=[10], bad_probes=[0])
    run = LocalRun(worker, submits(40))
    assert run.until_all_ended(one_at_a_time(run, worker)) == EXIT_FAILED
    assert ("launch", 11) in worker.order
    assert len(run.failed) == 1
