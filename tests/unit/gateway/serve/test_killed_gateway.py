"""One gateway of several is killed behind a balancer: its own requests fail at once, and no other request does."""

import asyncio
import re
import signal
import socket
from contextlib import ExitStack
from dataclasses import dataclass, field

import aiohttp
import pytest
from pagoda_contracts import gateway_metrics as metrics
from pagoda_contracts.pb.daemon_pb2 import Phase
from support.servers.balancer import balancing
from support.servers.gateway_process import start_gateway, write_fleet
from support.servers.scripted_replica import DONE, EVENT, Replica, running

pytestmark = pytest.mark.deep

WORKERS = 8
EVENTS = 20
WHOLE = b"".join(EVENT % number for number in range(EVENTS)) + DONE
HELD = 6


async def slowly(exchange):
    await exchange.stream(EVENTS, 0.01)


@dataclass
class Request:
    """`began` and `ended` are places in one order of everything that a test notes."""

    began: int
    port: int = 0
    ended: int = 0
    said: object = None


@dataclass
class Clients:
    """Each request has a connection of its own, whose port says at which gateway it was. Nothing is tried again."""

    url: str
    all: list[Request] = field(default_factory=list)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    moments: int = 0

    def moment(self) -> int:
        self.moments += 1
        return self.moments

    async def work(self):
        while not self.over.is_set():
            self.all.append(await self.ask("m"))

    async def ask(self, model):
        request = Request(self.moment())

        def own(address):
            made = socket.socket(*address[:3])
            made.setblocking(False)
            made.bind(("127.0.0.1", 0))
            request.port = made.getsockname()[1]
            return made

        connector = aiohttp.TCPConnector(force_close=True, socket_factory=own)
        body = {"model": model, "prompt": "x", "stream": True}
        try:
            async with (
                aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=300)) as client,
                client.post(f"{self.url}/v1/completions", json=body) as answer,
            ):
                request.said = answer.status, await answer.read()
        except (aiohttp.ClientError, OSError) as error:
            request.said = 0, repr(error)
        request.ended = self.moment()
        return request


async def holding(gateway, count):
    """Returns when the gateway holds so many requests."""
    line = re.compile(rf'^{metrics.GATEWAY_HELD.name}{{service="ns/h"}} {count}\.0$', re.MULTILINE)
    async with asyncio.timeout(120):
        while not line.search(await asyncio.to_thread(gateway.scrape)):
            await asyncio.sleep(0.02)


async def test_a_killed_gateway_costs_its_own_requests_and_those_that_come_before_its_address_is_removed(tmp_path, replicas):
    for replica in replicas:
        replica.script = slowly
    async with running(Replica("c", slowly)) as loading:
        loading.say(phase=Phase.PHASE_LOADING, served_names=["h"])
        services = [("ns/s", "m", replicas), ("ns/h", "h", [loading])]
        write_fleet(
            tmp_path / "fleet.json",
            [{"name": name, "served_names": [model], "endpoints": [one.entry() for one in found]} for name, model, found in services],
        )
        with ExitStack() as processes:
            options = ("--fleet", str(tmp_path / "fleet.json"))
            gateways = [await asyncio.to_thread(lambda: processes.enter_context(start_gateway(*options))) for _ in range(2)]
            killed, other = gateways
            async with balancing() as balancer, asyncio.TaskGroup() as load:
                balancer.backends = [gateway.http for gateway in gateways]
                clients = Clients(f"http://127.0.0.1:{balancer.port}")
                held = [load.create_task(clients.ask("h")) for _ in range(HELD)]
                for gateway in gateways:
                    await holding(gateway, HELD // 2)
                workers = [load.create_task(clients.work()) for _ in range(WORKERS)]
                for gateway in gateways:
                    await balancer.gives(gateway.http, 5)
                killed.process.send_signal(signal.SIGKILL)
                await asyncio.to_thread(killed.process.wait)
                await balancer.gives(killed.http, 2)  # its address is still known
                balancer.backends.remove(killed.http)
                removed = clients.moment()
                loading.say(phase=Phase.PHASE_READY, served_names=["h"])
                await balancer.gives(other.http, 2 * WORKERS)
                clients.over.set()
                await asyncio.gather(*workers)
                waited = [await one for one in held]
    failed = [one for one in clients.all + waited if one.said != (200, WHOLE)]
    assert {balancer.of[one.port] for one in failed} == {killed.http}, "a request at the other gateway failed"
    assert [one for one in waited if one not in failed] == [one for one in waited if balancer.of[one.port] == other.http]
    assert [one for one in failed if one.began > removed] == []
    begun = [one for one in clients.all if isinstance(one.said, tuple) and one not in failed and one.began > removed]
    assert max(one.ended for one in failed) < min(one.ended for one in begun), "a client waited for a gateway that was gone"
    assert balancer.refused >= 1
    assert len(failed) > balancer.refused + HELD // 2, "no stream was under way there: the test proves nothing"
