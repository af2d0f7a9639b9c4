"""Whole requests through scheduler and model worker: processors in a stream against transformers' generate, log-probabilities against its
logits, and the same answers alone, in company, chunked and preempted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from pagoda_contracts.launch import DaemonConfig, EngineConfig, ModelConfig
from pagoda_daemon.core.batch import LAST_SAMPLED
from pagoda_daemon.core.messages import TokenLogprob
from pagoda_daemon.core.sampling import Sampling
from pagoda_daemon.runner.model_worker import ModelWorker
from support.engine.drive import Drive
from support.engine.tiny_families import VOCAB, make_model
from transformers import PreTrainedModel

pytestmark = pytest.mark.parity

COUNT = 32
TOKEN_BYTES = 2 * 3 * 2 * 16 * 4


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, PreTrainedModel]:
    directory = tmp_path_factory.mktemp("llama")
    return directory, make_model(directory)


def load(directory: Path, **engine: Any) -> ModelWorker:
    settings = EngineConfig.model_validate({"dtype": "float32", "threads": 1, "max_model_len": 256, "max_concurrency": 32, **engine})
    return ModelWorker.load(DaemonConfig(model=ModelConfig(path=str(directory), served_names=("m",)), engine=settings), lambda _: None)


def prompts(count: int, length: int = 40) -> list[tuple[int, ...]]:
    draw = torch.Generator().manual_seed(4)
    return [tuple(torch.randint(0, VOCAB, (length - i,), generator=draw).tolist()) for i in range(count)]


def run(worker: ModelWorker, requests: list[tuple[tuple[int, ...], Sampling]], **limits: int) -> Drive:
    drive = Drive(worker, **limits)
    for i, (prompt, sampling) in enumerate(requests):
        drive.submit(f"r{i}", prompt, sampling)
    drive.drain()
    return drive


GENERATED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "repetition_penalty": ({"repetition_penalty": 1.3}, {"repetition_penalty": 1.3}),
    "logit_bias": (
        {"logit_bias": dict.fromkeys(range(400), -20.0)},
        {"sequence_bias": [[[token], -20.0] for token in range(400)]},
    ),
}


@pytest.mark.parametrize("name", GENERATED)
def test_a_shaped_greedy_stream_equals_transformers_generate(model: tuple[Path, PreTrainedModel], name: str) -> None:
    directory, theirs = model
    ours, settings = GENERATED[name]
    prompt = prompts(1)[0]
    ids = torch.tensor([prompt])
    wanted = theirs.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=COUNT, do_sample=False, pad_token_id=0, **settings)
    found = run(load(directory), [(prompt, Sampling(COUNT, **ours))], token_budget=16)
    assert found.tokens["r0"] == wanted[0, len(prompt) :].tolist()


MIXED: tuple[dict[str, Any], ...] = (
    {"temperature": 1.0, "seed": 1},
    {"temperature": 0.8, "top_p": 0.9, "seed": 2, "frequency_penalty": 0.5, "presence_penalty": 0.2},
    {"temperature": 1.2, "top_k": 40, "seed": 3, "repetition_penalty": 1.2, "logprobs": 3, "prompt_logprobs": 2},
    {"temperature": 1.0, "min_p": 0.05, "seed": 4, "bad_words": ((5,), (7, 8)), "logit_bias": {9: 4.0}},
    {"repetition_penalty": 1.5, "frequency_penalty": 1.0, "min_tokens": 20, "stop_token_ids": tuple(range(100, 140))},
    {"temperature": 1.3, "seed": 7, "top_n_sigma": 1.5, "allowed_token_ids": tuple(range(1, 500, 2)), "repetition_penalty": 1.1},
    {"temperature": 1.5, "seed": 6, "allowed_token_ids": tuple(range(0, 500, 3)), "presence_penalty": 1.0},
)


def test_every_kind_of_sampling_is_the_same_alone_together_chunked_and_preempted(model: tuple[Path, PreTrainedModel]) -> None:
    directory, _ = model
    requests = [(prompt, Sampling(COUNT, **MIXED[i % len(MIXED)])) for i, prompt in enumerate(prompts(14))]

    def streams(worker: ModelWorker, *, preempts: bool = False, **limits: int) -> list[list[int]]:
        drive = run(worker, requests, **limits)
        assert (drive.state.totals.preemptions > 0) is preempts
        assert sum(len(o.prompt_logprobs) for o in drive.outputs) == sum(len(p) - 1 for p, s in requests if s.prompt_logprobs is not None)
        return [drive.tokens[f"r{i}"] for i in range(len(requests))]

    roomy, tight = load(directory), load(directory, kv_bytes=256 * TOKEN_BYTES)
    alone = streams(roomy, max_concurrency=1)
    assert streams(roomy, max_concurrency=12) == alone
    assert streams(roomy, max_concurrency=12, depth=2, token_budget=32) == alone
    assert streams(roomy, token_budget=16, max_concurrency=12) == alone
    assert streams(tight, preempts=True, max_concurrency=12) == alone
    assert streams(tight, preempts=True, max_concurrency=12, depth=2) == alone


def test_the_least_top_n_sigma_is_greedy_and_the_largest_keeps_everything(model: tuple[Path, PreTrainedModel]) -> None:
    worker, prompt, hot = load(model[0]), prompts(1)[0], {"temperature": 1.5, "seed": 5}
    kinds: tuple[dict[str, Any], ...] = ({}, hot, {**hot, "top_n_sigma": 1e-30}, {**hot, "top_n_sigma": 1e30})
    found = run(worker, [(prompt, Sampling(COUNT, **kind)) for kind in kinds]).tokens
    assert found["r2"] == found["r0"] != found["r1"] == found["r3"]


def test_a_cached_beginning_changes_neither_tokens_nor_prompt_scores(model: tuple[Path, PreTrainedModel]) -> None:
    directory, _ = model
    drive = Drive(load(directory), depth=2)
    for turn in "ab":
        for i, prompt in enumerate(prompts(6)):
            drive.submit(f"{turn}{i}", prompt, Sampling(COUNT, **MIXED[i]))
        drive.drain()
    assert drive.state.stats().reused_tokens > 0
    scores = {name: [e for o in drive.outputs if o.request_id == name for e in o.prompt_logprobs] for name in ("a2", "b2")}
    assert [entry.rank for entry in scores["a2"]] == [entry.rank for entry in scores["b2"]]
    assert len(scores["b2"]) == len(prompts(6)[2]) - 1
    for i in range(6):
        assert drive.tokens[f"a{i}"] == drive.tokens[f"b{i}"]


def test_draws_and_log_probabilities_are_the_same_one_step_ahead(model: tuple[Path, PreTrainedModel]) -> None:
    directory, _ = model
    worker = load(directory)
    asked: tuple[dict[str, Any], ...] = ({"logprobs": 2}, {"prompt_logprobs": 1}, {"top_k": 40, "logprobs": 0, "prompt_logprobs": 2}, {})
    requests = [(prompt, Sampling(COUNT, temperature=1.0, seed=i, **asked[i % 4])) for i, prompt in enumerate(prompts(8))]
    waiting, ahead = (run(worker, requests, depth=depth, token_budget=24) for depth in (1, 2))
    assert sum(LAST_SAMPLED in step.token_ids for step in ahead.plans) > COUNT // 2
    for i in range(len(requests)):
        assert ahead.tokens[f"r{i}"] == waiting.tokens[f"r{i}"]
        for kind in ("logprobs", "prompt_logprobs"):
            ours, theirs = ([e for o in d.outputs if o.request_id == f"r{i}" for e in getattr(o, kind)] for d in (ahead, waiting))
            assert [(entry.logprob, entry.rank) for entry in ours] == [(pytest.approx(e.logprob, abs=1e-4), e.rank) for e in theirs]


def test_each_of_n_answers_draws_its_own_and_the_first_brings_the_prompts_scores(model: tuple[Path, PreTrainedModel]) -> None:
    directory, _ = model
    prompt = prompts(1)[0]
    asked = {"temperature": 1.0, "logprobs": 1, "repetition_penalty": 1.2, "prompt_logprobs": 1}
    worker, drive = load(directory), Drive(load(directory))
    drive.submit("r", prompt, Sampling(COUNT, seed=5, **asked), n=3)
    drive.drain()
    for index, name in enumerate(("r", "r/1", "r/2")):
        alone = run(worker, [(prompt, Sampling(COUNT, seed=5 + index, **asked))])
        assert drive.tokens[name] == alone.tokens["r0"]
        own = [output for output in drive.outputs if output.index == index]
        assert sum(len(output.logprobs) for output in own) == COUNT
        assert sum(len(output.prompt_logprobs) for output in own) == (0 if index else len(prompt) - 1)


def check(entry: TokenLogprob, logprobs: torch.Tensor, token: int) -> None:
    assert entry.logprob == pytest.approx(logprobs[token].item(), abs=1e-4)
    best = logprobs.topk(max(1, len(entry.top)))
    assert [value for _, value in entry.top] == pytest.approx(best.values[: len(entry.top)].tolist(), abs=1e-4)
    assert all(value == pytest.approx(logprobs[other].item(), abs=1e-4) for other, value in entry.top)
    # Neighbours closer than the two programs' rounding may change places.
    assert (logprobs > logprobs[token] + 1e-4).sum() < entry.rank <= (logprobs > logprobs[token] - 1e-4).sum() + 1


@pytest.mark.parametrize("budget", [16, 64])
def test_logprobs_of_prompt_and_answer_equal_transformers(model: tuple[Path, PreTrainedModel], budget: int) -> None:
    directory, theirs = model
    prompt = prompts(1)[0]
    asked = Sampling(8, temperature=0.7, seed=1, logprobs=4, prompt_logprobs=3, repetition_penalty=1.3)
    drive = run(load(directory), [((3, 1, 2), Sampling(20)), (prompt, asked), ((9, 8), Sampling(20, logprobs=0))], token_budget=budget)
    own = [output for output in drive.outputs if output.request_id == "r1"]
    whole = (*prompt, *drive.tokens["r1"])
    with torch.inference_mode():
        logprobs = theirs(torch.tensor([whole])).logits[0].log_softmax(-1)
    scores = [entry for output in own for entry in (*output.prompt_logprobs, *output.logprobs)]
    assert len(scores) == len(whole) - 1
    for at, entry in enumerate(scores):
        assert len(entry.top) == (3 if at < len(prompt) - 1 else 4)
        check(entry, logprobs[at], whole[at + 1])


def test_a_prompt_without_a_finite_score_ends_alone(model: tuple[Path, PreTrainedModel]) -> None:
    directory, _ = model
    worker = load(directory)
    wanted = run(worker, [((1, 2, 3), Sampling(6, prompt_logprobs=0))]).tokens["r0"]
    worker.forward.model.weights.embedding[77] = torch.nan
    drive = run(worker, [((1, 2, 3), Sampling(6, prompt_logprobs=0)), ((5, 77, 6, 7), Sampling(6, prompt_logprobs=0, temperature=1.0))])
    assert drive.tokens["r0"] == wanted
    assert [(end.finish_reason, end.error) for end in drive.ends["r1"]] == [("error", "the model's output is not finite")]
