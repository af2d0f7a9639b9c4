"""Reproducers of advisories about the HTTP layer: headers, framing, slowness, many connections, shapes that proxies read in two ways."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress

import pytest
from pagoda_daemon.api.http.connection import Bounds
from pagoda_daemon.api.openai import requests
from support.clients import malformed_http as malformed
from support.clients.malformed_http import HEAD
from support.judges.refusals import COMPLETIONS, PATIENCE_S, completion, error_of, served
from support.servers.local_replica import HOST, LocalReplica, local_replica, read_answer, request
from support.servers.loop_clock import LoopClock

BODY = json.dumps(completion()).encode()


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


async def test_headers_are_bounded_in_bytes_and_in_number() -> None:
    await refuses(*malformed.LARGE.values(), statuses=(431, 0))


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
    await refuses(*malformed.chunk_sizes())


async def test_lengths_are_numbers_of_this_machine() -> None:
    await refuses(*malformed.lengths(BODY))


async def test_a_length_that_nobody_holds_is_refused_before_its_bytes() -> None:
    async with local_replica() as replica:
        for length in (16 * 2**20 + 1, 2**63 - 1):
            async with asyncio.timeout(PATIENCE_S):
                answer = await replica.send(HEAD + b"content-length: %d\r\n\r\n" % length)
            assert answer.startswith(b"HTTP/1.1 413 "), answer


async def test_chunks_end_as_the_standard_says() -> None:
    await refuses(*malformed.CHUNK_ENDS)


async def test_a_request_of_two_lengths_is_refused() -> None:
    await refuses(*malformed.TWO_LENGTHS)


async def test_transfer_codings_that_are_not_plainly_chunked_are_refused() -> None:
    await refuses(*malformed.codings())


async def test_header_lines_are_those_of_the_standard() -> None:
    await refuses(*malformed.HEADER_LINES)


async def test_what_is_no_http_gets_one_refusal_and_the_end() -> None:
    await refuses(*malformed.NO_HTTP)


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
