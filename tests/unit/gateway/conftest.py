"""Two scripted replicas, and a real gateway process in front of them."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from gateway_process import GatewayProcess, start_gateway, write_fleet
from pagoda_contracts.names import HEADER_ROUTE
from pagoda_contracts.route import Route, parse_route
from scripted import Replica, running


@dataclass
class Bench:
    """A gateway, a raw client, and the file that says which replicas there are."""

    gateway: GatewayProcess
    client: aiohttp.ClientSession
    file: Path

    def serve(self, *replicas: Replica, names: tuple[str, ...] = ("m",)) -> None:
        """From now on these are the service's replicas."""
        write_fleet(self.file, [{"name": "ns/s", "served_names": names, "endpoints": [replica.entry() for replica in replicas]}])

    def post(self, **fields: Any) -> "aiohttp.client._RequestContextManager":
        return self.client.post(f"{self.gateway.url}/v1/completions", json={"model": "m", "prompt": "x"} | fields)

    async def ask(self, **fields: Any) -> tuple[int, dict[str, Any], Route | None]:
        """Status, document, route."""
        async with self.post(**fields) as answer:
            return answer.status, await answer.json(), route_of(answer)

    async def told(self, text: str) -> None:
        """Returns when the gateway's own metrics say so: its view is eventual, a test's step is not."""
        async with asyncio.timeout(30):
            while text not in await asyncio.to_thread(self.gateway.scrape):
                await asyncio.sleep(0.02)


def route_of(answer: aiohttp.ClientResponse) -> Route | None:
    return parse_route(answer.headers[HEADER_ROUTE]) if HEADER_ROUTE in answer.headers else None


@pytest.fixture
async def replicas() -> AsyncIterator[list[Replica]]:
    """Named a and b."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(running(Replica(name))) for name in ("a", "b")]


@pytest.fixture
def options() -> list[str]:
    """More flags for the gateway; a test module overrides it."""
    return []


@pytest.fixture
def process(tmp_path: Path, options: list[str]) -> Iterator[tuple[GatewayProcess, Path]]:
    file = tmp_path / "fleet.json"
    write_fleet(file, [])
    with start_gateway("--fleet", str(file), *options) as gateway:
        yield gateway, file


@pytest.fixture
async def bench(process: tuple[GatewayProcess, Path]) -> AsyncIterator[Bench]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as client:
        yield Bench(process[0], client, process[1])
