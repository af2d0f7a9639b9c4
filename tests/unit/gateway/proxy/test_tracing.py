"""A request's trace: the client's is continued, the replica's span is a child of the gateway's, and who is not let in makes none."""

from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime

import aiohttp
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pagoda_contracts.resources.apikeys import new_key
from pagoda_gateway.proxy.authenticate import Authenticate
from pagoda_gateway.proxy.tracing import Tracing
from support.harness.gateway import GatewayHarness
from support.servers.scripted_replica import Replica, running

NOW = datetime(2026, 11, 24, tzinfo=UTC)
KEY = new_key(b"k" * 32, NOW)
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@asynccontextmanager
async def served(*, traced):
    """A replica, a function that asks it through a gateway, and the spans that were sent."""
    harness, replica, sent = GatewayHarness(), Replica("a"), InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(sent))
    harness.service()
    harness.ring.put("ns/keys", "team-a", {KEY.id: KEY.stored})
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(running(replica))
        harness.synced()
        harness.frame(address=replica.http)
        authenticate = Authenticate(harness.ring, harness.metrics, lambda: NOW, anonymous=False)
        harness.observe = replace(harness.observe, tracing=Tracing(provider) if traced else None)
        port = await stack.enter_async_context(harness.serving(authenticate))
        client = await stack.enter_async_context(aiohttp.ClientSession(f"http://127.0.0.1:{port}"))

        async def ask(key=KEY.text, **headers):
            async with client.post("/v1/completions", json={"model": "m"}, headers={"x-api-key": key} | headers) as answer:
                return answer.status

        yield replica, ask, sent
    provider.shutdown()


@pytest.mark.parametrize("flags", ["00", "01"])
async def test_without_tracing_the_header_passes_as_it_came(flags):
    async with served(traced=False) as (replica, ask, _):
        given = f"00-{TRACE}-{PARENT}-{flags}"
        assert await ask(traceparent=given, tracestate="vendor=1") == 200
        (exchange,) = replica.seen
        assert (exchange.headers["traceparent"], exchange.headers["tracestate"]) == (given, "vendor=1")


async def test_the_client_s_trace_goes_on_through_the_gateway_to_the_replica():
    async with served(traced=True) as (replica, ask, sent):
        assert await ask(traceparent=f"00-{TRACE}-{PARENT}-01") == 200
    spans = {span.name: span for span in sent.get_finished_spans()}
    root = spans.pop("POST /v1/completions")
    assert f"{root.context.trace_id:032x}" == TRACE
    assert f"{root.parent.span_id:016x}" == PARENT
    (exchange,) = replica.seen
    assert exchange.headers["traceparent"] == f"00-{TRACE}-{root.context.span_id:016x}-01"
    assert {name: span.parent.span_id for name, span in spans.items()} == dict.fromkeys(("read", "replica"), root.context.span_id)
    attributes = {"http.response.status_code": 200, "gen_ai.request.model": "m", "pagoda.tenant": "team-a", "pagoda.service": "ns/s"}
    assert attributes.items() <= dict(root.attributes).items()
    assert KEY.text not in root.to_json()


async def test_a_request_without_a_key_sends_no_span_and_one_without_a_trace_begins_one():
    async with served(traced=True) as (replica, ask, sent):
        assert await ask("nobody's", traceparent=f"00-{TRACE}-{PARENT}-01") == 401
        assert sent.get_finished_spans() == ()
        assert await ask() == 200
        assert int(replica.seen[0].headers["traceparent"][-2:], 16) & 1


async def test_a_client_that_is_not_sampled_makes_no_span_and_the_replica_hears_so():
    async with served(traced=True) as (replica, ask, sent):
        assert await ask(traceparent=f"00-{TRACE}-{PARENT}-00") == 200
        assert sent.get_finished_spans() == ()
        assert not int(replica.seen[0].headers["traceparent"][-2:], 16) & 1
