"""A response is answered as the chat that says the same; what a response cannot have is refused by the name that it has there."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from pagoda_daemon.api.openai.requests import ChatRequest
from pagoda_daemon.api.openai.requests import parse as chat_of
from pagoda_daemon.api.responses.conversion import read
from pagoda_daemon.api.responses.inputs import conversation
from pagoda_daemon.api.responses.names import renamed
from pagoda_daemon.api.responses.requests import InputItem
from pagoda_daemon.core.errors import BadRequest

ASK = {"model": "m", "input": "hi"}
HI = {"role": "user", "content": "hi"}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
FLAT = {"type": "function", "name": "f", "description": "d", "parameters": SCHEMA, "strict": True}
NESTED = {"type": "function", "function": {"name": "f", "description": "d", "parameters": SCHEMA, "strict": True}}
OTHER = {"type": "function", "name": "g"}
LARGE = [{"type": "function", "name": f"f{n}", "description": "d" * 2**19} for n in range(2)]
BOTH = {"tools": [{"type": "function", "function": {"name": "g"}}, NESTED]}
CHOICE = {"type": "function", "function": {"name": "f"}}
CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a": 1}'}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "rain"}
THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
SAID = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "ok", "annotations": [], "logprobs": []}]}
TOOL_CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}


def body(**fields: Any) -> bytes:
    return json.dumps(ASK | fields).encode()


def chat(**fields: Any) -> ChatRequest:
    request = chat_of(json.dumps({"model": "m", "messages": [HI]} | fields).encode(), ChatRequest, [])
    assert isinstance(request, ChatRequest)
    return request


@pytest.mark.parametrize(
    ("items", "messages"),
    [
        ("hi", [HI]),
        ([{"type": "message"} | HI], [HI]),
        ([{"role": "developer", "content": "d"}, {"role": "system", "content": "s"}, HI], ["developer:d", "system:s", HI]),
        ([{"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]}], ["user:a\nb"]),
        ([HI, SAID, HI], [HI, "assistant:ok", HI]),
        ([HI, {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}], [HI, "assistant:no"]),
        ([HI, SAID, SAID], [HI, "assistant:ok", "assistant:ok"]),
        ([HI, THOUGHT, SAID], [HI, {"role": "assistant", "content": "ok", "reasoning": "hm"}]),
        ([HI, THOUGHT], [HI, {"role": "assistant", "content": "", "reasoning": "hm"}]),
        ([HI, THOUGHT, SAID, THOUGHT, SAID], [HI, *[{"role": "assistant", "content": "ok", "reasoning": "hm"}] * 2]),
        (
            [HI, {"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}]}, SAID],
            [HI, {"role": "assistant", "content": "ok", "reasoning": "s"}],
        ),
        ([HI, {"type": "reasoning", "summary": [], "encrypted_content": "gAAA"}, SAID], [HI, "assistant:ok"]),
        (
            [HI, THOUGHT, SAID, CALL, OUTPUT],
            [
                HI,
                {"role": "assistant", "content": "ok", "reasoning": "hm", "tool_calls": [TOOL_CALL]},
                {"role": "tool", "tool_call_id": "c1", "content": "rain"},
            ],
        ),
        (
            [HI, CALL, CALL | {"call_id": "c2"}, OUTPUT, OUTPUT | {"call_id": "c2", "output": [{"type": "input_text", "text": "sun"}]}],
            [
                HI,
                {"role": "assistant", "tool_calls": [TOOL_CALL, TOOL_CALL | {"id": "c2"}]},
                {"role": "tool", "tool_call_id": "c1", "content": "rain"},
                {"role": "tool", "tool_call_id": "c2", "content": "sun"},
            ],
        ),
        (
            [HI, SAID, CALL, SAID, OUTPUT],
            [
                HI,
                {"role": "assistant", "content": "okok", "tool_calls": [TOOL_CALL]},
                {"role": "tool", "tool_call_id": "c1", "content": "rain"},
            ],
        ),
        (
            [HI, CALL, SAID, OUTPUT],
            [
                HI,
                {"role": "assistant", "content": "ok", "tool_calls": [TOOL_CALL]},
                {"role": "tool", "tool_call_id": "c1", "content": "rain"},
            ],
        ),
    ],
)
def test_items_are_the_messages_of_a_chat(items: Any, messages: list[Any]) -> None:
    said = [dict(zip(("role", "content"), one.split(":"), strict=True)) if isinstance(one, str) else one for one in messages]
    assert read(body(input=items), []).chat.turns() == chat(messages=said).turns()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, {}),
        ({"instructions": "be brief"}, {"messages": [{"role": "system", "content": "be brief"}, HI]}),
        ({"max_output_tokens": 7, "stream": True}, {"max_completion_tokens": 7, "stream": True}),
        ({"max_output_tokens": 7.0}, {"max_completion_tokens": 7}),
        ({"temperature": 0.5, "top_p": 0.9, "top_k": 3, "seed": 1, "stop": ["x"], "min_p": 0.1, "presence_penalty": 1.0},) * 2,
        ({"reasoning": {"effort": "low", "summary": "auto"}}, {"reasoning_effort": "low"}),
        ({"include": ["message.output_text.logprobs"], "top_logprobs": 3}, {"logprobs": True, "top_logprobs": 3}),
        ({"include": ["message.output_text.logprobs"]}, {"logprobs": True}),
        ({"text": {"format": {"type": "text"}, "verbosity": "medium"}}, {}),
        ({"text": {"format": {"type": "json_object"}}}, {"response_format": {"type": "json_object"}}),
        (
            {"text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}}},
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}}},
        ),
        ({"tools": [FLAT]}, {"tools": [NESTED]}),
        ({"tools": []}, {}),
        ({"tools": [FLAT], "tool_choice": "none"}, {"tools": [NESTED], "tool_choice": "none"}),
        ({"tools": [FLAT], "tool_choice": "required"}, {"tools": [NESTED], "tool_choice": "required"}),
        ({"tools": [FLAT], "parallel_tool_calls": False}, {"tools": [NESTED], "parallel_tool_calls": False}),
        (
            {"tools": [OTHER, FLAT], "tool_choice": {"type": "function", "name": "f"}},
            BOTH | {"tool_choice": CHOICE},
        ),
        (
            {
                "tools": [OTHER, FLAT],
                "tool_choice": {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "f"}]},
            },
            BOTH | {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [CHOICE]}}},
        ),
        (
            {"tools": [OTHER, FLAT], "tool_choice": {"type": "allowed_tools", "tools": [{"type": "function", "name": "f"}]}},
            BOTH | {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [CHOICE]}}},
        ),
        (
            {
                "store": True,
                "metadata": {"a": "b"},
                "user": "u",
                "prompt_cache_key": "k",
                "safety_identifier": "s",
                "truncation": "disabled",
            },
            {},
        ),
        ({"max_tokens": None, "logprobs": False, "n": None}, {}),
        ({"background": False, "service_tier": "flex", "max_tool_calls": 3, "previous_response_id": None, "conversation": None}, {}),
    ],
)
def test_every_other_field_is_said_as_a_chat_says_it(fields: dict[str, Any], said: dict[str, Any]) -> None:
    found, wanted = read(body(**fields), []).chat, chat(**said)
    for message in wanted.messages:
        assert message.content is not None
    assert msgspec.json.encode(found) == msgspec.json.encode(wanted)


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"previous_response_id": "resp_1"}, "previous_response_id", "previous_response_not_found"),
    ({"conversation": "conv_1"}, "conversation", "unsupported_parameter"),
    ({"conversation": {"id": "conv_1"}}, "conversation", "unsupported_parameter"),
    ({"prompt": {"id": "pmpt_1"}}, "prompt", "unsupported_parameter"),
    ({"background": True}, "background", "unsupported_parameter"),
    ({"truncation": "auto"}, "truncation", "unsupported_parameter"),
    ({"truncation": "middle"}, "truncation", "invalid_value"),
    ({"context_management": [{"type": "compaction"}]}, "context_management", "unsupported_parameter"),
    ({"moderation": {"model": "x"}}, "moderation", "unsupported_parameter"),
    ({"prompt_logprobs": 0}, "prompt_logprobs", "unknown_parameter"),
    ({"n": 2}, "n", "unknown_parameter"),
    ({"guided_regex": "a"}, "guided_regex", "unknown_parameter"),
    ({"chat_template_kwargs": {"enable_thinking": False}}, "chat_template_kwargs", "unknown_parameter"),
    ({"continue_final_message": True}, "continue_final_message", "unknown_parameter"),
    ({"text": {"verbosity": "low"}}, "text.verbosity", "unsupported_parameter"),
    ({"text": {"format": {"type": "grammar"}}}, "text.format.type", "invalid_value"),
    ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "schema", "invalid_value"),
    (
        {"text": {"format": {"type": "json_schema", "name": "n", "schema": {"properties": {"a": {"not": {}}}}}}},
        "text.format.schema.properties.a.not",
        "invalid_grammar",
    ),
    ({"include": ["web_search_call.action.sources"]}, "include[0]", "unsupported_parameter"),
    ({"top_logprobs": 3}, "top_logprobs", "invalid_value"),
    ({"top_logprobs": 101, "include": ["message.output_text.logprobs"]}, "top_logprobs", "invalid_value"),
    ({"max_output_tokens": 0}, "max_output_tokens", "invalid_value"),
    ({"max_output_tokens": 4, "min_tokens": 5}, "min_tokens", "invalid_value"),
    ({"temperature": -1}, "temperature", "invalid_value"),
    ({"stream_options": {"include_obfuscation": False}}, "stream_options", "invalid_value"),
    ({"user": "u" * 513}, "user", "invalid_value"),
    ({"metadata": {str(n): "" for n in range(17)}}, "metadata", "invalid_value"),
    ({"tools": LARGE, "tool_choice": "none"}, "tools", "invalid_value"),
    ({"metadata": {"a": "b" * 513}}, "metadata", "invalid_value"),
    ({"messages": [HI]}, "messages", "unknown_parameter"),
    ({"max_tokens": 3}, "max_tokens", "unknown_parameter"),
    ({"response_format": {"type": "text"}}, "response_format", "unknown_parameter"),
    ({"reasoning_effort": "low"}, "reasoning_effort", "unknown_parameter"),
    ({"temprature": 1}, "temprature", "unknown_parameter"),
    ({"chat_template": "x"}, "chat_template", "unsupported_parameter"),
    ({"reasoning": {"effort": "enormous"}}, "reasoning.effort", "invalid_value"),
    ({"input": []}, "input", "invalid_value"),
    ({"input": [{"content": "x"}]}, "input[0].role", "invalid_value"),
    ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role", "invalid_value"),
    ({"input": [HI, {"role": "user"}]}, "input[1].content", "invalid_value"),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "http://x/"}]}]}, "input[0].content[0].type", ""),
    ({"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "file-1"}]}]}, "input[0].content[0].type", ""),
    ({"input": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]}, "input[0].content[0].type", ""),
    ({"input": [HI, {"type": "item_reference", "id": "msg_1"}]}, "input[1].type", ""),
    ({"input": [HI, {"type": "computer_call_output", "call_id": "c", "output": []}]}, "input[1].type", ""),
    ({"input": [HI, {"type": "web_search_call", "id": "ws_1", "status": "completed"}]}, "input[1].type", ""),
    ({"input": [HI, {"type": "function_call", "name": "f", "arguments": "{}"}]}, "input[1].call_id", "invalid_value"),
    ({"input": [HI, {"type": "function_call", "call_id": "c", "arguments": "{}"}]}, "input[1].name", "invalid_value"),
    ({"input": [HI, {"type": "function_call", "call_id": "c", "name": "f"}]}, "input[1].arguments", "invalid_value"),
    ({"input": [HI, CALL | {"arguments": "[1]"}]}, "input[1].arguments", "invalid_value"),
    ({"input": [HI, CALL | {"arguments": "{"}]}, "input[1].arguments", "invalid_value"),
    ({"input": [HI, OUTPUT]}, "input[1].call_id", "invalid_value"),
    ({"input": [HI, CALL, OUTPUT | {"call_id": "c9"}]}, "input[2].call_id", "invalid_value"),
    ({"input": [HI, CALL, {"type": "function_call_output", "call_id": "c1"}]}, "input[2].output", "invalid_value"),
    (
        {"input": [HI, CALL, OUTPUT | {"output": [{"type": "input_image", "image_url": "http://x/"}]}]},
        "input[2].output[0].type",
        "unsupported_parameter",
    ),
    *(
        ({"tools": [FLAT, {"type": kind}]}, "tools[1].type", "unsupported_parameter")
        for kind in ("web_search", "file_search", "code_interpreter", "mcp", "image_generation", "computer_use_preview", "custom", "shell")
    ),
    ({"tools": [{"type": "function"}]}, "tools[0].name", "invalid_value"),
    ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name", "invalid_value"),
    ({"tools": [FLAT, FLAT]}, "tools[1].name", "invalid_value"),
    (
        {"tools": [FLAT | {"parameters": {"properties": {"a": {"not": {}}}}}], "tool_choice": "required"},
        "tools[0].parameters.properties.a.not",
        "",
    ),
    (
        {
            "tools": [FLAT, OTHER | {"parameters": {"properties": {"a": {"not": {}}}}}],
            "tool_choice": {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "g"}]},
        },
        "tools[1].parameters.properties.a.not",
        "",
    ),
    ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
    ({"tools": [FLAT], "tool_choice": {"type": "function", "name": "x"}}, "tool_choice", "invalid_value"),
    ({"tools": [FLAT], "tool_choice": {"type": "function"}}, "tool_choice.name", "invalid_value"),
    ({"tools": [FLAT], "tool_choice": {"type": "web_search"}}, "tool_choice.type", "unsupported_parameter"),
    ({"tools": [FLAT], "tool_choice": {"type": "allowed_tools", "tools": []}}, "tool_choice.tools", "invalid_value"),
    ({"tools": [FLAT], "tool_choice": {"type": "allowed_tools", "tools": [{"type": "mcp"}]}}, "tool_choice.tools[0].type", ""),
    ({"tools": [FLAT], "tool_choice": {"type": "allowed_tools", "tools": [{"type": "function", "name": "x"}]}}, "tool_choice.tools", ""),
]


@pytest.mark.parametrize(("fields", "param", "code"), REFUSED)
def test_what_is_refused_is_named_as_it_was_sent(fields: dict[str, Any], param: str, code: str) -> None:
    with pytest.raises(BadRequest) as caught:
        read(body(**fields), [])
    assert caught.value.param == param, str(caught.value)
    assert caught.value.code == code or (not code and caught.value.code in ("unsupported_parameter", "invalid_value", "invalid_grammar"))
    for word in ("messages[", "response_format", "max_completion_tokens", ".function"):
        assert word not in str(caught.value).replace("response_format is not a parameter", "")


def test_tools_that_a_stream_repeats_are_bounded_where_no_prompt_bounds_them() -> None:
    assert read(body(tools=LARGE[:1], tool_choice="none"), []).chat.tools
    assert len(read(body(tools=LARGE), []).chat.tools or ()) == len(LARGE)


def test_references_to_stored_responses_are_refused() -> None:
    for field in ("previous_response_id", "conversation", "prompt", "input"):
        with pytest.raises(BadRequest, match="keeps no responses; send the whole conversation in input"):
            read(body(**{field: [{"type": "item_reference", "id": "msg_1"}]}), [])


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"novelty": 1, "access_programs": {}}, ["access_programs", "novelty"]),
        ({"include": ["reasoning.encrypted_content"], "store": False}, ["include.reasoning.encrypted_content"]),
        ({"reasoning": {"summary": "auto"}}, ["reasoning.summary"]),
        ({"reasoning": {"generate_summary": "auto"}}, ["reasoning.summary"]),
        ({"stream": True, "stream_options": {"include_obfuscation": True}}, ["stream_options.include_obfuscation"]),
        ({"input": [HI, THOUGHT | {"encrypted_content": "x"}]}, ["input[].encrypted_content"]),
        ({"input": [HI, SAID | {"id": "msg_1", "status": "completed", "novelty": 1}]}, ["input[].novelty"]),
        (
            {"text": {"format": {"type": "json_schema", "name": "n", "schema": {"oneOf": [{"type": "integer"}, {"type": "number"}]}}}},
            ["text.format.schema.oneOf"],
        ),
        ({"tools": [FLAT], "input": [HI, THOUGHT, SAID, CALL | {"id": "fc_1", "status": "completed"}, OUTPUT]}, []),
    ],
)
def test_what_changes_nothing_is_named_for_the_header(fields: dict[str, Any], named: list[str]) -> None:
    ignored: list[str] = []
    read(body(**fields), ignored)
    assert ignored == named


def test_a_clients_own_words_are_not_renamed() -> None:
    said = (
        "This model's maximum is 4; messages has 5, tool_choice names 'messages', tools[1].function.name must be, got \"response_format\""
    )
    assert renamed(said) == (
        "This model's maximum is 4; input has 5, tool_choice names 'messages', tools[1].name must be, got \"response_format\""
    )


class JoinedOnce(str):
    """Text that nothing may be put in front of by itself: a turn of 80,000 items would be copied 80,000 times."""

    __slots__ = ()

    def __radd__(self, before: str) -> str:
        raise AssertionError(before)


def test_a_turn_of_many_items_is_joined_once() -> None:
    thoughts = [InputItem(type="reasoning", content=JoinedOnce("hm")) for _ in range(3)]
    call = InputItem(type="function_call", call_id="c1", name="f", arguments="{}")
    said = [InputItem(role="assistant", content=JoinedOnce("ok")) for _ in range(3)]
    (turn,) = conversation([*thoughts, call, *said])
    assert (turn.reasoning, turn.content) == ("hmhmhm", "okokok")
