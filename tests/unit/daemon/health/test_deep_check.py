"""The deep check: what the front makes of answers, and that the scheduler lets a canary through whatever else there is."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import numpy as np
import pytest
from pagoda_contracts.pb.daemon_pb2 import Phase
from pagoda_daemon.api.grpc.watch import Identity, frame
from pagoda_daemon.core.batch import StepPlan, StepResult, WorkerLimits
from pagoda_daemon.core.messages import DeepCheckAnswer, Ready
from pagoda_daemon.core.messages import DeepCheckPrompt as Prompt
from pagoda_daemon.core.sampling import Sampling
from pagoda_daemon.health.deep_check import MIN_MARGIN, PROMPTS, DeepChecks
from pagoda_daemon.health.replica import Limits, Replica, ready
from pagoda_daemon.scheduler.commit import fail_step
from pagoda_daemon.scheduler.deep_check import take_in
from pagoda_daemon.scheduler.plan import plan
from pagoda_daemon.simulated.device.worker import SimulatedWorker, expected_tokens
from support.engine.drive import Drive
from support.servers.loop_clock import LoopClock

VOCAB = 256
LOADED = Ready(max_model_len=64, vocab_size=VOCAB, block_size=16, blocks_total=4, max_concurrency=2)


class Text:
    """A token per character."""

    def encode(self, text: str, _context: int) -> tuple[int, ...]:
        return tuple(text.encode())

    def decode(self, ids: tuple[int, ...]) -> str:
        return bytes(ids).decode("latin-1")


class CheckedEngine:
    """Answers as told: first every prompt's margin, then one outcome after the other; None is never answered."""

    def __init__(self, margins: dict[str, float], *then: int | str | None) -> None:
        self.margins = {prompt.encode()[:16]: margin for prompt, margin in margins.items()}
        self.then = deque(then)
        self.asked: list[bytes] = []
        self.pending: list[asyncio.Future[DeepCheckAnswer]] = []
        self.done = asyncio.Event()

    def deep_check(self, prompt: tuple[int, ...], *, margin: bool = False) -> asyncio.Future[DeepCheckAnswer]:
        answer: asyncio.Future[DeepCheckAnswer] = asyncio.get_running_loop().create_future()
        if margin:
            lead = self.margins.get(bytes(prompt), 0.01)
            answer.set_result(DeepCheckAnswer(1, 65, lead))
            return answer
        self.asked.append(bytes(prompt))
        what = self.then.popleft() if self.then else None
        if isinstance(what, int):
            answer.set_result(DeepCheckAnswer(1, what))
        elif isinstance(what, str):
            answer.set_result(DeepCheckAnswer(1, None, error=what))
        else:
            self.pending.append(answer)
            self.done.set()
        return answer


async def checked(engine: CheckedEngine, replica: Replica) -> asyncio.Task[None]:
    """Runs until the engine's script is over."""
    task = asyncio.ensure_future(DeepChecks(engine, Text(), replica, every_s=0.01).run())
    await asyncio.wait_for(engine.done.wait(), 60)
    return task


def loaded(*, predicted_step_ms: int = 600_000) -> Replica:
    """With steps so long that no answer is late while a test looks."""
    return Replica(born=0.0, limits=LOADED, phase=Phase.PHASE_READY, predicted_step_ms=predicted_step_ms)


async def test_the_prompt_with_the_widest_margin_is_asked_and_its_answer_known():
    engine, replica = CheckedEngine({PROMPTS[2]: 4.0, PROMPTS[3]: 9.0, PROMPTS[4]: 2.0}, 65, 65), loaded()
    task = await checked(engine, replica)
    assert set(engine.asked) == {PROMPTS[3].encode()[:16]}
    assert (replica.deep.outcomes, replica.deep.failed) == ({"right": 2}, False)
    assert replica.deep.good_at > 0
    task.cancel()


async def test_a_wrong_token_fails_the_check_until_one_is_right_again_and_no_probe():
    engine, replica = CheckedEngine({PROMPTS[0]: 5.0}, 65, 66), loaded()
    task = await checked(engine, replica)
    assert (replica.deep.outcomes, replica.deep.failed) == ({"right": 1, "wrong": 1}, True)
    assert ready(replica, 1.0, Limits()).ok
    state = frame(replica, Identity(("m",), "", ""), 1, replica.deep.good_at + 2.0)
    assert (state.deep_check_failed, state.deep_check_age_ms) == (True, 2000)
    engine.pending[0].set_result(DeepCheckAnswer(1, 65))
    while replica.deep.failed:
        await asyncio.sleep(0.001)
    assert replica.deep.outcomes["right"] == 2
    task.cancel()


async def test_an_answer_that_does_not_come_is_late_and_still_waited_for():
    engine, replica = CheckedEngine({PROMPTS[0]: 5.0}), loaded(predicted_step_ms=0)
    task = await checked(engine, replica)
    while not replica.deep.failed:
        await asyncio.sleep(0.001)
    assert (replica.deep.outcomes, len(engine.asked)) == ({"late": 1}, 1)
    engine.pending[0].set_result(DeepCheckAnswer(1, 65))
    while replica.deep.failed:
        await asyncio.sleep(0.001)
    task.cancel()


async def test_no_answer_is_late_before_twenty_steps_of_the_model_have_passed():
    """A canary each 10 ms on a model whose steps take 10 s: the period alone would call every answer late."""
    clock = LoopClock()
    engine, replica = CheckedEngine({PROMPTS[0]: 5.0}), loaded(predicted_step_ms=10_000)
    task = await checked(engine, replica)
    clock.stop()
    clock.skip(150.0)
    for _ in range(20):
        await asyncio.sleep(0)
    assert not replica.deep.failed
    clock.skip(51.0)
    while not replica.deep.failed:
        await asyncio.sleep(0)
    assert replica.deep.outcomes == {"late": 1}
    clock.go_on()
    task.cancel()


async def test_a_step_that_raises_under_it_is_an_error_of_its_own():
    engine, replica = CheckedEngine({PROMPTS[0]: 5.0}, "the step raised"), loaded()
    task = await checked(engine, replica)
    assert (replica.deep.outcomes, replica.deep.failed) == ({"error": 1}, True)
    task.cancel()


async def test_a_model_that_is_sure_of_nothing_is_only_asked_to_answer():
    engine, replica = CheckedEngine(dict.fromkeys(PROMPTS, MIN_MARGIN / 2), 65, 7, 99), loaded()
    task = await checked(engine, replica)
    assert (replica.deep.outcomes, replica.deep.failed) == ({"right": 3}, False)
    task.cancel()


class Counting(SimulatedWorker):
    """Small; keeps what it was asked for."""

    def __init__(self, blocks: int = 4) -> None:
        super().__init__(WorkerLimits(blocks, 4, VOCAB, blocks * 4))
        self.plans: list[StepPlan] = []

    def execute(self, plan: StepPlan) -> StepResult:
        self.plans.append(plan)
        return super().execute(plan)


def deep_check(d: Drive, *prompt: int, margin: bool = False) -> None:
    assert take_in(d.state, Prompt(7, prompt, margin)) is None


def test_a_canary_alone_takes_one_step_and_leaves_no_trace():
    d = Drive(Counting(), max_concurrency=2)
    before = d.state.stats()
    deep_check(d, 1, 2, 3, margin=True)
    d.drain()
    answer = d.state.take_deep_check_answer()
    assert answer is not None
    assert (answer.check_id, answer.token_id) == (7, expected_tokens((1, 2, 3), 1, VOCAB)[0])
    assert answer.margin is not None
    assert answer.margin > 1
    assert d.state.take_deep_check_answer() is None
    assert d.state.stats() == before
    assert d.outputs == []


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("at", range(1, 12))
def test_a_full_queue_and_a_full_pool_hold_no_canary_up_and_none_changes_an_answer(at, depth):
    worker = Counting()
    d = Drive(worker, max_concurrency=2, token_budget=4, depth=depth)
    prompts = {f"r{i}": tuple(range(5 * i, 5 * i + 5)) for i in range(6)}
    for name, prompt in prompts.items():
        kind = Sampling(9, temperature=1.0, seed=3) if name == "r3" else Sampling(9, logprobs=1 if name == "r4" else None)
        d.submit(name, prompt, kind)
    for _ in range(at):
        d.step()
    planned = len(worker.plans)
    deep_check(d, 250, 251, margin=at % 2 == 0)
    d.step()
    d.step()
    riding = [step for step in worker.plans[planned : planned + 2] if 2 in step.rows]
    assert len(riding) == 1, "it goes with the next step that is planned"
    assert riding[0].block_tables[-1, 0] == worker.limits.blocks_total
    d.drain()
    answer = d.state.take_deep_check_answer()
    assert answer is not None
    assert answer.token_id == expected_tokens((250, 251), 1, VOCAB)[0]
    for name, prompt in prompts.items():
        assert tuple(d.tokens[name]) == expected_tokens(prompt, 9, VOCAB), name


def test_a_canary_goes_beside_rows_that_only_decode():
    d = Drive(Counting(blocks=16), max_concurrency=2)
    d.submit("a", (1, 2), 20)
    for _ in range(5):
        d.step()
    deep_check(d, 9)
    d.drain()
    assert d.state.take_deep_check_answer() == DeepCheckAnswer(7, expected_tokens((9,), 1, VOCAB)[0])
    assert tuple(d.tokens["a"]) == expected_tokens((1, 2), 20, VOCAB)


def test_a_deep_check_in_a_step_that_raises_fails_and_ends_no_other_request():
    d = Drive(Counting(), max_concurrency=2)
    d.submit("a", (1, 2), 3)
    deep_check(d, 9)
    assert plan(d.state, 0.0) is not None
    assert fail_step(d.state, "boom") == []
    answer = d.state.take_deep_check_answer()
    assert answer is not None
    assert (answer.token_id, answer.error) == (None, "the step raised")
    d.drain()
    assert tuple(d.tokens["a"]) == expected_tokens((1, 2), 3, VOCAB)


@pytest.mark.parametrize("prompt", [(), (1, 2, 3, 4, 5), (VOCAB,), (-1,)])
def test_a_canary_that_does_not_fit_is_refused(prompt: tuple[int, ...]):
    d = Drive(Counting(), max_concurrency=2)
    answer = take_in(d.state, Prompt(7, prompt))
    assert answer is not None
    assert answer.error is not None
    assert "must have 1 to" in answer.error


def test_a_wrong_number_in_its_block_is_found():
    # A device that loses a bit: what is written is not what is read.
    class Flipping(Counting):
        def execute(self, plan: StepPlan) -> StepResult:
            result = super().execute(plan)
            return StepResult(result.rows, np.asarray(result.token_ids ^ 1, np.int32))

    d = Drive(Flipping(), max_concurrency=2)
    deep_check(d, 1, 2)
    d.drain()
    answer: Any = d.state.take_deep_check_answer()
    assert answer.token_id != expected_tokens((1, 2), 1, VOCAB)[0]
