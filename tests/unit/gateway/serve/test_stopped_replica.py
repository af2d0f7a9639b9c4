"""A replica that is stopped (SIGSTOP), its front or its engine: it takes no request until it goes on, and then it takes its share again.

Each case prints how long both took (`pytest -s`); a test judges no clock.
"""

import asyncio
import os
import re
import signal
import time
from contextlib import ExitStack

import aiohttp
import pytest
from pagoda_contracts.names import HEADER_ROUTE
from pagoda_contracts.route import parse_route
from support.servers.gateway_process import start_gateway, write_fleet
from support.servers.replica import NAME, replica_config, start_daemon

pytestmark = pytest.mark.deep  # real processes, seconds each
# A connection that was silent for 6 s is dialled anew, so a longer stop ends in another connection than a short one.
LONG_S = 8.0


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stopped")
    with ExitStack() as stack:
        replicas = [stack.enter_context(start_daemon(replica_config(folder))) for _ in range(2)]
        for replica in replicas:
            replica.wait_listening()
            replica.wait_ready()
        file = folder / "fleet.json"
        endpoints = [{"http": replica.http, "grpc": replica.grpc} for replica in replicas]
        write_fleet(file, [{"name": "ns/s", "served_names": [NAME], "endpoints": endpoints, "routing": {"policy": "LeastLoad"}}])
        yield replicas, stack.enter_context(start_gateway("--fleet", str(file)))


def ready(gateway):
    """How many endpoints are ready."""
    found = re.search(r'pagoda_gateway_endpoints{service="ns/s",verdict="ready"} ([0-9.]+)', gateway.scrape())
    return float(found[1]) if found else 0.0


def until(count, gateway):
    """Returns after how many seconds so many are ready."""
    began = time.monotonic()
    while ready(gateway) != count:
        assert time.monotonic() - began < 120
        time.sleep(0.02)
    return time.monotonic() - began


async def ask(gateway, count):
    """Which replicas answer."""
    went = []
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=120)) as client:
        for number in range(count):
            body = {"model": NAME, "prompt": f"{number}", "max_tokens": 2}
            async with client.post(f"{gateway.url}/v1/completions", json=body) as answer:
                assert answer.status == 200
                went.append(parse_route(answer.headers[HEADER_ROUTE]).endpoint)
    return set(went)


@pytest.mark.parametrize("for_s", [0.0, LONG_S])
@pytest.mark.parametrize("part", ["front", "engine"])
async def test_it_takes_no_request_until_it_goes_on(pair, part, for_s):
    (stopped, other), gateway = pair
    until(2, gateway)
    assert await ask(gateway, 8) == {stopped.http, other.http}
    pid = stopped.process.pid if part == "front" else stopped.engine_pid()
    os.kill(pid, signal.SIGSTOP)
    try:
        suspect_s = until(1, gateway)
        began = time.monotonic()
        while 'verdict="suspect"' in gateway.scrape():  # it takes requests if no other one can
            await asyncio.sleep(0.02)
        out_s = suspect_s + time.monotonic() - began
        assert await ask(gateway, 8) == {other.http}
        await asyncio.sleep(for_s)
    finally:
        os.kill(pid, signal.SIGCONT)
    back_s = until(2, gateway)
    assert await ask(gateway, 8) == {stopped.http, other.http}
    print(f"{part}, {for_s:g} s: suspect after {suspect_s:.2f} s, out after {out_s:.2f} s, ready again after {back_s:.2f} s")
