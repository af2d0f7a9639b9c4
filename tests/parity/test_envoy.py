"""The gateway as an endpoint picker of a real Envoy, whose configuration is that of examples/03-envoy."""

from __future__ import annotations

import asyncio
import io
import json
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
from support.servers.envoy import SECRET, Envoy, configuration, start_envoy
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

    def post(self, body: bytes, path: str = "/v1/completions", **headers: str) -> Any:
        told = {"authorization": f"Bearer {KEY.text}", "content-type": "application/json"} | {
            name.replace("_", "-"): value for name, value in headers.items()
        }
        return self.client.post(self.envoy.url + path, data=io.BytesIO(body), headers={k: v for k, v in told.items() if v})


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
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=120)) as client:
        yield Bench(envoy, gateway, client, fleet)


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
