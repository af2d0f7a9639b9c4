"""The gateway as an endpoint picker of a real Envoy, whose configuration is that of examples/03-envoy."""

from __future__ import annotations

import asyncio
import io
import json
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from pagoda_contracts.names import HEADER_DESTINATION, HEADER_ROUTE
from pagoda_contracts.resources.apikeys import new_key
from pagoda_contracts.route import parse_route
from support.servers.certificates import CERT, write_pair
from support.servers.certificates import KEY as KEY_FILE
from support.servers.envoy import SECRET, Envoy, configuration, encrypted, filter_of, start_envoy
from support.servers.gateway_process import GatewayProcess, start_gateway, write_fleet
from support.servers.gateway_under_test import under_test
from support.servers.scripted_replica import Exchange, Replica, running

pytestmark = pytest.mark.deep  # three processes

KEY = new_key(b"k" * 32, datetime(2026, 11, 24, tzinfo=UTC))
PATIENT = under_test(patience_ms=600_000)  # the replicas beat in the test's own loop
KILOBYTE = 1 << 10
MEGABYTE = 1 << 20


@dataclass
class Bench:
    """A client of Envoy's, the gateway that picks, and the file that says which replicas there are."""

    envoy: Envoy
    gateway: GatewayProcess
    client: aiohttp.ClientSession
    fleet: Path

    async def serve(self, *replicas: Replica) -> None:
        """From now on these serve the model `m`; returns when a request gets through."""
        write_fleet(self.fleet, [{"name": "ns/s", "served_names": ["m"], "endpoints": [one.entry() for one in replicas]}])
        async with asyncio.timeout(120):
            while True:
                async with self.post(_body(0)) as answer:
                    if answer.status == 200:
                        break
                await asyncio.sleep(0.05)
        for replica in replicas:
            replica.seen.clear()

    async def answer(self) -> tuple[int, str | None]:
        """The status of a request, and the name of the replica that answered it."""
        async with self.post(_body(0)) as answer:
            return answer.status, (await answer.json())["replica"] if answer.status == 200 else None

    async def sees_picker(self, *, healthy: int) -> tuple[int, str | None]:
        """What becomes of a request once Envoy's health check has seen the picker so."""
        async with asyncio.timeout(120):
            while await asyncio.to_thread(self.envoy.gauge, "cluster.picker.membership_healthy") != healthy:
                await asyncio.sleep(0.05)
        return await self.answer()

    def post(self, body: bytes, path: str = "/v1/completions", **headers: str) -> Any:
        headers = {"authorization": f"Bearer {KEY.text}", "content-type": "application/json"} | {
            name.replace("_", "-"): value for name, value in headers.items()
        }
        return self.client.post(self.envoy.url + path, data=io.BytesIO(body), headers={k: v for k, v in headers.items() if v})


def _body(size: int) -> bytes:
    """A request of so many bytes, or a few more."""
    return json.dumps({"model": "m", "prompt": "x" * max(0, size - 30)}).encode()


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Envoy, GatewayProcess, Path]]:
    folder = tmp_path_factory.mktemp("envoy")
    fleet, keys, secret = folder / "fleet.json", folder / "keys.json", folder / "secret"
    write_fleet(fleet, [])
    keys.write_text(json.dumps({"acme": {KEY.id: json.loads(KEY.stored.document())}}))
    secret.write_text(SECRET + "\n")
    options = ("--fleet", str(fleet), "--keys", str(keys), "--ext-proc-port", "0", "--ext-proc-secret", str(secret))
    with start_gateway(*options, program=PATIENT) as gateway:
        assert gateway.ext_proc is not None
        with start_envoy(folder, configuration(gateway.ext_proc)) as envoy:
            yield envoy, gateway, fleet


@pytest.fixture
async def bench(processes: tuple[Envoy, GatewayProcess, Path]) -> AsyncIterator[Bench]:
    envoy, gateway, fleet = processes
    sockets: list[socket.socket] = []

    def made(address: Any) -> socket.socket:
        sockets.append(socket.socket(*address[:3]))
        return sockets[-1]

    connector = aiohttp.TCPConnector(socket_factory=made)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=120), connector=connector) as client:
        yield Bench(envoy, gateway, client, fleet)
    async with asyncio.timeout(120):  # the body of a refused request may still be on its way out
        while any(one.fileno() != -1 for one in sockets):
            await asyncio.sleep(0.01)


@pytest.fixture
async def replicas() -> AsyncIterator[list[Replica]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(running(Replica(name))) for name in ("a", "b")]


async def echo(exchange: Exchange) -> None:
    await exchange.answer(200, {"replica": exchange.replica.name, "body": exchange.body.decode()})


@pytest.mark.parametrize("size", [KILOBYTE, 62_000, 200_000, 16 * MEGABYTE - 100], ids=str)
async def test_bodies_of_any_size_go_to_the_picked_replica_and_back_unchanged(bench, replicas, size):
    replicas[0].script = echo
    await bench.serve(replicas[0])
    sent = _body(size)
    async with bench.post(sent, x_request_id="mine") as answer:
        document = await answer.json()
        assert (answer.status, document["body"] == sent.decode()) == (200, True), str(document)[:1000]
        route = parse_route(answer.headers[HEADER_ROUTE])
    [exchange] = replicas[0].seen
    assert route.endpoint == replicas[0].http == exchange.headers[HEADER_DESTINATION]
    assert answer.headers["x-request-id"] == exchange.headers["x-request-id"] == "mine"


async def test_envoy_answers_by_itself_what_the_picker_refuses(bench, replicas):
    await bench.serve(replicas[0])
    async with bench.post(_body(0), authorization="") as answer:
        assert (answer.status, (await answer.json())["error"]["code"]) == (401, "invalid_api_key")
        assert answer.headers["www-authenticate"] == "Bearer"
    async with bench.post(b'{"model": "another"}') as answer:
        assert (answer.status, (await answer.json())["error"]["code"]) == (404, "model_not_found")
    async with bench.post(_body(0), path="/v1/files") as answer:
        assert (answer.status, (await answer.json())["error"]["code"]) == (404, "not_found")
    async with bench.post(b'{"model": "m", "prompt": "' + b"x" * (17 * MEGABYTE) + b'"}') as answer:
        assert (answer.status, (await answer.json())["error"]["code"]) == (413, "request_too_large")
    assert replicas[0].seen == []


async def test_what_a_client_writes_in_our_name_does_not_reach_a_replica(bench, replicas):
    await bench.serve(replicas[0])
    spoofed = {"x_pagoda_tenant": "other", "x_pagoda_weight": "9", "x_gateway_destination_endpoint": replicas[1].http, "cookie": "a=b"}
    async with bench.post(_body(0), **spoofed, accept_encoding="gzip") as answer:
        assert answer.status == 200
    [exchange] = replicas[0].seen
    assert exchange.headers["x-pagoda-tenant"] == "acme"
    assert exchange.headers["x-pagoda-report-usage"] == "true"
    assert not {"authorization", "x-pagoda-weight", "cookie", "accept-encoding"} & exchange.headers.keys()


async def test_a_stream_passes_event_by_event_without_the_replicas_comments(bench, replicas):
    begun = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        await exchange.begin_stream(b"x-pagoda-continuable: no\r\n")
        await exchange.chunk(b"data: 1\n\n: pagoda more 3 0 1\n\n")
        await begun.wait()  # the client has the first event before the second one exists
        await exchange.chunk(b"data: 2\n\n: pagoda more 3 0 2\n\n")
        await exchange.chunk(b"data: [DONE]\n\n: pagoda over 3 0 2\n\n")
        exchange.writer.write(b"0\r\n\r\n")

    await bench.serve(replicas[0])
    replicas[0].script = script
    async with bench.post(_body(0)) as answer:
        assert await answer.content.readuntil(b"\n\n") == b"data: 1\n\n"
        begun.set()
        assert await answer.read() == b"data: 2\n\ndata: [DONE]\n\n"
    async with asyncio.timeout(120):
        while 'kind="answer",' not in (text := await asyncio.to_thread(bench.gateway.scrape)):
            await asyncio.sleep(0.02)
    assert 'tenant="acme"' in text


async def test_trailers_pass_in_both_directions(bench, replicas):
    async def script(exchange: Exchange) -> None:
        exchange.writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntrailer: x-last\r\n\r\n")
        await exchange.chunk(exchange.body)
        exchange.writer.write(b"0\r\nx-last: there\r\n\r\n")

    await bench.serve(replicas[0])
    replicas[0].script = script
    body = _body(70_000)
    reader, writer = await asyncio.open_connection("127.0.0.1", int(bench.envoy.url.rpartition(":")[2]), limit=MEGABYTE)
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY.text}\r\ntransfer-encoding: chunked\r\n\r\n"
    writer.write(head.encode() + b"%x\r\n%s\r\n0\r\nx-first: here\r\n\r\n" % (len(body), body))
    async with asyncio.timeout(120):
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        answer = await reader.readuntil(b"x-last: there\r\n\r\n")
    writer.close()
    await writer.wait_closed()
    assert replicas[0].seen[0].body == body + b"\n\nx-first: here"
    assert answer.count(b"x") > 60_000


# What becomes of a request whose picker does not answer. The replicas are the same as in the fleet, as those behind a Service would be.


def open_to_failure(made: dict[str, Any], replica: Replica) -> None:
    """A request that nobody picked for goes to a replica by Envoy's own choice."""
    filter_of(made, "envoy.filters.http.ext_proc")["failure_mode_allow"] = True
    clusters = made["static_resources"]["clusters"]
    host, port = replica.http.split(":")
    address = {"socket_address": {"address": host, "port_value": int(port)}}
    load = {"cluster_name": "any", "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address}}]}]}
    clusters.append({"name": "any", "type": "STATIC", "connect_timeout": "3s", "load_assignment": load})
    manager = made["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    [picked] = manager["route_config"]["virtual_hosts"][0]["routes"]
    picked["match"]["headers"] = [{"name": HEADER_DESTINATION, "present_match": True}]
    manager["route_config"]["virtual_hosts"][0]["routes"].append({"match": {"prefix": "/"}, "route": {"cluster": "any"}})


@pytest.mark.parametrize("failure", ["closed", "open"])
async def test_a_frozen_and_a_killed_picker_cost_an_error_or_the_pick_as_envoy_is_configured(tmp_path, replicas, failure):
    fleet = tmp_path / "fleet.json"
    write_fleet(fleet, [])
    with start_gateway("--fleet", str(fleet), "--ext-proc-port", "0", "--ext-proc-open", "true", program=PATIENT) as gateway:
        assert gateway.ext_proc is not None
        made = configuration(gateway.ext_proc, message_timeout="1s")
        if failure == "open":
            open_to_failure(made, replicas[1])
        with start_envoy(tmp_path, made) as envoy:
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=120)) as client:
                bench = Bench(envoy, gateway, client, fleet)
                expected = (503, None) if failure == "closed" else (200, "b")
                await bench.serve(replicas[0])
                gateway.process.send_signal(signal.SIGSTOP)
                assert (await bench.answer())[0] == 503  # Envoy keeps no copy of a body that it has sent to the picker
                assert await bench.sees_picker(healthy=0) == expected
                gateway.process.send_signal(signal.SIGCONT)
                assert await bench.sees_picker(healthy=1) == (200, "a")
                gateway.process.kill()
                gateway.process.wait()
                assert await bench.sees_picker(healthy=0) == expected


async def test_envoy_asks_over_tls(tmp_path, replicas):
    write_pair(tmp_path)
    fleet, pair = tmp_path / "fleet.json", ("--tls-cert", str(tmp_path / CERT), "--tls-key", str(tmp_path / KEY_FILE))
    write_fleet(fleet, [])
    options = ("--fleet", str(fleet), "--ext-proc-port", "0", "--ext-proc-open", "true", "--ext-proc-tls", "true", *pair)
    with start_gateway(*options, program=PATIENT) as gateway:
        assert gateway.ext_proc is not None
        made = configuration(gateway.ext_proc)
        with start_envoy(tmp_path, encrypted(made, tmp_path / CERT)) as envoy:
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=120)) as client:
                bench = Bench(envoy, gateway, client, fleet)
                await bench.serve(replicas[0])
                assert await bench.answer() == (200, "a")
