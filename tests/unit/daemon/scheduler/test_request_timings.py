"""What the engine tells about one answer's life: when it is told, and that it is true."""

from __future__ import annotations

import msgspec
import numpy as np
from pagoda_daemon.core.batch import WorkerLimits
from pagoda_daemon.core.messages import FromEngine, Life, RowOutput, Stats, StepOutput
from pagoda_daemon.core.sampling import Sampling
from pagoda_daemon.scheduler.admission import abort
from pagoda_daemon.scheduler.commit import fail_step
from pagoda_daemon.scheduler.plan import plan
from pagoda_daemon.simulated.device.worker import SimulatedWorker
from support.engine.drive import Drive

VOCAB = 97


def drive(blocks: int = 64, rows: int = 4, budget: int = 16) -> Drive:
    return Drive(SimulatedWorker(WorkerLimits(blocks, 4, VOCAB, 64)), rows, budget)


def lives(d: Drive, name: str) -> list[tuple[int, Life]]:
    """(tokens out by then, life), as far as lives were reported."""
    count, found = 0, []
    for output in d.outputs:
        if output.request_id == name:
            count += len(output.token_ids)
            if output.life is not None:
                found.append((count, output.life))
    return found


def test_timings_are_sent_with_the_first_token_and_the_last_and_with_none_between() -> None:
    d = drive()
    d.submit("a", range(40), 5)
    d.drain()
    life = Life(queued_ms=0.0, prefill_ms=3.0, cached_tokens=0, computed_tokens=40, chunks=3, preemptions=0)
    assert lives(d, "a") == [(1, life), (5, life)]


def test_a_request_of_one_token_reports_its_timings_once() -> None:
    d = drive()
    d.submit("a", [1, 2], 1)
    d.drain()
    assert lives(d, "a") == [(1, Life(0.0, 1.0, 0, 2, 1, 0))]


def test_waiting_for_a_row_is_queueing_and_a_known_beginning_is_not_computed() -> None:
    d = drive(rows=1)
    d.submit("first", range(12), 4)
    d.submit("second", range(12), 1)
    d.drain()
    (_, life), *_ = lives(d, "second")
    assert (life.queued_ms, life.prefill_ms) == (4.0, 1.0), "first runs for four steps"
    assert life.cached_tokens > 0
    assert life.cached_tokens + life.computed_tokens == 12


def test_a_preemption_is_reported_with_the_next_token_and_does_not_move_the_first() -> None:
    d = drive(blocks=5, rows=2)
    d.submit("old", [1] * 5, 10)
    d.submit("new", [2] * 5, 6)
    d.drain()
    assert d.state.preemptions == 1
    before, after, last = (life for _, life in lives(d, "new"))
    assert [before.preemptions, after.preemptions, last.preemptions] == [0, 1, 1]
    assert before.prefill_ms == after.prefill_ms == last.prefill_ms
    assert after.computed_tokens > before.computed_tokens, "what was lost is computed again"
    assert after.chunks > before.chunks
    assert [life.preemptions for _, life in lives(d, "old")] == [0, 0]


def test_what_steps_computed_is_counted_as_if_by_hand() -> None:
    """A token at position p looks back at p + 1 tokens. A row's chunk reads the tokens before it once."""
    d = drive(budget=16)
    d.submit("a", range(40), 5)
    d.drain()
    d.submit("b", range(50, 53), 4)
    d.submit("c", range(60, 69), 2)
    d.drain()
    fed = [44, 6, 10]
    computed = d.state.tally().computed
    assert computed.tokens == sum(fed)
    assert computed.sampled == 5 + 4 + 2
    assert computed.pairs == sum(tokens * (tokens + 1) // 2 for tokens in fed)
    assert computed.read == sum((16, 32, 40, 41, 42, 43, 44, 3, 4, 5, 6, 9, 10))


def test_every_answer_of_a_request_has_timings_of_its_own() -> None:
    d = drive()
    d.submit("a", range(9), 3, n=2)
    d.drain()
    of = [[output.life for output in d.outputs if output.index == index and output.life is not None] for index in (0, 1)]
    assert [len(lives) for lives in of] == [2, 2]
    assert of[0][0].computed_tokens == 9
    assert of[1][0].cached_tokens == 8, "the second one begins with the first one's prompt"


def test_a_request_that_ends_before_a_first_token_has_timings_only_if_it_had_a_row() -> None:
    d = drive(rows=1)
    d.submit("seated", range(40), 5)
    d.submit("waiting", [1], 5)
    d.step()
    assert [output.life for output in abort(d.state, "waiting")] == [None]
    assert plan(d.state, d.now_ms) is not None
    (failed,) = fail_step(d.state, "no")
    assert failed.life is not None
    assert failed.life.chunks == 2
    assert failed.life.prefill_ms >= 0


def test_no_timings_are_kept_once_all_requests_are_gone() -> None:
    d = drive(blocks=9, rows=3)
    rng = np.random.default_rng(1)
    for at in range(30):
        d.submit(str(at), rng.integers(0, 3, 9).tolist(), Sampling(max_tokens=int(rng.integers(1, 8)), stop_token_ids=(5, 9)))
        d.step()
        if at % 7 == 3:
            abort(d.state, str(at - 1))
    d.drain()
    assert not d.state.unreported
    assert all(output.life is not None for outputs in d.ends.values() for output in outputs)


def test_timings_cross_the_wire() -> None:
    output = RowOutput("a", (1,), "stop", life=Life(1.5, 2.5, 3, 4, 5, 6))
    sent = StepOutput((output, RowOutput("b", (2,))), Stats())
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(sent), type=FromEngine) == sent
