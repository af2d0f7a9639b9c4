"""Scores of continuations, asked for as lm-eval's `local-completions` asks and read as it reads, against transformers on the same ids.

It sends context and continuation as ids, with `echo`, `logprobs: 1` and one token to generate, and drops the score of that token. Where a
continuation is the whole answer, that token is the end token: it must be there to be dropped.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import httpx
import numpy as np
import pytest
import torch
from pagoda_contracts.launch import DaemonConfig, EngineConfig, Listen, ModelConfig
from pydoc_answers import questions
from support.engine.tiny_model import tiny_model
from support.servers.replica import PATIENCE_S, start_daemon
from transformers import AutoModelForCausalLM, AutoTokenizer

pytestmark = pytest.mark.parity

NAME, QUESTIONS, CHOICES, AT_ONCE = "tiny", 50, 4, 20


class Item(NamedTuple):
    """Ids, and how many of them are context."""

    ids: list[int]
    context: int


@pytest.fixture(scope="module")
def folder() -> Path:
    return tiny_model()


@pytest.fixture(scope="module")
def api(folder: Path) -> Iterator[httpx.Client]:
    config = DaemonConfig(
        model=ModelConfig(path=str(folder), served_names=(NAME,)),
        engine=EngineConfig(dtype="float32", threads=1, max_concurrency=16, kv_bytes=64 * 2**20),
        listen=Listen(host="127.0.0.1", http=0, grpc=0, probes=0, run_dir=tempfile.mkdtemp(prefix="pagoda-test-")),
    )
    with start_daemon(config) as replica:
        replica.wait_listening()
        replica.wait_ready()
        with httpx.Client(base_url=f"http://{replica.http}", timeout=PATIENCE_S, trust_env=False) as client:
            yield client


def items(folder: Path) -> list[Item]:
    """Each question with its own answer and with three others."""
    tokenizer, pairs = AutoTokenizer.from_pretrained(folder), questions()
    found = []
    for place, pair in enumerate(pairs[:QUESTIONS]):
        context = tokenizer.apply_chat_template([{"role": "user", "content": pair.question}], add_generation_prompt=True, tokenize=False)
        before = tokenizer.encode(context, add_special_tokens=False)
        for other in range(CHOICES):
            answer = pairs[(place + other * 7) % len(pairs)].answer
            found.append(Item(before + tokenizer.encode(answer, add_special_tokens=False), len(before)))
    return found


def ours(api: httpx.Client, asked: list[Item]) -> list[tuple[float, bool]]:
    """As lm-eval's `parse_logprobs`: sums of the continuations' scores, and whether each token was the best."""
    found = []
    for start in range(0, len(asked), AT_ONCE):
        batch = asked[start : start + AT_ONCE]
        body = {"model": NAME, "prompt": [item.ids for item in batch], "temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234}
        answer = api.post("/v1/completions", json=body | {"echo": True})
        assert answer.status_code == 200, answer.text
        for choice, item in zip(sorted(answer.json()["choices"], key=lambda one: one["index"]), batch, strict=True):
            scores = choice["logprobs"]["token_logprobs"][item.context : -1]
            best = choice["logprobs"]["top_logprobs"][item.context : -1]
            greedy = all(score == max(top.values()) for score, top in zip(scores, best, strict=True))
            assert len(scores) == len(item.ids) - item.context
            found.append((sum(scores), greedy))
    return found


def theirs(folder: Path, asked: list[Item]) -> list[tuple[float, bool]]:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    found = []
    with torch.inference_mode():
        for item in asked:
            scores = torch.log_softmax(model(torch.tensor([item.ids])).logits[0].double(), -1)[item.context - 1 : -1]
            said = torch.tensor(item.ids[item.context :])
            found.append((float(scores.gather(1, said[:, None]).sum()), bool((scores.argmax(-1) == said).all())))
    return found


def test_scores_of_choices_are_those_of_transformers(api: httpx.Client, folder: Path) -> None:
    asked = items(folder)
    found, expected = ours(api, asked), theirs(folder, asked)
    np.testing.assert_allclose([score for score, _ in found], [score for score, _ in expected], atol=1e-3, rtol=1e-5)
    assert [greedy for _, greedy in found] == [greedy for _, greedy in expected]
    assert sum(greedy for _, greedy in found) >= QUESTIONS, "each right answer is known by heart, so the end token follows it"


def test_perplexity_is_that_of_transformers(api: httpx.Client, folder: Path) -> None:
    """Whole texts behind one token, as `loglikelihood_rolling` scores them."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    asked = [
        Item([tokenizer.eos_token_id, *tokenizer.encode(f"{pair.question} {pair.answer}", add_special_tokens=False)], 1)
        for pair in questions()[:QUESTIONS]
    ]
    tokens = sum(len(item.ids) - 1 for item in asked)
    found, expected = (np.exp(-sum(score for score, _ in scores) / tokens) for scores in (ours(api, asked), theirs(folder, asked)))
    assert found == pytest.approx(expected, rel=1e-5)
