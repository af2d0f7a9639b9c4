"""A client that shuts down its sending side and reads on gets its answer; one that is gone is noticed, though both send a FIN."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop
from pagoda_daemon.api.http.final_errors import send_final_errors
from pagoda_daemon.api.http.half_closed import BEGIN
from pagoda_daemon.core.errors import EngineDied
from support.servers.local_replica import NAME, PATIENCE_S, Held, LocalReplica, local_replica, read_answer, request, texts

TOKENS = 40
LOOPS = pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])


def asked(**fields: Any) -> bytes:
    body = {"model": NAME, "prompt": [7, 9], "max_tokens": TOKENS, "ignore_eos": True, "seed": 1} | fields
    return request("POST", "/v1/completions", json.dumps(body).encode())


@asynccontextmanager
async def one() -> AsyncIterator[LocalReplica]:
    async with asyncio.timeout(PATIENCE_S), local_replica() as replica:
        yield replica


def played(loop: Callable[[], asyncio.AbstractEventLoop], test: Callable[[], Awaitable[None]]) -> None:
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(test())  # type: ignore[arg-type]


async def shut_down(replica: LocalReplica, writer: asyncio.StreamWriter) -> None:
    """Returns once the server has seen that the client sends no more: it has begun an answer, or closed."""
    server, before = replica.front._server, replica.connections
    assert server is not None
    writer.write_eof()
    connections = server.server_state.connections
    await replica.until(lambda: len(connections) < before or any(getattr(each, "begun", False) for each in connections))


def said(answer: bytes) -> Any:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n"), answer
    return texts(body) if b"event-stream" in head else json.loads(body)["choices"]


@LOOPS
@pytest.mark.parametrize(("stream", "steps"), [(False, 0), (False, 6), (True, 0)], ids=["whole", "whole, among tokens", "stream"])
def test_a_client_that_reads_on_gets_the_whole_answer_and_then_the_end(loop: Any, stream: bool, steps: int) -> None:
    async def test() -> None:
        async with one() as replica:
            as_ever = await replica.send(asked(stream=stream))
            reader, writer = await replica.connect()
            await replica.at_rest()
            held = Held(steps)
            replica.engine.round_trip = held.step
            writer.write(asked(stream=stream))
            await held.reached.wait()
            await shut_down(replica, writer)
            held.go_on.set()
            answer = await read_answer(reader)
            assert said(answer) == said(as_ever)
            assert await reader.read() == b""
            await replica.at_rest()
            assert replica.engine.aborted == []

    played(loop, test)


@LOOPS
def test_a_client_that_shuts_down_in_the_midst_of_a_stream_counts_as_gone(loop: Any) -> None:
    async def test() -> None:
        async with one() as replica:
            reader, writer = await replica.connect()
            writer.write(asked(stream=True, max_tokens=400))
            await reader.readuntil(b"data: ")
            writer.write_eof()
            await replica.at_rest()
            assert len(replica.engine.aborted) == 1

    played(loop, test)


@LOOPS
def test_requests_sent_ahead_are_all_answered(loop: Any) -> None:
    async def test() -> None:
        async with one() as replica:
            reader, writer = await replica.connect()
            writer.write(asked() + asked(stream=True) + request("GET", "/version"))
            writer.write_eof()
            assert len(said(await read_answer(reader))) == 1
            assert said(await read_answer(reader))
            assert (await read_answer(reader)).startswith(b"HTTP/1.1 200 OK\r\n")
            assert await reader.read() == b""
            await replica.at_rest()

    played(loop, test)


@LOOPS
def test_a_client_that_is_gone_is_not_computed_for_whether_it_streams_or_not(loop: Any) -> None:
    async def test() -> None:
        async with one() as replica:
            for stream in (False, True):
                _, writer = await replica.connect()
                held = Held(3)
                replica.engine.round_trip = held.step
                writer.write(asked(stream=stream, max_tokens=400))
                await held.reached.wait()
                writer.close()
                held.go_on.set()
                await replica.at_rest()
            assert len(replica.engine.aborted) == 2
            assert max(len(replica.engine.computed[message.request_id]) for message in replica.engine.submitted) < 100

    played(loop, test)


@LOOPS
@pytest.mark.parametrize("part", [b"", b"POST /v1/comp", asked()[:-9]], ids=["nothing", "half a head", "half a body"])
def test_a_client_that_has_not_asked_to_the_end_is_let_go(loop: Any, part: bytes) -> None:
    async def test() -> None:
        async with one() as replica:
            reader, writer = await replica.connect()
            writer.write(part)
            writer.write_eof()
            assert await reader.read() == b""
            assert replica.engine.submitted == []
            await replica.at_rest()

    played(loop, test)


@LOOPS
def test_a_refusal_and_a_final_error_go_on_behind_what_is_written(loop: Any) -> None:
    async def test() -> None:
        async with one() as replica:
            reader, writer = await replica.connect()
            writer.write(request("POST", "/v1/completions", b"{}"))
            writer.write_eof()
            assert (await read_answer(reader)).startswith(b"HTTP/1.1 400 Bad Request\r\n")
            reader, writer = await replica.connect()
            held = Held(0)
            replica.engine.round_trip = held.step
            writer.write(asked())
            await held.reached.wait()
            await shut_down(replica, writer)
            assert await reader.readexactly(len(BEGIN)) == BEGIN
            server = replica.front._server
            assert server is not None
            assert send_final_errors(server.server_state.connections, EngineDied("gone")) == 1
            assert (await reader.readline()) == b"503 Service Unavailable\r\n"
            held.go_on.set()

    played(loop, test)
