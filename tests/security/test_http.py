"""Reproducers of advisories about the HTTP layer: headers, framing, slowness, many connections, shapes that proxies read in two ways."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress

import pytest
from pagoda_daemon.api.http.connection import Bounds
from pagoda_daemon.api.openai import requests
from support.judges.refusals import COMPLETIONS, PATIENCE_S, completion, error_of, served
from support.servers.local_replica import HOST, LocalReplica, local_replica, read_answer, request
from support.servers.loop_clock import LoopClock

BODY = json.dumps(completion()).encode()
POST = b"POST /v1/completions HTTP/1.1\r\n"
HEAD = POST + b"host: x\r\n"


async def refused_raw(replica: LocalReplica, raw: bytes, *statuses: int) -> None:
    """One answer of that status in OpenAI's shape and the end of the connection, or just that end (status 0)."""
    begun = len(replica.engine.submitted)
    reader, writer = await replica.connect()
    async with asyncio.timeout(PATIENCE_S):
        writer.write(raw)
        answer = await read_answer(reader)
        status = int(answer.split()[1]) if answer else 0
        assert status in statuses, answer[:500]
        if answer:
            error_of(json.loads(answer.partition(b"\r\n\r\n")[2]))
        with suppress(ConnectionError):
            assert await reader.read() == b""
    assert len(replica.engine.submitted) == begun
    await replica.at_rest()


async def refuses(*raws: bytes, statuses: tuple[int, ...] = (400,), bounds: Bounds | None = None) -> None:
    async with local_replica(bounds=bounds) as replica:
        for raw in raws:
            await refused_raw(replica, raw, *statuses)
        await served(replica)
        await replica.until(lambda: replica.connections <= 1)


async def test_headers_are_bounded_in_bytes() -> None:
    long = b"x" * 70_000
    await refuses(
        HEAD + b"x-a: " + long + b"\r\n\r\n",
        b"GET /" + long + b" HTTP/1.1\r\nhost: x\r\n\r\n",
        HEAD + b"x-a: " + long * 20,  # and never ends
        HEAD + b"".join(b"x-%d: %s\r\n" % (n, b"y" * 1000) for n in range(80)) + b"\r\n",
        statuses=(431, 0),
    )


async def test_headers_are_bounded_in_number() -> None:
    await refuses(HEAD + b"".join(b"x-%d: y\r\n" % n for n in range(1000)) + b"\r\n", statuses=(431, 0))


async def test_a_body_in_countless_chunks_is_bounded_like_any_other() -> None:
    """Six bytes a chunk, three million bytes; its sum is over the limit of this test's replica."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(requests, "MAX_BODY", min(requests.MAX_BODY, 2**20))
        async with local_replica() as replica:
            reader, writer = await replica.connect()
            writer.write(HEAD + b"transfer-encoding: chunked\r\n\r\n")
            writer.write(b"6\r\n     {\r\n" * 500_000)
            async with asyncio.timeout(PATIENCE_S):
                answer = await read_answer(reader)
            assert b" 413 " in answer.split(b"\r\n")[0] + b" ", answer[:200]
            assert replica.admission.held_bytes == 0
            await served(replica)


async def test_the_sizes_of_chunks_are_numbers_of_this_machine() -> None:
    chunked = HEAD + b"transfer-encoding: chunked\r\n\r\n"
    sizes = (b"FFFFFFFFFFFFFFFF1", b"-5", b"0x5", b"5 5", b"", b"5;" + b"\n", b"+5", b"5\n")
    await refuses(*(chunked + size + b"\r\nhello\r\n0\r\n\r\n" for size in sizes))


async def test_lengths_are_numbers_of_this_machine() -> None:
    wrong = (b"18446744073709551616", b"-1", b"+4", b"0x4", b"4, 4", b"4 4", b"", b"1e3", b"\xd9\xa4")
    await refuses(*(HEAD + b"content-length: " + length + b"\r\n\r\n" + BODY for length in wrong))


async def test_a_length_that_nobody_holds_is_refused_before_its_bytes() -> None:
    async with local_replica() as replica:
        for length in (16 * 2**20 + 1, 2**63 - 1):
            async with asyncio.timeout(PATIENCE_S):
                answer = await replica.send(HEAD + b"content-length: %d\r\n\r\n" % length)
            assert answer.startswith(b"HTTP/1.1 413 "), answer


async def test_chunks_end_as_the_standard_says() -> None:
    chunked = HEAD + b"transfer-encoding: chunked\r\n\r\n"
    await refuses(chunked + b"5\r\nhelloXX0\r\n\r\n", chunked + b"5\r\nhello0\r\n\r\n", chunked + b"5\nhello\r\n0\r\n\r\n")


async def test_a_request_of_two_lengths_is_refused() -> None:
    smuggled = b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n"
    te, cl = b"transfer-encoding: chunked\r\n", b"content-length: 4\r\n"
    await refuses(
        HEAD + cl + te + b"\r\n0\r\n\r\n" + smuggled,
        HEAD + te + cl + b"\r\n0\r\n\r\n" + smuggled,
        HEAD + cl + b"content-length: 5\r\n\r\nabcd" + smuggled,
        HEAD + cl + cl + b"\r\nabcd" + smuggled,
        HEAD + te + b"\r\n5\r\nhello\r\n0\r\ncontent-length: 9\r\n\r\n" + smuggled,
    )


async def test_transfer_codings_that_are_not_plainly_chunked_are_refused() -> None:
    for_each = (
        b"xchunked",
        b"identity",
        b"chunked, identity",
        b"gzip, chunked",
        b"chunked\r\ntransfer-encoding: chunked",
        b"\x0bchunked",
        b"",
    )
    await refuses(
        *(HEAD + b"transfer-encoding: " + value + b"\r\n\r\n0\r\n\r\n" for value in for_each),
        b"POST /v1/completions HTTP/1.0\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    )


async def test_header_lines_are_those_of_the_standard() -> None:
    end = b"content-length: 0\r\n\r\n"
    await refuses(
        HEAD + b"content-length : 0\r\n\r\n",
        HEAD + b"x: a\r\n b\r\n" + end,
        HEAD + b"x: a\rb\r\n" + end,
        HEAD + b"x: a\0b\r\n" + end,
        HEAD + b"x\0y: a\r\n" + end,
        POST.replace(b"\r", b"") + b"host: x\ncontent-length: 0\n\n",
        POST + end,
        HEAD + b"host: y\r\n" + end,
    )


async def test_what_is_no_http_gets_one_refusal_and_the_end() -> None:
    await refuses(
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 500,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET / HTTP/1.2\r\nhost: x\r\n\r\n",
        b"FOO / HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET http://x:99999999/v1/models HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET /\xc3\xa9 HTTP/1.1\r\nhost: x\r\n\r\n",
        b"*3\r\n$3\r\nSET\r\n",
        b"\0" * 10_000,
    )


async def test_this_is_no_proxy() -> None:
    await refuses(b"CONNECT x:443 HTTP/1.1\r\nhost: x\r\n\r\n", statuses=(405,))


async def test_an_upgrade_is_not_followed_and_the_request_is_served() -> None:
    """Java's client offers h2c with every first request."""
    async with local_replica() as replica:
        upgrade = {"connection": "Upgrade, HTTP2-Settings", "upgrade": "h2c", "http2_settings": "AAMAAABk"}
        status, answer = await replica.post(COMPLETIONS, completion(), **upgrade)
        assert (status, answer["object"]) == (200, "text_completion")
        both = HEAD + b"connection: upgrade\r\nupgrade: h2c\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"
        await refused_raw(replica, both, 400)


async def test_headers_that_trickle_end_in_time() -> None:
    async with local_replica(bounds=Bounds(head_s=0.05)) as replica:
        reader, writer = await replica.connect()
        writer.write(HEAD)
        answer = await read_answer(reader)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert error_of(json.loads(answer.partition(b"\r\n\r\n")[2]))["code"] == "request_timeout"
        assert await reader.read() == b""


async def test_connections_without_a_request_end_in_time_and_are_counted() -> None:
    clock = LoopClock()
    async with local_replica(bounds=Bounds(idle_s=600, connections=50)) as replica:
        opened = [await replica.connect() for _ in range(50)]
        opened[0][1].write(b"\r\n\r\n")
        await replica.until(lambda: replica.connections == 50)
        reader, _ = await replica.connect()
        assert (await read_answer(reader)).startswith(b"HTTP/1.1 503 ")
        clock.skip(600)
        await replica.until(lambda: replica.connections == 0)
        await served(replica)


async def test_a_body_that_trickles_ends_in_time_and_holds_no_place() -> None:
    clock = LoopClock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(requests, "BODY_S", 600)
        async with local_replica() as replica:
            slow = [await replica.connect() for _ in range(200)]
            for _, writer in slow:
                writer.write(HEAD + b"content-length: %d\r\n\r\n%s" % (len(BODY), BODY[:-1]))
            await replica.until(lambda: replica.admission.held_bytes == 200 * (len(BODY) - 1))
            assert replica.front.replica.in_flight == 0
            await served(replica)
            clock.skip(600)
            for reader, _ in slow:
                answer = await read_answer(reader)
                assert answer.startswith(b"HTTP/1.1 408 ")
                assert error_of(json.loads(answer.partition(b"\r\n\r\n")[2]))["code"] == "request_timeout"
            await replica.at_rest()


async def test_the_rest_of_a_body_that_was_refused_unread_is_not_waited_for() -> None:
    async with local_replica(bounds=Bounds(rest_s=0.05)) as replica:
        reader, writer = await replica.connect()
        writer.write(HEAD + b"content-length: %d\r\n\r\n{" % 2**40)
        assert (await read_answer(reader)).startswith(b"HTTP/1.1 413 ")
        await replica.until(lambda: replica.connections == 0)


async def test_requests_sent_ahead_are_answered_in_order_up_to_a_bound() -> None:
    async with local_replica() as replica:
        reader, writer = await replica.connect()
        asked = [request("POST", COMPLETIONS, json.dumps(completion(prompt=[n + 1], ignore_eos=True)).encode()) for n in range(8)]
        writer.write(b"".join(asked))
        said = [json.loads((await read_answer(reader)).partition(b"\r\n\r\n")[2])["choices"][0]["text"] for _ in asked]
        alone = [(await served(replica, completion(prompt=[n + 1], ignore_eos=True)))["choices"][0]["text"] for n in range(8)]
        assert said == alone
        reader, writer = await replica.connect()
        writer.write(b"".join(asked) * 1000)
        async with asyncio.timeout(PATIENCE_S):
            answers = [answer for _ in range(40) if (answer := await read_answer(reader))]
        assert len(answers) <= 2
        await replica.at_rest()


async def test_garbage_behind_a_request_does_not_stand_in_its_answer() -> None:
    async with local_replica() as replica:
        reader, writer = await replica.connect()
        writer.write(request("POST", COMPLETIONS, json.dumps(completion(max_tokens=400, ignore_eos=True, stream=True)).encode()))
        await reader.readuntil(b"data: ")
        writer.write(b"\0\0garbage")
        rest = b""
        with suppress(ConnectionError):
            rest = await reader.read()
        assert b"HTTP/1.1" not in rest
        await replica.at_rest()


async def test_a_host_of_any_spelling_reaches_the_same_routes() -> None:
    async with local_replica() as replica:
        spelt = [request("GET", "/v1/models", host=host) for host in ("evil/v1", "a@b", "[::1]:0", "x, y", HOST)]
        for raw in (*spelt, request("GET", "http://evil/v1/models")):
            assert (await replica.send(raw)).startswith(b"HTTP/1.1 200 "), raw
        for target in ("//v1/models", "/v1/../v1/models", "/V1/models", "/v1/models/%2e%2e/%2e%2e/etc/passwd", "*"):
            status, body = await replica.get(target)
            assert status in (400, 404), (target, status)
            error_of(json.loads(body))
