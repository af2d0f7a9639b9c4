"""/v1/responses, with the real openai client as the judge: its types, its accumulator, its parser, and a conversation with a tool."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from typing import Any

import httpx
import openai
import pytest
from pagoda_contracts.pb.daemon_pb2 import Phase
from pydantic import BaseModel
from support.judges import openai_types
from support.servers.scripted_engine import Engine, fails, ready_replica, refuses, replica_with_scripted_engine, says

TEMPLATE = (
    "{% if tools %}{% for tool in tools %}{{ tool | tojson }}{% endfor %} in <tool_call>{% endif %}"
    "{% for message in messages %}{{ message['role'] + ':' + message['content'] }}"
    "{% if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif %}"
    "{% for call in message.tool_calls %}{{ call.function.name + (call.function.arguments | tojson) }}{% endfor %}{% endfor %}"
)
WEATHER = {
    "type": "function",
    "name": "weather",
    "description": "d",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False},
    "strict": True,
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
FULL = f"<think>hm, well</think>I ask.{CALL}"
LOGPROBS = ["message.output_text.logprobs"]
BODY: dict[str, Any] = {"model": "m", "input": "hi"}


@pytest.fixture
async def engine() -> Engine:
    return Engine()


@pytest.fixture
def replica():
    return ready_replica(2048)


@pytest.fixture
async def base_url(engine, replica):
    async with replica_with_scripted_engine(engine, replica, TEMPLATE) as url:
        yield url


@pytest.fixture
async def client(base_url):
    async with openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0) as made:
        yield made


async def raw_events(base_url: str, **fields: Any) -> list[dict[str, Any]]:
    """Every frame as it is sent: its event line names the type, and its number is the next one."""
    async with httpx.AsyncClient(trust_env=False) as http:
        answer = await http.post(f"{base_url}/responses", json=BODY | {"stream": True} | fields)
    assert answer.headers["content-type"].startswith("text/event-stream")
    *frames, last = answer.text.split("\n\n")
    assert last == "", "a stream ends with its last event; there is no [DONE]"
    found = []
    for number, frame in enumerate(frames):
        line, data = frame.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert line == f"event: {event['type']}"
        assert event["sequence_number"] == number
        openai_types.event(event)
        found.append(event)
    return found


def alike(response: dict[str, Any]) -> dict[str, Any]:
    """Without what differs between two answers: ids and times."""
    items = [{name: value for name, value in item.items() if name not in ("id", "call_id")} for item in response["output"]]
    return {name: value for name, value in response.items() if name not in ("id", "created_at", "completed_at")} | {"output": items}


def parts_of(item: Any) -> dict[str, Any]:
    """What an item says, without what the client adds to it."""
    return {name: value for name, value in item.to_dict(mode="json").items() if name in ("type", "role", "content", "name", "arguments")}


async def whole(base_url: str, **fields: Any) -> dict[str, Any]:
    async with httpx.AsyncClient(trust_env=False) as http:
        answer = await http.post(f"{base_url}/responses", json=BODY | fields)
    assert answer.status_code == 200, answer.text
    openai_types.response(answer.json())
    return answer.json()


async def test_a_plain_answer_has_exactly_openais_events(base_url):
    events = await raw_events(base_url)
    deltas = ["response.output_text.delta"] * 5
    assert [event["type"].removeprefix("response.") for event in events] == [
        *("created", "in_progress", "output_item.added", "content_part.added"),
        *(delta.removeprefix("response.") for delta in deltas),
        *("output_text.done", "content_part.done", "output_item.done", "completed"),
    ]
    assert "".join(event["delta"] for event in events if "delta" in event) == "hello"
    assert {event["item_id"] for event in events if "item_id" in event} == {events[-1]["response"]["output"][0]["id"]}
    assert events[0]["response"]["status"] == "in_progress"
    assert events[0]["response"]["usage"] is None
    assert events[-1]["response"]["id"] == events[0]["response"]["id"]


async def test_thinking_text_and_calls_are_items_of_their_own(base_url, engine):
    engine.script = [says(FULL)]
    events = await raw_events(base_url, tools=[WEATHER])
    order: list[str] = []
    for event in events:
        if event["type"] != (order[-1] if order else None):
            order.append(event["type"])
    assert [kind.removeprefix("response.") for kind in order] == [
        *("created", "in_progress"),
        *("output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.done"),
        *("content_part.done", "output_item.done"),
        *("output_item.added", "content_part.added", "output_text.delta", "output_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"),
        "completed",
    ]
    items = events[-1]["response"]["output"]
    assert [item["type"] for item in items] == ["reasoning", "message", "function_call"]
    assert items[0]["content"] == [{"type": "reasoning_text", "text": "hm, well"}]
    assert items[1]["content"][0]["text"] == "I ask."
    assert (items[2]["name"], json.loads(items[2]["arguments"])) == ("weather", {"city": "Oslo"})
    assert items[2]["call_id"].startswith("call_")
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == items
    added = {event["output_index"]: event["item"]["id"] for event in events if event["type"] == "response.output_item.added"}
    assert added == {at: item["id"] for at, item in enumerate(items)}
    for event in events:
        if "item_id" in event:
            assert event["item_id"] == items[event["output_index"]]["id"]


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("hello", {}),
        ("", {}),
        (FULL, {"tools": [WEATHER]}),
        (FULL, {"tools": [WEATHER], "include": LOGPROBS, "top_logprobs": 1}),
        (f"{CALL}\n{CALL}", {"tools": [WEATHER], "tool_choice": "required"}),
        (CALL, {"tools": [WEATHER], "tool_choice": {"type": "function", "name": "weather"}}),
        ("<think>hm", {}),
        ("hé\U0001f600!", {"include": LOGPROBS, "top_logprobs": 1}),
    ],
)
@pytest.mark.parametrize("reason", ["stop", "length"])
async def test_a_stream_says_what_the_whole_answer_says(base_url, engine, text, fields, reason):
    engine.script = [says(text, reason, scored="include" in fields)]
    one = await whole(base_url, **fields)
    events = await raw_events(base_url, **fields)
    assert events[-1]["type"] == ("response.completed" if reason == "stop" else "response.incomplete")
    assert alike(events[-1]["response"]) == alike(one)
    assert one["status"] == ("completed" if reason == "stop" else "incomplete")
    assert one["incomplete_details"] == (None if reason == "stop" else {"reason": "max_output_tokens"})
    assert ("completed_at" in one) is (reason == "stop")
    parts = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
    assert "".join(parts) == "".join(part["text"] for item in one["output"] if item["type"] == "message" for part in item["content"])


async def test_the_clients_own_accumulator_finds_the_same_response(client, engine):
    engine.script = [says(FULL)]
    one = await client.responses.create(model="m", input="hi", tools=[WEATHER])
    async with client.responses.stream(model="m", input="hi", tools=[WEATHER]) as stream:
        kinds = {event.type async for event in stream}
        final = await stream.get_final_response()
    assert "response.function_call_arguments.delta" in kinds
    assert final.output_text == one.output_text == "I ask."
    found, wanted = ([parts_of(item) for item in response.output] for response in (final, one))
    found[1]["content"][0].pop("parsed")
    assert found == wanted
    assert final.output[2].parsed_arguments == {"city": "Oslo"}
    assert final.usage == one.usage


class Place(BaseModel):
    city: str
    days: int


async def test_parse_gives_a_pydantic_object(client, engine):
    engine.script = [says('{"city": "Oslo", "days": 3}')]
    found = await client.responses.parse(model="m", input="hi", text_format=Place)
    assert found.output_parsed == Place(city="Oslo", days=3)
    assert engine.submitted[-1].grammar.param == "response_format"
    async with client.responses.stream(model="m", input="hi", text_format=Place) as stream:
        assert (await stream.get_final_response()).output_parsed == Place(city="Oslo", days=3)


async def test_a_conversation_with_a_tool_goes_on_as_the_chat_does(client, engine):
    """What a response gave is handed back as it is, and the model reads what it would read in a chat."""
    engine.script = [says(FULL), says("It rains.")]
    first = await client.responses.create(model="m", input="hi", instructions="be kind", tools=[WEATHER])
    call = first.output[2]
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
    second = await client.responses.create(
        model="m", input=[{"role": "user", "content": "hi"}, *first.output, result], instructions="be kind", tools=[WEATHER]
    )
    assert second.output_text == "It rains."
    said = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hi"}]
    tool = {"type": "function", "function": {name: WEATHER[name] for name in ("name", "description", "parameters", "strict")}}
    engine.script = [says(FULL), says(FULL), says(FULL), says("It rains.")]
    chat = await client.chat.completions.create(model="m", messages=said, tools=[tool])
    answer = chat.choices[0].message
    back = {"role": "tool", "tool_call_id": answer.tool_calls[0].id, "content": "rain"}
    await client.chat.completions.create(model="m", messages=[*said, answer.to_dict(), back], tools=[tool])
    prompts = [message.prompt for message in engine.submitted]
    assert prompts[0] == prompts[2]
    assert prompts[1] == prompts[3]


async def test_log_probabilities_are_those_of_a_chat(client, engine):
    engine.script = [says("hé!", scored=True)]
    chat = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}], logprobs=True, top_logprobs=1)
    found = await client.responses.create(model="m", input="hi", include=LOGPROBS, top_logprobs=1)
    wanted = [(one.token, one.logprob, one.bytes, len(one.top_logprobs)) for one in chat.choices[0].logprobs.content]
    assert [(one.token, one.logprob, one.bytes, len(one.top_logprobs)) for one in found.output[0].content[0].logprobs] == wanted


async def test_log_probabilities_of_thinking_and_calls_are_not_the_texts(base_url, engine):
    engine.script = [says(FULL, scored=True)]
    one = await whole(base_url, tools=[WEATHER], include=LOGPROBS)
    assert "".join(token["token"] for token in one["output"][1]["content"][0]["logprobs"]) == "I ask."


async def test_what_was_asked_is_repeated_and_nothing_is_stored(base_url):
    asked = {
        "instructions": "i",
        "tools": [WEATHER],
        "tool_choice": {"type": "allowed_tools", "tools": [{"type": "function", "name": "weather"}]},
        "parallel_tool_calls": False,
        "text": {"format": {"type": "json_object"}},
        "reasoning": {"effort": "low", "summary": "auto"},
        "max_output_tokens": 9,
        "metadata": {"a": "b"},
        "temperature": 0.5,
        "user": "u",
        "store": True,
        "prompt_cache_key": "k",
    }
    one = await whole(base_url, **asked)
    changed = {"store": False, "tool_choice": asked["tool_choice"] | {"mode": "auto"}}
    changed |= {"text": {"format": {"type": "json_object"}, "verbosity": "medium"}}
    changed |= {"reasoning": {"effort": "low", "summary": "auto", "generate_summary": None}}
    assert {name: one[name] for name in asked} == asked | changed
    assert (one["top_p"], one["truncation"], one["previous_response_id"], one["background"]) == (1.0, "disabled", None, False)
    plain = await whole(base_url)
    assert (plain["tools"], plain["tool_choice"], plain["metadata"], plain["max_output_tokens"]) == ([], "auto", {}, None)
    assert plain["text"] == {"format": {"type": "text"}, "verbosity": "medium"}


async def test_tokens_are_counted_as_for_a_chat(client, engine):
    engine.script = [says(FULL)]
    chat = (await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])).usage
    found = (await client.responses.create(model="m", input="hi")).usage
    assert (found.input_tokens, found.output_tokens, found.total_tokens) == (chat.prompt_tokens, chat.completion_tokens, chat.total_tokens)
    assert found.output_tokens_details.reasoning_tokens == chat.completion_tokens_details.reasoning_tokens == len("hm, well")
    assert found.input_tokens_details.cached_tokens == 0


async def test_a_failure_in_mid_stream_ends_the_response_and_is_raised_by_the_client(client, base_url, engine):
    engine.script = [fails("hel")]
    seen = []
    stream = await client.responses.create(model="m", input="hi", stream=True)
    with pytest.raises(openai.APIError, match="the device said no") as caught:
        seen += [seen.append(event) async for event in stream]
    assert caught.value.code == "internal_error"
    assert seen[-1].type == "response.failed"
    assert (seen[-1].response.status, seen[-1].response.error.code) == ("failed", "server_error")
    assert seen[-1].response.output[0].content[0].text == "hel"
    assert seen[-1].response.output[0].status == "incomplete"
    events = await raw_events(base_url)
    assert [event["type"] for event in events[-2:]] == ["response.failed", "error"]
    assert (events[-1]["code"], events[-1]["param"]) == ("internal_error", None)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_failure_before_the_first_token_is_a_status(client, engine, stream):
    for line, kind in ((refuses("queue_full"), openai.RateLimitError), (fails(), openai.InternalServerError)):
        engine.script = [line]
        with pytest.raises(kind):
            await client.responses.create(model="m", input="hi", stream=stream)


async def test_a_call_that_is_cancelled_and_a_stream_that_is_left_free_their_requests(client, engine, replica):
    engine.script = [says("hel", None)]
    call = asyncio.ensure_future(client.responses.create(model="m", input="hi"))
    while not engine.submitted:
        await asyncio.sleep(0.001)
    call.cancel()
    assert await engine.closed.get() == (engine.submitted[0].request_id, False)
    stream = await client.responses.create(model="m", input="hi", stream=True)
    async with aclosing(stream):
        await anext(aiter(stream))
    assert await engine.closed.get() == (engine.submitted[1].request_id, False)
    while replica.in_flight:
        await asyncio.sleep(0.001)


async def test_a_replica_that_drains_takes_none_and_its_metrics_and_traces_know_those_it_took(client, base_url, replica):
    one = await client.responses.create(model="m", input="hi")
    async with httpx.AsyncClient(base_url=base_url.removesuffix("/v1"), trust_env=False) as http:
        assert 'handler="/v1/responses"' in (await http.get("/metrics")).text
        trace = (await http.get(f"/v1/requests/{one.id}/trace")).json()
        assert (trace["completion_tokens"], trace["answers"][0]["finish_reason"]) == (one.usage.output_tokens, "stop")
        replica.phase = Phase.PHASE_DRAINING
        with pytest.raises(openai.InternalServerError) as caught:
            await client.responses.create(model="m", input="hi")
    assert (caught.value.status_code, caught.value.code) == (503, "draining")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"input": "x" * 3000}, "input"),
        ({"max_output_tokens": 3000}, "max_output_tokens"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_refusals_name_the_field_of_this_api(client, engine, fields, param, stream):
    with pytest.raises(openai.BadRequestError) as caught:
        await client.responses.create(**BODY | fields, stream=stream)
    assert caught.value.param == param
    assert "messages" not in str(caught.value)
    assert engine.submitted == []


async def test_an_unknown_model_and_an_unknown_field(client):
    with pytest.raises(openai.NotFoundError):
        await client.responses.create(model="other", input="hi")
    wanted = {"include": ["reasoning.encrypted_content"], "extra_body": {"x": 1}}
    raw = await client.responses.with_raw_response.create(model="m", input="hi", **wanted)
    assert raw.headers["x-pagoda-ignored"] == "x, include.reasoning.encrypted_content"


async def test_a_response_of_before_is_not_found(client):
    one = await client.responses.create(model="m", input="hi", store=True)
    calls = (client.responses.retrieve, client.responses.delete, client.responses.cancel)
    for call in calls:
        with pytest.raises(openai.NotFoundError, match="keeps no responses") as caught:
            await call(one.id)
        assert caught.value.code == "response_not_found"
    with pytest.raises(openai.NotFoundError):
        await client.responses.input_items.list(one.id)


async def test_what_is_not_built_is_named_and_not_tried_again(base_url):
    calls = (
        lambda client: client.audio.speech.create(model="m", voice="alloy", input="x"),
        lambda client: client.audio.transcriptions.create(model="m", file=b"x"),
        lambda client: client.images.generate(prompt="x"),
        lambda client: client.moderations.create(input="x"),
        lambda client: client.batches.list(),
        lambda client: client.files.list(),
        lambda client: client.responses.input_tokens.count(model="m", input="x"),
    )
    async with openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
        for call in calls:
            with pytest.raises(openai.InternalServerError, match="is not built") as caught:
                await call(client)
            assert (caught.value.status_code, caught.value.code) == (501, "unsupported_endpoint")
            assert caught.value.response.headers["x-should-retry"] == "false"
