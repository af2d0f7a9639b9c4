"""What each metric tells after known events, by a clock in the test's hand: its value, its labels and its unit."""

import asyncio
import math
from contextlib import AsyncExitStack, asynccontextmanager

import aiohttp
import pytest
from aiohttp import web
from pagoda_contracts import metrics as words
from pagoda_contracts.names import ERROR_DRAINING
from pagoda_gateway.proxy.body import Limits
from pagoda_gateway.proxy.handlers import Api, metrics_application
from pagoda_gateway.proxy.upstream import Upstream
from support.servers.scripted_replica import Replica, running, say_ok
from support.worlds.gateway import GatewayWorld

LIMITS = Limits(body_bytes=1 << 20, body_seconds=300)


@pytest.fixture
async def world():
    return GatewayWorld()


@asynccontextmanager
async def listening(world):
    """Clients for the API and for the metrics."""
    async with AsyncExitStack() as stack:
        upstream = Upstream(300.0)
        stack.push_async_callback(upstream.close)
        api = Api(world.cache, world.in_flight, world.router, upstream, LIMITS, world.authenticate)
        servers = []
        for app in (api.application(), metrics_application(world.metrics)):
            runner = web.AppRunner(app, handler_cancellation=True)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            servers.append(f"http://127.0.0.1:{runner.addresses[0][1]}")
        client = await stack.enter_async_context(aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=300)))
        yield client, *servers


async def samples_of(client, url):
    """Every sample, without the times at which a series began."""
    async with client.get(f"{url}/metrics") as answer:
        lines = (await answer.text()).splitlines()
    return {line for line in lines if not line.startswith("#") and "_created{" not in line}


async def test_every_metric_counts_what_was_done_in_its_unit(world):
    """The samples are compared as a whole: a metric that is added without a value here is missed."""
    dying = [Replica(name) for name in ("a", "b")]
    async with AsyncExitStack() as stack:
        a, b = [await stack.enter_async_context(running(replica)) for replica in dying]
        client, api, scraped = await stack.enter_async_context(listening(world))

        async def ask(model):
            async with client.post(f"{api}/v1/completions", json={"model": model, "prompt": "x"}) as answer:
                await answer.read()
                return answer.status

        world.service("ns/s", "m")
        world.service("ns/t", "n")
        world.synced()
        for replica in (a, b):
            world.frame("ready", replica.name, "ns/s", replica.http)
        assert await ask("m") == 200
        assert await ask("nobody's") == 404
        # The one that was asked longest ago is asked first, and turns the request away.
        a.script = b.script = refusing_once(say_ok)
        assert await ask("m") == 200
        for replica in (a, b):
            replica.script = die
            world.frame("ready", replica.name, "ns/s", replica.http)
        assert await ask("m") == 502  # sent to both; the second death is no repick any more
        world.frame("loading", "b", "ns/s", b.http)

        left, stays = (asyncio.create_task(ask("n")) for _ in range(2))
        await world.until(lambda: world.queue.count("ns/t") == 2)
        assert {line for line in await samples_of(client, scraped) if "held_requests" in line} == {
            'pagoda_gateway_held_requests{service="ns/s"} 0.0',
            'pagoda_gateway_held_requests{service="ns/t"} 2.0',
        }
        world.now_ms += 250
        left.cancel()
        await world.until(lambda: world.queue.count("ns/t") == 1)
        world.now_ms += 7_000
        a.script = say_ok
        world.frame("ready", "c", "ns/t", a.http)
        world.frame("loading", "b", "ns/s", b.http)
        assert await stays == 200
        samples = await samples_of(client, scraped)
    bounds = (0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, math.inf)
    held = {math.inf: "+Inf"} | {bound: str(bound) for bound in bounds[:-1]}
    assert samples == {
        'pagoda_gateway_requests_total{code="200",service="ns/s"} 2.0',
        'pagoda_gateway_requests_total{code="404",service=""} 1.0',
        'pagoda_gateway_requests_total{code="502",service="ns/s"} 1.0',
        'pagoda_gateway_requests_total{code="499",service="ns/t"} 1.0',
        'pagoda_gateway_requests_total{code="200",service="ns/t"} 1.0',
        'pagoda_gateway_repicks_total{reason="draining",service="ns/s"} 1.0',
        'pagoda_gateway_repicks_total{reason="closed",service="ns/s"} 1.0',
        'pagoda_gateway_held_requests{service="ns/s"} 0.0',
        'pagoda_gateway_held_requests{service="ns/t"} 0.0',
        'pagoda_gateway_endpoints{service="ns/s",verdict="silent"} 1.0',
        'pagoda_gateway_endpoints{service="ns/s",verdict="loading"} 1.0',
        'pagoda_gateway_endpoints{service="ns/t",verdict="ready"} 1.0',
        'pagoda_gateway_hold_seconds_count{service="ns/t"} 2.0',
        'pagoda_gateway_hold_seconds_sum{service="ns/t"} 7.5',
        *(
            f'pagoda_gateway_hold_seconds_bucket{{le="{held[bound]}",service="ns/t"}} {float((bound >= 0.25) + (bound >= 7.25))}'
            for bound in bounds
        ),
    }


def test_every_metric_that_is_named_is_exported_and_no_other():
    empty = GatewayWorld().metrics.exposition().decode()
    families = {line.split()[2] for line in empty.splitlines() if line.startswith("# TYPE")}
    exported = {name for name in families if not name.endswith("_created")}
    assert exported == {metric.name + ("_total" if metric.kind == "counter" else "") for metric in words.GATEWAY}


def refusing_once(then):
    """Of all who are asked with it the first turns the request away."""
    pending = [lambda exchange: exchange.refuse(ERROR_DRAINING)]

    async def script(exchange):
        await (pending.pop() if pending else then)(exchange)

    return script


async def die(exchange):
    exchange.die()
