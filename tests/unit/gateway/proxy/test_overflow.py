"""A request that its service cannot take goes to the target that the installation allows: nothing else leaves, and it is counted."""

import asyncio
import json
import ssl
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime

import aiohttp
import pytest
import structlog
from aiohttp import web
from pagoda_contracts.resources.apikeys import new_key
from pagoda_gateway.limits.registry import Subject
from pagoda_gateway.limits.rules import Rule, Window
from pagoda_gateway.proxy.body import Limits
from pagoda_gateway.proxy.overflow import Overflow as Targets
from pagoda_gateway.proxy.upstream import Upstream
from pagoda_gateway.requests.outside import read_targets
from pagoda_gateway.watch.services import Overflow
from support.harness.gateway import GatewayHarness
from support.servers.certificates import CERT, KEY, write_pair
from support.servers.scripted_replica import Replica, running

OUR_KEY, TENANTS_KEY = "key-of-the-installation", new_key(b"k" * 32, datetime(2026, 1, 1, tzinfo=UTC))
NOW_IF_HELD = Overflow("hosted", "", 0.0, 16)
EVENTS = [
    {"choices": [{"index": 0, "text": "hi", "finish_reason": "stop"}], "usage": None},
    {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2}},
]


class Outside:
    """An API outside. `answer` gives what it says; `seen` are its requests."""

    def __init__(self):
        self.seen, self.status, self.then, self.end, self.breaks = [], 200, lambda: None, b"\n\n", False

    async def serve(self, request):
        self.seen.append((request.path, request.headers.copy(), await request.json()))
        self.then()
        if self.status == 302:
            raise web.HTTPFound("/elsewhere")
        if self.status != 200:
            return web.json_response({"error": {"message": "no", "type": "t", "code": "c"}}, status=self.status)
        if not self.seen[-1][2].get("stream"):
            return web.json_response(
                {"choices": [{"finish_reason": "stop"}], "usage": {"prompt_tokens": 7, "completion_tokens": 2}}, headers={"x-theirs": "1"}
            )
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"".join(b"data: " + json.dumps(event).encode() + self.end for event in EVENTS))
        if self.breaks:
            request.transport.abort()
        await response.write(b"data: [DONE]" + self.end)
        return response


@asynccontextmanager
async def served(folder, *, trusted=True, **options):
    """A gateway with the target `hosted`, whose service has no replica yet."""
    harness, outside, replica = GatewayHarness(**options), Outside(), Replica("a")
    harness.service(overflow=NOW_IF_HELD)
    harness.synced()
    write_pair(folder)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(folder / CERT, folder / KEY)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(running(replica))
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", outside.serve)
        target = await started(stack, app, tls)
        (folder / "key").write_text(OUR_KEY + "\n")
        about = {"url": f"https://127.0.0.1:{target}/v1", "model": "big", "key": str(folder / "key")}
        (folder / "targets.json").write_text(json.dumps({"targets": {"hosted": about | ({"ca": str(folder / CERT)} if trusted else {})}}))
        targets, upstream = Targets(read_targets(folder / "targets.json")), Upstream(300.0)
        stack.push_async_callback(targets.close)
        stack.push_async_callback(upstream.close)
        port = await started(stack, harness.api(upstream, Limits(1 << 20, 300), overflow=targets).application())
        client = await stack.enter_async_context(aiohttp.ClientSession(f"http://127.0.0.1:{port}"))
        yield harness, outside, replica, client


async def started(stack, app, tls=None):
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    return runner.addresses[0][1]


async def ask(client, path="/v1/completions", headers=None, **fields):
    body = {"model": "m", "prompt": "x"} | fields
    async with client.post(path, json=body, headers=headers or {}) as answer:
        return answer.status, answer.headers.copy(), await answer.read()


async def test_only_the_body_leaves_with_the_targets_model_and_the_installations_key(tmp_path):
    secrets = {
        "authorization": "Bearer theirs",
        "x-api-key": "theirs",
        "cookie": "a=b",
        "x-pagoda-tenant": "x",
        "x-session-id": "s",
        "traceparent": "t",
    }
    async with served(tmp_path) as (_, outside, _, client):
        status, headers, _ = await ask(client, headers=secrets, max_tokens=5)
    assert (status, headers["x-pagoda-overflow"]) == (200, "hosted")
    assert "reason=overflow" in headers["x-pagoda-route"]
    assert "x-theirs" not in headers
    ((path, seen, body),) = outside.seen
    assert (path, body) == ("/v1/completions", {"model": "big", "prompt": "x", "max_tokens": 5})
    assert {name.lower() for name in seen} == {"host", "accept", "authorization", "content-type", "content-length"}
    assert seen["authorization"] == f"Bearer {OUR_KEY}"


async def test_a_stream_is_relayed_and_its_usage_counts_for_the_tenant(tmp_path):
    async with served(tmp_path) as (harness, outside, _, client):
        harness.ring.put("ns/keys", "team-a", {TENANTS_KEY.id: TENANTS_KEY.stored})
        harness.registry.put("q", Subject("ns", "keys"), Rule("q", windows=(Window("1h", 3_600_000, None, 10_000),), default_output=50))
        key = {"authorization": f"Bearer {TENANTS_KEY.text}"}
        status, _, body = await ask(client, headers=key, stream=True)
        assert (status, body) == (200, b"data: " + json.dumps(EVENTS[0]).encode() + b"\n\ndata: [DONE]\n\n")
        assert outside.seen[0][2]["stream_options"] == {"include_usage": True}
        assert outside.seen[0][2]["max_tokens"] == 50, "what is reserved bounds the answer"
        _, headers, body = await ask(client, headers=key, stream=True, max_tokens=5, stream_options={"include_usage": True})
        assert b'"completion_tokens": 2' in body
        assert headers["x-ratelimit-remaining-tokens"]
    assert {line for line in harness.metrics.exposition().decode().splitlines() if "gateway_tokens_total{" in line and "team-a" in line}


async def test_a_service_without_overflow_holds_its_requests(tmp_path):
    async with served(tmp_path, hold_timeout_s=0.0) as (harness, outside, _, client):
        harness.service()
        assert (await ask(client))[0] == 503
        harness.service(overflow=NOW_IF_HELD._replace(target="unknown"))
        assert (await ask(client))[0] == 503
        harness.service(overflow=NOW_IF_HELD)
        assert (await ask(client, path="/v1/messages", max_tokens=1))[0] == 529, "the outside has no such path"
    assert outside.seen == []


@pytest.mark.parametrize("fault", [400, 401, 413, 422, 429, 500, 302])
async def test_what_a_target_refuses_is_held_on_and_served_by_a_replica(tmp_path, fault):
    async with served(tmp_path) as (harness, outside, replica, client):
        outside.status, outside.then = fault, lambda: harness.frame(address=replica.http)
        status, headers, body = await ask(client)
    assert (status, json.loads(body), len(outside.seen)) == (200, {"replica": "a"}, 1)
    assert "x-pagoda-overflow" not in headers


@pytest.mark.parametrize("body", [b'{"model": "m", "user": "\xff"}', b'{"model": "m", "prompt": "x", "x": 1e999}'])
async def test_a_body_that_cannot_be_written_anew_stays_and_is_for_a_replica_to_judge(tmp_path, body):
    async with served(tmp_path) as (harness, outside, replica, client):
        asked = asyncio.create_task(client.post("/v1/completions", data=body))
        await harness.until(lambda: harness.queue.count("ns/s"))
        harness.frame(address=replica.http)
        async with await asked as answer:
            assert (answer.status, await answer.json()) == (200, {"replica": "a"})
    assert outside.seen == []


@pytest.mark.parametrize("key", ["", "two\nlines", "caf\u00e9"])
async def test_a_key_that_was_spoilt_after_the_start_is_a_failure_of_the_target(tmp_path, key):
    async with served(tmp_path, hold_limit=0) as (_, outside, _, client):
        (tmp_path / "key").write_text(key)
        status, _, body = await ask(client)
    assert (status, json.loads(body)["error"]["code"], outside.seen) == (429, "queue_full", [])


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n"])
async def test_only_the_event_with_the_usage_is_taken_out_whatever_ends_lines(tmp_path, end):
    async with served(tmp_path, hold_timeout_s=0.0) as (_, outside, _, client):
        outside.end = end
        _, _, body = await ask(client, stream=True)
    assert body == b"data: " + json.dumps(EVENTS[0]).encode() + end + b"data: [DONE]" + end


async def test_the_error_event_of_a_stream_that_breaks_off_follows_the_events_that_end_by_crlf(tmp_path):
    async with served(tmp_path) as (_, outside, _, client):
        outside.end, outside.breaks = b"\r\n\r\n", True
        _, _, body = await ask(client, path="/v1/responses", input="x", stream=True)
    assert b'"sequence_number":2' in body.rpartition(b"\r\n\r\n")[2].replace(b" ", b"")


def counted(harness):
    """Overflowed requests by result, all of one service and one target."""
    lines = [line for line in harness.metrics.exposition().decode().splitlines() if line.startswith("pagoda_gateway_overflowed_total{")]
    assert all('service="ns/s"' in line and 'target="hosted"' in line for line in lines)
    return {line.partition('result="')[2].partition('"')[0]: float(line.rpartition(" ")[2]) for line in lines}


async def test_requests_that_overflow_are_counted_by_what_became_of_them(tmp_path):
    async with served(tmp_path, hold_limit=0) as (harness, outside, _, client):
        await ask(client)
        outside.status = 400
        assert (await ask(client))[0] == 429
        outside.status, outside.breaks = 200, True
        await ask(client, stream=True)
        async with client.post("/v1/completions", data=b'{"model": "m", "x": 1e999}') as answer:
            assert answer.status == 429
        assert counted(harness) == {"answered": 1, "refused": 1, "broken": 1, "kept": 1}


async def test_the_usage_line_names_the_target(tmp_path, monkeypatch):
    lines = []
    async with served(tmp_path) as (harness, _, _, client):
        monkeypatch.setattr(harness.usage, "_write", lambda _event, **fields: lines.append((fields["target"], fields["answer_tokens"])))
        await ask(client)
    assert lines == [("hosted", 2)]


async def test_the_name_of_an_adapter_is_never_answered_by_a_target(tmp_path):
    async with served(tmp_path, hold_timeout_s=0.0) as (harness, outside, _, client):
        has_adapter(harness)
        assert (await ask(client))[0] == 503
    assert outside.seen == []


async def test_a_name_that_turns_out_to_be_an_adapters_while_it_is_held_stays(tmp_path):
    async with served(tmp_path, ping_s=0.0) as (harness, outside, replica, client):
        harness.service(overflow=NOW_IF_HELD._replace(after_s=60.0))
        async with client.post("/v1/completions", json={"model": "m", "prompt": "x", "stream": True}) as answer:
            assert await answer.content.readuntil(b"\n\n") == b": held\n\n"
            has_adapter(harness)
            harness.now_ms += 60_000.0
            await harness.until(lambda: counted(harness))
            harness.frame(address=replica.http)
            await answer.read()
    assert (outside.seen, counted(harness)) == ([], {"kept": 1})


def has_adapter(harness):
    """A replica that loads says that `m` is a LoRA there."""
    harness.frame("loading")
    (endpoint,) = harness.cache.endpoints(harness.cache.resolve("m"))
    endpoint.frame = endpoint.frame._replace(adapters=frozenset({"m"}))


async def test_the_access_line_of_a_whole_answer_from_outside_says_how_it_ended(tmp_path):
    async with served(tmp_path) as (_, _, _, client):
        with structlog.testing.capture_logs() as lines:
            await ask(client)
    assert [line["finish"] for line in lines if "finish" in line] == [["stop"]]


async def test_a_target_whose_certificate_is_not_trusted_sees_nothing(tmp_path):
    async with served(tmp_path, trusted=False, hold_timeout_s=0.0) as (_, outside, _, client):
        assert (await ask(client))[0] == 503
    assert outside.seen == []


async def test_a_request_that_is_refused_for_want_of_room_or_by_a_stalled_service_overflows_too(tmp_path):
    async with served(tmp_path, hold_limit=0) as (harness, outside, _, client):
        harness.service(overflow=NOW_IF_HELD._replace(after_s=3600.0))
        assert (await ask(client))[1]["x-pagoda-overflow"] == "hosted"
        outside.status = 503
        status, _, body = await ask(client)
        assert (status, json.loads(body)["error"]["code"]) == (429, "queue_full")
        outside.status = 200
        harness.service(overflow=NOW_IF_HELD._replace(after_s=3600.0), stalled="ModelRejected: x")
        assert (await ask(client))[1]["x-pagoda-overflow"] == "hosted"


async def test_a_request_overflows_at_once_if_as_many_are_held_as_the_service_says(tmp_path):
    async with served(tmp_path) as (harness, _, _, client):
        harness.service(overflow=Overflow("hosted", "other-model", 3600.0, 0))
        assert (await ask(client))[1]["x-pagoda-overflow"] == "hosted"


async def test_a_held_stream_that_has_begun_goes_on_with_the_targets_events(tmp_path):
    async with served(tmp_path, ping_s=0.0) as (harness, _, _, client):
        harness.service(overflow=NOW_IF_HELD._replace(after_s=60.0))
        async with client.post("/v1/completions", json={"model": "m", "prompt": "x", "stream": True}) as answer:
            assert await answer.content.readuntil(b"\n\n") == b": held\n\n"
            harness.now_ms += 60_000.0
            body = await answer.read()
    assert (answer.status, body.endswith(b"data: [DONE]\n\n"), body.count(b"data: ")) == (200, True, 2)


@pytest.mark.parametrize(
    ("about", "why"),
    [
        ({"url": "http://api.example.com/v1", "key": "KEY"}, "url must be https://"),
        ({"url": "https://user@api.example.com/v1", "key": "KEY"}, "url must be https://"),
        ({"url": "https://api.example.com/v1?x=1", "key": "KEY"}, "url must be https://"),
        ({"url": "https://api.example.com/v1", "key": "EMPTY"}, "must have the API key"),
        ({"url": "https://api.example.com/v1", "key": "LINES"}, "must have the API key"),
        ({"url": "https://api.example.com/v1"}, "key"),
        ({"url": "https://api.example.com/v1", "key": "KEY", "headers": {}}, "headers"),
    ],
)
def test_a_target_that_is_not_safe_or_not_known_is_refused_at_the_start(tmp_path, about, why):
    (tmp_path / "KEY").write_text("k")
    (tmp_path / "EMPTY").write_text("\n")
    (tmp_path / "LINES").write_text("a\nb\n")
    file = tmp_path / "targets.json"
    file.write_text(json.dumps({"targets": {"a": {n: str(tmp_path / v) if n == "key" else v for n, v in about.items()}}}))
    with pytest.raises(ValueError, match=why):
        read_targets(file)
