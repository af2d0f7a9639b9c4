"""Names that a quota hides: whatever else refuses requests, one for a hidden name looks like one for a name that nobody has."""

import asyncio
import json
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime

import aiohttp
import pytest
from pagoda_contracts.names import HEADER_REQUEST_ID
from pagoda_contracts.resources.apikeys import new_key
from pagoda_gateway.access.keys import KeyRing
from pagoda_gateway.limits.registry import Subject
from pagoda_gateway.limits.rules import Rule, Window
from pagoda_gateway.proxy.authenticate import Authenticate
from support.harness.gateway import GatewayHarness
from support.servers.scripted_replica import Replica, running

NOW = datetime(2026, 11, 24, tzinfo=UTC)
KEY = new_key(b"k" * 32, NOW)
HIDDEN, UNKNOWN = "hidden1", "unknown"


@asynccontextmanager
async def served(*, synced: bool = True, **limits):
    """A gateway with the names "m", which the tenant may use, and HIDDEN."""
    harness, replica, ring = GatewayHarness(), Replica("a"), KeyRing(synced=True)
    harness.service()
    harness.service("other/x", HIDDEN)
    ring.put("ns/keys", "team-a", {KEY.id: KEY.stored})
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(running(replica))
        if synced:
            harness.synced()
        harness.frame(address=replica.http)
        harness.frame(name="other/a", service="other/x", address=replica.http)
        harness.registry.put("q", Subject("ns", "pagoda-keys-team-a"), Rule("q", namespaces=frozenset({"ns"}), **limits))
        authenticate = Authenticate(ring, harness.metrics, lambda: NOW, anonymous=True)
        address = f"http://127.0.0.1:{await stack.enter_async_context(harness.serving(authenticate))}"
        yield harness, replica, await stack.enter_async_context(aiohttp.ClientSession(address))


async def asked(client, name, **fields):
    """Status, headers without those of one answer, and text without the name."""
    headers = {"authorization": f"Bearer {KEY.text}", HEADER_REQUEST_ID: "r"}
    async with client.post("/v1/completions", json={"model": name, "prompt": "x"} | fields, headers=headers) as answer:
        own = {key.lower(): value for key, value in answer.headers.items() if key.lower() not in ("date", "content-length")}
        return answer.status, own, (await answer.text()).replace(name, "NAME")


BOUNDS = [
    pytest.param({"output": 7}, {"max_tokens": 8}, 400, id="max_tokens"),
    pytest.param({"windows": (Window("1h", 3_600_000, 1, None),)}, {}, 429, id="requests"),
    pytest.param({"windows": (Window("1h", 3_600_000, None, 1),)}, {}, 429, id="tokens"),
    pytest.param({"windows": (Window("1h", 3_600_000, 9, None),)}, {}, 200, id="a window with room"),
]


@pytest.mark.parametrize(("limits", "fields", "status"), BOUNDS)
async def test_no_bound_and_no_window_tells_a_hidden_name_from_one_that_nobody_has(limits, fields, status):
    async with served(**limits) as (_, replica, client):
        if status == 429:
            await asked(client, "m")
        assert (await asked(client, "m", **fields))[0] == status
        forwarded = len(replica.seen)
        hidden, unknown = [await asked(client, name, **fields) for name in (HIDDEN, UNKNOWN)]
        assert hidden == unknown
        assert (hidden[0], json.loads(hidden[2])["error"]["code"]) == (404, "model_not_found")
        assert len(replica.seen) == forwarded


async def test_concurrency_does_not_tell_them_apart_either_and_a_name_lost_seconds_ago_is_worth_a_retry():
    async with served(concurrency=1) as (harness, replica, client):
        arrived, go_on = asyncio.Event(), asyncio.Event()

        async def wait(exchange):
            arrived.set()
            await go_on.wait()
            await exchange.answer(200, {})

        replica.script = wait
        under_way = asyncio.create_task(asked(client, "m"))
        await asyncio.wait_for(arrived.wait(), 120)
        visible, hidden, unknown = [await asked(client, name) for name in ("m", HIDDEN, UNKNOWN)]
        go_on.set()
        assert ((await under_way)[0], visible[0]) == (200, 429)
        assert hidden == unknown
        assert hidden[0] == 404
        for key in ("ns/s", "other/x"):
            harness.cache.delete_service(key)
        said = {name: await asked(client, name) for name in ("m", HIDDEN, UNKNOWN)}
        assert {name: (status, headers["x-should-retry"]) for name, (status, headers, _) in said.items()} == {
            "m": (404, "true"),
            HIDDEN: (404, "false"),
            UNKNOWN: (404, "false"),
        }
        assert said[HIDDEN] == said[UNKNOWN]


async def test_before_discovery_has_listed_all_services_both_are_held_and_then_refused():
    async with served(synced=False) as (harness, replica, client):
        both = [asyncio.create_task(asked(client, name)) for name in (HIDDEN, UNKNOWN)]
        holding = asyncio.create_task(harness.until(lambda: harness.queue.count("") == 2))
        await asyncio.wait((*both, holding), return_when=asyncio.FIRST_COMPLETED)
        held = harness.queue.count("")
        holding.cancel()
        harness.synced()
        hidden, unknown = await asyncio.gather(*both)
        assert (held, hidden[0], unknown[0]) == (2, 404, 404)
        assert hidden[2] == unknown[2]
        assert replica.seen == []
