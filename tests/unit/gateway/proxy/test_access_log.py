"""The access log: one line for each request, whatever became of it, with its reason; and never a text or a key."""

import asyncio
import json
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime

import aiohttp
import pytest
import structlog
from pagoda_contracts.names import CONTINUABLE_NO, HEADER_CONTINUABLE, HEADER_USAGE
from pagoda_contracts.notes import Note, to_comment
from pagoda_contracts.resources.apikeys import new_key
from pagoda_contracts.usage import Used, to_header
from pagoda_gateway.proxy.authenticate import Authenticate
from support.harness.gateway import GatewayHarness
from support.servers.scripted_replica import DONE, Replica, running

NOW = datetime(2026, 11, 24, tzinfo=UTC)
KEY, OLD = new_key(b"k" * 32, NOW), new_key(b"o" * 32, NOW, expires=NOW)
CANARY = "canary-of-a-prompt"
USED = Used(prompt=7, cached=4, answer=2)
LAST = b'data: {"choices":[{"finish_reason":"stop"}]}\n\n' + DONE + to_comment(Note("over", USED))
NOTED = f"{HEADER_CONTINUABLE}: {CONTINUABLE_NO}\r\n".encode()


@asynccontextmanager
async def served():
    """A harness, its replica, a client that asks with a key, and the lines so far."""
    harness, replica = GatewayHarness(), Replica("a")
    harness.service()
    harness.ring.put("ns/keys", "team-a", {key.id: key.stored for key in (KEY, OLD)})
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(running(replica))
        harness.synced()
        harness.frame(address=replica.http)
        authenticate = Authenticate(harness.ring, harness.metrics, lambda: NOW, anonymous=False)
        port = await stack.enter_async_context(harness.serving(authenticate))
        client = await stack.enter_async_context(aiohttp.ClientSession(f"http://127.0.0.1:{port}"))
        lines = stack.enter_context(structlog.testing.capture_logs())
        yield harness, replica, client, lines


async def ask(client, key=KEY.text, path="/v1/chat/completions", **fields):
    body = {"model": "m", "messages": [{"role": "user", "content": CANARY}]} | fields
    headers = {"authorization": f"Bearer {key}", "x-request-id": "r1"}
    async with client.post(path, json=body, headers=headers) as answer:
        await answer.read()


async def line_of(lines):
    """The only one: it is written when the client may have its answer already."""
    async with asyncio.timeout(120):
        while not [entry for entry in lines if entry["event"] == "request"]:
            await asyncio.sleep(0)
    (line,) = (entry for entry in lines if entry["event"] == "request")
    assert not [word for word in (CANARY, KEY.text, OLD.text) if word in json.dumps(lines)]
    return {name: value for name, value in line.items() if name not in ("event", "log_level")}


OURS = {"id": "r1", "route": "/v1/chat/completions", "tenant": "team-a", "key": KEY.id}
ROUTED = OURS | {"model": "m", "service": "ns/s", "reason": "only-endpoint"}
COUNTS = {"prompt_tokens": 7, "cached_tokens": 4, "completion_tokens": 2, "finish": ["stop"]}


async def test_an_answer_has_one_line_with_its_way_its_tokens_and_its_times():
    async with served() as (harness, replica, client, lines):

        async def answer(exchange):
            harness.now_ms += 30
            answer = {"choices": [{"message": {"content": CANARY}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 9}}
            await exchange.answer(200, answer, f"{HEADER_USAGE}: {to_header(USED)}\r\n".encode())

        replica.script = answer
        await ask(client)
        assert await line_of(lines) == ROUTED | COUNTS | {
            "status": 200,
            "endpoint": replica.http,
            "held_ms": 0.0,
            "retries": 0,
            "total_ms": 30.0,
        }


async def test_the_line_of_a_stream_has_its_time_to_the_first_token():
    async with served() as (harness, replica, client, lines):

        async def stream(exchange):
            await exchange.begin_stream(NOTED)
            harness.now_ms += 20
            await exchange.chunk(LAST)
            exchange.writer.write(b"0\r\n\r\n")

        replica.script = stream
        await ask(client, stream=True)
        line = await line_of(lines)
        assert (line["ttft_ms"], line["status"]) == (20.0, 200)
        assert COUNTS.items() <= line.items()


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"key": "nobody's"}, {"status": 401, "refusal": "invalid_api_key", "why": "unknown"}),
        ({"key": OLD.text}, {"status": 401, "refusal": "invalid_api_key", "why": "expired"}),
        (
            {"model": "x\x1b[2J" + "y" * 1000},
            OURS | {"status": 404, "refusal": "model_not_found", "param": "model", "model": "x?[2J" + "y" * 123},
        ),
        ({"model": 7}, OURS | {"status": 400, "refusal": "invalid_value", "param": "model"}),
        ({"path": "/v1/nothing"}, OURS | {"route": "none", "status": 404, "refusal": "not_found"}),
    ],
)
async def test_a_refused_request_has_a_line_with_its_reason(asked, expected):
    async with served() as (_, _, client, lines):
        await ask(client, **asked)
        line = await line_of(lines)
        assert {name: line.get(name) for name in expected} == expected
        assert not {"endpoint", "ttft_ms", "finish"} & line.keys()


async def test_a_stream_that_breaks_has_the_status_that_is_counted():
    async with served() as (_, replica, client, lines):

        async def die(exchange):
            await exchange.begin_stream()
            await exchange.chunk(b"data: 1\n\n")
            exchange.die()

        replica.script = die
        await ask(client, stream=True)
        line = await line_of(lines)
        assert (line["status"], line["refusal"], line["endpoint"]) == (502, "upstream_died", replica.http)


async def test_a_client_that_leaves_while_it_is_held_has_a_line_with_the_time_that_it_waited():
    async with served() as (harness, _, client, lines):
        harness.frame("loading", address="127.0.0.1:1")
        asking = asyncio.create_task(ask(client))
        await harness.until(lambda: harness.queue.total == 1)
        harness.now_ms += 4_000
        asking.cancel()
        line = await line_of(lines)
        assert (line["status"], line["held_ms"], line["total_ms"]) == (499, 4000.0, 4000.0)
