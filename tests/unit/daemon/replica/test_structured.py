"""Structured output and tools through a real replica (simulated device), judged by the real openai client, pydantic and jsonschema."""

import json
import re
from enum import Enum
from pathlib import Path

import jsonschema
import openai
import pytest
from pydantic import BaseModel, Field
from support.servers.replica import NAME, replica_config, start_replica

HI = [{"role": "user", "content": "hi"}]
TEMPLATE = (
    "{% if tools %}{% for tool in tools %}{{ tool | tojson }}{% endfor %} in <tool_call>{% endif %}"
    "{% for message in messages %}{{ message['role'] + ':' + message['content'] }}"
    "{% for call in message.tool_calls %}{{ call.function.name + (call.function.arguments | tojson) }}{% endfor %}{% endfor %}"
)
PLACE = {
    "type": "object",
    "properties": {"city": {"enum": ["Köln", "Oslo"]}, "days": {"$ref": "#/$defs/few"}},
    "required": ["city", "days"],
    "additionalProperties": False,
    "$defs": {"few": {"type": "integer", "minimum": 1, "maximum": 9}},
}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "d", "parameters": PLACE}}
TIME = {"type": "function", "function": {"name": "clock.time-now"}}


@pytest.fixture(scope="module")
def replica(tmp_path_factory):
    folder = tmp_path_factory.mktemp("structured")
    config = replica_config(folder, step_ms=0.0, engine={"max_model_len": 2048})
    (Path(config.model.path) / "chat_template.jinja").write_text(TEMPLATE)
    with start_replica(config) as started:
        yield started


class Mood(Enum):
    good = "good"
    bad = "bad"


class Step(BaseModel):
    text: str = Field(max_length=8)
    mood: Mood


class Plan(BaseModel):
    title: str = Field(max_length=10)
    steps: list[Step] = Field(max_length=2)
    score: int = Field(ge=0, le=9)


def chat(client, **more):
    return client.chat.completions.create(model=NAME, messages=more.pop("messages", HI), max_tokens=more.pop("max_tokens", 1500), **more)


def test_parse_gives_a_pydantic_object(client):
    answer = client.chat.completions.parse(model=NAME, messages=HI, response_format=Plan, max_tokens=1500)
    assert answer.choices[0].finish_reason == "stop"
    assert isinstance(answer.choices[0].message.parsed, Plan)


def test_a_response_is_parsed_as_a_chat_is(client):
    answer = client.responses.parse(model=NAME, input="hi", text_format=Plan, max_output_tokens=1500)
    assert answer.status == "completed"
    assert isinstance(answer.output_parsed, Plan)


def test_a_response_that_must_call_is_nothing_but_calls_and_its_stream_the_same(client):
    wanted = {"model": NAME, "input": "hi", "tools": [WEATHER["function"] | {"type": "function"}], "tool_choice": "required"}
    with client.responses.stream(**wanted, max_output_tokens=1500) as stream:
        final = stream.get_final_response()
    assert {item.type for item in final.output} == {"function_call"}
    for item in final.output:
        jsonschema.validate(json.loads(item.arguments), PLACE)
    whole = client.responses.create(**wanted, max_output_tokens=1500)
    assert [item.arguments for item in whole.output] == [item.arguments for item in final.output]


def test_a_stream_follows_its_schema(client):
    format_ = {"type": "json_schema", "json_schema": {"name": "place", "schema": PLACE, "strict": True}}
    chunks = list(chat(client, response_format=format_, stream=True))
    jsonschema.validate(json.loads("".join(chunk.choices[0].delta.content or "" for chunk in chunks)), PLACE)
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_logprobs_of_a_constrained_answer_are_the_models_own(client):
    answer = client.completions.create(
        model=NAME, prompt="x", max_tokens=9, logprobs=2, extra_body={"structured_outputs": {"regex": "[a-c]{5}"}}
    )
    assert re.fullmatch("[a-c]{5}", answer.choices[0].text)
    assert len(answer.choices[0].logprobs.tokens) == 5


@pytest.mark.parametrize("field", [{"guided_choice": ["yes", "no"]}, {"structured_outputs": {"choice": ["yes", "no"]}}])
def test_vllms_fields_are_followed(client, field):
    answer = chat(client, n=2, extra_body=field)
    assert {choice.message.content for choice in answer.choices} <= {"yes", "no"}
    assert {choice.finish_reason for choice in answer.choices} == {"stop"}


@pytest.mark.parametrize(
    "field",
    [
        {"guided_regex": "(?=a)b"},
        {"guided_json": {"type": "colour"}},
        {"guided_json": {"$ref": "#/$defs/a", "$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}]}}}},
        {"guided_json": {"$ref": "https://example.com/schema"}},
        {"guided_grammar": "start: nobody"},
        {"guided_regex": "()"},
    ],
)
def test_a_grammar_that_cannot_be_used_is_a_400(client, field):
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client, extra_body=field)
    assert caught.value.code == "invalid_grammar"
    assert "the grammar cannot be used" in str(caught.value)
    assert "site-packages" not in str(caught.value)


def test_required_is_nothing_but_calls(client):
    answer = chat(client, tools=[WEATHER, TIME], tool_choice="required")
    choice = answer.choices[0]
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    assert choice.message.tool_calls
    for call in choice.message.tool_calls:
        arguments = json.loads(call.function.arguments)
        jsonschema.validate(arguments, PLACE if call.function.name == "weather" else {"const": {}})
    assert len({call.id for call in choice.message.tool_calls}) == len(choice.message.tool_calls)


def test_a_named_tool_is_called_once_and_ends_with_stop(client):
    answer = chat(client, tools=[TIME, WEATHER], tool_choice={"type": "function", "function": {"name": "weather"}}, n=2)
    for choice in answer.choices:
        assert choice.finish_reason == "stop"
        assert [call.function.name for call in choice.message.tool_calls] == ["weather"]
        jsonschema.validate(json.loads(choice.message.tool_calls[0].function.arguments), PLACE)


def test_calls_stream_as_fragments_that_the_client_joins(client):
    wanted = {"tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False}
    whole = chat(client, **wanted).choices[0].message.tool_calls[0]
    fragments = [part for chunk in chat(client, stream=True, **wanted) for part in chunk.choices[0].delta.tool_calls or ()]
    assert (fragments[0].index, fragments[0].type, fragments[0].function.name, fragments[0].function.arguments) == (
        0,
        "function",
        "weather",
        "",
    )
    assert fragments[0].id
    assert all(part.id is None and part.function.name is None for part in fragments[1:])
    assert len(fragments) > 5
    assert "".join(part.function.arguments for part in fragments) == whole.function.arguments
    with client.chat.completions.stream(model=NAME, messages=HI, max_tokens=1500, **wanted) as stream:
        final = stream.get_final_completion().choices[0]
    assert final.finish_reason == "tool_calls"
    assert final.message.tool_calls[0].function.arguments == whole.function.arguments


@pytest.mark.parametrize("tokens", [5, 25, 33, 70])
def test_a_call_that_is_cut_is_no_content(client, tokens):
    wanted = {"tools": [WEATHER], "tool_choice": "required", "max_tokens": tokens}
    choice = chat(client, **wanted).choices[0]
    assert (choice.finish_reason, choice.message.content) == ("length", None)
    chunks = [chunk.choices[0] for chunk in chat(client, stream=True, **wanted)]
    assert (chunks[-1].finish_reason, "".join(chunk.delta.content or "" for chunk in chunks)) == ("length", "")


def test_tools_beside_a_format_are_either(client):
    """The device draws what the grammar allows: a call after one prompt, the format after another."""
    format_ = {"type": "json_schema", "json_schema": {"name": "place", "schema": PLACE}}
    seen = set()
    for number in range(50):
        if len(seen) == 2:
            break
        hi = [{"role": "user", "content": f"hi {number}"}]
        choice = chat(client, messages=hi, tools=[WEATHER], response_format=format_).choices[0]
        calls = choice.message.tool_calls or []
        for text in [call.function.arguments for call in calls] or [choice.message.content]:
            jsonschema.validate(json.loads(text), PLACE)
        assert (choice.finish_reason, choice.message.content is None) == (("tool_calls", True) if calls else ("stop", False))
        seen.add(bool(calls))
    assert seen == {True, False}
    forced = chat(client, tools=[WEATHER], response_format=format_, tool_choice="required").choices[0]
    assert (forced.finish_reason, forced.message.content) == ("tool_calls", None)
    plain = chat(client, tools=[WEATHER], response_format=format_, tool_choice="none").choices[0].message
    assert plain.tool_calls is None
    jsonschema.validate(json.loads(plain.content), PLACE)


def test_a_loosened_schema_is_reported_in_the_header(http):
    schema = {"oneOf": [{"type": "integer", "maximum": 9}, {"type": "number", "maximum": 8}]}
    format_ = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    answer = http.post("/v1/chat/completions", json={"model": NAME, "messages": HI, "max_tokens": 9, "response_format": format_})
    assert (answer.status_code, answer.headers["x-pagoda-ignored"]) == (200, "response_format.json_schema.schema.oneOf")


def test_a_conversation_with_calls_goes_on(client):
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo", "days": 2}'}}
    messages = [
        *HI,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
    ]
    answer = chat(client, messages=messages, tools=[WEATHER], max_tokens=5)
    assert answer.choices[0].finish_reason == "length"
    more = chat(client, messages=messages[:1], max_tokens=5).usage.prompt_tokens
    assert answer.usage.prompt_tokens > more + len(json.dumps(PLACE)), "the template was given tools and calls"


def test_none_hides_the_tools_from_the_model(client):
    plain = chat(client, max_tokens=3)
    assert chat(client, tools=[WEATHER], tool_choice="none", max_tokens=3).usage.prompt_tokens == plain.usage.prompt_tokens
    assert chat(client, tools=[WEATHER], max_tokens=3).usage.prompt_tokens > plain.usage.prompt_tokens


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [TIME, TIME]}, "tools[1].function.name"),
        ({"tools": [TIME], "tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"const": 2**70}}}]}, "tools[0].function.parameters"),
        ({"tools": [TIME], "guided_regex": "a+"}, "tools"),
        ({"guided_json": {"properties": {"a": {"not": {}}}}}, "guided_json.properties.a.not"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
        ({"messages": [{"role": "user", "content": "x", "tool_call_id": "y"}]}, "messages[0].tool_call_id"),
    ],
)
def test_what_is_wrong_with_tools_is_named(http, fields, param):
    answer = http.post("/v1/chat/completions", json={"model": NAME, "messages": HI, "max_tokens": 5, **fields})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize("arguments", ["[1", "[1]", '{"a": 1180591620717411303424}', '{"a":' * 100 + "1" + "}" * 100])
def test_arguments_that_no_template_can_show_are_refused(http, arguments):
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    answer = http.post(
        "/v1/chat/completions", json={"model": NAME, "messages": [{"role": "assistant", "tool_calls": [call]}], "max_tokens": 5}
    )
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "messages[0].tool_calls[0].function.arguments"
