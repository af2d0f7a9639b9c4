"""Streams to gateways: each address is listened to, one that breaks is dialled again, one that left the name is forgotten."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import grpc.aio
import pytest
from pagoda_contracts.names import GRPC_DEMAND, GRPC_WATCH_DEMAND
from pagoda_contracts.pb import demand_pb2 as pb
from pagoda_kube import streams
from pagoda_kube.streams import resolve
from pagoda_operator.api.state import Key
from pagoda_operator.client import listen
from pagoda_operator.client import signals as signals_module
from pagoda_operator.client.listen import Listener
from pagoda_operator.client.signals import Signals
from support.servers.gateway_process import start_gateway, write_fleet

KEY = Key("ns", "s")


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """What silence means is test_signals.py's, on a clock of its own: here nobody is silent because this process was."""
    monkeypatch.setattr(signals_module, "FRESH_S", 600.0)
    monkeypatch.setattr(listen, "_REDIAL_S", 600.0)


class Gateway:
    """Sends what the test puts into its queue; None ends the stream."""

    def __init__(self):
        self.frames: asyncio.Queue[pb.Demand | None] = asyncio.Queue()
        self.watchers = []

    async def watch(self, request: pb.WatchDemandRequest, _context: object) -> AsyncIterator[pb.Demand]:
        self.watchers.append(request.watcher)
        while (frame := await self.frames.get()) is not None:
            yield frame


@asynccontextmanager
async def serving(gateway):
    server = grpc.aio.server()
    method = grpc.unary_stream_rpc_method_handler(
        gateway.watch, request_deserializer=pb.WatchDemandRequest.FromString, response_serializer=pb.Demand.SerializeToString
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(GRPC_DEMAND, {GRPC_WATCH_DEMAND.rpartition("/")[2]: method}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop(None)


@asynccontextmanager
async def listening(*addresses):
    """A listener; each key that it wakes is put into the queue."""
    woken: asyncio.Queue[Key] = asyncio.Queue()
    signals = Signals(asyncio.get_running_loop().time, woken.put_nowait)
    task = asyncio.create_task(Listener(addresses, signals, "test").run())
    yield signals, woken
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def held(count, **fields):
    return pb.Demand(services=[pb.ServiceDemand(namespace="ns", name="s", held=count, wake=bool(count))], **fields)


async def test_a_held_request_wakes_its_service_and_a_broken_stream_is_renewed():
    gateway = Gateway()
    async with asyncio.timeout(120), serving(gateway) as address, listening(address) as (signals, woken):
        gateway.frames.put_nowait(held(1, full=True))
        assert await woken.get() == KEY
        assert (signals.of(KEY, 0).held, signals.of(KEY, 0).wake) == (1, True)
        gateway.frames.put_nowait(None)
        gateway.frames.put_nowait(held(0, full=True))
        assert await woken.get() == KEY
        assert gateway.watchers == ["operator/test"] * 2


async def test_a_gateway_that_left_dns_is_forgotten(monkeypatch):
    one, two = Gateway(), Gateway()
    async with asyncio.timeout(120), serving(one) as first, serving(two) as second:
        there = {first, second}
        monkeypatch.setattr(streams, "resolve", lambda _names: asyncio.sleep(0, there))
        monkeypatch.setattr(streams, "_RESOLVE_S", 0.01)
        async with listening("gateways:9100") as (signals, woken):
            one.frames.put_nowait(held(1, full=True))
            two.frames.put_nowait(held(2, full=True))
            while (seen := signals.of(KEY, 0)) is None or seen.held != 3:
                await woken.get() if not woken.empty() else await asyncio.sleep(0)
            there.discard(second)
            while signals.of(KEY, 0).held != 1:
                await asyncio.sleep(0.01)


async def test_a_name_resolves_to_all_its_addresses_or_none(monkeypatch):
    async def answers(host, port, **_):
        if host == "none":
            raise socket.gaierror(socket.EAI_NONAME, "unknown")
        return [(0, 0, 0, "", (address, port)) for address in ("10.0.0.1", "10.0.0.2")] + [(0, 0, 0, "", ("fd00::1", port, 0, 0))]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", answers, raising=False)
    assert await resolve(("all:9100", "none:9100")) == {"10.0.0.1:9100", "10.0.0.2:9100", "[fd00::1]:9100"}


@pytest.mark.deep
async def test_a_real_gateways_held_request_wakes_its_service_before_its_next_beat(tmp_path):
    file = tmp_path / "fleet.json"
    write_fleet(file, [{"name": "ns/s", "served_names": ["m"]}, {"name": "ns/other", "served_names": ["n"]}])
    loop = asyncio.get_running_loop()
    with start_gateway("--fleet", str(file)) as gateway:
        async with asyncio.timeout(240), listening(f"127.0.0.1:{gateway.demand}") as (signals, woken), aiohttp.ClientSession() as client:
            while (seen := signals.of(KEY, 0)) is None or not seen.fresh:
                await asyncio.sleep(0.02)
            while not woken.empty():
                woken.get_nowait()
            took = []
            for _ in range(10):
                asked = loop.time()
                request = asyncio.create_task(client.post(f"{gateway.url}/v1/completions", json={"model": "m", "prompt": "x"}))
                assert await woken.get() == KEY
                took.append(loop.time() - asked)
                assert (signals.of(KEY, 0).held, signals.of(KEY, 0).wake) == (1, True)
                request.cancel()
                assert await woken.get() == KEY
                assert signals.of(KEY, 0).held == 0
            assert woken.empty()
    print("held_to_woken_ms", [round(1000 * seconds) for seconds in sorted(took)])
