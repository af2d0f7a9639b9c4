"""Two gateways are replaced one after the other under load, behind a balancer that learns late of it: no request is lost."""

import asyncio
from contextlib import ExitStack
from dataclasses import dataclass, field

import aiohttp
import pytest
from pagoda_contracts.names import PATH_READY
from support.servers.balancer import balancing
from support.servers.gateway_process import start_gateway, write_fleet
from support.servers.scripted_replica import DONE, EVENT

pytestmark = pytest.mark.deep

WORKERS = 12
EVENTS = 12
WHOLE = b"".join(EVENT % number for number in range(EVENTS)) + DONE
LATE = 25


async def slowly(exchange):
    await exchange.stream(EVENTS, 0.01)


@dataclass
class Asking:
    """Workers that ask without a pause and without a retry, half of them on connections that they keep."""

    url: str
    whole: int = 0
    wrong: list = field(default_factory=list)
    over: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self):
        async with asyncio.TaskGroup() as workers:
            for number in range(WORKERS):
                workers.create_task(self._worker(keep=number % 2 == 0))

    async def _worker(self, *, keep):
        timeout, connector = aiohttp.ClientTimeout(total=120), aiohttp.TCPConnector(force_close=not keep)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as client:
            while not self.over.is_set():
                await self._ask(client)

    async def _ask(self, client):
        try:
            async with client.post(f"{self.url}/v1/completions", json={"model": "m", "prompt": "x", "stream": True}) as answer:
                said = answer.status, await answer.read()
        except (aiohttp.ClientError, OSError) as error:
            said = 0, repr(error)
        if said == (200, WHOLE):
            self.whole += 1
        else:
            self.wrong.append(said)


async def unready(gateway):
    async with asyncio.timeout(120):
        while await asyncio.to_thread(gateway.probe, PATH_READY) != 503:
            await asyncio.sleep(0.01)


async def ready(gateway):
    async with asyncio.timeout(120):
        while await asyncio.to_thread(gateway.probe, PATH_READY) != 200:
            await asyncio.sleep(0.01)


async def test_a_rolling_restart_of_two_gateways_under_load_loses_nothing(tmp_path, replicas):
    for replica in replicas:
        replica.script = slowly
    write_fleet(tmp_path / "fleet.json", [{"name": "ns/s", "served_names": ["m"], "endpoints": [replica.entry() for replica in replicas]}])
    with ExitStack() as processes:

        def started():
            return processes.enter_context(start_gateway("--fleet", str(tmp_path / "fleet.json"), "--lame-duck", "10m"))

        async with balancing() as balancer, asyncio.TaskGroup() as load:
            old = [await asyncio.to_thread(started) for _ in range(2)]
            for gateway in old:
                await ready(gateway)
                balancer.backends.append(gateway.http)
            asking = Asking(f"http://127.0.0.1:{balancer.port}")
            load.create_task(asking.run())
            for gateway in old:
                new = await asyncio.to_thread(started)
                await ready(new)
                balancer.backends.append(new.http)
                await balancer.gives(gateway.http, 5)
                gateway.terminate()
                await unready(gateway)
                await balancer.gives(gateway.http, LATE)  # as long as its address was not removed everywhere
                balancer.backends.remove(gateway.http)
                gateway.terminate()  # the lame duck ends here, by the test's clock
                assert await asyncio.to_thread(gateway.wait) == 0
            before = asking.whole
            for backend in balancer.backends:
                await balancer.gives(backend, 5)
            asking.over.set()
    assert asking.wrong == []
    assert balancer.refused == 0
    assert asking.whole > before >= 2 * LATE
