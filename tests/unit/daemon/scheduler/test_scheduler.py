"""The deciding core, case by case."""

from __future__ import annotations

import numpy as np
import pytest
from pagoda_daemon.core.batch import RowError, StepPlan, StepResult, WorkerLimits
from pagoda_daemon.core.messages import Submit
from pagoda_daemon.core.sampling import Sampling
from pagoda_daemon.kv.pool import BrokenAccountsError
from pagoda_daemon.scheduler.admission import Arrival, abort, refusal, submit
from pagoda_daemon.scheduler.commit import commit, fail_step
from pagoda_daemon.scheduler.limits import Limits
from pagoda_daemon.scheduler.plan import plan
from pagoda_daemon.scheduler.state import State
from pagoda_daemon.simulated.device.worker import SimulatedWorker, expected_tokens
from support.engine.drive import Drive

VOCAB = 97


def drive(blocks: int = 64, rows: int = 4, budget: int = 16, block_size: int = 4) -> Drive:
    return Drive(SimulatedWorker(WorkerLimits(blocks, block_size, VOCAB, 64)), rows, budget)


def shape(step: StepPlan | None) -> list[tuple[int, int, bool]]:
    """(row, tokens, samples) of a plan."""
    assert step is not None
    return list(zip(step.rows.tolist(), np.diff(step.starts).tolist(), step.sample.tolist(), strict=True))


def test_a_long_prompt_is_fed_in_chunks_of_the_budget() -> None:
    d = drive(budget=16)
    d.submit("long", range(40), 2)
    assert [shape(d.step()) for _ in range(4)] == [[(0, 16, False)], [(0, 16, False)], [(0, 8, True)], [(0, 1, True)]]
    assert d.step() is None
    assert tuple(d.tokens["long"]) == expected_tokens(range(40), 2, VOCAB)


def test_decodes_come_first_and_new_requests_share_what_is_left_with_a_prompt_under_way() -> None:
    d = drive(budget=8)
    d.submit("a", [1, 2], 9)
    d.step()
    d.submit("b", range(20), 1)
    assert shape(d.step()) == [(0, 1, True), (1, 7, False)]
    d.submit("c", [3], 2)
    assert shape(d.step()) == [(0, 1, True), (1, 6, False), (2, 1, True)], "c starts at once, b gets all that it leaves"
    d.submit("d", range(30, 40), 1)
    assert shape(d.step()) == [(0, 1, True), (2, 1, True), (1, 3, False), (3, 3, False)]
    d.drain()
    assert tuple(d.tokens["b"]) == expected_tokens(range(20), 1, VOCAB)


def test_a_row_keeps_its_number_while_others_come_and_go() -> None:
    d = drive()
    d.submit("a", [1], 1)
    d.submit("b", [2], 5)
    d.step()
    d.submit("c", [3], 5)
    d.step()
    assert d.state.row_of == {"b": 1, "c": 0}
    assert shape(d.step()) == [(0, 1, True), (1, 1, True)], "decodes in row order"


def test_when_blocks_run_out_the_latest_waits_at_the_head_and_loses_no_token() -> None:
    d = drive(blocks=5, rows=2, budget=16)
    d.submit("old", [1] * 5, 10)
    d.submit("new", [2] * 5, 6)
    d.submit("next", [3], 1)
    while not d.state.preemptions:
        d.step()
    assert "old" in d.state.row_of
    assert [request.key for request in d.state.waiting] == ["new", "next"]
    d.drain()
    assert d.state.preemptions == 1
    for name, prompt, count in (("old", [1] * 5, 10), ("new", [2] * 5, 6), ("next", [3], 1)):
        assert tuple(d.tokens[name]) == expected_tokens(prompt, count, VOCAB)


def test_a_short_prompt_does_not_wait_for_a_long_one() -> None:
    d = drive(blocks=64, rows=4, budget=8)
    d.submit("long", range(60), 2)
    d.step()
    d.submit("short", [1, 2], 1)
    d.step()
    assert d.ends["short"][0].finish_reason == "length"
    d.drain()
    assert tuple(d.tokens["long"]) == expected_tokens(range(60), 2, VOCAB)


def test_at_most_a_few_long_prompts_are_under_way_and_shorter_ones_pass_them() -> None:
    d = drive(blocks=200, rows=8, budget=8)
    for i in range(6):
        d.submit(f"long{i}", [i] * 60, 1)
    d.submit("short", [9], 1)
    while "short" not in d.ends:
        d.step()
    assert len(d.state.row_of) == 4
    assert [request.key for request in d.state.waiting] == ["long4", "long5"]
    d.drain()


def test_an_admitted_request_has_room_for_its_prompt_and_the_next_token() -> None:
    d = drive(blocks=5, rows=4, budget=32)
    d.submit("a", range(8), 4)
    d.submit("b", range(50, 58), 4)
    assert shape(d.step()) == [(0, 8, True)], "3 blocks are free and would hold b's prompt and next token, but not a's next one"
    d.drain()
    assert d.state.preemptions == 0


def test_a_request_that_fills_the_whole_pool_runs() -> None:
    d = drive(blocks=4)
    d.submit("full", range(8), 9)
    d.drain()
    assert tuple(d.tokens["full"]) == expected_tokens(range(8), 9, VOCAB)


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "says"),
    [
        ((), 1, "at least 1"),
        ((1,), 0, "at least 1"),
        ((1, VOCAB), 1, f"0 to {VOCAB - 1}"),
        ((-1,), 1, f"0 to {VOCAB - 1}"),
        ((1,) * 60, 5, "context of 64"),
        ((1,) * 16, 26, "need 11 blocks, the whole pool has 10"),
    ],
)
def test_what_can_never_run_is_refused_by_numbers(prompt: tuple[int, ...], max_tokens: int, says: str) -> None:
    limits = Limits.of(WorkerLimits(10, 4, VOCAB, 64), 4, 16)
    why = refusal(Submit("x", prompt, Sampling(max_tokens)), limits)
    assert why is not None
    assert says in why


def test_a_refused_request_leaves_nothing_behind() -> None:
    state = State(Limits.of(WorkerLimits(10, 4, VOCAB, 64), 4, 16))
    out = submit(state, Submit("x", (VOCAB,), Sampling(1)), Arrival(0.0, 0))
    assert out is not None
    assert (out.finish_reason, state.idle) == ("error", True)


def test_an_abort_in_flight_frees_its_blocks_at_once_and_the_result_is_discarded() -> None:
    d = drive()
    d.submit("a", [1, 2, 3], 50)
    d.step()

    def between(_: StepPlan) -> None:
        d.take(abort(d.state, "a"))
        assert d.state.kv.pool.used == 0

    d.step(between)
    (end,) = d.ends["a"]
    assert (end.finish_reason, end.token_ids) == ("abort", ())
    assert len(d.tokens["a"]) == 1
    assert d.step() is None


def test_a_row_given_to_another_while_its_step_is_under_way_takes_nothing_from_it() -> None:
    d = drive(rows=1)
    d.submit("a", [1, 2, 3], 50)
    d.step()
    flown = plan(d.state, d.now_ms)
    assert flown is not None
    result = d.worker.execute(flown)
    d.take(abort(d.state, "a"))
    d.submit("b", [7, 8, 9], 4)
    behind = plan(d.state, d.now_ms)
    assert behind is not None
    assert behind.rows.tolist() == flown.rows.tolist()
    second = d.worker.execute(behind)
    d.take(commit(d.state, result, 1.0))
    d.take(commit(d.state, second, 2.0))
    d.drain()
    assert tuple(d.tokens["b"]) == expected_tokens([7, 8, 9], 4, VOCAB)


def test_an_abort_of_an_unknown_request_is_no_error() -> None:
    assert abort(drive().state, "never seen") == []


def test_a_row_error_ends_that_row_only() -> None:
    d = drive()
    d.submit("bad", [1], 5)
    d.submit("good", [2], 3)
    step = plan(d.state, 0.0)
    assert step is not None
    result = d.worker.execute(step)
    d.take(commit(d.state, StepResult(result.rows[1:], result.token_ids[1:], (RowError(0, "not finite"),)), 1.0))
    d.drain()
    assert [(e.finish_reason, e.error) for e in d.ends["bad"]] == [("error", "not finite")]
    assert tuple(d.tokens["good"]) == expected_tokens([2], 3, VOCAB)


def test_a_worker_that_omits_a_row_ends_that_row_with_an_error() -> None:
    d = drive()
    d.submit("a", [1], 5)
    plan(d.state, 0.0)
    none = np.zeros(0, np.int32)
    d.take(commit(d.state, StepResult(none, none), 1.0))
    assert d.ends["a"][0].error == "the worker returned no token"


def test_a_failed_step_ends_a_request_that_was_alone_in_it_and_spares_those_that_wait() -> None:
    d = drive(rows=2)
    for name in "abc":
        d.submit(name, [1], 3)
    plan(d.state, 0.0)
    d.take(abort(d.state, "b"))
    d.take(fail_step(d.state, "boom"))
    assert d.ends.keys() == {"b"}, "two were planned: the one that is left is tried again, alone"
    plan(d.state, 0.0)
    d.take(fail_step(d.state, "boom"))
    assert [d.ends[name][0].finish_reason for name in "ab"] == ["error", "abort"]
    d.drain()
    assert tuple(d.tokens["c"]) == expected_tokens([1], 3, VOCAB)


def test_a_stop_id_is_the_last_token_of_the_stream() -> None:
    stream = expected_tokens([5], 6, VOCAB)
    d = drive()
    d.submit("a", [5], Sampling(6, stop_token_ids=(stream[3],)))
    d.drain()
    assert tuple(d.tokens["a"]) == stream[: stream.index(stream[3]) + 1]
    assert d.ends["a"][0].finish_reason == "stop"


def test_a_result_without_a_plan_is_our_own_bug() -> None:
    none = np.zeros(0, np.int32)
    with pytest.raises(BrokenAccountsError):
        commit(drive().state, StepResult(none, none), 0.0)


def test_stats_count_rows_queue_and_blocks() -> None:
    d = drive(rows=1)
    d.submit("a", range(9), 3)
    d.submit("b", range(7), 3)
    d.step()
    stats = d.state.stats()
    assert (stats.running, stats.waiting, stats.waiting_tokens, stats.steps) == (1, 1, 7, 1)
    assert (stats.blocks_used, stats.blocks_free, stats.blocks_total) == (3, 61, 64)


def test_stats_count_the_tokens_of_prompts_that_have_a_row() -> None:
    d = drive(rows=2)
    d.submit("long", range(40), 3)
    d.step()
    computed = int(d.state.rows.fed[d.state.row_of["long"]])
    assert d.state.stats().prefill_tokens == 40 - computed > 0
    while d.state.rows.fed[d.state.row_of["long"]] < 40:
        d.step()
    assert d.state.stats().prefill_tokens == 0


def test_more_rows_than_budget_raise_the_budget() -> None:
    assert Limits.of(WorkerLimits(10, 4, VOCAB, 64), 64, 16).token_budget == 64


def test_a_seed_of_any_sign_is_kept_and_a_missing_one_is_drawn() -> None:
    d = drive()
    d.submit("minus", [1], Sampling(1, temperature=1.0, seed=-1))
    d.submit("drawn", [1], Sampling(1, temperature=1.0))
    step = plan(d.state, 0.0)
    assert step is not None
    assert step.sampling.random is not None
    assert step.sampling.random["seed"].tolist() == [2**64 - 1, 1]


def test_step_time_is_measured_with_the_injected_clock() -> None:
    state = State(Limits.of(WorkerLimits(10, 4, VOCAB, 64), 4, 16))
    submit(state, Submit("a", (1,), Sampling(1)), Arrival(0.0, 0))
    step = plan(state, 1000.0)
    assert step is not None
    commit(state, StepResult(step.rows, np.array([3], np.int32)), 1042.0)
    assert state.step_cost.predict(1) == 42


def test_what_a_failed_row_computed_is_not_found_again() -> None:
    d = drive(budget=64)
    d.submit("bad", range(20), 5)
    step = plan(d.state, 0.0)
    assert step is not None
    none = np.zeros(0, np.int32)
    d.take(commit(d.state, StepResult(none, none, (RowError(0, "not finite"),)), 1.0))
    d.submit("good", range(20), 5)
    assert shape(d.step()) == [(0, 20, True)]
