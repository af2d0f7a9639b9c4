"""A gateway of little patience: what it says when the time is up. Nothing here has to happen before that."""

import asyncio

import pytest
from pagoda_contracts.pb.daemon_pb2 import Phase


@pytest.fixture(scope="module")
def options() -> list[str]:
    return ["--hold-timeout", "1s", "--body-timeout", "1s"]


@pytest.mark.deep
async def test_a_request_that_was_held_without_result_is_told_when_to_retry(bench, replicas):
    one, _ = replicas
    await bench.serve(one)
    one.say(phase=Phase.PHASE_LOADING)
    await bench.sees(loading=1)
    assert await bench.refused("held-loading") == (503, "no_ready_endpoint", "true", "10")
    assert await bench.metric("hold_seconds_count") == 1


@pytest.mark.deep
async def test_a_body_that_never_ends_is_given_up(bench):
    reader, writer = await asyncio.open_connection("127.0.0.1", bench.gateway.http)
    writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n{")
    assert (await asyncio.wait_for(reader.readline(), 60)).startswith(b"HTTP/1.1 408 ")
    writer.close()
