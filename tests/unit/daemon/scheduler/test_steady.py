"""A plan that repeats the last one says what a plan made anew would say, whoever came, left, waits or grew meanwhile."""

from __future__ import annotations

import copy
import random

import numpy as np
import pytest
from pagoda_daemon.core.batch import StepPlan, WorkerLimits
from pagoda_daemon.core.sampling import Sampling
from pagoda_daemon.scheduler import plan as planning
from pagoda_daemon.scheduler import steady
from pagoda_daemon.scheduler.admission import abort
from pagoda_daemon.scheduler.state import State
from pagoda_daemon.simulated.device.worker import SimulatedWorker
from support.engine.drive import Drive

VOCAB = 97


class Watched:
    """Plans anew beside each repeated plan, on a copy of the state, and compares."""

    def __init__(self) -> None:
        self.repeated = 0
        self._repeat = steady.repeat

    def __call__(self, state: State, now_ms: float) -> StepPlan | None:
        if state.steady is None:
            return self._repeat(state, now_ms)  # None; the copy takes most of the time of this test
        twin = copy.deepcopy(state)
        twin.steady = None
        found = self._repeat(state, now_ms)
        if found is not None:
            self.repeated += 1
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(planning, "repeat", lambda _state, _now: None)
                same(found, planning.plan(twin, now_ms))
            for name in ("fed", "target", "known", "computed"):
                assert np.array_equal(getattr(state.rows, name), getattr(twin.rows, name)), name
            assert np.array_equal(state.rows.tokens, twin.rows.tokens)
            assert state.in_flight[-1].context == twin.in_flight[-1].context
        return found


def same(left: StepPlan, right: StepPlan | None) -> None:
    assert right is not None
    for name in ("rows", "starts", "token_ids", "positions", "block_tables", "sample", "copies"):
        assert np.array_equal(getattr(left, name), getattr(right, name)), name
    assert (left.step, left.sampling.shaped, left.sampling.scored) == (right.step, right.sampling.shaped, right.sampling.scored)
    drawn = [each.sampling.random for each in (left, right)]
    assert np.array_equal(*drawn) if drawn[0] is not None else drawn[1] is None


@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("seed", range(3))
def test_a_repeated_plan_is_the_plan_that_would_be_made(monkeypatch: pytest.MonkeyPatch, seed: int, depth: int, window: int | None) -> None:
    watched, luck = Watched(), random.Random(seed)
    monkeypatch.setattr(planning, "repeat", watched)
    shared = [[luck.randrange(VOCAB) for _ in range(length)] for length in (1, 5, 30, 30)]
    limits = WorkerLimits(blocks_total=40 if seed else 14, block_size=8, vocab_size=VOCAB, max_model_len=64, sliding_window=window)
    d = Drive(SimulatedWorker(limits), max_concurrency=4, token_budget=24, depth=depth)
    for step in range(400):
        for twin in range(luck.choice((1, 2)) if luck.random() < 0.06 else 0):
            prompt, penalty = luck.choice(shared), luck.choice((0.0, 0.0, 0.5))
            sampling = Sampling(luck.choice((1, 8, 30)), temperature=luck.choice((0.0, 1.0)), presence_penalty=penalty, stop_token_ids=(5,))
            d.submit(f"r{step}.{twin}", prompt, sampling)
        if luck.random() < 0.02 and d.state.row_of:
            d.take(abort(d.state, next(iter(d.state.row_of))))
        d.step()
    d.drain()
    assert watched.repeated > 20


def test_a_request_that_waits_is_not_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    d = Drive(SimulatedWorker(WorkerLimits(40, 8, VOCAB, 64)), max_concurrency=4, token_budget=24)
    d.submit("a", [1], 20)
    for _ in range(3):
        d.step()
    d.submit("b", [2], 20)
    step = d.step()
    assert step is not None
    assert step.rows.size == 2
