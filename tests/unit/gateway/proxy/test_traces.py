"""`GET /v1/requests/ID/trace` at the gateway: the replica that answered is asked, and only for the request's own tenant."""

from contextlib import asynccontextmanager
from datetime import UTC, datetime

import aiohttp
import pytest
from pagoda_contracts.names import HEADER_REQUEST_ID, HEADER_TENANT
from pagoda_contracts.resources.apikeys import new_key
from pagoda_gateway.access.keys import KeyRing
from pagoda_gateway.proxy.authenticate import Authenticate
from pagoda_gateway.requests.recent import Answered, Recent
from support.harness.gateway import GatewayHarness
from support.servers.local_front import NAME, local_config, local_front
from support.servers.scripted_replica import Replica, running

NOW = datetime(2026, 11, 24, tzinfo=UTC)
KEYS = {tenant: new_key(tenant.encode() * 16, NOW) for tenant in ("aa", "bb")}
ID = "0123456789abcdef" * 2


@asynccontextmanager
async def gateway(address, model):
    """A gateway before this replica, and a client of it. Keys are of two tenants."""
    harness, ring = GatewayHarness(), KeyRing(synced=True)
    harness.service(model=model)
    harness.synced()
    harness.frame(address=address)
    for tenant, key in KEYS.items():
        ring.put(f"ns/{tenant}", tenant, {key.id: key.stored})
    authenticate = Authenticate(ring, harness.metrics, lambda: NOW, anonymous=True)
    async with harness.serving(authenticate) as port, aiohttp.ClientSession(f"http://127.0.0.1:{port}") as client:
        yield harness, client


async def traced(client, name, tenant=None):
    """Status, and the trace or the error's code."""
    headers = {"authorization": f"Bearer {KEYS[tenant].text}"} if tenant else {}
    async with client.get(f"/v1/requests/{name}/trace", headers=headers) as answer:
        said = await answer.json()
        return answer.status, said["error"]["code"] if "error" in said else said


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "stream": True}),
        ("/v1/completions", {"prompt": "x", "stream": True}),
        ("/v1/responses", {"input": "x", "stream": True}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "x"}]}),
    ],
)
async def test_a_trace_is_found_by_the_id_of_the_answer_and_by_that_of_the_header(path, body, tmp_path):
    async with local_front(local_config(tmp_path)) as replica, gateway(replica.http, NAME) as (_, client):
        tokens = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
        async with client.post(path, json={"model": NAME, tokens: 3} | body, headers={HEADER_REQUEST_ID: "mine"}) as answer:
            text = (await answer.read()).decode()
        own = text.split('"id":"', 1)[1].split('"', 1)[0]
        found = [await traced(client, name) for name in (own, own[-32:], "mine")]
        assert [(status, said["id"], said["state"]) for status, said in found] == [(200, own[-32:], "finished")] * 3
        assert await traced(client, "another") == (404, "request_not_found")


async def test_a_trace_is_its_tenants_and_a_replica_that_is_gone_is_said_to_be():
    async def answer(exchange):
        trace = exchange.head.startswith(b"GET")
        await exchange.answer(200, {"state": "finished"} if trace else {"id": f"chatcmpl-{ID}"})

    async with running(Replica("a", answer)) as replica, gateway(replica.http, "m") as (_, client):
        async with client.post("/v1/completions", json={"model": "m"}, headers={"authorization": f"Bearer {KEYS['aa'].text}"}) as asked:
            assert asked.status == 200
        assert [await traced(client, ID, tenant) for tenant in ("bb", None)] == [(404, "request_not_found")] * 2
        assert len(replica.seen) == 1
        assert await traced(client, f"chatcmpl-{ID}", "aa") == (200, {"state": "finished"})
        assert replica.seen[-1].headers[HEADER_TENANT] == "aa"
        assert replica.seen[-1].head.startswith(f"GET /v1/requests/{ID}/trace ".encode())
        replica.hang_up()
        await replica.cut()
        assert await traced(client, ID, "aa") == (404, "request_not_found")


async def test_only_the_very_replica_that_answered_is_asked_and_for_an_hour_only():
    async def answer(exchange):
        trace = exchange.head.startswith(b"GET")
        await exchange.answer(200, {"state": "finished"} if trace else {"id": f"chatcmpl-{ID}"})

    async with running(Replica("a", answer)) as replica, gateway(replica.http, "m") as (harness, client):
        for passed_ms, known in ((3_599_999, True), (3_600_000, False)):
            async with client.post("/v1/completions", json={"model": "m"}) as asked:
                assert asked.status == 200
            harness.now_ms += passed_ms
            harness.frame(address=replica.http)
            assert (await traced(client, ID))[0] == (200 if known else 404)
        async with client.post("/v1/completions", json={"model": "m"}) as asked:
            assert asked.status == 200
        assert (await traced(client, ID))[0] == 200
        before = len(replica.seen)
        harness.frame(name="ns/a", address="127.0.0.1:9")  # the pod has another address now
        assert await traced(client, ID) == (404, "request_not_found")
        harness.cache.delete_replica("ns/a")
        harness.frame(name="ns/b", address=replica.http)  # and another pod has its address
        assert await traced(client, ID) == (404, "request_not_found")
        assert len(replica.seen) == before


def test_so_many_are_remembered_and_not_more():
    recent = Recent(lambda: 0.0, most=3)
    for number in range(5):
        recent.add("t", f"r{number}", Answered("ns/a", "a:1", f"{number:032x}"))
    assert [recent.find("t", f"r{number}") is not None for number in range(5)] == [False, False, True, True, True]
    assert recent.find("t", f"resp_{4:032x}") == Answered("ns/a", "a:1", f"{4:032x}")
    assert recent.find("u", "r4") is None
    assert len(recent._found) == 6
