"""What a connection may cost: a head that trickles ends in time, a slow body has another bound, and there are not too many."""

import asyncio
import json
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web
from pagoda_gateway.proxy.connection import Bounds
from pagoda_gateway.proxy.listener import listening

HEAD = b"POST / HTTP/1.1\r\nhost: h\r\n"
WHOLE = HEAD + b"content-length: 5\r\n\r\nhello"


@asynccontextmanager
async def served(**bounds):
    """A function that opens connections to a server that echoes bodies."""

    async def echo(request):
        return web.Response(body=await request.read())

    app, writers = web.Application(), []
    app.router.add_post("/", echo)
    async with listening(app, "127.0.0.1", 0, None, Bounds(**bounds)) as listener, asyncio.timeout(120):

        async def connected():
            reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
            writers.append(writer)
            return reader, writer

        yield connected
        for writer in writers:
            writer.close()


async def answer_of(reader):
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
    return int(head.split()[1]), await reader.readexactly(length)


async def refused(reader):
    """The one answer before the connection's end."""
    status, body = await answer_of(reader)
    assert await reader.read() == b""
    return status, json.loads(body)["error"]["code"]


@pytest.mark.parametrize("before", [b"", WHOLE])
async def test_a_head_that_trickles_ends_in_time_also_behind_another_request(before):
    async with served(head_s=0.05) as connected:
        reader, writer = await connected()
        writer.write(before)
        if before:
            assert await answer_of(reader) == (200, b"hello")
        writer.write(HEAD)
        assert await refused(reader) == (408, "request_timeout")


async def test_a_slow_body_and_an_idle_connection_have_no_part_in_that():
    async with served(head_s=0.03) as connected:
        reader, writer = await connected()
        for piece in (WHOLE[:-5], b"he", b"llo"):
            writer.write(piece)
            await asyncio.sleep(0.06)
        assert await answer_of(reader) == (200, b"hello")
        await asyncio.sleep(0.06)
        writer.write(WHOLE)
        assert await answer_of(reader) == (200, b"hello")


async def test_a_head_is_bounded_in_bytes_before_it_is_whole():
    async with served(head_bytes=1000) as connected:
        reader, writer = await connected()
        for number in range(3):
            writer.write((HEAD if number == 0 else b"") + b"x-a: %s\r\n" % (b"y" * 500))
            await writer.drain()
        assert await refused(reader) == (431, "headers_too_large")


async def test_an_idle_connection_ends_in_time():
    async with served(idle_s=0.05) as connected:
        reader, _ = await connected()
        assert await reader.read() == b""


async def test_one_connection_too_many_is_refused_and_another_s_end_makes_room():
    async with served(connections=2) as connected:
        opened = [await connected() for _ in range(2)]
        for reader, writer in opened:
            writer.write(WHOLE)
            assert await answer_of(reader) == (200, b"hello")
        reader, _ = await connected()
        assert await refused(reader) == (503, "overloaded")
        opened[0][1].close()
        while True:
            reader, writer = await connected()
            writer.write(WHOLE)
            if (await answer_of(reader))[0] == 200:
                break


async def test_a_client_that_left_while_it_was_written_to_is_no_error(caplog):
    """aiohttp would log it with a traceback, once for each client that goes in the midst of a stream."""

    async def leaves(_request):
        raise aiohttp.ClientConnectionResetError("Cannot write to closing transport")

    app = web.Application()
    app.router.add_post("/", leaves)
    async with listening(app, "127.0.0.1", 0, None, Bounds()) as listener, asyncio.timeout(120):
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        writer.write(WHOLE)
        assert await reader.read() == b""
        writer.close()
    assert not caplog.records
