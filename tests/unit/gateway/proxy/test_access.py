"""Who is served on port 8080: every path, however it is spelt, with every kind of credentials; and what a replica hears of the client."""

import asyncio
import json
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime

import msgspec
import pytest
from pagoda_contracts.names import HEADER_PREFIX_HASHES, HEADER_TENANT
from pagoda_contracts.prefix import Scope, chat_text, from_header, text_hashes
from pagoda_contracts.resources.apikeys import new_key
from pagoda_gateway.access.keys import KeyRing
from pagoda_gateway.limits.registry import Subject
from pagoda_gateway.limits.rules import Rule
from pagoda_gateway.proxy.authenticate import Authenticate
from pagoda_gateway.requests.budget import Budget
from pagoda_gateway.requests.dialects import ENDPOINTS
from support.harness.gateway import GatewayHarness
from support.servers.scripted_replica import Replica, running

NOW = datetime(2026, 11, 24, tzinfo=UTC)
KEY, OLD, OTHER = new_key(b"k" * 32, NOW), new_key(b"o" * 32, NOW, expires=NOW), new_key(b"n" * 32, NOW)
BODY = b'{"model": "m", "input": "x"}'
REFUSED = {
    "none": "",
    "another scheme": f"authorization: Basic {KEY.text}\r\n",
    "unknown": f"authorization: Bearer {OTHER.text}\r\n",
    "expired": f"authorization: Bearer {OLD.text}\r\n",
    "malformed": f"authorization: Bearer {'k' * 300}\r\n",
    "the digest": f"x-api-key: {KEY.stored.sha256}\r\n",
}
ACCEPTED = {"bearer": f"Authorization: bearer {KEY.text}\r\n", "x-api-key": f"X-Api-Key: {KEY.text}\r\n"}
READING = ("/v1/models", "/v1/models/m", "/v1/batches", "/v1/audio/speech", "/v1/responses/r", "/health", "/version", "/", "/metrics")


def spellings(path: str) -> list[str]:
    """Of one target; some are other paths, and none may pass without a key."""
    name = path.lstrip("/") or "v1"
    encoded = "".join(f"%{ord(letter):02x}" for letter in name)
    return [
        *(path, f"/{encoded}", f"/{name.upper()}", f"//{name}", f"/./{name}", f"/x/../{name}", f"{path}/", f"{path}?api_key={KEY.text}"),
        *(f"{path};a=b", f"{path}%00", f"http://localhost{path}", f"http://localhost:9090{path}"),
    ]


@asynccontextmanager
async def served(*, anonymous: bool = False, synced: bool = True):
    """An API with one key of team-a, and one replica behind it."""
    harness, replica = GatewayHarness(), Replica("a")
    harness.service()
    ring = KeyRing(synced=synced)
    if synced:
        ring.put("ns/keys", "team-a", {key.id: key.stored for key in (KEY, OLD)})
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(running(replica))
        harness.synced()
        harness.frame(address=replica.http)
        authenticate = Authenticate(ring, harness.metrics, lambda: NOW, anonymous)
        yield harness, replica, await stack.enter_async_context(harness.serving(authenticate))


class Connection:
    """Raw requests, one after the other."""

    def __init__(self, reader, writer) -> None:
        self.reader, self.writer = reader, writer

    async def ask(self, method: str, target: str, lines: str, body: bytes = b"") -> tuple[int, dict[str, str], bytes]:
        self.writer.write(f"{method} {target} HTTP/1.1\r\nhost: h\r\n{lines}content-length: {len(body)}\r\n\r\n".encode() + body)
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        headers = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if line)
        content = await self.reader.readexactly(int(headers.get("content-length", 0)))
        return int(head.split()[1]), headers, content


@asynccontextmanager
async def connected(port: int):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    yield Connection(reader, writer)
    writer.close()
    await writer.wait_closed()


async def test_no_spelling_of_any_path_passes_without_a_valid_key():
    async with served() as (_, replica, port), connected(port) as connection:
        for path in (*ENDPOINTS, *READING):
            for target in spellings(path):
                for lines in REFUSED.values():
                    method, body = ("POST", BODY) if path in ENDPOINTS else ("GET", b"")
                    status, headers, _ = await connection.ask(method, target, lines, body)
                    assert (status, headers.get("www-authenticate")) == (401, "bearer"), (target, lines)
        assert replica.seen == []


@pytest.mark.parametrize("lines", ACCEPTED.values(), ids=ACCEPTED)
async def test_a_valid_key_is_accepted_by_every_endpoint_and_the_replica_gets_its_tenant_and_not_the_key(lines):
    async with served() as (_, replica, port), connected(port) as connection:
        for path in ENDPOINTS:
            status, _, _ = await connection.ask(
                "POST", path, f"{lines}{HEADER_TENANT}: forged\r\ncookie: a=b\r\norigin: https://page\r\n", BODY
            )
            assert status == 200, path
        assert (await connection.ask("GET", "/v1/models", lines))[0] == 200
        assert (await connection.ask("GET", "/v1/batches/b", lines))[0] == 501
        heard = [exchange.headers for exchange in replica.seen]
    assert [exchange.head.split()[1].decode() for exchange in replica.seen] == list(ENDPOINTS)
    assert {headers[HEADER_TENANT] for headers in heard} == {"team-a"}
    assert not any(KEY.text in str(headers) or {"cookie", "origin"} & headers.keys() for headers in heard)


async def test_a_replica_gets_the_gateways_names_of_the_prompts_prefix_and_never_a_clients():
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x" * 1200}]}).encode()
    async with served() as (_, replica, port), connected(port) as connection:
        await connection.ask("POST", "/v1/chat/completions", f"{ACCEPTED['bearer']}{HEADER_PREFIX_HASHES}: forged\r\n", body)
        await connection.ask("POST", "/v1/chat/completions", f"{ACCEPTED['bearer']}{HEADER_PREFIX_HASHES}: forged\r\n", BODY)
    first, second = (exchange.headers for exchange in replica.seen)
    assert from_header(first[HEADER_PREFIX_HASHES]) == tuple(text_hashes(Scope("team-a", "m"), chat_text([("user", "x" * 1200)])))
    assert HEADER_PREFIX_HASHES not in second


async def test_bodies_of_one_tenant_leave_room_for_those_of_another():
    async with served(anonymous=True) as (harness, replica, port), AsyncExitStack() as stack:
        harness.counters.budget = Budget(10_000)
        arrived, go_on = asyncio.Semaphore(0), asyncio.Event()

        async def wait(exchange):
            arrived.release()
            await go_on.wait()
            await exchange.answer(200, {})

        replica.script = wait

        async def ask(size, lines=ACCEPTED["bearer"]):
            connection = await stack.enter_async_context(connected(port))
            body = b'{"model": "m", "prompt": "%s"}' % (b"x" * size)
            return (await connection.ask("POST", "/v1/completions", lines, body))[0]

        large = [asyncio.create_task(ask(3_000)) for _ in range(2)]
        for _ in large:
            await arrived.acquire()
        assert await ask(3_000) == 429
        another = asyncio.create_task(ask(3_000, ""))
        await asyncio.wait_for(arrived.acquire(), 120)
        go_on.set()
        assert await asyncio.gather(*large, another) == [200] * 3


async def test_refusals_are_counted_by_their_reason_and_say_what_to_do():
    async with served() as (harness, _, port), connected(port) as connection:
        said = [json.loads((await connection.ask("GET", "/v1/models", lines))[2])["error"] for lines in REFUSED.values()]
        counted = [
            line for line in harness.metrics.exposition().decode().splitlines() if line.startswith("pagoda_gateway_unauthenticated_total")
        ]
    assert {error["code"] for error in said} == {"invalid_api_key"}
    assert "pagoda key create" in said[0]["message"]
    assert not any(key.text in str(said) for key in (KEY, OLD, OTHER))
    assert sorted(counted) == [
        f'pagoda_gateway_unauthenticated_total{{reason="{reason}"}} {count}.0'
        for reason, count in (("expired", 1), ("malformed", 1), ("missing", 2), ("unknown", 2))
    ]


async def test_each_api_gets_errors_in_its_own_shape():
    async with served() as (_, _, port), connected(port) as connection:
        lines = f"{REFUSED['unknown']}x-request-id: r1\r\n"
        _, _, content = await connection.ask("POST", "/v1/messages", lines, BODY)
        wrong = await connection.ask("POST", "/v1/messages/count_tokens", ACCEPTED["x-api-key"], b'{"model": "other"}')
        openai = await connection.ask("POST", "/v1/responses", ACCEPTED["bearer"], b'{"model": "other"}')
    assert json.loads(content) == {
        "type": "error",
        "error": {"type": "authentication_error", "message": "the API key is not valid here"},
        "request_id": "r1",
    }
    assert (wrong[0], json.loads(wrong[2])["error"]["type"]) == (404, "not_found_error")
    assert (openai[0], json.loads(openai[2])["error"]["code"]) == (404, "model_not_found")


async def test_the_list_of_models_marks_what_cannot_serve_until_a_person_acts():
    async with served() as (harness, _, port), connected(port) as connection:
        harness.service("ns/asleep", "asleep")
        harness.service("ns/broken", "broken", stalled="ModelRejected: no safetensors")
        _, _, content = await connection.ask("GET", "/v1/models", ACCEPTED["bearer"])
    cards = {card["id"]: (card["available"], card.get("unavailable_reason")) for card in json.loads(content)["data"]}
    assert cards == {"m": (True, None), "asleep": (True, None), "broken": (False, "ModelRejected: no safetensors")}


async def test_a_name_lost_seconds_ago_is_worth_a_retry_however_it_is_asked_for():
    async with served() as (harness, _, port), connected(port) as connection:
        harness.cache.delete_service("ns/s")
        for passed_ms, retried in ((0, ("true", "5")), (30_000, ("false", None))):
            harness.now_ms += passed_ms
            for method, path, content in (("POST", "/v1/embeddings", BODY), ("GET", "/v1/models/m", b"")):
                status, headers, _ = await connection.ask(method, path, ACCEPTED["bearer"], content)
                assert (status, (headers["x-should-retry"], headers.get("retry-after"))) == (404, retried), (method, passed_ms)


async def test_a_body_under_a_quota_is_decoded_once(decodes):
    async with served() as (harness, _, port), connected(port) as connection:
        harness.registry.put("q", Subject("ns", "pagoda-keys-team-a"), Rule("q", output=7))
        for asked, status in ((7, 200), (8, 400)):
            decodes.clear()
            body = json.dumps({"model": "m", "prompt": "x", "max_tokens": asked}).encode()
            assert ((await connection.ask("POST", "/v1/completions", ACCEPTED["bearer"], body))[0], len(decodes)) == (status, 1)


async def test_services_of_namespaces_that_a_quota_does_not_name_look_like_none_at_all():
    async with served() as (harness, replica, port), connected(port) as connection:
        harness.service("other/x", "n")

        async def refused(method, name):
            path, body = ("/v1/embeddings", json.dumps({"model": name}).encode()) if method == "POST" else (f"/v1/models/{name}", b"")
            status, headers, content = await connection.ask(method, path, ACCEPTED["bearer"], body)
            return status, headers.get("x-should-retry"), content.decode().replace(repr(name), "NAME")

        assert (await refused("GET", "n"))[0] == 200
        harness.registry.put("q", Subject("ns", "pagoda-keys-team-a"), Rule("q", namespaces=frozenset({"ns"})))
        listed = json.loads((await connection.ask("GET", "/v1/models", ACCEPTED["bearer"]))[2])["data"]
        assert [card["id"] for card in listed] == ["m"]
        assert (await connection.ask("POST", "/v1/embeddings", ACCEPTED["bearer"], BODY))[0] == 200
        asked = len(replica.seen)
        for method in ("POST", "GET"):
            hidden, unknown = [await refused(method, name) for name in ("n", "q")]
            assert hidden[:2] == (404, "false")
            assert hidden == unknown, "it can be told that the name exists"
        harness.cache.delete_service("other/x")
        harness.cache.delete_service("ns/s")
        assert [(await refused("POST", name))[:2] for name in ("n", "m")] == [(404, "false"), (404, "true")]
        assert len(replica.seen) == asked


@pytest.fixture
def decodes():
    """One entry for each decoding by a schema."""
    found = []

    def note(_frame, event, called):
        if event == "c_call" and called.__name__ == "decode" and isinstance(called.__self__, msgspec.json.Decoder):
            found.append(called)

    sys.setprofile(note)
    yield found
    sys.setprofile(None)


async def test_before_the_keys_are_read_no_key_is_called_wrong():
    for anonymous in (False, True):
        async with served(synced=False, anonymous=anonymous) as (_, _, port), connected(port) as connection:
            status, headers, _ = await connection.ask("GET", "/v1/models", ACCEPTED["bearer"])
            assert (status, headers["x-should-retry"]) == (503, "true")
            assert (await connection.ask("GET", "/v1/models", ""))[0] == (200 if anonymous else 503)


async def test_where_anonymous_clients_are_served_a_valid_key_still_names_its_tenant():
    async with served(anonymous=True) as (_, replica, port), connected(port) as connection:
        for lines in (*REFUSED.values(), ACCEPTED["bearer"]):
            assert (await connection.ask("POST", "/v1/embeddings", lines, BODY))[0] == 200
        tenants = [exchange.headers.get(HEADER_TENANT) for exchange in replica.seen]
    assert tenants == [*[None] * len(REFUSED), "team-a"]
