"""The offline engine against the served API, both on the tiny model: equal tokens, greedily and with seeds, and equal scores."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from pagoda_contracts.launch import DaemonConfig, EngineConfig, Listen, ModelConfig
from pagoda_daemon.offline import Engine, Sampling
from pydoc_answers import questions
from support.engine.tiny_model import tiny_model
from support.servers.replica import PATIENCE_S, start_daemon

pytestmark = pytest.mark.parity

NAME, COUNT = "tiny", 24
NUMERICS: dict[str, Any] = {"dtype": "float32", "threads": 1, "max_concurrency": 16, "kv_bytes": 64 * 2**20, "deterministic": True}


@pytest.fixture(scope="module")
def folder() -> Path:
    return tiny_model()


@pytest.fixture(scope="module")
def api(folder: Path) -> Iterator[httpx.Client]:
    config = DaemonConfig(
        model=ModelConfig(path=str(folder), served_names=(NAME,)),
        engine=EngineConfig(**NUMERICS),
        listen=Listen(host="127.0.0.1", http=0, grpc=0, probes=0, run_dir=tempfile.mkdtemp(prefix="pagoda-test-")),
    )
    with start_daemon(config) as replica:
        replica.wait_listening()
        replica.wait_ready()
        with httpx.Client(base_url=f"http://{replica.http}/v1", timeout=PATIENCE_S, trust_env=False) as client:
            yield client


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[Engine]:
    with Engine(folder, **NUMERICS) as engine:
        yield engine


def served(api: httpx.Client, path: str, **body: Any) -> dict[str, Any]:
    answer = api.post(path, json={"model": NAME, **body})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 0.0, "max_tokens": 24},
        {"temperature": 1.2, "seed": 11, "max_tokens": 24, "top_p": 0.95},
        {"temperature": 0.0, "max_tokens": 24, "stop": ["."], "repetition_penalty": 1.1},
        {"temperature": 0.9, "seed": 3, "n": 2, "max_tokens": 12, "response_format": {"type": "json_object"}},
    ],
    ids=["greedy", "seeded", "stop string", "JSON"],
)
def test_answers_are_those_of_the_served_api(api, engine, sampling):
    prompts = [pair.question for pair in questions()[:COUNT]]
    found = engine.generate(prompts, Sampling(logprobs=1, **sampling))
    for prompt, result in zip(prompts, found, strict=True):
        answer = served(api, "/completions", prompt=prompt, logprobs=1, **sampling)
        assert [one.text for one in result.choices] == [one["text"] for one in answer["choices"]]
        assert [one.finish_reason for one in result.choices] == [one["finish_reason"] for one in answer["choices"]]
        tokens = [one["logprobs"]["tokens"] for one in answer["choices"]]
        assert [[score.token for score in one.logprobs] for one in result.choices] == tokens
        assert sum(len(one.token_ids) for one in result.choices) == answer["usage"]["completion_tokens"]
        assert result.prompt_tokens == answer["usage"]["prompt_tokens"]


def test_conversations_are_answered_as_they_are_served(api, engine):
    asked = questions()[:COUNT]
    conversations = [[{"role": "user", "content": pair.question}] for pair in asked]
    found = engine.chat(conversations, Sampling(temperature=0.0))
    assert [one.text for one in found] == [pair.answer for pair in asked], "the model knows them by heart"
    answer = served(api, "/chat/completions", messages=conversations[0], temperature=0.0)
    assert found[0].text == answer["choices"][0]["message"]["content"]
    assert [len(found[0].token_ids), found[0].prompt_tokens] == [answer["usage"][name] for name in ("completion_tokens", "prompt_tokens")]


def test_scores_and_vectors_are_the_served_ones(api, engine):
    texts = [pair.answer for pair in questions()[:COUNT]]
    scored = engine.score(texts, top=2)
    vectors = engine.embed(texts, pooling="mean")
    for text, found in zip(texts, scored, strict=True):
        (choice,) = served(api, "/completions", prompt=text, echo=True, max_tokens=0, logprobs=2)["choices"]
        ours = [None if one is None else one.logprob for one in found.prompt_logprobs]
        np.testing.assert_allclose(ours[1:], choice["logprobs"]["token_logprobs"][1:], atol=1e-5)
    answer = served(api, "/embeddings", input=texts, pooling="mean")
    np.testing.assert_allclose(vectors, [one["embedding"] for one in answer["data"]], atol=1e-5)
