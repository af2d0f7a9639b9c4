"""What of sampling reaches a plan, and what of log-probabilities reaches a request: only for those who ask, right after preemption."""

from __future__ import annotations

import numpy as np
import pytest
from pagoda_daemon.core.batch import GREEDY, LAST_SAMPLED, StepPlan, WorkerLimits
from pagoda_daemon.core.messages import DeepCheckPrompt
from pagoda_daemon.core.sampling import DRAW, NUMBERS, OFF, Sampling, shaping_of
from pagoda_daemon.scheduler.extra_row import with_extra_row
from pagoda_daemon.scheduler.plan import plan
from pagoda_daemon.simulated.device.worker import SimulatedWorker, expected_tokens
from support.engine.drive import Drive
from support.engine.sampling_rows import not_off
from support.engine.shaped_worker import ShapedWorker, shaped_tokens

VOCAB = 97


def drive(blocks: int = 64, **limits: int) -> Drive:
    return Drive(SimulatedWorker(WorkerLimits(blocks, 4, VOCAB, 64)), **limits)


def next_plan(d: Drive) -> StepPlan:
    step = plan(d.state, 0.0)
    assert step is not None
    return step


def test_a_greedy_step_carries_nothing_for_sampling() -> None:
    d = drive()
    d.submit("a", [1, 2], Sampling(5, top_p=0.5, top_k=3, seed=9, stop_token_ids=(4,), min_tokens=0))
    assert next_plan(d).sampling is GREEDY


def test_only_what_a_sampling_row_uses_is_carried() -> None:
    d = drive(token_budget=32)
    d.submit("plain", [1, 2], 5)
    d.submit("hot", [3], Sampling(5, temperature=0.5, top_p=0.9, top_k=7, min_p=0.1, seed=3))
    d.submit("shaped", [4, 5], Sampling(5, presence_penalty=1.0))
    d.submit("spoken", [6], Sampling(5, logprobs=2))
    d.submit("long", range(60), Sampling(4, temperature=1.0, presence_penalty=1.0, logprobs=1))
    step = next_plan(d)
    assert step.sample.tolist() == [True, True, True, True, False]
    random, shaped = step.sampling.random, step.sampling.shaped
    assert random is not None
    np.testing.assert_array_equal(random["temperature"], np.asarray([0, 0.5, 0, 0], np.float32))
    assert (random["top_k"][1], random["seed"][1], random["min_p"][1]) == (7, 3, np.float32(0.1))
    assert [(row.at, row.tokens.tolist(), row.prompt_len) for row in shaped] == [(2, [4, 5], 2)]
    assert step.sampling.top_logprobs is not None
    assert step.sampling.top_logprobs.tolist() == [-1, -1, -1, 2]


@pytest.mark.parametrize("name", NUMBERS)
def test_each_number_reaches_the_rows_that_sample_beside_others_and_the_canary(name: str) -> None:
    """Those that the draw needs as arrays, the others as what changes the logits."""
    d = drive(token_budget=32)
    d.submit("other", [1], Sampling(5, temperature=1.5))
    d.submit("asks", [2, 3], Sampling(5, **{"temperature": 1.5, name: not_off(name)}))
    step = with_extra_row(next_plan(d), DeepCheckPrompt(1, (4, 5)), d.state.limits)
    if name not in (DRAW.names or ()):
        assert [row.at for row in step.sampling.shaped] == [1]
        return
    assert step.sampling.random is not None
    of_others = 1.5 if name == "temperature" else OFF[name]
    assert step.sampling.random[name].tolist() == [of_others, not_off(name), OFF[name]]


def test_a_reused_row_keeps_nothing_of_the_previous_request() -> None:
    d = drive(max_concurrency=1)
    d.submit("a", [1], Sampling(2, temperature=1.0, frequency_penalty=1.0, logprobs=3, prompt_logprobs=1, logit_bias={3: 1.0}))
    d.drain()
    d.submit("b", [2, 3], 2)
    assert next_plan(d).sampling is GREEDY


def test_a_shaped_row_brings_all_its_tokens_also_after_a_preemption() -> None:
    d = drive(blocks=8, max_concurrency=4, token_budget=64)
    prompts = {f"r{i}": [i + 1] * 5 for i in range(4)}
    for name, prompt in prompts.items():
        d.submit(name, prompt, Sampling(12, repetition_penalty=1.5))
    seen: list[tuple[int, ...]] = []
    while (step := d.step()) is not None:
        seen += [tuple(row.tokens.tolist()) for row in step.sampling.shaped]
        assert all(row.prompt_len == 5 for row in step.sampling.shaped)
    assert d.state.totals.preemptions > 0
    for name, prompt in prompts.items():
        whole = (*prompt, *d.tokens[name])
        assert sorted(tokens for tokens in seen if tokens[:5] == tuple(prompt)) == [whole[:n] for n in range(5, 17)]


def prompt_scores(d: Drive, name: str) -> list[int]:
    """How many prompt scores each output brought."""
    return [len(output.prompt_logprobs) for output in d.outputs if output.request_id == name]


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("budget", [4, 16, 64])
def test_each_prompt_token_but_the_first_is_scored_once_however_the_prompt_is_cut(budget: int, depth: int) -> None:
    d = drive(token_budget=budget, max_concurrency=4, depth=depth)
    prompt = list(range(30, 50))
    d.submit("other", [1, 2, 3], 6)
    d.submit("a", prompt, Sampling(3, prompt_logprobs=2, logprobs=0))
    targets = []
    while (step := d.step()) is not None:
        if (scored := step.sampling.scored) is not None:
            assert step.token_ids[scored.fed].tolist() == [token - 1 for token in scored.targets.tolist()]
            assert scored.top.tolist() == [2] * scored.top.size
            targets += scored.targets.tolist()
    assert targets == prompt[1:]
    assert sum(prompt_scores(d, "a")) == len(prompt) - 1
    assert sum(prompt_scores(d, "other")) == 0
    said = [entry for output in d.outputs if output.request_id == "a" for entry in output.logprobs]
    assert [(entry.logprob, entry.rank, entry.top) for entry in said] == [(0.0, 1, ())] * 3


def test_a_preempted_prompt_is_not_scored_again() -> None:
    d = drive(blocks=8, max_concurrency=4, token_budget=64)
    for i in range(4):
        d.submit(f"r{i}", [i + 1] * 5, Sampling(12, prompt_logprobs=0))
    d.drain()
    assert d.state.totals.preemptions > 0
    assert [sum(prompt_scores(d, f"r{i}")) for i in range(4)] == [4] * 4


@pytest.mark.parametrize(("steps", "computed_again"), [(1, True), (4, False)])
def test_a_preempted_request_uses_its_prompt_again_once_all_of_it_is_scored(steps: int, computed_again: bool) -> None:
    computed = []
    for scores in (0, None):
        d = drive(max_concurrency=1, token_budget=16)
        d.submit("slow", range(20), Sampling(12, prompt_logprobs=scores), tier="batch")
        for _ in range(steps):
            d.step()
        d.submit("urgent", [1, 2], 2)
        d.drain()
        assert d.state.totals.preemptions == 1
        assert sum(prompt_scores(d, "slow")) == (0 if scores is None else 19)
        computed.append(sum(step.tokens for step in d.plans))
    assert computed[0] - computed[1] == 16 * computed_again


def test_a_prompt_that_is_known_is_computed_again_where_its_scores_are_wanted() -> None:
    d = drive()
    prompt = list(range(13))
    d.submit("before", prompt, 2)
    d.drain()
    d.submit("scored", prompt, Sampling(2, prompt_logprobs=0))
    d.submit("plain", prompt, 2)
    d.drain()
    assert [sum(prompt_scores(d, name)) for name in ("before", "scored", "plain")] == [0, 12, 0]
    assert d.state.totals.reused_tokens == 12, "only the plain one reuses, all but the last token"
    assert d.tokens["scored"] == d.tokens["plain"] == d.tokens["before"]


@pytest.mark.parametrize("depth", [1, 2])
def test_each_of_n_answers_has_its_log_probabilities_and_the_first_the_prompts_scores(depth: int) -> None:
    d = drive(token_budget=32, depth=depth)
    d.submit("a", range(10), Sampling(6, logprobs=0, prompt_logprobs=0, presence_penalty=0.5 * (depth == 1)), n=3)
    d.drain()
    own = [[output for output in d.outputs if output.index == index] for index in range(3)]
    assert [sum(len(output.prompt_logprobs) for output in outputs) for outputs in own] == [9, 0, 0]
    assert [sum(len(output.logprobs) for output in outputs) for outputs in own] == [6, 6, 6]
    assert all(len(output.logprobs) == len(output.token_ids) for output in d.outputs)
    assert sum(step.tokens for step in d.plans) == 10 + 2 + 3 * 5, "the prompt is computed once, its last token once an answer"


def test_a_further_answer_that_outlives_the_first_does_not_score_the_prompt_again() -> None:
    d = drive(token_budget=32)
    d.submit("a", range(10), Sampling(1, prompt_logprobs=0), n=3)
    d.drain()
    assert [sum(len(output.prompt_logprobs) for output in d.outputs if output.index == index) for index in range(3)] == [9, 0, 0]
    assert d.tokens["a"] == d.tokens["a/1"] == d.tokens["a/2"]
    assert sum(step.tokens for step in d.plans) < 2 * 10, "what the first left behind is known"


@pytest.mark.parametrize("depth", [1, 2])
def test_a_stop_id_is_the_last_token_and_has_its_log_probability(depth: int) -> None:
    stream = expected_tokens([1, 2], 8, VOCAB)
    stop = next(at for at in range(1, 8) if stream[at] not in stream[:at])
    d = drive(depth=depth)
    d.submit("a", [1, 2], Sampling(8, stop_token_ids=(stream[stop],), logprobs=1))
    d.drain()
    assert tuple(d.tokens["a"]) == stream[: stop + 1]
    assert [end.finish_reason for end in d.ends["a"]] == ["stop"]
    assert [len(output.logprobs) for output in d.outputs if output.token_ids] == [1] * (stop + 1)


def test_shaped_rows_run_one_step_ahead_like_all_others_and_get_the_same() -> None:
    requests = {"plain": Sampling(30), "shaped": Sampling(30, presence_penalty=1.0), "hot": Sampling(30, temperature=1.0, logprobs=1)}
    streams = []
    for depth in (1, 2):
        d = Drive(ShapedWorker(WorkerLimits(64, 4, VOCAB, 64)), depth=depth)
        for at, (name, sampling) in enumerate(requests.items()):
            d.submit(name, [at + 1, 7], sampling)
        d.drain()
        streams.append(d.tokens)
        unknown = [row.tokens[-1] == LAST_SAMPLED for step in d.plans for row in step.sampling.shaped]
        assert unknown == [False] + [depth == 2] * 29
        assert not any(LAST_SAMPLED in row.tokens[:-1] for step in d.plans for row in step.sampling.shaped)
    assert streams[0] == streams[1]
    assert tuple(streams[0]["shaped"]) == shaped_tokens([2, 7], 30, VOCAB)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"logit_bias": {VOCAB: 1.0}}, "logit_bias"),
        ({"logit_bias": {-1: 1.0}}, "logit_bias"),
        ({"bad_words": ((1, VOCAB),)}, "bad_words"),
        ({"bad_words": ((),)}, "bad_words"),
        ({"allowed_token_ids": (VOCAB,)}, "allowed_token_ids"),
        ({"allowed_token_ids": ()}, "allowed_token_ids"),
        ({"stop_token_ids": (VOCAB,), "min_tokens": 1}, "stop_token_ids"),
        ({"logprobs": 101}, "logprobs"),
        ({"prompt_logprobs": 101}, "logprobs"),
    ],
)
def test_what_would_fail_the_whole_step_is_refused_alone(changes: dict[str, object], named: str) -> None:
    d = drive()
    d.submit("bad", [1], Sampling(2, **changes))  # type: ignore[arg-type]
    assert d.ends["bad"][0].finish_reason == "error"
    assert named in (d.ends["bad"][0].error or "")


def test_neutral_values_shape_nothing() -> None:
    assert shaping_of(Sampling(5, repetition_penalty=1.0, frequency_penalty=0.0, min_tokens=3)) is None
    assert shaping_of(Sampling(5, min_tokens=3, stop_token_ids=(1,))) is not None
