"""A real gateway process under bad input: the exact status, the neighbours unhurt, and memory that does not grow by what was refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import pytest
from pagoda_contracts.pb.daemon_pb2 import Phase, State
from pagoda_contracts.resources.apikeys import new_key
from support.clients import malformed_http as malformed
from support.clients.malformed_http import HEAD
from support.servers.gateway_process import GatewayProcess, start_gateway, write_fleet
from support.servers.scripted_replica import DONE, EVENT, Replica, running

pytestmark = pytest.mark.deep

PATIENCE_S = 120
MODEL = "llama-tiny"
EVENTS = 40
WHOLE = b"".join(EVENT % number for number in range(EVENTS)) + DONE


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[GatewayProcess, Path]]:
    file = tmp_path_factory.mktemp("gateway") / "fleet.json"
    write_fleet(file, [])
    with start_gateway("--fleet", str(file)) as gateway:
        yield gateway, file


@pytest.fixture
async def gateway(process: tuple[GatewayProcess, Path]) -> AsyncIterator[GatewayProcess]:
    """With one replica that streams as long as a test lasts, a client who reads it, and the judgement of what that client got."""
    gateway, file = process
    ready = State(phase=Phase.PHASE_READY, served_names=[MODEL])
    async with running(Replica("a", script=_stream, state=ready)) as replica, aiohttp.ClientSession() as client:
        write_fleet(file, [{"name": "ns/s", "served_names": [MODEL], "endpoints": [replica.entry()]}])
        over = asyncio.Event()
        async with asyncio.timeout(PATIENCE_S):
            while (first := await _innocent(client, gateway))[0] == 404:  # it has not read the file yet
                await asyncio.sleep(0.02)
        streams = asyncio.create_task(_innocents(client, gateway, over))
        yield gateway
        over.set()
        assert {first, *await streams} == {(200, WHOLE)}
    assert gateway.process.poll() is None


async def _stream(exchange):
    await exchange.begin_stream()
    for number in range(EVENTS):
        await exchange.chunk(EVENT % number)
        await asyncio.sleep(0.005)
    await exchange.chunk(DONE)
    exchange.writer.write(b"0\r\n\r\n")


async def _innocent(client, gateway):
    async with client.post(f"{gateway.url}/v1/completions", json={"model": MODEL, "stream": True}) as answer:
        return answer.status, await answer.read()


async def _innocents(client, gateway, over):
    said = []
    while not over.is_set() or not said:
        said.append(await _innocent(client, gateway))
    return said


async def raw(gateway: GatewayProcess, sent: bytes) -> tuple[int, str]:
    """Status and code of the one answer; the connection must end behind it. 0 for the end alone."""
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.http)
    said = b""
    async with asyncio.timeout(PATIENCE_S):
        with suppress(ConnectionError):
            writer.write(sent)
            while piece := await reader.read(1 << 16):
                said += piece
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()
    head, _, body = said.partition(b"\r\n\r\n")
    return (int(head.split()[1]), json.loads(body)["error"]["code"]) if said else (0, "")


async def ask(gateway: GatewayProcess, body: bytes, path: str = "/v1/chat/completions", method: str = "POST") -> tuple[int, dict]:
    async with aiohttp.ClientSession() as client, client.request(method, f"{gateway.url}{path}", data=body) as answer:
        return answer.status, (await answer.json())["error"]


SHAPES = {
    "sizes of chunks": malformed.chunk_sizes(),
    "ends of chunks": malformed.CHUNK_ENDS,
    "lengths": malformed.lengths(b'{"model": "m"}'),
    "two lengths": malformed.TWO_LENGTHS,
    "transfer codings": malformed.codings(),
    "header lines": malformed.HEADER_LINES,
    "no http": malformed.NO_HTTP,
    "no proxy": (b"CONNECT x:443 HTTP/1.1\r\nhost: x\r\n\r\n",),
}


@pytest.mark.parametrize("shape", SHAPES)
async def test_what_is_no_request_or_two_is_refused_and_reaches_no_replica(gateway, shape):
    for sent in SHAPES[shape]:
        assert await raw(gateway, sent) == (400, "malformed_http"), sent[-80:]


@pytest.mark.parametrize("kind", malformed.LARGE)
async def test_a_bomb_of_headers_is_refused(gateway, kind):
    assert await raw(gateway, malformed.LARGE[kind]) in ((431, "headers_too_large"), (0, ""))


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b'{"model": "llama-tiny", "messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", 400, "invalid_value"),
        (b"[" * 100_000, 400, "invalid_value"),
        (b'{"model": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}", 400, "invalid_value"),
        (b'{"model": "' + b"m" * 1_000_000 + b'"}', 404, "model_not_found"),
        (b'{"model": "\\ud800"}', 400, "invalid_value"),
        (b'{"model": NaN}', 400, "invalid_value"),
        (b"\x00" * 1_000, 400, "invalid_value"),
        (b"", 400, "invalid_value"),
    ],
)
async def test_a_bad_body_has_its_status_and_a_short_answer(gateway, body, status, code):
    found, error = await ask(gateway, body)
    assert (found, error["code"]) == (status, code)
    assert len(error["message"]) < 500


async def test_a_model_that_nobody_has_is_refused_with_the_near_names(gateway):
    status, error = await ask(gateway, b'{"model": "lama-tiny"}')
    assert (status, error["code"], error["param"]) == (404, "model_not_found", "model")
    assert f"did you mean {MODEL!r}?" in error["message"]
    assert "did you mean" not in (await ask(gateway, b'{"model": "something else"}'))[1]["message"]


@pytest.mark.parametrize(("method", "path"), [("GET", "/v1/chat/completions"), ("DELETE", "/v1/completions"), ("POST", "/v1/models")])
async def test_a_wrong_method_is_named_with_the_right_one(gateway, method, path):
    status, error = await ask(gateway, b"", path, method)
    assert (status, error["code"]) == (405, "method_not_allowed")
    assert "the method must be" in error["message"]


async def test_slow_heads_and_bodies_by_the_hundred_hold_up_nobody(gateway):
    """None of them is waited for here; test_connection.py has the ends of their time."""
    body = b'{"model": "llama-tiny"}'
    slow = [await asyncio.open_connection("127.0.0.1", gateway.http) for _ in range(300)]
    for number, (_, writer) in enumerate(slow):
        writer.write(HEAD if number % 2 else HEAD + b"content-length: %d\r\n\r\n%s" % (len(body), body[:5]))
    async with aiohttp.ClientSession() as client:
        assert await _innocent(client, gateway) == (200, WHOLE)
    for _, writer in slow:
        writer.transport.abort()


def _resident(gateway: GatewayProcess) -> int:
    """KiB."""
    lines = Path(f"/proc/{gateway.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


async def test_what_was_refused_stays_in_no_memory(gateway):
    bodies = [b'{"model": "' + b"m" * 1_000_000 + b'"}', b"[" * 1_000_000, b'{"model": "x", "messages": [' + b"{}," * 300_000 + b"{}]}"]
    before = 0
    for round_ in range(6):
        for body in bodies:
            for _ in range(5):
                await ask(gateway, body)
        if round_ == 1:  # the allocator keeps what the first rounds needed
            before = _resident(gateway)
    assert _resident(gateway) - before < 32 * 1024


async def test_a_key_in_a_broken_request_is_in_no_answer_and_no_log(tmp_path, capfd):
    key = new_key(b"k" * 32, datetime(2026, 11, 24, tzinfo=UTC)).text
    write_fleet(tmp_path / "fleet.json", [])
    with start_gateway("--fleet", str(tmp_path / "fleet.json")) as gateway:
        sent = HEAD + b"authorization: Bearer " + key.encode() + b"\0\r\ncontent-length: 0\r\n\r\n"
        assert await raw(gateway, sent) == (400, "malformed_http")
    assert key not in capfd.readouterr().err
