"""Two scripted replicas, and a real gateway process in front of them."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from pagoda_contracts.names import HEADER_RETRY_AFTER, HEADER_ROUTE, HEADER_SHOULD_RETRY
from pagoda_contracts.route import Route, parse_route
from prometheus_client.parser import text_string_to_metric_families
from support.servers.gateway_process import GatewayProcess, start_gateway, write_fleet
from support.servers.gateway_under_test import under_test
from support.servers.scripted_replica import Replica, running

# The replicas answer and beat in the test's own process: by the real limits one stop of that process for a second changes whom the gateway
# asks, and one for three seconds has it hold requests. Where those limits are the matter a test takes the gateway as it is.
PATIENT = under_test(patience_ms=600_000)
AS_IT_IS = ("-m", "pagoda_gateway")


@dataclass
class Bench:
    """A gateway, a raw client, and the file that says which replicas there are. `service` is this test's own key, so that
    a gateway may serve many tests and each sees its own metrics only."""

    gateway: GatewayProcess
    client: aiohttp.ClientSession
    file: Path
    service: str = field(default_factory=lambda: f"ns/{secrets.token_hex(4)}")

    async def serve(self, *replicas: Replica, names: tuple[str, ...] = ("m",)) -> None:
        """From now on these are the service's replicas; returns when the gateway sees them ready."""
        write_fleet(self.file, [{"name": self.service, "served_names": names, "endpoints": [replica.entry() for replica in replicas]}])
        await self.sees(ready=len(replicas))

    def post(self, **fields: Any) -> "aiohttp.client._RequestContextManager":
        return self.client.post(f"{self.gateway.url}/v1/completions", json={"model": "m", "prompt": "x"} | fields)

    async def ask(self, **fields: Any) -> tuple[int, dict[str, Any], Route | None]:
        """Status, document, route."""
        async with self.post(**fields) as answer:
            return answer.status, await answer.json(), route_of(answer)

    async def refused(self, reason: str) -> tuple[int, str, str, str]:
        """Status, code, whether to come back and when, of a request that is refused for this reason."""
        async with self.post() as answer:
            code = (await answer.json())["error"]["code"]
            assert f"reason={reason}" in answer.headers[HEADER_ROUTE]
            return answer.status, code, answer.headers[HEADER_SHOULD_RETRY], answer.headers[HEADER_RETRY_AFTER]

    async def sees(self, **verdicts: int) -> None:
        """Returns when so many endpoints have these verdicts."""
        for verdict, count in verdicts.items():
            await self.metric_is("endpoints", count, verdict=verdict)

    async def metric_is(self, metric: str, value: float, **labels: str) -> None:
        """Returns when the gateway's metrics say so: its view is eventual, a test's step is not."""
        async with asyncio.timeout(120):
            while True:
                if await self.metric(metric, **labels) == value:
                    return
                await asyncio.sleep(0.02)

    async def metric(self, metric: str, **labels: str) -> float | None:
        """One sample, with this test's service among its labels."""
        wanted = {"service": self.service} | labels
        for family in text_string_to_metric_families(await asyncio.to_thread(self.gateway.scrape)):
            for sample in family.samples:
                if sample.name == f"pagoda_gateway_{metric}" and sample.labels == wanted:
                    return sample.value
        return None


def route_of(answer: aiohttp.ClientResponse) -> Route | None:
    return parse_route(answer.headers[HEADER_ROUTE]) if HEADER_ROUTE in answer.headers else None


@pytest.fixture
async def replicas() -> AsyncIterator[list[Replica]]:
    """Named a and b."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(running(Replica(name))) for name in ("a", "b")]


@pytest.fixture(scope="module")
def options() -> list[str]:
    """More flags for the gateway; a test module overrides it."""
    return []


@pytest.fixture(scope="module")
def program(request: pytest.FixtureRequest) -> Sequence[str]:
    return AS_IT_IS if getattr(request, "param", "") == "as it is" else PATIENT


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory, options: list[str], program: Sequence[str]) -> Iterator[tuple[GatewayProcess, Path]]:
    """One for the module's tests: it takes seconds to start on a busy machine."""
    file = tmp_path_factory.mktemp("gateway") / "fleet.json"
    write_fleet(file, [])
    with start_gateway("--fleet", str(file), *options, program=program) as gateway:
        yield gateway, file


@pytest.fixture
async def bench(process: tuple[GatewayProcess, Path]) -> AsyncIterator[Bench]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=120)) as client:
        yield Bench(process[0], client, process[1])
