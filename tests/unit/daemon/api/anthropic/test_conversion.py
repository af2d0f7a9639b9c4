"""A request of the Messages API becomes the chat that says the same, and a refusal names its field."""

import json

import pytest
from pagoda_daemon.api.anthropic.conversion import ELSEWHERE
from pagoda_daemon.api.anthropic.errors import body_of, own_name
from pagoda_daemon.api.anthropic.requests import CountTokensRequest, MessagesRequest
from pagoda_daemon.api.openai import fields
from pagoda_daemon.api.openai.requests import ChatRequest, parse
from pagoda_daemon.api.routes.messages import checked_chat
from pagoda_daemon.core.errors import BadRequest

HI = {"role": "user", "content": "hi"}
BODY = {"model": "m", "max_tokens": 9, "messages": [HI]}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"name": "weather", "description": "d", "input_schema": SCHEMA}
DEEP = json.loads('{"not":' * 99 + "{}" + "}" * 99)
USE = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Oslo"}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "rain"}
CALLED = [HI, {"role": "assistant", "content": [USE]}]


def typed(ignored, **changes):
    return fields.typed(json.dumps({**BODY, **changes}).encode(), MessagesRequest, ignored, ELSEWHERE)


def chat(**changes):
    return checked_chat(typed([], **changes), [])


def ignored(**changes):
    names = []
    checked_chat(typed(names, **changes), names)
    return names


def openai_chat(**body):
    return parse(json.dumps({"model": "m", **body}).encode(), ChatRequest, [])


def same(chat, **openai):
    """Both are one chat to the template and to the engine."""
    other = openai_chat(**openai)
    assert chat.turns() == other.turns()
    assert (chat.shape, chat.box, chat.stops) == (other.shape, other.box, other.stops)
    assert (chat.temperature, chat.top_p, chat.top_k, chat.stream) == (other.temperature, other.top_p, other.top_k, other.stream)
    assert chat.response_format == other.response_format


def test_sampling_and_a_system_prompt_are_those_of_a_chat():
    made = chat(system="be brief", temperature=0.5, top_p=0.9, top_k=7, stop_sequences=["a", "b"], stream=True, metadata={"user_id": "u"})
    messages = [{"role": "system", "content": "be brief"}, HI]
    same(made, messages=messages, temperature=0.5, top_p=0.9, top_k=7, stop=["a", "b"], stream=True)


def test_blocks_are_parts_and_consecutive_turns_of_a_role_are_one():
    text = {"type": "text", "text": "a", "cache_control": {"type": "ephemeral", "ttl": "1h"}}
    made = chat(system=[text, {"type": "text", "text": "b"}], messages=[{"role": "user", "content": [text]}, HI])
    same(made, messages=[{"role": "system", "content": "a\nb"}, {"role": "user", "content": "a\nhi"}])


def test_a_round_of_tools_is_calls_and_messages_of_the_role_tool():
    thought = {"type": "thinking", "thinking": "rain?", "signature": "xyz"}
    turns = [
        HI,
        {"role": "assistant", "content": [thought, {"type": "text", "text": "let me see"}, USE, {**USE, "id": "toolu_2"}]},
        {"role": "user", "content": [RESULT, {**RESULT, "tool_use_id": "toolu_2", "content": [{"type": "text", "text": "sun"}]}]},
        {"role": "user", "content": "and now?"},
    ]
    call = {"type": "function", "function": {"name": "weather", "arguments": '{"city":"Oslo"}'}}
    calls = [{"id": "toolu_1", **call}, {"id": "toolu_2", **call}]
    same(
        chat(messages=turns, tools=[TOOL]),
        tools=[{"type": "function", "function": {"name": "weather", "description": "d", "parameters": SCHEMA}}],
        messages=[
            HI,
            {"role": "assistant", "content": "let me see", "tool_calls": calls, "reasoning": "rain?"},
            {"role": "tool", "content": "rain", "tool_call_id": "toolu_1"},
            {"role": "tool", "content": "sun", "tool_call_id": "toolu_2"},
            {"role": "user", "content": "and now?"},
        ],
    )


def test_a_failed_result_says_so_to_the_model():
    made = chat(messages=[*CALLED, {"role": "user", "content": [{**RESULT, "is_error": True}]}], tools=[TOOL])
    assert made.turns()[-1]["content"] == "Error: rain"


def test_redacted_thinking_is_accepted_and_left_out():
    blocks = [{"type": "redacted_thinking", "data": "opaque"}, {"type": "text", "text": "a"}]
    assert chat(messages=[HI, {"role": "assistant", "content": blocks}, HI]).turns()[1] == {"role": "assistant", "content": "a"}


def test_a_last_message_of_the_assistant_is_continued_and_an_empty_one_is_none():
    same(
        chat(messages=[HI, {"role": "assistant", "content": "The"}]),
        messages=[HI, {"role": "assistant", "content": "The"}],
        continue_final_message=True,
    )
    same(chat(messages=[HI, {"role": "assistant", "content": ""}]), messages=[HI])


@pytest.mark.parametrize(
    ("choice", "openai"),
    [
        ({"type": "auto"}, {"tool_choice": "auto"}),
        ({"type": "any", "disable_parallel_tool_use": True}, {"tool_choice": "required", "parallel_tool_calls": False}),
        ({"type": "none"}, {"tool_choice": "none"}),
        ({"type": "tool", "name": "weather"}, {"tool_choice": {"type": "function", "function": {"name": "weather"}}}),
    ],
)
def test_choices_of_tools_are_those_of_a_chat(choice, openai):
    tool = {"type": "function", "function": {"name": "weather", "description": "d", "parameters": SCHEMA}}
    same(chat(tools=[{**TOOL, "type": "custom"}], tool_choice=choice), tools=[tool], messages=[HI], **openai)


@pytest.mark.parametrize(
    ("thinking", "on"),
    [({"type": "enabled", "budget_tokens": 1024}, True), ({"type": "adaptive"}, True), ({"type": "disabled"}, False)],
)
def test_thinking_is_a_variable_of_the_template_and_its_budget_is_named_as_ignored(thinking, on):
    same(chat(thinking=thinking), messages=[HI], chat_template_kwargs={"enable_thinking": on, "thinking": on})
    assert ignored(thinking=thinking) == ["thinking.budget_tokens"] * ("budget_tokens" in thinking)


def test_effort_and_a_format_of_the_answer_are_those_of_a_chat():
    made = chat(output_config={"effort": "low", "format": {"type": "json_schema", "schema": SCHEMA}})
    named_schema = {"type": "json_schema", "json_schema": {"name": "output", "schema": SCHEMA}}
    same(made, messages=[HI], reasoning_effort="low", response_format=named_schema)


def test_what_has_no_effect_is_named():
    names = ignored(context_management={"edits": []}, tools=[{**TOOL, "input_schema": {"oneOf": [{}, {}]}}], tool_choice={"type": "any"})
    assert names == ["context_management", "tools[0].input_schema.oneOf"]
    redacted = [{"type": "redacted_thinking", "data": "opaque"}, {"type": "text", "text": "a"}]
    assert ignored(messages=[HI, {"role": "assistant", "content": redacted}]) == ["messages[].content[].data"]
    assert ignored(messages=[{"role": "user", "content": [{"type": "text", "text": "a", "x": 1}]}]) == ["messages[].content[].x"]


def turn(*blocks, role="user"):
    return {"messages": [{"role": role, "content": [*blocks]}]}


REFUSED = {
    "no messages": ({"messages": []}, "messages is empty"),
    "an empty message": ({"messages": [HI, {"role": "user", "content": ""}]}, "messages[1].content must not be empty"),
    "an empty text": (turn({"type": "text", "text": ""}), "messages[0].content[0].text must not be empty"),
    "a block without text": (turn({"type": "text"}), "messages[0].content[0].text is required"),
    "an image": (turn({"type": "image", "source": {"type": "url", "url": "x"}}), "messages[0].content[0].type 'image' is not supported"),
    "a document": (turn({"type": "document", "source": {}}), "messages[0].content[0].type 'document' is not supported"),
    "a call by the user": (turn(USE), "messages[0].content[0].type 'tool_use' is not supported in a message of the role user"),
    "a result of nothing": (turn(RESULT), "messages[0].content[0].tool_use_id 'toolu_1' is not the id of an earlier tool_use block"),
    "a late result": (
        {"messages": [*CALLED, {"role": "user", "content": [{"type": "text", "text": "a"}, RESULT]}]},
        "messages[2].content[0]: blocks of type tool_result must come before all others",
    ),
    "an image in a result": (
        {"messages": [*CALLED, {"role": "user", "content": [{**RESULT, "content": [{"type": "image"}]}]}]},
        "messages[2].content[0].content[0].type 'image' is not supported",
    ),
    "a call without input": (turn({**USE, "input": None}, role="assistant"), "messages[0].content[0].input is required"),
    "a call at the end": ({"messages": CALLED}, "messages[1].content[0]: the last message of the role assistant must end in"),
    "a prefill with a blank": ({"messages": [HI, {"role": "assistant", "content": "The "}]}, "messages[1].content: the last message"),
    "an image of the system": ({"system": [{"type": "image"}]}, "system[0].type 'image' is not supported; use text"),
    "no tokens": ({"max_tokens": 0}, "max_tokens must be at least 1, got 0"),
    "no limit": ({"max_tokens": None}, "max_tokens: Expected `int`"),
    "a hot answer": ({"temperature": -1}, "temperature must be"),
    "a tool of the server": (
        {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
        "tools[0].type 'web_search_20250305' is not supported; use custom tools",
    ),
    "a tool without schema": ({"tools": [{"name": "f"}]}, "tools[0].input_schema is required"),
    "a name that is none": ({"tools": [TOOL, {**TOOL, "name": "a b"}]}, "tools[1].name must be 1 to 128 of"),
    "a schema that cannot be followed": (
        {"tools": [{**TOOL, "input_schema": DEEP}]},
        "tools[0].input_schema",
    ),
    "a deferred tool": ({"tools": [{**TOOL, "defer_loading": True}]}, "tools[0].defer_loading is not supported"),
    "another caller": ({"tools": [{**TOOL, "allowed_callers": ["code_execution_20250825"]}]}, "tools[0].allowed_callers must be"),
    "a choice without name": ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name is required"),
    "a choice of nothing": ({"tool_choice": {"type": "any"}}, "tool_choice asks for a call, and there are no tools"),
    "a stop of nothing": ({"stop_sequences": [""]}, "stop_sequences: a string has 1 to 256 characters"),
    "many stops": ({"stop_sequences": ["a"] * 65}, "stop_sequences must have at most 64 entries, got 65"),
    "thinking without budget": ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens is required"),
    "no budget": ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "thinking.budget_tokens must be at least 1, got 0"),
    "a cache of another kind": ({"cache_control": {"type": "permanent"}}, "cache_control.type: Invalid enum value 'permanent'"),
    "a container": ({"container": "c"}, "container is not supported; leave it out"),
    "servers of tools": ({"mcp_servers": [{"type": "url", "url": "http://x/", "name": "x"}]}, "mcp_servers is not supported"),
    "a place": ({"inference_geo": "us"}, "inference_geo is not supported"),
    "a thread": ({"thread": {"type": "create"}}, "thread is not supported: no conversation is stored here"),
    "another tier": ({"service_tier": "priority"}, "service_tier: Invalid enum value 'priority'"),
    "a field that is misspelt": ({"temprature": 1}, "'temprature' is not a parameter of this endpoint, 'temperature' is"),
    "a chat's stop": ({"stop": ["a"]}, "stop is not a parameter of this endpoint; use stop_sequences"),
    "a chat's seed": ({"seed": 1}, "seed is not a parameter of this endpoint; leave it out"),
    "several answers": ({"n": 2}, "n is not a parameter of this endpoint; leave it out"),
    "a schema of the answer": (
        {"output_config": {"format": {"type": "json_schema", "schema": DEEP}}},
        "output_config.format.schema",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_names_the_field_as_the_client_wrote_it(name):
    changes, said = REFUSED[name]
    with pytest.raises(BadRequest) as caught:
        chat(**changes)
    answer = body_of(caught.value, "r")
    assert answer.error.message.startswith(said), answer.error.message
    assert (answer.error.type, answer.request_id) == ("invalid_request_error", "r")


def test_a_count_takes_what_changes_a_prompt_and_nothing_else():
    names = set(CountTokensRequest.__struct_fields__)
    assert set(MessagesRequest.__struct_fields__) - names == {
        *("max_tokens", "stop_sequences", "temperature", "top_p", "top_k", "stream", "metadata", "service_tier"),
    }


@pytest.mark.parametrize(
    ("place", "name"),
    [
        ("tools[3].function.parameters.properties.a", "tools[3].input_schema.properties.a"),
        ("response_format.json_schema.schema.oneOf", "output_config.format.schema.oneOf"),
        ("messages[0].x", "messages[0].x"),
    ],
)
def test_places_in_schemas_have_the_clients_names(place, name):
    assert own_name(place) == name
