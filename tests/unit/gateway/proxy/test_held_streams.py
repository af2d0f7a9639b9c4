"""A stream that is held for long: comments keep its connection alive, and whatever comes then is an event. OpenAI's client is the judge."""

from contextlib import AsyncExitStack, asynccontextmanager

import aiohttp
import openai
import pytest
from pagoda_gateway.watch.services import Hold
from support.harness.gateway import GatewayHarness
from support.servers.scripted_replica import DONE, Replica, running

EVENT = b'data: {"id":"c","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":"hi","finish_reason":null}]}\n\n'


class PingedWorld(GatewayHarness):
    """Each ping is one event: after the third one something happens."""

    def __init__(self, after):
        super().__init__(ping_s=0.0)
        self.after, self.pings = after, 0

    def pinged(self):
        self.pings += 1
        if self.pings == 3:
            self.after(self)


@asynccontextmanager
async def held(after):
    """A gateway whose service has no replica until the third ping; then `after(harness)` happens."""
    harness, replica = PingedWorld(after), Replica("a")
    harness.service()
    harness.synced()
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(running(replica))
        harness.address = replica.http
        yield harness, replica, f"http://127.0.0.1:{await stack.enter_async_context(harness.serving())}/v1"


@pytest.fixture(autouse=True)
def count_pings(monkeypatch):
    from pagoda_gateway.requests.lifecycle import RequestLife

    keep_alive = RequestLife.keep_alive

    async def counted(life):
        await keep_alive(life)
        life._counters.clock_ms.__self__.pinged()

    monkeypatch.setattr(RequestLife, "keep_alive", counted)


def ready(harness):
    harness.frame(address=harness.address)


def no_time_left(harness):
    harness.service(hold=Hold(timeout_s=0.0))
    harness.now_ms += 3_600_000.0


async def streams(exchange):
    await exchange.begin_stream()
    await exchange.chunk(EVENT)
    await exchange.chunk(DONE)
    exchange.writer.write(b"0\r\n\r\n")
    await exchange.writer.drain()


async def ask(address, **fields):
    async with openai.AsyncOpenAI(base_url=address, api_key="none", max_retries=0) as client:
        stream = await client.completions.create(model="m", prompt="x", **fields)
        return [part.choices[0].text async for part in stream]


async def raw(address, **fields):
    async with (
        aiohttp.ClientSession() as client,
        client.post(f"{address}/completions", json={"model": "m", "prompt": "x"} | fields) as answer,
    ):
        return answer.status, answer.headers, await answer.read()


async def test_a_client_reads_over_the_comments_and_gets_its_stream():
    async with held(ready) as (_, replica, address):
        replica.script = streams
        assert await ask(address, stream=True) == ["hi"]


async def test_comments_come_first_and_the_rest_is_the_replicas_byte_by_byte():
    async with held(ready) as (_, replica, address):
        replica.script = streams
        status, headers, body = await raw(address, stream=True)
    assert (status, body) == (200, b": held\n\n" * 3 + EVENT + DONE)
    assert "reason=held-no-replica" in headers["x-pagoda-route"]
    assert headers["x-request-id"]


async def test_a_refusal_after_the_first_comment_is_an_event_that_the_client_raises():
    async with held(no_time_left) as (harness, _, address):
        with pytest.raises(openai.APIError) as caught:
            await ask(address, stream=True)
        assert caught.value.code == "no_ready_endpoint"
    assert harness.queue.total == 0


async def test_what_the_replica_refuses_after_the_first_comment_is_an_event_with_its_words():
    async with held(ready) as (_, replica, address):

        async def refuse(exchange):
            error = {"message": "max_tokens must be at least 1", "type": "invalid_request_error", "param": "max_tokens", "code": "bad"}
            await exchange.answer(400, {"error": error})

        replica.script = refuse
        with pytest.raises(openai.APIError, match="max_tokens must be at least 1") as caught:
            await ask(address, stream=True)
        assert (caught.value.code, caught.value.param) == ("bad", "max_tokens")


async def test_a_request_without_a_stream_gets_no_comment_and_a_refusal_with_a_status():
    async with held(ready) as (harness, _, address):
        harness.service(hold=Hold(timeout_s=0.0))
        status, headers, _ = await raw(address)
        assert (status, harness.pings) == (503, 0)
        assert headers["retry-after"] == "10"
