"""The typed border: what is served, accepted, refused, and how a refusal names its field."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pagoda_daemon.api.openai.fields import foreign
from pagoda_daemon.api.openai.requests import ChatRequest, CompletionRequest, parse
from pagoda_daemon.core.errors import BadRequest
from support.clients.hostile_requests import SAMPLES, WRONG
from support.suite.profiles import examples

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def chat(**changes):
    return parse(json.dumps({**CHAT, **changes}).encode(), ChatRequest, [])


def completion(prompt, **changes):
    return parse(json.dumps({"model": "m", "prompt": prompt, **changes}).encode(), CompletionRequest, [])


def refusal(body, kind=ChatRequest):
    with pytest.raises(BadRequest) as caught:
        parse(body, kind, [])
    return caught.value


def test_a_full_chat_request_is_typed():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    request = chat(
        messages=[{"role": "system", "content": "s"}, {"role": "user", "content": parts, "name": "ann"}],
        max_tokens=5,
        max_completion_tokens=7,
        temperature=0,
        top_p=0.5,
        top_k=-1,
        seed=-3,
        stop="x",
        stream=True,
        stream_options={"include_usage": True},
        ignore_eos=True,
    )
    assert request.turns() == [{"role": "system", "content": "s"}, {"role": "user", "content": "a\nb"}]
    assert (request.limit, request.stops, request.include_usage) == (7, ("x",), True)


def test_prompts_are_strings_or_lists_of_ids_alone_or_several():
    assert completion("p").prompts() == completion(["p"]).prompts() == ("p",)
    assert completion([1, 2]).prompts() == completion([[1, 2]]).prompts() == ((1, 2),)
    assert completion(["a", "b"]).prompts() == ("a", "b")
    assert completion([[1], [2, 3]], n=2).prompts() == ((1,), (2, 3))
    assert completion("p").limit == 16
    for mixed in (["a", 1], [[1], 2]):
        with pytest.raises(BadRequest, match="mixes"):
            completion(mixed)


@pytest.mark.parametrize(("prompt", "n"), [([], 1), ("p", 0), ("p", 129), (["p"] * 129, None), (["p"] * 65, 2)])
def test_choices_are_bounded(prompt, n):
    with pytest.raises(BadRequest) as caught:
        completion(prompt, n=n)
    assert caught.value.param == ("n" if prompt == "p" else "prompt")


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"temperature": 100.5}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"temperature": 10**400}, "temperature"),
        ({"temperature": "1"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"top_k": 1.5}, "top_k"),
        ({"seed": 2**63}, "seed"),
        ({"seed": 10**400}, "seed"),
        ({"min_p": 1.5}, "min_p"),
        ({"top_n_sigma": 0}, "top_n_sigma"),
        ({"top_n_sigma": -1}, "top_n_sigma"),
        ({"top_n_sigma": 1e39}, "top_n_sigma"),
        ({"top_n_sigma": True}, "top_n_sigma"),
        ({"top_n_sigma": "1"}, "top_n_sigma"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"frequency_penalty": 2.1}, "frequency_penalty"),
        ({"presence_penalty": -2.1}, "presence_penalty"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"1": 101}}, "logit_bias"),
        ({"logit_bias": {str(n): 1 for n in range(1025)}}, "logit_bias"),
        ({"bad_words": ["  "]}, "bad_words"),
        ({"bad_words": ["a"] * 129}, "bad_words"),
        ({"stop_token_ids": [1] * 1025}, "stop_token_ids"),
        ({"stop_token_ids": ["a"]}, "stop_token_ids[0]"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"min_tokens": 6, "max_tokens": 5}, "min_tokens"),
        ({"logprobs": 0}, "logprobs"),
        ({"logprobs": True, "top_logprobs": 101}, "top_logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"prompt_logprobs": 101}, "prompt_logprobs"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"n": True}, "n"),
        ({"n": 10**400}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"stop": ["a"] * 65}, "stop"),
        ({"stop": ""}, "stop"),
        ({"stop": "x" * 257}, "stop"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content"),
        ({"model": None}, "model"),
    ],
)
def test_values_out_of_range_are_refused_by_name(changes, param):
    error = refusal(json.dumps({**CHAT, **changes}).encode())
    assert error.param == param
    assert param.split("[")[0] in str(error) or "content parts" in str(error)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_are_none_are_refused(number):
    refusal(f'{{"model":"m","messages":[{{"role":"user","content":"x"}}],"temperature":{number}}}'.encode())


@pytest.mark.parametrize(
    "changes",
    [
        {"best_of": 2},
        {"length_penalty": 2},
        {"kv_transfer_params": None},
        {"prompt_embeds": "x"},
        {"chat_template": "x"},
        {"cache_salt": "x"},
    ],
)
def test_what_would_change_the_answer_is_never_ignored(changes):
    error = refusal(json.dumps({**CHAT, **changes}).encode())
    assert (error.code, error.param) == ("unsupported_parameter", next(iter(changes)))


@pytest.mark.parametrize(
    "changes",
    [
        {"user": "u", "metadata": {"a": "b"}, "store": True, "service_tier": "auto", "parallel_tool_calls": True},
        {"n": 1, "frequency_penalty": 0, "presence_penalty": 0.0, "logit_bias": {}, "logprobs": False, "tools": []},
        {"response_format": {"type": "text"}, "tool_choice": "auto", "logit_bias": None},
    ],
)
def test_what_changes_no_answer_is_accepted(changes):
    assert chat(**changes).model == "m"


def test_a_completion_without_tokens_is_accepted_only_where_it_echoes():
    assert completion("p", max_tokens=0, echo=True, logprobs=1).limit == 0
    assert completion([[1, 2]]).prompts() == ((1, 2),)
    with pytest.raises(BadRequest, match="max_tokens must be at least 1, got 0"):
        completion("p", max_tokens=0)
    with pytest.raises(BadRequest, match="logprobs"):
        completion("p", logprobs=101)


@pytest.mark.parametrize(("changes", "listed"), [({}, None), ({"logprobs": True}, 0), ({"logprobs": True, "top_logprobs": 3}, 3)])
def test_chat_asks_for_logprobs_by_two_fields(changes, listed):
    assert chat(**changes).listed == listed


def test_a_misspelt_field_is_refused():
    error = refusal(json.dumps({**CHAT, "temprature": 1}).encode())
    assert (error.code, error.param) == ("unknown_parameter", "temprature")
    assert "'temperature' is" in str(error)


def test_an_unknown_field_is_accepted_and_reported():
    unknown: list[str] = []
    parse(json.dumps({**CHAT, "max_output_seconds": 3, "moderation": {"x": [1]}}).encode(), ChatRequest, unknown)
    assert unknown == ["max_output_seconds", "moderation"]


@pytest.mark.parametrize(
    ("names", "named"),
    [(["a\nb"], 0), (["x" * 65], 0), (["\u00e4"], 0), ([f"unknown{i}" for i in range(40)], 16)],
)
def test_unknown_fields_are_ignored_however_many_and_a_header_names_the_first_that_it_can_hold(names, named):
    ignored: list[str] = []
    parse(json.dumps({**CHAT, **dict.fromkeys(names, 1)}).encode(), ChatRequest, ignored)
    assert len(ignored) == named


def test_unknown_fields_are_named_at_every_depth_and_once_for_a_list():
    said = {"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}, "new": 1}], "mood": 1}
    body = {
        **CHAT,
        "messages": [said, said],
        "stream": True,
        "stream_options": {"later": {}},
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"own": 1}, "hint": 1}},
    }
    ignored: list[str] = []
    parse(json.dumps(body).encode(), ChatRequest, ignored)
    assert ignored == ["messages[].content[].new", "messages[].mood", "stream_options.later", "response_format.json_schema.hint"]


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"messages": [{"role": "user", "content": "x", "kv_transfer_params": {}}]}, "messages[].kv_transfer_params"),
        ({"structured_outputs": {"json": {}, "structural_tag": "x"}}, "structured_outputs.structural_tag"),
    ],
)
def test_what_is_internal_or_would_change_the_answer_is_refused_at_every_depth(changes, param):
    error = refusal(json.dumps({**CHAT, **changes}).encode())
    assert (error.code, error.param) == ("unsupported_parameter", param)


@pytest.mark.parametrize(("name", "neutral", "value"), [("priority", 0, 3), ("cache_salt", "", "s")])
def test_what_the_gateway_sets_is_refused_in_a_body_and_says_so(name, neutral, value):
    chat(**{name: neutral})
    error = refusal(json.dumps({**CHAT, name: value}).encode())
    assert (error.code, error.param) == ("unsupported_parameter", name)
    assert "set by the gateway" in str(error)


def test_a_whole_number_may_be_written_as_a_float():
    request = chat(max_tokens=16.0, n=2.0, seed=-7.0, top_k=3.0, temperature=1)
    assert (request.limit, request.n, request.seed, request.top_k) == (16, 2, -7, 3)
    assert all(isinstance(one, int) for one in (request.limit, request.n, request.seed, request.top_k))
    for wrong in (16.5, 1e300, "16", True):
        assert refusal(json.dumps({**CHAT, "max_tokens": wrong}).encode()).param == "max_tokens"
    assert chat(allowed_token_ids=[1.0, 2], stop_token_ids=[3.0]).allowed_token_ids == [1, 2]
    assert completion(prompt=[[1.0, 2], [3]]).prompts() == ((1, 2), (3,))
    assert completion(prompt=[1.0]).prompts() == ((1,),)
    assert refusal(json.dumps({**CHAT, "stop_token_ids": [1, 2.5]}).encode()).param == "stop_token_ids[1]"


def test_a_client_may_set_the_templates_thinking_and_nothing_else_of_it():
    given = {"thinking": True, "enable_thinking": False, "reasoning_effort": "low"}
    assert chat(chat_template_kwargs=given).shape.variables == (("enable_thinking", False), ("reasoning_effort", "low"), ("thinking", True))
    assert chat(reasoning_effort="high").shape.variables == (("reasoning_effort", "high"),)
    assert chat(chat_template_kwargs={}).shape.variables == ()
    for kwargs in ({"messages": []}, {"tools": True}, {"bos_token": "x"}, {"x" * 1000: 1}):
        error = refusal(json.dumps({**CHAT, "chat_template_kwargs": kwargs}).encode())
        assert (error.code, error.param) == ("unsupported_parameter", f"chat_template_kwargs.{next(iter(kwargs))[:64]}")
    for kwargs in ({"thinking": "yes"}, {"thinking": {}}, {"reasoning_effort": "x" * 65}, {"reasoning_effort": ["low"]}):
        assert refusal(json.dumps({**CHAT, "chat_template_kwargs": kwargs}).encode()).param == f"chat_template_kwargs.{next(iter(kwargs))}"


def test_what_an_assistant_thought_goes_to_the_template_by_both_names():
    turns = [{"role": "assistant", "content": "4", name: "2 + 2"} for name in ("reasoning", "reasoning_content")]
    assert [turn["reasoning"] + turn["reasoning_content"] for turn in chat(messages=turns).turns()] == ["2 + 22 + 2"] * 2
    assert "reasoning" not in chat(messages=[{"role": "user", "content": "x"}]).turns()[0]


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"best_of": 2, "n": 3}, "best_of"),
        ({"best_of": 129}, "best_of"),
        ({"best_of": 3, "stream": True}, "best_of"),
        ({"best_of": 3, "max_tokens": 0, "echo": True}, "best_of"),
        ({"suffix": "x", "echo": True}, "suffix"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
    ],
)
def test_fields_of_completions_that_exclude_each_other_are_named(changes, param):
    with pytest.raises(BadRequest) as caught:
        completion("p", **changes)
    assert caught.value.param == param


@pytest.mark.parametrize("name", sorted(foreign().internal))
def test_internal_fields_are_refused_by_name(name):
    error = refusal(json.dumps({**CHAT, name: 1}).encode())
    assert (error.code, error.param) == ("unsupported_parameter", name)


def test_a_missing_field_is_named():
    assert refusal(b'{"model":"m"}').param == "messages"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b'{"model":' + b"[" * 200_000, b'"x"', b'{"a":"\\ud800"}'])
def test_a_body_that_is_no_object_is_refused(body):
    assert refusal(body).code in ("invalid_value", "unknown_parameter")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
FIELDS = sorted({*ChatRequest.__struct_fields__, *CompletionRequest.__struct_fields__, "tools", "n", "user", "stop_token_ids", "x"})


@pytest.mark.deep
@pytest.mark.parametrize("kind", [ChatRequest, CompletionRequest])
def test_every_field_is_parsed_or_refused_with_every_wrong_value(kind):
    """A replica is asked with half of them (tests/security/test_hostile.py)."""
    refused = 0
    for name in kind.__struct_fields__:
        for wrong in WRONG:
            try:
                parse(json.dumps(SAMPLES[kind] | {name: wrong}).encode(), kind, [])
            except BadRequest:
                refused += 1
    assert refused > len(kind.__struct_fields__) * len(WRONG) / 2


@pytest.mark.deep
@settings(max_examples=examples(100))
@given(st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=6), st.sampled_from([ChatRequest, CompletionRequest]))
def test_any_object_is_parsed_or_refused(fields, kind):
    base = {"model": "m", "messages": CHAT["messages"]} if kind is ChatRequest else {"model": "m", "prompt": "p"}
    try:
        request = parse(json.dumps({**base, **fields}).encode(), kind, [])
    except BadRequest:
        return
    assert isinstance(request.model, str)
