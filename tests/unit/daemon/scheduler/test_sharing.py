"""Blocks shared between requests, seen from outside: answers of one request, equal beginnings, and what a running request wastes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pagoda_daemon.core.batch import WorkerLimits
from pagoda_daemon.core.sampling import Sampling
from pagoda_daemon.scheduler.admission import abort
from pagoda_daemon.scheduler.plan import plan
from pagoda_daemon.simulated.device.virtual import VirtualWorker
from pagoda_daemon.simulated.device.worker import SimulatedWorker, expected_tokens
from support.engine.drive import Drive
from support.suite.profiles import examples

VOCAB = 97


def drive(blocks: int = 64, rows: int = 8, budget: int = 64, **more) -> Drive:
    return Drive(SimulatedWorker(WorkerLimits(blocks, 4, VOCAB, 64)), rows, budget, **more)


def fed(d: Drive) -> int:
    return sum(step.tokens for step in d.plans)


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("depth", [1, 2])
def test_answers_of_one_request_share_the_prompt_and_each_has_its_stream(caching: bool, depth: int) -> None:
    d = drive(prefix_caching=caching, depth=depth)
    d.submit("a", range(18), 6, n=4)
    d.step()
    assert len(d.state.row_of) == 1, "the prompt is computed once"
    d.step()
    most = 0
    while d.step() is not None:
        most = max(most, d.state.kv.pool.used)
    for name in ("a", "a/1", "a/2", "a/3"):
        assert tuple(d.tokens[name]) == expected_tokens(range(18), 6, VOCAB)
        assert d.ends[name][0].finish_reason == "length"
    # Four full blocks of the prompt once, and for each answer the tail and what it generated.
    assert most <= 4 + 4 * 2
    assert fed(d) == 18 + 5 + 3 * 6, "each further answer feeds the prompt's last token and its own"
    assert sum(len(step.copies) for step in d.plans) == 3
    d.state.check()


def test_answers_differ_by_seed() -> None:
    d = drive()
    d.submit("a", [1, 2, 3], Sampling(2, temperature=1.0, seed=5), n=3)
    d.drain()
    seeds = {int(seed) for step in d.plans if step.sampling.random is not None for seed in step.sampling.random["seed"]}
    assert seeds == {5, 6, 7}


def test_many_answers_on_few_rows_and_blocks_come_all() -> None:
    d = drive(blocks=12, rows=3)
    d.submit("a", range(10), 8, n=7)
    d.submit("b", range(5), 8)
    d.drain()
    for name in ("a", *(f"a/{i}" for i in range(1, 7))):
        assert tuple(d.tokens[name]) == expected_tokens(range(10), 8, VOCAB)
    assert tuple(d.tokens["b"]) == expected_tokens(range(5), 8, VOCAB)
    assert d.state.kv.pool.used == 0


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_an_abort_ends_every_answer(steps: int) -> None:
    d = drive(rows=2)
    d.submit("a", range(10), 20, n=4)
    for _ in range(steps):
        d.step()
    d.take(abort(d.state, "a"))
    assert {end.finish_reason for name in ("a", "a/1", "a/2", "a/3") for end in d.ends[name]} == {"abort"}
    assert d.state.idle
    d.state.check()


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(("index", "steps"), [(0, 1), (0, 3), (2, 3), (3, 1), (3, 4), (9, 2)])
def test_an_abort_of_one_answer_leaves_its_siblings_whole(index: int, steps: int, depth: int) -> None:
    d = drive(rows=2, depth=depth)
    d.submit("a", range(10), 20, n=4)
    for _ in range(steps):
        d.step()
    d.take(abort(d.state, "a", index))
    d.drain()
    reasons = {name: [end.finish_reason for end in d.ends[name]] for name in ("a", "a/1", "a/2", "a/3")}
    ended = [name for name, found in reasons.items() if found == ["abort"]]
    assert ended == ([f"a/{index}" if index else "a"] if index < 4 else [])
    assert all(found == ["length"] for name, found in reasons.items() if name not in ended)
    d.state.check()


def test_a_known_beginning_is_not_computed_again() -> None:
    d = drive()
    d.submit("first", range(20), 4)
    d.drain()
    before = fed(d)
    d.submit("same", range(20), 4)
    d.submit("longer", [*range(20), 50, 51], 4)
    d.drain()
    assert tuple(d.tokens["same"]) == expected_tokens(range(20), 4, VOCAB)
    assert tuple(d.tokens["longer"]) == expected_tokens([*range(20), 50, 51], 4, VOCAB)
    assert fed(d) - before < 20
    stats = d.state.stats()
    assert (stats.prompt_tokens, stats.reused_tokens) == (62, 16 + 20)


def test_a_conversation_goes_on_from_its_own_answer() -> None:
    d = Drive(SimulatedWorker(WorkerLimits(64, 8, VOCAB, 64)), 2, 64)
    d.submit("turn1", range(12), 10)
    d.drain()
    history = [*range(12), *d.tokens["turn1"]]
    d.submit("turn2", [*history, 3, 4], 3)
    step = d.step()
    assert step is not None
    assert step.tokens == 3, "the answer's last token was never computed, and two are new"
    assert len(step.copies) == 1, "the block that turn1 left half full stays as it is"
    d.drain()
    assert tuple(d.tokens["turn2"]) == expected_tokens([*history, 3, 4], 3, VOCAB)


def test_a_prompt_whose_scores_are_wanted_is_computed_whole() -> None:
    d = drive()
    d.submit("first", range(20), 2)
    d.drain()
    d.submit("scored", range(20), Sampling(2, prompt_logprobs=0))
    step = d.step()
    assert step is not None
    assert step.tokens == 20


def test_what_was_preempted_finds_its_blocks_again() -> None:
    d = drive(blocks=40, rows=1, budget=64)
    d.submit("batch", range(30), 20, tier="batch")
    for _ in range(5):
        d.step()
    d.submit("one", [50], 1)
    d.drain()
    assert d.state.preemptions == 1
    assert fed(d) <= 30 + 20 + 1 + 4, "only the block that was not full is computed again"
    assert tuple(d.tokens["batch"]) == expected_tokens(range(30), 20, VOCAB)


def test_a_running_request_wastes_half_a_block_in_the_mean() -> None:
    d = drive(blocks=400, rows=8, budget=64, prefix_caching=False)
    draw = np.random.default_rng(4)
    for i in range(120):
        d.submit(f"r{i}", draw.integers(0, VOCAB, int(draw.integers(1, 40))).tolist(), int(draw.integers(1, 24)))
    waste, seen = 0, 0
    while d.step(lambda _: None) is not None:
        state = d.state
        live = np.flatnonzero(state.rows.live)
        waste += int((state.kv.tables.counts[live] * 4 - state.rows.fed[live]).sum())
        seen += live.size
    assert seen > 500
    assert waste / seen <= 4 / 2


prompts = st.lists(st.sampled_from((0, 0, 0, 1)), min_size=1, max_size=40).map(tuple)


shared_jobs = given(
    st.lists(st.tuples(prompts, st.integers(1, 16), st.integers(1, 4), st.integers(0, 12)), min_size=1, max_size=10),
    st.integers(16, 60),
    st.booleans(),
    st.sampled_from((2, 4, 16)),
)


@pytest.mark.deep
@settings(max_examples=examples(50), deadline=None)
@shared_jobs
def test_sharing_never_changes_a_stream(jobs: list, blocks: int, ahead: bool, block_size: int) -> None:
    judge_streams(jobs, blocks, ahead, block_size)


@pytest.mark.deep
@settings(max_examples=examples(100), deadline=None)
@shared_jobs
def test_sharing_never_changes_a_stream_in_many_more_cases(jobs: list, blocks: int, ahead: bool, block_size: int) -> None:
    judge_streams(jobs, blocks, ahead, block_size)


def judge_streams(jobs: list, blocks: int, ahead: bool, block_size: int) -> None:
    """Prompts that are nearly all alike, forks and a scarce pool, on the worker that reads all its tokens back."""
    d = Drive(SimulatedWorker(WorkerLimits(blocks, block_size, 3, 64)), 4, 24, depth=1 + ahead)
    for now in range(14):
        for i, (prompt, count, n, arrives) in enumerate(jobs):
            if arrives == now:
                d.submit(f"r{i}", prompt, count, n=n)
        d.step()
        d.state.check()
    d.drain(5000)
    for i, (prompt, count, n, _) in enumerate(jobs):
        for name in (f"r{i}", *(f"r{i}/{k}" for k in range(1, n))):
            if d.ends[f"r{i}"][0].finish_reason != "error":
                assert tuple(d.tokens[name]) == expected_tokens(prompt, count, 3)
    assert d.state.kv.pool.used == 0


def test_a_windowed_model_holds_no_more_than_its_window() -> None:
    d = Drive(SimulatedWorker(WorkerLimits(64, 4, VOCAB, 256, 16)), 2, 16)
    d.submit("a", range(60), 100)
    most = 0
    while d.step() is not None:
        most = max(most, d.state.kv.pool.used)
    assert most <= 16 // 4 + 16 // 4 + 1
    assert d.ends["a"][0].finish_reason == "length"
    assert plan(d.state, 0.0) is None


@pytest.mark.parametrize("depth", [1, 2])
def test_answers_whose_prompt_has_left_the_window_find_it_again_and_are_counted_whole(depth: int) -> None:
    d = Drive(SimulatedWorker(WorkerLimits(64, 4, VOCAB, 256, 16)), 8, 64, depth=depth)
    d.submit("a", range(60), 6, n=4)
    while (step := d.step()) is not None:
        assert (np.diff(step.starts) > 0).all()
        d.state.check()
    assert fed(d) <= 60 + 5 + 3 * (4 + 6), "no further answer computes the prompt again"
    assert [d.ends[name][0].finish_reason for name in ("a", "a/1", "a/2", "a/3")] == ["length"] * 4


@pytest.mark.parametrize("more", [1, 2, 4, 8])
@pytest.mark.parametrize("blocks", [6, 7])
def test_a_beginning_that_fills_the_whole_pool_leaves_room_to_go_on(blocks: int, more: int) -> None:
    d = Drive(SimulatedWorker(WorkerLimits(blocks, 4, VOCAB, 256, 3)), 2, 2)
    d.submit("first", range(24), 1)
    d.drain(200)
    d.submit("longer", range(24 + more), 3)
    d.drain(200)
    assert d.ends["longer"][0].finish_reason == "length"


def test_a_lonely_row_whose_step_under_way_will_leave_room_is_not_thrown_out() -> None:
    d = Drive(SimulatedWorker(WorkerLimits(4, 2, VOCAB, 256, 1)), 4, 4, depth=2)
    d.submit("first", range(5), 1)
    d.drain(200)
    d.submit("a", range(8), 6)
    d.drain(200)
    assert d.ends["a"][0].finish_reason == "length"
    assert d.state.preemptions == 0


def test_the_virtual_worker_gives_the_same_streams() -> None:
    limits = WorkerLimits(24, 4, VOCAB, 64)
    streams = []
    for worker in (SimulatedWorker(limits), VirtualWorker(limits, lambda _: 0.0, pause=lambda _: None)):
        d = Drive(worker, 4, 24, depth=2)
        for i in range(12):
            d.submit(f"r{i}", [i % 3] * (5 + 2 * i), 10, n=1 + i % 2)
        d.drain()
        streams.append(d.tokens)
    assert streams[0] == streams[1]
    assert len(streams[0]) == 18
