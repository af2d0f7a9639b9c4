"""A step that raises: its rows go back and try again alone, so that one ends and the others say what they would have said."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pagoda_daemon.core.batch import StepPlan, StepResult, WorkerLimits
from pagoda_daemon.core.messages import Refusal, RowOutput, Submit
from pagoda_daemon.core.sampling import Sampling
from pagoda_daemon.scheduler.admission import Arrival, abort, submit
from pagoda_daemon.scheduler.commit import commit, fail_step
from pagoda_daemon.scheduler.limits import Limits
from pagoda_daemon.scheduler.plan import plan
from pagoda_daemon.scheduler.state import State
from pagoda_daemon.simulated.device.worker import SimulatedWorker, expected_tokens

VOCAB = 256
WHY = "the step raised"


class Raising(SimulatedWorker):
    """Raises where `guilty` says so."""

    def __init__(self, guilty: Callable[[StepPlan], bool]) -> None:
        super().__init__(WorkerLimits(24, 4, VOCAB, 64))
        self._guilty = guilty

    def execute(self, plan: StepPlan) -> StepResult:
        if self._guilty(plan):
            raise RuntimeError("no")
        return super().execute(plan)


class Run:
    """Requests r0, r1, … with prompts of their own, driven `depth` steps ahead."""

    def __init__(self, guilty: Callable[[StepPlan], bool], count: int, tokens: int = 12, depth: int = 1, **more: object) -> None:
        self.worker, self.depth = Raising(guilty), depth
        self.state = State(Limits.of(self.worker.limits, 4, 16))
        self.prompts = {f"r{i}": tuple(range(10 * i, 10 * i + 6)) for i in range(count)}
        self.count, self.now, self.steps = tokens, 0.0, 0
        self.said: dict[str, list[int]] = {}
        self.ends: dict[str, RowOutput] = {}
        for name, prompt in self.prompts.items():
            submit(self.state, Submit(name, prompt, Sampling(tokens), **more), Arrival(0.0, 1))  # type: ignore[arg-type]

    def take(self, outputs: list[RowOutput]) -> None:
        for output in outputs:
            key = output.request_id if not output.index else f"{output.request_id}/{output.index}"
            self.said.setdefault(key, []).extend(output.token_ids)
            if output.finish_reason:
                assert key not in self.ends
                self.ends[key] = output

    def drain(self, refusal: Refusal | None = None) -> None:
        results: list[StepResult | None] = []
        for _ in range(2000):
            while len(results) < self.depth and (step := plan(self.state, self.now)) is not None:
                self.steps += 1
                try:
                    results.append(self.worker.execute(step))
                except RuntimeError:
                    results.append(None)
            if not results:
                break
            self.now += 1.0
            result = results.pop(0)
            self.take(fail_step(self.state, WHY, refusal) if result is None else commit(self.state, result, self.now))
        assert self.state.idle
        assert not self.state.suspects
        self.state.check()

    def whole(self, *names: str) -> None:
        for name in names:
            assert self.ends[name].finish_reason == "length"
            assert tuple(self.said[name]) == expected_tokens(self.prompts[name], self.count, VOCAB), name


def feeds(token: int) -> Callable[[StepPlan], bool]:
    return lambda step: token in step.token_ids


@pytest.mark.parametrize("depth", [1, 2])
def test_a_request_that_makes_its_step_raise_ends_alone(depth: int) -> None:
    run = Run(feeds(12), 3, depth=depth)
    run.drain()
    assert (run.ends["r1"].finish_reason, run.ends["r1"].error) == ("error", WHY)
    run.whole("r0", "r2")


@pytest.mark.parametrize("depth", [1, 2])
def test_one_that_raises_while_it_decodes_ends_alone_too(depth: int) -> None:
    def third_decode_of_row_2(step: StepPlan) -> bool:
        at = {int(row): int(end) for row, end in zip(step.rows, step.lengths, strict=True)}
        return at.get(2) == 9

    run = Run(third_decode_of_row_2, 3, depth=depth)
    run.drain()
    ended = [name for name, end in run.ends.items() if end.finish_reason == "error"]
    assert len(ended) == 1
    run.whole(*(run.prompts.keys() - ended))


@pytest.mark.parametrize("depth", [1, 2])
def test_a_fault_that_does_not_come_again_ends_no_request_of_a_shared_step(depth: int) -> None:
    calls = iter([False] * 5 + [True] + [False] * 2000)
    run = Run(lambda _: next(calls), 3, depth=depth)
    run.drain()
    run.whole("r0", "r1", "r2")


def test_a_step_that_raised_ends_the_repetition_of_the_last_plan() -> None:
    # A plan of decodes is repeated as long as nothing happens; a step that raised has happened, also where all it had are still there.
    run = Run(lambda _: False, 2)
    for _ in range(4):
        step = plan(run.state, run.now)
        assert step is not None
        run.take(commit(run.state, run.worker.execute(step), run.now))
    assert plan(run.state, run.now) is not None
    assert run.state.steady is not None
    assert fail_step(run.state, WHY) == []
    assert run.state.steady is None
    run.drain()
    run.whole("r0", "r1")


def test_a_request_that_is_alone_in_the_step_is_not_tried_again() -> None:
    calls = iter([False, True] + [False] * 100)
    run = Run(lambda _: next(calls), 1)
    run.drain()
    assert run.ends["r0"].error == WHY


def test_what_has_no_memory_is_refused_so_that_another_replica_may_take_it() -> None:
    refusal = Refusal("memory_pressure", 1.0, "no memory")
    run = Run(feeds(12), 3)
    run.drain(refusal)
    assert (run.ends["r1"].finish_reason, run.ends["r1"].refusal, run.ends["r1"].error) == ("refused", refusal, None)
    run.whole("r0", "r2")


@pytest.mark.deep
@pytest.mark.parametrize("at", range(1, 30))
@pytest.mark.parametrize("depth", [1, 2])
def test_no_place_to_raise_loses_a_block_or_a_token(at: int, depth: int) -> None:
    # Answers that share their prompt are begun by a copy; more requests than rows, and blocks that run out.
    calls = iter([False] * at + [True] + [False] * 4000)
    run = Run(lambda _: next(calls), 6, tokens=18, depth=depth, n=2)
    run.drain()
    for name, prompt in run.prompts.items():
        for key in (name, f"{name}/1"):
            if run.ends[key].finish_reason == "length":
                assert tuple(run.said[key]) == expected_tokens(prompt, run.count, VOCAB), key
    # Who is alone in the step is taken for guilty.
    assert sum(end.finish_reason == "error" for end in run.ends.values()) <= 1


def test_a_suspect_whose_client_leaves_is_dropped() -> None:
    run = Run(feeds(12), 3)
    assert plan(run.state, 0.0) is not None
    assert fail_step(run.state, WHY) == []
    assert run.state.suspects.keys() == run.prompts.keys() & run.state.row_of.keys()
    run.take(abort(run.state, "r1"))
    run.drain()
    run.whole("r0", "r2")
