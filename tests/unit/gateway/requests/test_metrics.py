"""What each metric tells after known events, by a clock in the test's hand: its value, its labels and its unit."""

import asyncio
import math
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import aiohttp
import pytest
from aiohttp import web
from pagoda_contracts import gateway_metrics as words
from pagoda_contracts.names import ERROR_DRAINING
from pagoda_gateway.proxy.body import Limits
from pagoda_gateway.proxy.handlers import metrics_application
from pagoda_gateway.proxy.upstream import Upstream
from pagoda_gateway.requests.errors import ModelNotFound
from pagoda_gateway.routing.request import RoutingRequest
from support.harness.gateway import SERVICE, GatewayHarness
from support.servers.scripted_replica import Replica, running, say_ok

LIMITS = Limits(body_bytes=1 << 20, body_seconds=300)


@pytest.fixture
async def harness():
    return GatewayHarness()


@asynccontextmanager
async def listening(harness):
    """Clients for the API and for the metrics."""
    async with AsyncExitStack() as stack:
        upstream = Upstream(300.0)
        stack.push_async_callback(upstream.close)
        api = harness.api(upstream, LIMITS)
        servers = []
        for app in (api.application(), metrics_application(harness.metrics)):
            runner = web.AppRunner(app, handler_cancellation=True)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            servers.append(f"http://127.0.0.1:{runner.addresses[0][1]}")
        client = await stack.enter_async_context(aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=300)))
        yield client, *servers


OF_POOLS = ("llm_d_epp_", "inference_")
OF_TIMES = ("pagoda_gateway_request_duration_seconds", "pagoda_gateway_time_to_first_token_seconds")


async def samples_of(client, url, without=(*OF_POOLS, *OF_TIMES)):
    """Every sample but those `without`, and without the times at which a series began."""
    async with client.get(f"{url}/metrics") as answer:
        lines = (await answer.text()).splitlines()
    return {line for line in lines if not line.startswith(("#", *without)) and "_created{" not in line}


async def test_every_metric_counts_what_was_done_in_its_unit(harness):
    """The samples are compared as a whole: a metric that is added without a value here is missed."""
    dying = [Replica(name) for name in ("a", "b", "third")]
    async with AsyncExitStack() as stack:
        a, b, third = [await stack.enter_async_context(running(replica)) for replica in dying]
        client, api, scraped = await stack.enter_async_context(listening(harness))

        async def ask(model):
            async with client.post(f"{api}/v1/completions", json={"model": model, "prompt": "x"}) as answer:
                await answer.read()
                return answer.status

        harness.service("ns/s", "m")
        harness.service("ns/t", "n")
        harness.synced()
        for replica in (a, b):
            harness.frame("ready", replica.name, "ns/s", replica.http)
        assert await ask("m") == 200
        assert await ask("nobody's") == 404
        # The one that was asked longest ago is asked first, and turns the request away.
        a.script = b.script = refusing_once(say_ok)
        assert await ask("m") == 200
        for replica in (a, b, third):
            replica.script = die
            harness.frame("ready", replica.name, "ns/s", replica.http)
        assert await ask("m") == 502  # sent to all; the third death is no repick any more
        harness.frame("loading", "b", "ns/s", b.http)

        left, stays = (asyncio.create_task(ask("n")) for _ in range(2))
        await harness.until(lambda: harness.queue.count("ns/t") == 2)
        assert {line for line in await samples_of(client, scraped) if "held_requests" in line} == {
            'pagoda_gateway_held_requests{service="ns/s"} 0.0',
            'pagoda_gateway_held_requests{service="ns/t"} 2.0',
        }
        harness.now_ms += 250
        left.cancel()
        await harness.until(lambda: harness.queue.count("ns/t") == 1)
        harness.now_ms += 7_000
        a.script = say_ok
        harness.frame("ready", "c", "ns/t", a.http)
        harness.frame("loading", "b", "ns/s", b.http)
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
        'pagoda_gateway_endpoints{service="ns/s",verdict="silent"} 2.0',
        'pagoda_gateway_endpoints{service="ns/s",verdict="loading"} 1.0',
        'pagoda_gateway_endpoints{service="ns/t",verdict="ready"} 1.0',
        'pagoda_gateway_hold_seconds_count{service="ns/t"} 2.0',
        'pagoda_gateway_hold_seconds_sum{service="ns/t"} 7.5',
        *(
            f'pagoda_gateway_hold_seconds_bucket{{le="{held[bound]}",service="ns/t"}} {float((bound >= 0.25) + (bound >= 7.25))}'
            for bound in bounds
        ),
    }


async def test_a_request_s_time_and_that_of_its_first_byte_are_observed(harness):
    async with running(Replica("a")) as replica, listening(harness) as (client, api, scraped):
        harness.service()
        harness.synced()
        harness.frame(address=replica.http)

        async def late(exchange):
            harness.now_ms += 300
            await exchange.stream(1)

        replica.script = late
        for model in ("m", "nobody's"):
            async with client.post(f"{api}/v1/completions", json={"model": model, "stream": True}) as answer:
                await answer.read()
        await harness.until(lambda: not harness.in_flight.count)
        async with asyncio.timeout(120):
            while 'pagoda_gateway_request_duration_seconds_sum{service="ns/s"} 0.3' not in (
                samples := await samples_of(client, scraped, ())
            ):
                await asyncio.sleep(0)
    assert 'pagoda_gateway_time_to_first_token_seconds_sum{service="ns/s"} 0.3' in samples
    assert not [line for line in samples if line.startswith(OF_TIMES) and 'service=""' in line]


async def test_pools_have_llm_d_s_names_and_their_older_twins(harness):
    harness.service()
    for name, waiting, used in (("ns/a", 4, 10), ("ns/b", 1, 30)):
        harness.frame(name=name)
        endpoint = next(one for one in harness.cache.endpoints(harness.cache.resolve("m")) if one.name == name)
        endpoint.frame = endpoint.frame._replace(waiting=waiting, blocks_used=used, blocks_total=40)
    harness.frame("loading", "ns/c")
    harness.queue.enter(SERVICE)
    lines = harness.metrics.exposition().decode().splitlines()
    found = {line for line in lines if line.startswith(OF_POOLS) and "scheduler" not in line}
    model = 'fairness_id="",inference_pool="ns/s",model_name="m",priority="0",target_model_name="m"'
    pairs = {
        ("average_queue_size", "average_queue_size"): 2.5,
        ("average_kv_cache_utilization", "average_kv_cache_utilization"): 0.5,
        ("ready_endpoints", "ready_pods"): 2.0,
    }
    assert found == {
        *(f'llm_d_epp_{new}{{name="ns/s"}} {value}' for (new, _), value in pairs.items()),
        *(f'inference_pool_{old}{{name="ns/s"}} {value}' for (_, old), value in pairs.items()),
        *(f"{kind}_flow_control_queue_size{{{model}}} 1.0" for kind in ("llm_d_epp", "inference_extension")),
    }


async def test_how_long_it_took_to_choose_a_replica_is_measured_once_per_choice_and_without_the_wait(harness):
    async def attempt(_address, _route, *, fresh):
        return web.Response()

    async with harness.in_flight.begin() as life:
        life.request = RoutingRequest("m")
        harness.service()
        harness.synced()
        held = asyncio.create_task(harness.router.serve(life, attempt))
        await harness.until(lambda: harness.queue.total == 1)
        harness.now_ms += 7_000
        harness.frame()
        await held
    found = harness.metrics.exposition().decode()
    for system in ("llm_d_epp", "inference_extension"):
        assert f"\n{system}_scheduler_e2e_duration_seconds_count 1.0\n" in found
        assert f"\n{system}_scheduler_e2e_duration_seconds_sum 0.0\n" in found


async def test_no_name_that_a_client_makes_up_makes_a_series(harness):
    async with listening(harness) as (client, api, scraped):
        harness.service()
        harness.synced()

        async def ask(number):
            headers = {"x-request-id": f"id-{number}", "authorization": f"Bearer made-up-{number}", "x-pagoda-tenant": f"t{number}"}
            for path in ("/v1/completions", f"/v1/models/made-up-{number}", f"/made-up-{number}"):
                async with client.post(f"{api}{path}", json={"model": f"made-up-{number}"}, headers=headers) as answer:
                    assert answer.status in (404, 405)

        await ask(0)
        before = {line.rsplit(" ", 1)[0] for line in await samples_of(client, scraped, ())}
        for number in range(1, 20):
            await ask(number)
        assert {line.rsplit(" ", 1)[0] for line in await samples_of(client, scraped, ())} == before


@pytest.mark.deep
async def test_ten_thousand_models_make_no_series(harness):
    harness.service()
    harness.synced()
    lines = set()
    for number in range(10_000):
        with suppress(ModelNotFound):
            async with harness.in_flight.begin() as life:
                life.request = RoutingRequest(f"made-up-{number}")
                await harness.router.serve(life, None)
        if number in (0, 9_999):
            lines.add(len(harness.metrics.exposition().splitlines()))
    assert len(lines) == 1


def test_every_metric_that_is_named_is_exported_and_no_other():
    metrics = GatewayHarness().metrics
    metrics.quota_store(up=True)  # only with a store
    empty = metrics.exposition().decode()
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
