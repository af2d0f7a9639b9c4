"""The real anthropic client as the judge of the Messages API: its helpers, types of events, classes of errors, retries."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
from anthropic.types import RawMessageStreamEvent
from pagoda_contracts.launch import AuthConfig
from pagoda_contracts.names import ERROR_DRAINING, HEADER_ERROR_CODE, HEADER_SHOULD_RETRY
from pagoda_contracts.pb.daemon_pb2 import Phase
from pagoda_daemon.api.access.auth import Guard
from pagoda_daemon.core.errors import Draining, EngineDied
from pagoda_daemon.health.replica import Replica
from pydantic import BaseModel, TypeAdapter
from support.servers.local_replica import NAME, local_replica
from support.servers.scripted_engine import Engine, fails, ready_replica, refuses, replica_with_scripted_engine, says

pytestmark = pytest.mark.parity

TEMPLATE = """\
{%- if tools %}{% for tool in tools %}{{ tool | tojson }}{% endfor %} calls in <tool_call>{% endif %}
{%- for message in messages %}
{{- message.role + ':' + (message.reasoning_content or '') + '/' + message.content }}
{%- for call in message.tool_calls %}{{ call.function.name + (call.function.arguments | tojson) }}{% endfor %};
{%- endfor %}
{%- if add_generation_prompt %}answer:{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}{% endif %}"""
HI = [{"role": "user", "content": "hi"}]
TOOL = {"name": "weather", "description": "d", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
EVENT = TypeAdapter(RawMessageStreamEvent)
KEY = "sk-of-a-client"
CONTEXT = 4096


@dataclass
class Front:
    """`url` has no path."""

    url: str
    engine: Engine
    replica: Replica

    def prompt(self) -> str:
        """Returns the last prompt that reached the engine; a token of the toy model is a byte."""
        return bytes(self.engine.submitted[-1].prompt).decode()


@asynccontextmanager
async def serving(**parts: Any) -> AsyncIterator[Front]:
    engine, replica = Engine(), ready_replica(CONTEXT)
    async with replica_with_scripted_engine(engine, replica, TEMPLATE, **parts) as url:
        yield Front(url.removesuffix("/v1"), engine, replica)


@pytest.fixture
async def front() -> AsyncIterator[Front]:
    async with serving() as made:
        yield made


@pytest.fixture
async def client(front: Front) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(base_url=front.url, api_key="none", max_retries=0) as made:
        yield made


async def ask(client: anthropic.AsyncAnthropic, **changes: Any) -> Any:
    return await client.messages.create(**{"model": "m", "max_tokens": 100, "messages": HI, **changes})


async def streamed(client: anthropic.AsyncAnthropic, **changes: Any) -> Any:
    """The message that the client's helper makes of a stream."""
    async with client.messages.stream(**{"model": "m", "max_tokens": 100, "messages": HI, **changes}) as stream:
        return await stream.get_final_message()


async def raw_events(front: Front, **changes: Any) -> list[dict[str, Any]]:
    """The data of each event, which the client's types accept."""
    body = {"model": "m", "max_tokens": 100, "messages": HI, "stream": True, **changes}
    async with httpx.AsyncClient(base_url=front.url, timeout=300) as http:
        answer = await http.post("/v1/messages", json=body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    found = []
    for frame in answer.text.split("\n\n")[:-1]:
        name, data = frame.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert EVENT.validate_json(data.removeprefix("data: ")).type == name.removeprefix("event: ")
    return found


async def test_whole_streamed_and_raw_say_the_same(front: Front, client: anthropic.AsyncAnthropic) -> None:
    whole = await ask(client)
    assert [(block.type, block.text) for block in whole.content] == [("text", "hello")]
    assert (whole.role, whole.model, whole.stop_reason, whole.stop_sequence) == ("assistant", "m", "end_turn", None)
    assert whole.id == f"msg_{whole._request_id}"
    async with httpx.AsyncClient(base_url=front.url) as http:
        assert (await http.get(f"/v1/requests/{whole.id}/trace")).json()["id"] == whole._request_id
    assert [block.text for block in (await streamed(client)).content] == ["hello"]
    async with client.messages.stream(model="m", max_tokens=9, messages=HI) as stream:
        assert "".join([text async for text in stream.text_stream]) == "hello"
    events = await raw_events(front)
    assert [event["type"] for event in events[:2]] == ["message_start", "content_block_start"]
    assert [event["type"] for event in events[-3:]] == ["content_block_stop", "message_delta", "message_stop"]
    assert (events[0]["message"]["content"], events[0]["message"]["stop_reason"]) == ([], None)


async def test_the_synchronous_client_and_the_path_of_betas_are_served(front: Front) -> None:
    def both() -> list[str]:
        with anthropic.Anthropic(base_url=front.url, api_key="none", max_retries=0) as client:
            one = client.messages.create(model="m", max_tokens=9, messages=HI)
            other = client.beta.messages.create(model="m", max_tokens=9, messages=HI, betas=["x-2026-01-01"])
            return [one.content[0].text, other.content[0].text]

    assert await asyncio.to_thread(both) == ["hello", "hello"]


async def test_a_round_of_tools(front: Front, client: anthropic.AsyncAnthropic) -> None:
    front.engine.script = [says(f"Let me see. {CALL}"), says(f"Let me see. {CALL}"), says("It rains.")]
    whole, stream = await ask(client, tools=[TOOL]), await streamed(client, tools=[TOOL])
    for answer in (whole, stream):
        assert answer.stop_reason == "tool_use"
        text, call = answer.content
        assert (text.text.strip(), call.name, call.input) == ("Let me see.", "weather", {"city": "Oslo"})
    result = {"type": "tool_result", "tool_use_id": whole.content[1].id, "content": "rain"}
    turns = [*HI, {"role": "assistant", "content": whole.content}, {"role": "user", "content": [result]}]
    last = await ask(client, tools=[TOOL], messages=turns)
    assert last.content[0].text == "It rains."
    assert '/Let me see. weather{"city": "Oslo"};tool:/rain;answer:' in front.prompt()


async def test_a_tool_that_must_be_used_is_enforced_and_reported_as_a_call(front: Front, client: anthropic.AsyncAnthropic) -> None:
    front.engine.script = [says(CALL)]
    for choice in ({"type": "any"}, {"type": "tool", "name": "weather", "disable_parallel_tool_use": True}):
        answer = await ask(client, tools=[TOOL], tool_choice=choice)
        assert (answer.stop_reason, [block.type for block in answer.content]) == ("tool_use", ["tool_use"])
        assert front.engine.submitted[-1].grammar is not None


async def test_the_clients_runner_of_tools_runs_them(front: Front, client: anthropic.AsyncAnthropic) -> None:
    asked = []

    @anthropic.beta_async_tool
    async def weather(city: str) -> str:
        """Tells the weather of a city."""
        asked.append(city)
        return "rain"

    front.engine.script = [says(CALL), says("It rains.")]
    runner = client.beta.messages.tool_runner(model="m", max_tokens=100, messages=HI, tools=[weather])
    last = await runner.until_done()
    assert (last.content[0].text, asked) == ("It rains.", ["Oslo"])


async def test_a_call_that_the_limit_cuts_is_reported_in_the_same_way(front: Front, client: anthropic.AsyncAnthropic) -> None:
    front.engine.script = [says(CALL[:65], "length")]
    whole, stream = await ask(client, tools=[TOOL]), await streamed(client, tools=[TOOL])
    assert whole.stop_reason == stream.stop_reason == "max_tokens"
    assert whole.content[0].input == stream.content[0].input


async def test_thinking_is_a_block_of_its_own_and_comes_back(front: Front, client: anthropic.AsyncAnthropic) -> None:
    front.engine.script = [says("<think>a greeting</think>hello")]
    thinking = {"type": "enabled", "budget_tokens": 1024}
    whole, stream = await ask(client, thinking=thinking), await streamed(client, thinking=thinking)
    for answer in (whole, stream):
        assert [block.type for block in answer.content] == ["thinking", "text"]
        assert (answer.content[0].thinking, answer.content[1].text) == ("a greeting", "hello")
        assert 0 < answer.usage.output_tokens_details.thinking_tokens < answer.usage.output_tokens
    await ask(client, messages=[*HI, {"role": "assistant", "content": whole.content}, *HI])
    assert "assistant:a greeting/hello;" in front.prompt()
    raw = await client.messages.with_raw_response.create(model="m", max_tokens=9, messages=HI, thinking=thinking)
    assert raw.headers["x-pagoda-ignored"] == "thinking.budget_tokens"
    front.engine.script = [says("hello")]
    plain = await ask(client, thinking={"type": "disabled"})
    assert front.prompt().endswith("answer:<think></think>")
    assert [block.type for block in plain.content] == ["text"]


async def test_the_stop_sequence_that_matched_is_reported(front: Front, client: anthropic.AsyncAnthropic) -> None:
    front.engine.script = [says("one END two", None)]
    for answer in (await ask(client, stop_sequences=["STOP", "END"]), await streamed(client, stop_sequences=["STOP", "END"])):
        assert (answer.content[0].text, answer.stop_reason, answer.stop_sequence) == ("one ", "stop_sequence", "END")


async def test_more_tokens_than_the_context_holds_may_be_allowed(front: Front, client: anthropic.AsyncAnthropic) -> None:
    front.engine.script = [says("hello", "length")]
    assert (await ask(client, max_tokens=10)).stop_reason == "max_tokens"
    assert front.engine.submitted[-1].sampling.max_tokens == 10
    assert (await ask(client, max_tokens=20_000)).stop_reason == "model_context_window_exceeded"
    message = front.engine.submitted[-1]
    assert len(message.prompt) + message.sampling.max_tokens == CONTEXT


async def test_an_answer_by_a_schema_is_parsed(front: Front, client: anthropic.AsyncAnthropic) -> None:
    class Place(BaseModel):
        city: str

    front.engine.script = [says('{"city": "Oslo"}')]
    answer = await client.messages.parse(model="m", max_tokens=100, messages=HI, output_format=Place)
    assert answer.parsed_output == Place(city="Oslo")
    assert front.engine.submitted[-1].grammar is not None


async def test_a_conversation_has_the_prompt_that_it_has_as_a_chat(front: Front, client: anthropic.AsyncAnthropic) -> None:
    use = {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Oslo"}}
    result = {"type": "tool_result", "tool_use_id": "c1", "content": "rain"}
    turns = [*HI, {"role": "assistant", "content": [use]}, {"role": "user", "content": [result, {"type": "text", "text": "well?"}]}]
    await ask(client, system="be brief", messages=turns, tools=[TOOL])
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
    chat: list[Any] = [
        {"role": "system", "content": "be brief"},
        *HI,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
        {"role": "user", "content": "well?"},
    ]
    function: Any = {"type": "function", "function": {"name": "weather", "description": "d", "parameters": TOOL["input_schema"]}}
    async with openai.AsyncOpenAI(base_url=f"{front.url}/v1", api_key="none") as other:
        await other.chat.completions.create(model="m", messages=chat, tools=[function])
    assert front.engine.submitted[0].prompt == front.engine.submitted[1].prompt


async def test_a_count_is_the_usage(front: Front, client: anthropic.AsyncAnthropic) -> None:
    front.engine.script = [says("hello", cached=16)]
    said: dict[str, Any] = {"system": "be brief", "tools": [TOOL], "messages": HI, "thinking": {"type": "disabled"}}
    usage = (await ask(client, **said)).usage
    count = await client.messages.count_tokens(model="m", **said)
    assert (usage.cache_read_input_tokens, usage.cache_creation_input_tokens, usage.output_tokens) == (16, 0, 5)
    assert count.input_tokens == usage.input_tokens + usage.cache_read_input_tokens == len(front.engine.submitted[0].prompt)
    assert (await streamed(client, **said)).usage.to_dict() == usage.to_dict()


async def test_what_is_read_from_the_cache_is_what_a_chat_says() -> None:
    """Over the real scheduler and cache. A mark of what to cache is accepted at every place, and changes nothing."""
    mark: Any = {"type": "ephemeral"}
    block: Any = {"type": "text", "text": "a long story " * 12, "cache_control": mark}
    async with local_replica() as replica, anthropic.AsyncAnthropic(base_url=replica.url, api_key="none", max_retries=0) as client:
        said: Any = {"model": NAME, "max_tokens": 2, "system": [block], "messages": [{"role": "user", "content": [block]}]}
        first = (await client.messages.create(**said, cache_control=mark)).usage
        second = (await client.messages.create(**said)).usage
        chat = [{"role": role, "content": block["text"]} for role in ("system", "user")]
        _, answer = await replica.post("/v1/chat/completions", {"model": NAME, "max_tokens": 2, "messages": chat})
    assert first.cache_read_input_tokens == 0
    assert second.cache_read_input_tokens == answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 256
    assert first.input_tokens == second.input_tokens + second.cache_read_input_tokens == answer["usage"]["prompt_tokens"]


@pytest.mark.parametrize(
    ("changes", "kind", "word", "says"),
    [
        ({"messages": []}, anthropic.BadRequestError, "invalid_request_error", "messages is empty"),
        ({"model": "other"}, anthropic.NotFoundError, "not_found_error", "model 'other' is not served here"),
        ({"messages": [{"role": "user", "content": "a" * 5000}]}, anthropic.BadRequestError, "invalid_request_error", "prompt is too long"),
        ({"system": "a" * 2**24}, anthropic.ContentTooLargeError, "request_too_large", "the body must have at most"),
    ],
)
async def test_a_refusal_is_the_clients_own_class(
    client: anthropic.AsyncAnthropic, changes: dict[str, Any], kind: Any, word: str, says: str
) -> None:
    with pytest.raises(kind) as caught:
        await ask(client.with_options(max_retries=2), **changes)
    body = caught.value.body
    assert (body["type"], body["error"]["type"], body["request_id"]) == ("error", word, caught.value.request_id)
    assert body["error"]["message"].startswith(says)


@pytest.mark.parametrize(
    ("line", "kind", "word", "tries"),
    [
        (refuses("queue_full"), anthropic.RateLimitError, "rate_limit_error", 2),
        (refuses("memory_pressure"), anthropic._exceptions.OverloadedError, "overloaded_error", 2),
        (lambda _: [EngineDied("gone")], anthropic._exceptions.OverloadedError, "overloaded_error", 2),
        (refuses("expired"), anthropic.InternalServerError, "timeout_error", 1),
        (fails(), anthropic.InternalServerError, "api_error", 1),
    ],
    ids=["crowded", "heavy", "died", "late", "failed"],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_failure_is_tried_again_if_that_may_help(
    front: Front, client: anthropic.AsyncAnthropic, line: Any, kind: Any, word: str, tries: int, stream: bool
) -> None:
    front.engine.script = [line]
    with pytest.raises(kind) as caught:
        await ask(client.with_options(max_retries=1), stream=stream)
    assert (caught.value.type, len(front.engine.submitted)) == (word, tries)


@pytest.mark.parametrize(
    ("line", "word"), [(fails("hel"), "api_error"), (lambda one: [*says("hel", None)(one), Draining("bye")], "overloaded_error")]
)
async def test_a_failure_within_a_stream_is_raised_and_not_tried_again(
    front: Front, client: anthropic.AsyncAnthropic, line: Any, word: str
) -> None:
    front.engine.script, seen = [line], []

    async def read() -> None:
        async for event in await ask(client.with_options(max_retries=2), stream=True):
            seen.append(event.type)  # noqa: PERF401  what came before the failure counts

    with pytest.raises(anthropic.APIStatusError) as caught:
        await read()
    assert (caught.value.type, len(front.engine.submitted)) == (word, 1)
    assert seen[0] == "message_start"


async def test_an_unknown_path_and_a_wrong_method_are_reported_in_this_shape(front: Front) -> None:
    async with httpx.AsyncClient(base_url=front.url) as http:
        for answer in (await http.get("/v1/messages"), await http.post("/v1/messages/x", json={}), await http.get("/v1/messagesx")):
            kind = answer.json()["error"]["type"]
            assert (answer.status_code, kind) in ((405, "invalid_request_error"), (404, "not_found_error"), (404, "invalid_request_error"))
            assert ("request-id" in answer.headers) is ("type" in answer.json()) is (answer.url.path != "/v1/messagesx")


@pytest.mark.parametrize("header", ["api_key", "auth_token"])
async def test_a_key_is_known_by_either_header(tmp_path: Path, header: str) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"{hashlib.sha256(KEY.encode()).hexdigest()} ann\n")
    guard = Guard(AuthConfig(keys_file=str(keys)))
    async with serving(guard=guard) as front:
        for key, served in ((KEY, True), ("sk-other", False)):
            given: Any = {"api_key": None, "auth_token": None, header: key}
            async with anthropic.AsyncAnthropic(base_url=front.url, max_retries=0, **given) as client:
                if served:
                    assert (await ask(client)).content[0].text == "hello"
                    continue
                with pytest.raises(anthropic.AuthenticationError) as caught:
                    await ask(client)
                assert caught.value.type == "authentication_error"
    assert [message.tenant for message in front.engine.submitted] == ["key:ann"]


async def test_a_call_that_is_cancelled_and_a_stream_that_is_left_free_their_requests(
    front: Front, client: anthropic.AsyncAnthropic
) -> None:
    front.engine.script = [says("hel", None)]
    call = asyncio.ensure_future(ask(client))
    while not front.engine.submitted:
        await asyncio.sleep(0.001)
    call.cancel()
    async with await ask(client, stream=True) as stream:
        await anext(aiter(stream))
    while front.replica.in_flight:
        await asyncio.sleep(0.001)
    closed = [front.engine.closed.get_nowait() for _ in front.engine.submitted]
    assert closed == [(message.request_id, False) for message in front.engine.submitted]


async def test_a_replica_that_drains_sends_its_clients_elsewhere(front: Front, client: anthropic.AsyncAnthropic) -> None:
    front.replica.phase = Phase.PHASE_DRAINING
    with pytest.raises(anthropic._exceptions.OverloadedError) as caught:
        await ask(client)
    headers = caught.value.response.headers
    assert (headers[HEADER_ERROR_CODE], headers[HEADER_SHOULD_RETRY]) == (ERROR_DRAINING, "true")
    assert front.engine.submitted == []


async def test_silence_before_the_first_token_is_filled_with_pings() -> None:
    async with serving(ping_after_s=0.01) as front, httpx.AsyncClient(base_url=front.url, timeout=300) as http:
        front.engine.script = [lambda _: []]
        body = {"model": "m", "max_tokens": 9, "messages": HI, "stream": True}
        async with http.stream("POST", "/v1/messages", json=body) as answer:
            chunks = answer.aiter_text()
            assert (await anext(chunks)).startswith('event: ping\ndata: {"type":"ping"}\n\n')
            for row in says("hello")(front.engine.submitted[0].request_id):
                front.engine.streams[0].put(row)
            rest = "".join([chunk async for chunk in chunks])
    assert rest.count("event: message_start") == rest.count("event: message_stop") == 1
