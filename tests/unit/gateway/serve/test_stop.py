"""A gateway that is told to go: nothing that was accepted is lost, nothing new is kept, exit 0."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest
from pagoda_contracts.names import PATH_READY
from support.servers.gateway_process import GatewayProcess, start_gateway, write_fleet
from support.servers.scripted_replica import DONE, EVENT, Exchange


@pytest.fixture
def options(request: pytest.FixtureRequest) -> list[str]:
    return getattr(request, "param", ["--lame-duck", "0s"])


@pytest.fixture
def process(tmp_path: Path, options: list[str]) -> Iterator[tuple[GatewayProcess, Path]]:
    """One for each test: it ends in it."""
    write_fleet(tmp_path / "fleet.json", [])
    with start_gateway("--fleet", str(tmp_path / "fleet.json"), *options) as gateway:
        yield gateway, tmp_path / "fleet.json"


class Gate:
    """A replica's script that streams one event, and ends only when the test says so."""

    def __init__(self) -> None:
        self.go = asyncio.Event()

    async def __call__(self, exchange: Exchange) -> None:
        await exchange.begin_stream()
        await exchange.chunk(EVENT % 0)
        await self.go.wait()
        await exchange.chunk(DONE)
        exchange.writer.write(b"0\r\n\r\n")
        await exchange.writer.drain()


async def gone(gateway) -> int:
    return await asyncio.to_thread(gateway.wait)


async def refuses(gateway) -> None:
    """Returns when nobody listens any more."""
    async with asyncio.timeout(120):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", gateway.http)
            except ConnectionError:
                return
            writer.close()
            await asyncio.sleep(0.02)


@pytest.mark.deep
@pytest.mark.parametrize("options", [["--lame-duck", "300ms"]], indirect=True)
async def test_a_stream_under_way_outlives_the_listener_and_the_exit_is_clean(bench, replicas):
    replicas[0].script = gate = Gate()
    await bench.serve(replicas[0])
    async with bench.post(stream=True) as answer:
        assert await answer.content.readexactly(len(EVENT % 0)) == EVENT % 0
        bench.gateway.terminate()
        await refuses(bench.gateway)
        assert bench.gateway.probe(PATH_READY) == 503
        gate.go.set()
        assert await answer.content.read() == DONE
    assert await gone(bench.gateway) == 0


@pytest.mark.parametrize("options", [["--lame-duck", "10m"]], indirect=True)
async def test_during_the_lame_duck_new_requests_are_served_and_told_to_reconnect(bench, replicas):
    await bench.serve(replicas[0])
    assert (await bench.ask())[0] == 200
    bench.gateway.terminate()
    await _unready(bench)
    async with bench.post() as answer, aiohttp.ClientSession() as stranger:
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        async with stranger.post(f"{bench.gateway.url}/v1/completions", json={"model": "m"}) as second:
            assert second.status == 200


async def test_a_body_on_its_way_when_the_listener_closes_is_still_read_and_served(bench, replicas):
    await bench.serve(replicas[0])
    reader, writer = await asyncio.open_connection("127.0.0.1", bench.gateway.http)
    body = json.dumps({"model": "m", "prompt": "x"}).encode()
    writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body[:5]))
    await writer.drain()
    bench.gateway.terminate()
    await refuses(bench.gateway)
    writer.write(body[5:])
    assert (await asyncio.wait_for(reader.readline(), 120)).startswith(b"HTTP/1.1 200 ")
    assert await gone(bench.gateway) == 0
    writer.close()


@pytest.mark.deep
@pytest.mark.parametrize("options", [["--lame-duck", "0s", "--drain-timeout", "1s"]], indirect=True)
async def test_at_the_deadline_the_held_get_an_answer_and_streams_a_clean_end(bench, replicas):
    replicas[0].script = Gate()
    await bench.serve(replicas[0])
    async with bench.post(stream=True) as streaming:
        await streaming.content.readexactly(len(EVENT % 0))
        replicas[0].silent = True
        await bench.sees(silent=1)
        held = asyncio.create_task(_status(bench))
        await bench.metric_is("held_requests", 1)
        bench.gateway.terminate()
        assert await held == (503, "gateway_stopping")
        rest = await streaming.content.read()
    assert b'"code":"gateway_stopping"' in rest
    assert rest.endswith(DONE)
    assert await gone(bench.gateway) == 0


@pytest.mark.deep
async def test_a_held_request_is_served_after_the_listener_has_closed(bench, replicas):
    await bench.serve(replicas[0])
    replicas[0].silent = True
    await bench.sees(silent=1)
    held = asyncio.create_task(_status(bench))
    await bench.metric_is("held_requests", 1)
    bench.gateway.terminate()
    await refuses(bench.gateway)
    replicas[0].silent = False
    assert await held == (200, "")
    assert await gone(bench.gateway) == 0


@pytest.mark.deep
@pytest.mark.parametrize("options", [["--lame-duck", "10m"]], indirect=True)
async def test_a_second_signal_ends_the_lame_duck_and_cuts_no_stream(bench, replicas):
    replicas[0].script = gate = Gate()
    await bench.serve(replicas[0])
    async with bench.post(stream=True) as answer:
        assert await answer.content.readexactly(len(EVENT % 0)) == EVENT % 0
        for _ in range(2):
            bench.gateway.terminate()
            await _unready(bench)
        await refuses(bench.gateway)
        gate.go.set()
        assert await answer.content.read() == DONE
    assert await gone(bench.gateway) == 0


async def _unready(bench) -> None:
    async with asyncio.timeout(120):
        while bench.gateway.probe(PATH_READY) != 503:
            await asyncio.sleep(0.01)


async def _status(bench) -> tuple[int, str]:
    async with bench.post() as answer:
        return answer.status, (await answer.json()).get("error", {}).get("code", "")
