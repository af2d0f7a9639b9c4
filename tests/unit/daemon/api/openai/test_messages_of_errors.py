"""What a refusal says is what is wrong: of a body, of a context that is exceeded, of the field that was sent."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pagoda_daemon.api.openai import strict
from pagoda_daemon.api.openai.requests import ChatRequest, CompletionRequest, parse
from pagoda_daemon.api.routes import embeddings
from pagoda_daemon.api.routes.submitting import submission
from pagoda_daemon.core.errors import BadRequest
from pagoda_daemon.core.messages import Ready
from pagoda_daemon.text.tokens import ModelText
from support.engine.toy_model import VOCAB, tiny_model_dir

CONTEXT = 32
LIMITS = Ready(CONTEXT, VOCAB, 16, 100, 4)
CHAT = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
TEXT = {"model": "m", "prompt": "x"}


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "the body is empty"),
        (b" \n\t", "the body is empty"),
        (b'{"a":"\\ud800"}', "lone surrogate"),
        (b'{"a":"\\ud800x"}', "lone surrogate"),
        (b'{"a":"x\\udc00"}', "lone surrogate"),
        (b'{"\\ud800":1}', "lone surrogate"),
        (b'{"a":"\\ud800\\ud801"}', "lone surrogate"),
        (b'{"a":1', "the body is not JSON: Input data was truncated"),
        (b'{"a":"\\ud8', "the body is not JSON: Input data was truncated"),
        (b'{"a":"\xff"}', "the body is not JSON"),
        (b"[" * 100_000, "the body"),
    ],
)
def test_a_body_that_cannot_be_read_is_refused_with_the_reason(body: bytes, says: str) -> None:
    with pytest.raises(BadRequest) as caught:
        strict.decode(body)
    assert says in str(caught.value)
    assert ("truncated" in str(caught.value)) is ("truncated" in says)


def test_a_whole_pair_is_a_character() -> None:
    assert strict.decode(b'{"a":"\\ud83d\\ude00"}') == {"a": "\U0001f600"}


@pytest.mark.parametrize(
    ("body", "key"),
    [
        (b'{"a":1,"a":1}', "a"),
        (b'{"a" :1,"a"\n:1}', "a"),
        (b'{"a":{"b":1,"b":2},"c":3}', "b"),
        (b'{"a":[{"b":1,"b":2}]}', "b"),
        (b'{"a":{"b":{"c":1,"c":2}}}', "c"),
        (b'[{"a":1,"a":1}]', "a"),
        (b'{"a:":1,"b":{},"a:":"x"}', "a:"),
        (b'{"a":1,"\\u0061":{"b":1}}', "a"),
    ],
)
def test_a_key_that_stands_twice_in_one_object_is_refused_at_every_depth(body: bytes, key: str) -> None:
    with pytest.raises(BadRequest) as caught:
        strict.decode(body)
    assert (caught.value.code, caught.value.param) == ("duplicate_key", key)


def test_a_body_of_token_ids_is_not_parsed_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's parser would hold the interpreter for 0.17 s of 16 MB, beside 0.09 s of msgspec's."""
    calls: list[bytes] = []
    monkeypatch.setattr(strict.json, "loads", lambda body, **_: calls.append(body))
    strict.decode(b'{"model":"m","prompt":[1,2,3],"stream_options":{"include_usage":true}}')
    assert calls == []
    strict.decode(b'{"messages":[{"role":"user"}]}')
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        (
            {"messages": [{"role": "usr", "content": "x"}]},
            "messages[0].role: Invalid enum value 'usr'; accepted are assistant, developer, system, tool, user",
        ),
        ({"reasoning_effort": "huge"}, "reasoning_effort: Invalid enum value 'huge'; accepted are "),
    ],
)
def test_where_one_of_a_few_values_is_wanted_they_are_listed(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parse(json.dumps(CHAT | fields).encode(), ChatRequest, [])
    assert str(caught.value).startswith(says)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> ModelText:
    return ModelText(tiny_model_dir(tmp_path_factory.mktemp("said")))


@pytest.mark.parametrize(
    ("kind", "fields", "prompt", "param"),
    [
        (ChatRequest, CHAT | {"max_completion_tokens": 30}, 10, "max_completion_tokens"),
        (ChatRequest, CHAT | {"max_tokens": 30}, 10, "max_tokens"),
        (ChatRequest, CHAT | {"max_tokens": 30}, 40, "messages"),
        (ChatRequest, CHAT, CONTEXT, "messages"),
        (CompletionRequest, TEXT | {"max_tokens": 30}, 10, "max_tokens"),
        (CompletionRequest, TEXT, CONTEXT - 3, "prompt"),
        (CompletionRequest, TEXT | {"max_tokens": 30}, CONTEXT, "prompt"),
    ],
)
def test_a_context_that_is_exceeded_is_reported_in_openais_words_with_the_field_that_was_sent(
    text: ModelText, kind: Any, fields: dict[str, Any], prompt: int, param: str
) -> None:
    request = parse(json.dumps(fields).encode(), kind, [])
    with pytest.raises(BadRequest) as caught:
        submission(request, "r", (1,) * prompt, text, LIMITS)
    assert str(caught.value).startswith(f"This model's maximum context length is {CONTEXT} tokens. However, ")
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", param)


@pytest.mark.parametrize("given", ["x" * 10_000, [1] * CONTEXT])
def test_so_is_an_input_to_embed(text: ModelText, given: Any) -> None:
    request = embeddings.EmbeddingRequest(model="m", input=given)
    with pytest.raises(BadRequest, match=r"^This model.s maximum context length is 32 tokens\. However, ") as caught:
        embeddings.submissions(request, "r", text, LIMITS, embeddings.Terms())
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "input")


@pytest.mark.parametrize(
    ("fields", "says"), [({"max_completion_tokens": 4}, "max_completion_tokens (4)"), ({"max_tokens": 3}, "max_tokens (3)")]
)
def test_min_tokens_is_compared_with_the_field_that_was_sent(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(BadRequest, match="min_tokens must be at most") as caught:
        parse(json.dumps(CHAT | {"min_tokens": 9} | fields).encode(), ChatRequest, [])
    assert says in str(caught.value)
