"""The gateway's own face: what goes on byte by byte, what never does, and how it says no."""

import asyncio
import io
import json
import re

import aiohttp
import pytest
import yarl
from multidict import CIMultiDict
from pagoda_contracts.names import (
    HEADER_REQUEST_ID,
    HEADER_RETRY_AFTER,
    HEADER_ROUTE,
    HEADER_SHOULD_RETRY,
    PATH_LIVE,
    PATH_READY,
    PATH_STARTUP,
)
from pagoda_contracts.pb.daemon_pb2 import Phase
from pagoda_gateway.proxy.headers import to_replica
from pagoda_gateway.routing.request import RoutingRequest
from support.servers.scripted_replica import Exchange

URL = "/v1/chat/completions"


@pytest.fixture(scope="module")
def options() -> list[str]:
    return ["--hold-limit", "1", "--body-budget", "20Mi"]


@pytest.fixture
async def one(bench, replicas):
    await bench.serve(replicas[0], names=("m", "org/model:1"))
    return replicas[0]


@pytest.mark.parametrize("size", [0, 1_000, 130_000, 15 * 2**20])
async def test_a_body_goes_on_byte_by_byte(bench, one, size):
    body = b'{ "prompt" : "%s", "model":"m" , "extra": 1.10, "\xc3\xa4": "\\u00e4"}' % (b"x" * size)
    async with bench.client.post(
        yarl.URL(bench.gateway.url + URL + "?a=b%2Fc", encoded=True), data=io.BytesIO(body), headers={"content-type": "application/json"}
    ) as answer:
        assert answer.status == 200
    assert one.seen[0].body == body
    assert one.seen[0].head.startswith(b"POST /v1/chat/completions?a=b%2Fc HTTP/1.1\r\n")


async def test_bodies_over_the_budget_are_refused_until_others_end(bench, one):
    """Bytes are bounded, not requests: small ones still pass beside a large one."""
    gate, arrived = asyncio.Event(), asyncio.Event()

    async def ask_with(mebibytes: int) -> tuple[int, str | None, str | None]:
        data = io.BytesIO(b'{"model": "m", "prompt": "%s"}' % (b"x" * mebibytes * 2**20))
        async with bench.client.post(bench.gateway.url + URL, data=data) as answer:
            return answer.status, answer.headers.get(HEADER_RETRY_AFTER), (await answer.json()).get("error", {}).get("code")

    async def wait(exchange: Exchange) -> None:
        if len(exchange.body) > 2**20:
            arrived.set()
            await gate.wait()
        await exchange.answer(200, {"replica": "a"})

    one.script = wait
    large = asyncio.create_task(ask_with(15))
    await asyncio.wait_for(arrived.wait(), 60)
    assert await ask_with(8) == (429, "5", "queue_full")
    assert (await bench.ask())[0] == 200
    gate.set()
    assert (await large)[0] == 200
    assert (await ask_with(8))[0] == 200


async def raw(bench, head: bytes, body: bytes = b"") -> bytes:
    """What the gateway says to bytes that no client library would send."""
    reader, writer = await asyncio.open_connection("127.0.0.1", bench.gateway.http)
    writer.write(head + b"\r\nhost: x\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
    answer = await asyncio.wait_for(reader.read(), 60)
    writer.close()
    return answer


async def test_an_expectation_we_do_not_know_is_refused_not_crashed_on(bench, one):
    answer = await raw(bench, b"POST /v1/completions HTTP/1.1\r\nexpect: foo")
    assert answer.startswith(b"HTTP/1.1 417 ")
    assert HEADER_REQUEST_ID.encode() in answer.lower()


async def test_a_target_in_absolute_form_reaches_the_replica_as_a_path(bench, one):
    answer = await raw(bench, b"POST http://api.example/v1/completions?a=b%2Fc HTTP/1.1", b'{"model": "m"}')
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert one.seen[0].head.startswith(b"POST /v1/completions?a=b%2Fc HTTP/1.1\r\n")


def test_every_connection_header_names_what_stops_here():
    kept = to_replica(
        CIMultiDict([("connection", "x-a, close"), ("Connection", "X-B"), ("x-a", "1"), ("x-b", "1"), ("x-c", "1")]),
        "id",
        RoutingRequest("m"),
    )
    assert dict(kept) == {"x-c": "1", HEADER_REQUEST_ID: "id"}


async def test_headers_that_are_ours_private_or_hop_by_hop_stop_here(bench, one):
    sent = {
        "x-pagoda-tenant": "admin", "X-Gateway-Model-Name": "other", "authorization": "Bearer secret", "cookie": "a=b",
        "connection": "x-hop", "x-hop": "1", "accept-encoding": "gzip", "x-kept": "yes", HEADER_REQUEST_ID: "my-id.1",
    }  # fmt: skip
    async with bench.post(model="m") as _:
        pass
    async with bench.client.post(bench.gateway.url + URL, json={"model": "m"}, headers=sent) as answer:
        assert answer.headers[HEADER_REQUEST_ID] == "my-id.1"
    got = one.seen[1].headers
    assert (got["x-kept"], got[HEADER_REQUEST_ID], got["content-type"]) == ("yes", "my-id.1", "application/json")
    assert not {"x-pagoda-tenant", "x-gateway-model-name", "authorization", "cookie", "x-hop", "accept-encoding"} & got.keys()


@pytest.mark.parametrize("given", ["", "a b", "x" * 129, "id\u00e4", "<script>"])
async def test_a_request_id_that_is_not_plain_is_replaced(bench, one, given):
    async with bench.client.post(bench.gateway.url + URL, json={"model": "m"}, headers={HEADER_REQUEST_ID: given}) as answer:
        made = answer.headers[HEADER_REQUEST_ID]
    assert re.fullmatch("[0-9a-f]{32}", made)
    assert one.seen[0].headers[HEADER_REQUEST_ID] == made


async def test_a_replica_cannot_write_the_route_or_the_connection(bench, one):
    async def forge(exchange: Exchange) -> None:
        await exchange.answer(
            200,
            {},
            f"{HEADER_ROUTE}: endpoint=forged; reason=x; held_ms=0; attempt=1\r\nconnection: x-hop\r\nx-hop: 1\r\nx-kept: 1\r\n".encode(),
        )

    one.script = forge
    async with bench.post() as answer:
        assert f"endpoint={one.http};" in answer.headers[HEADER_ROUTE]
        assert len(answer.headers.getall(HEADER_ROUTE)) == 1
        assert "x-kept" in answer.headers
        assert "x-hop" not in answer.headers


BAD = [
    (b"{", 400, "invalid_value", None),
    (b"", 400, "invalid_value", None),
    (b"[]", 400, "invalid_value", None),
    (b'{"prompt": "x"}', 400, "invalid_value", "model"),
    (b'{"model": 7}', 400, "invalid_value", "model"),
    (b'{"model": ""}', 400, "invalid_value", "model"),
    (b'{"model": "\xff"}', 400, "invalid_value", None),
    (b"[" * 100_000, 400, "invalid_value", None),
    (b'{"model": "nobody"}', 404, "model_not_found", "model"),
    (b'{"model": "' + b"x" * (16 * 2**20) + b'"}', 413, "request_too_large", None),
]


@pytest.mark.parametrize(("body", "status", "code", "param"), BAD, ids=[f"{status}-{body[:16]!r}" for body, status, _, _ in BAD])
async def test_a_bad_request_is_answered_with_what_is_wrong(bench, one, body, status, code, param):
    async with bench.client.post(bench.gateway.url + URL, data=io.BytesIO(body)) as answer:
        assert answer.status == status
        assert answer.headers[HEADER_SHOULD_RETRY] == "false"
        assert answer.headers[HEADER_REQUEST_ID]
        error = (await answer.json())["error"]
    assert (error["code"], error["param"], error["type"]) == (code, param, "invalid_request_error")
    assert error["message"]
    assert one.seen == []


async def test_a_body_too_large_without_a_length_is_refused_too(bench, one):
    async def endless():
        for _ in range(17):
            yield b"x" * 2**20

    async with bench.client.post(bench.gateway.url + URL, data=endless()) as answer:
        assert (answer.status, (await answer.json())["error"]["code"]) == (413, "request_too_large")


async def test_a_compressed_body_is_refused_by_name(bench, one):
    async with bench.client.post(bench.gateway.url + URL, data=b"x", headers={"content-encoding": "zstd"}) as answer:
        assert answer.status == 415
        assert "zstd" in (await answer.json())["error"]["message"]


@pytest.mark.parametrize(
    ("method", "path", "status", "code"), [("GET", "/v1/nothing", 404, "not_found"), ("GET", URL, 405, "method_not_allowed")]
)
async def test_a_wrong_path_or_method_is_answered_in_openais_shape(bench, one, method, path, status, code):
    async with bench.client.request(method, bench.gateway.url + path) as answer:
        assert (answer.status, (await answer.json())["error"]["code"]) == (status, code)


async def test_models_lists_every_name_that_is_answered_to(bench, one):
    async with bench.client.get(bench.gateway.url + "/v1/models") as answer:
        document = await answer.json()
    assert document["object"] == "list"
    assert [(card["id"], card["object"], card["owned_by"]) for card in document["data"]] == [
        ("m", "model", bench.service),
        ("org/model:1", "model", bench.service),
    ]


@pytest.mark.parametrize("path", ["m", "org/model:1", "org%2Fmodel%3A1"])
async def test_one_model_is_described_by_name(bench, one, path):
    async with bench.client.get(yarl.URL(f"{bench.gateway.url}/v1/models/{path}", encoded=True)) as answer:
        card = await answer.json()
    assert card.keys() == {"id", "object", "created", "owned_by", "available"}
    assert (card["id"], card["object"], card["owned_by"]) == (path.replace("%2F", "/").replace("%3A", ":"), "model", bench.service)


async def test_a_model_without_a_service_is_not_found(bench, one):
    async with bench.client.get(f"{bench.gateway.url}/v1/models/no/such") as answer:
        error = (await answer.json())["error"]
        assert (answer.status, error["code"]) == (404, "model_not_found")
        assert "did you mean" not in error["message"]
    async with bench.client.get(f"{bench.gateway.url}/v1/models/org/model:2") as answer:
        assert "did you mean 'org/model:1'?" in (await answer.json())["error"]["message"]


async def test_a_full_line_says_when_to_come_back(bench, one):
    one.say(phase=Phase.PHASE_LOADING)
    await bench.sees(loading=1)
    first = asyncio.create_task(bench.ask())
    await bench.metric_is("held_requests", 1)
    assert await bench.refused("held-loading") == (429, "queue_full", "true", "5")
    one.say(phase=Phase.PHASE_READY)
    assert (await first)[0] == 200
    assert await bench.metric("hold_seconds_count") == 1


async def test_a_fleet_file_that_cannot_be_read_leaves_what_was(bench, one):
    bench.file.write_text("{")
    assert (await bench.ask())[0] == 200
    await bench.serve(one, names=("renamed",))
    async with aiohttp.ClientSession() as client, asyncio.timeout(120):
        while True:
            async with client.get(bench.gateway.url + "/v1/models") as answer:
                if [card["id"] for card in json.loads(await answer.read())["data"]] == ["renamed"]:
                    return


async def test_probes_say_started_live_and_ready(bench):
    async with asyncio.timeout(120):
        while {bench.gateway.probe(path) for path in (PATH_STARTUP, PATH_READY)} != {200}:  # it listens before its loop turns
            await asyncio.sleep(0.02)
    assert [bench.gateway.probe(path) for path in (PATH_STARTUP, PATH_LIVE, PATH_READY, "/other")] == [200, 200, 200, 404]
