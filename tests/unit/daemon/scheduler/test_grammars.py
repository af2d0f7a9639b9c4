"""Constrained rows in the deciding core, with masks made by the test: who waits, who goes on, what survives a preemption."""

import numpy as np
import pytest
from pagoda_daemon.core.batch import GREEDY, WorkerLimits
from pagoda_daemon.core.messages import Grammar
from pagoda_daemon.core.sampling import Sampling
from pagoda_daemon.scheduler.grammars import finish, offer, take_unwatched, wait_ms
from pagoda_daemon.scheduler.plan import plan
from pagoda_daemon.simulated.device.worker import SimulatedWorker, expected_tokens
from support.engine.drive import Drive

VOCAB = 97
EOS, STOP = 90, 91
ANY = Grammar("regex", ".*", (EOS,))


def driven(blocks=64, rows=8, depth=1, **more):
    return Drive(SimulatedWorker(WorkerLimits(blocks, 4, VOCAB, 64)), max_concurrency=rows, token_budget=16, depth=depth, **more)


def mask(*ids):
    words = np.zeros((VOCAB + 32) // 32, np.int32)
    for one in ids:
        words.view(np.uint32)[one // 32] |= np.uint32(1 << one % 32)
    return words


def allowed(plan_):
    masks = plan_.sampling.masks
    return [] if masks is None else [np.flatnonzero(row).tolist() for row in masks.allowed(VOCAB)]


def test_a_row_waits_for_its_mask_with_everything_but_its_last_token_fed():
    drive = driven()
    drive.submit("c", range(1, 11), 4, grammar=ANY)
    first = drive.step()
    assert first.token_ids.tolist() == list(range(1, 10))
    assert not first.sample.any()
    assert [request.key for request in take_unwatched(drive.state)] == ["c"]
    assert take_unwatched(drive.state) == []
    assert drive.step() is None
    assert not drive.state.idle
    offer(drive.state, "c", mask(5), accepting=False)
    second = drive.step()
    assert (second.token_ids.tolist(), second.sample.all(), allowed(second)) == ([10], True, [[5]])
    assert drive.tokens["c"] == [5]
    assert drive.step() is None


def test_the_others_go_on_while_one_waits():
    drive = driven()
    drive.submit("c", (1, 2), 4, grammar=ANY)
    drive.submit("p", (3, 4), 30)
    for _ in range(40):
        drive.step()
    assert drive.tokens["p"] == list(expected_tokens((3, 4), 30, VOCAB))
    assert drive.tokens.get("c", []) == []
    assert drive.state.preemptions == 0


@pytest.mark.parametrize("depth", [1, 2])
def test_a_constrained_row_is_never_planned_ahead_of_its_own_token(depth):
    drive = driven(depth=depth)
    drive.submit("c", (1, 2), 10, grammar=ANY)
    drive.submit("p", (3, 4), 40)
    given = []
    for turn in range(60):
        request = next((drive.state.request(row) for key, row in drive.state.row_of.items() if key == "c"), None)
        said = len(drive.tokens.get("c", []))
        if request is not None and request.waits and said == len(given) and not any(0 in p.rows[p.sample] for p, _ in drive.results):
            given.append(10 + turn)
            offer(drive.state, "c", mask(10 + turn), accepting=False)
        drive.step()
    assert drive.tokens["c"] == given[:10]
    assert drive.tokens["p"] == list(expected_tokens((3, 4), 40, VOCAB))
    assert drive.ends["c"][0].finish_reason == "length"


def test_a_step_without_constrained_rows_says_nothing_of_masks():
    drive = driven()
    drive.submit("c", (1,), 4, grammar=ANY)
    drive.submit("p", (3, 4), 8)
    step = drive.step()
    assert step.rows[step.sample].size == 1
    assert step.sampling is GREEDY or step.sampling.masks is None


@pytest.mark.parametrize(
    ("stops", "accepting", "text", "found"),
    [
        ((EOS, STOP), True, (5,), [5, EOS, STOP]),
        ((EOS, STOP), False, (5,), [5]),
        ((EOS, STOP), False, (5, EOS), [5]),  # the tokenizer takes the end token for text
        ((EOS, STOP), False, (5, STOP), [5, STOP]),  # the client stops at text
        ((STOP,), True, (5,), [5, STOP]),  # ignore_eos
        ((STOP,), True, (5, EOS), [5, STOP]),
        ((), True, (5,), [5]),
    ],
)
def test_end_tokens_are_allowed_where_the_grammar_may_end(stops, accepting, text, found):
    drive = driven()
    drive.submit("c", (1,), Sampling(4, stop_token_ids=stops), grammar=ANY)
    drive.step()
    offer(drive.state, "c", mask(*text), accepting=accepting)
    assert allowed(drive.step()) == [found]


def test_a_mask_survives_a_preemption_and_no_token_is_lost():
    """Six blocks: two rows of 16 tokens cannot both grow, so one is thrown out again and again."""
    drive = driven(blocks=6, rows=2, prefix_caching=False)
    names = ["a", "b"]
    for name in names:
        drive.submit(name, [1] * 8, 8, grammar=ANY)
    given = {name: [] for name in names}
    for turn in range(400):
        for name in names:
            row = drive.state.row_of.get(name)
            request = drive.state.waiting.get(name) if row is None else drive.state.request(row)
            if request is not None and request.mask is None and len(drive.tokens.get(name, [])) == len(given[name]):
                given[name].append(turn % 80)
                offer(drive.state, name, mask(turn % 80), accepting=False)
        drive.step()
    assert drive.state.preemptions > 0
    assert {name: drive.tokens[name] for name in names} == given
    assert drive.state.idle
    drive.state.check()


def test_a_row_thrown_out_in_flight_finds_its_mask_again():
    drive = driven(depth=2)
    drive.submit("c", (1, 2), 4, grammar=ANY)
    drive.step()
    offer(drive.state, "c", mask(7), accepting=False)
    flown = plan(drive.state, 0.0)
    assert allowed(flown) == [[7]]
    drive.state.waiting.push(drive.state.unseat(drive.state.row_of["c"]), head=True)
    drive.results.append((flown, drive.worker.execute(flown)))
    drive.step()
    drive.step()
    assert drive.tokens["c"] == [7], "sampled once more by the same mask, and heard once"


def test_a_complete_answer_ends_wherever_it_is():
    drive = driven()
    drive.submit("seated", (1,), 9, grammar=ANY)
    drive.step()
    drive.submit("queued", (1,), 9, grammar=ANY)
    assert [(o.request_id, o.finish_reason) for o in finish(drive.state, "seated", "stop")] == [("seated", "stop")]
    assert [o.error for o in finish(drive.state, "queued", "error", "why")] == ["why"]
    assert finish(drive.state, "seated", "stop") == []
    assert drive.state.idle
    drive.state.check()


def test_masks_for_requests_that_are_gone_are_dropped():
    drive = driven()
    drive.submit("p", (1,), 3)
    offer(drive.state, "nobody", mask(1), accepting=True)
    offer(drive.state, "p", mask(1), accepting=True)
    drive.drain()
    assert drive.tokens["p"] == list(expected_tokens((1,), 3, VOCAB))


def measured(drive, step_ms):
    """The core knows that a step takes so long."""
    for _ in range(20):
        drive.state.step_cost.observe(2, 10, step_ms)
    drive.state.landed_ms = 1000.0


def test_an_idle_device_waits_for_masks_half_a_step_and_beside_others_hardly_at_all():
    drive = driven()
    drive.submit("c", (1,), 9, grammar=ANY)
    drive.step()
    measured(drive, 10.0)
    assert 3.0 < wait_ms(drive.state, 1000.0) <= 6.0
    assert wait_ms(drive.state, 1006.0) == 0.0
    offer(drive.state, "c", mask(5), accepting=False)
    assert wait_ms(drive.state, 1000.0) == 0.0
    drive.step()
    drive.submit("p", (3, 4), 30)
    drive.step()
    measured(drive, 10.0)
    assert wait_ms(drive.state, 1000.0) == 0.0, "a twentieth of 10 ms is not worth it"
    measured(drive, 100.0)
    assert 0.0 < wait_ms(drive.state, 1000.0) <= 10.0


def test_constrained_rows_alone_are_not_planned_ahead_of_each_other():
    drive = driven()
    for name in "ab":
        drive.submit(name, (1,), 9, grammar=ANY)
    drive.step()
    offer(drive.state, "a", mask(5), accepting=False)
    flown = plan(drive.state, 0.0)
    offer(drive.state, "b", mask(5), accepting=False)
    assert wait_ms(drive.state, 1e9) == float("inf"), "b would take turns with a for ever"
    drive.results.append((flown, drive.worker.execute(flown)))
    drive.submit("p", (3, 4), 30)
    assert wait_ms(drive.state, 1e9) == 0.0
