"""What a replica logs of its traffic: a line for each request, and its throughput while it is busy. Never text, never a key."""

from __future__ import annotations

import json

import pytest
from pagoda_daemon.api.http.lines import Mark, is_logged, throughput
from pagoda_daemon.core.messages import Stats
from pagoda_daemon.health.replica import Replica
from structlog.testing import capture_logs
from support.judges.refusals import CHAT, COMPLETIONS, chat, completion
from support.servers.local_replica import NAME, local_replica, request

SECRET = "a secret sentence"


def request_lines(found):
    return [line for line in found if line["event"] == "request"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_that_ends_is_one_line_with_its_tokens_and_times(stream):
    with capture_logs() as found:
        async with local_replica() as replica:
            for _ in range(2):
                await replica.post(COMPLETIONS, completion(prompt=SECRET * 4, max_tokens=4, ignore_eos=True, stream=stream))
            await replica.at_rest()
            await replica.until(lambda: len(request_lines(found)) == 2)
    first, second = request_lines(found)
    assert (first["route"], first["status"], first["model"], first["finish"]) == (COMPLETIONS, 200, NAME, ["length"])
    assert (first["prompt_tokens"], first["completion_tokens"], first["cached_tokens"]) == (len(SECRET) * 4, 4, 0)
    assert second["cached_tokens"] > 0
    assert 0 <= first["queue_ms"] <= first["ttft_ms"] <= first["total_ms"]
    assert first["itl_ms"] >= 0
    assert first["itl_p95_ms"] >= 0
    assert len(first["id"]) == 32
    assert SECRET not in json.dumps(found, default=str)


async def test_a_refusal_says_why_and_scrapes_say_nothing():
    with capture_logs() as found:
        async with local_replica() as replica:
            await replica.post(CHAT, chat(temperature=-1))
            await replica.post(CHAT, chat(model="another"))
            await replica.get("/metrics")
            await replica.get("/none")
            await replica.until(lambda: len(request_lines(found)) == 3)
    fields = [(line["route"], line["status"], line["refusal"], line.get("param")) for line in request_lines(found)]
    assert fields == [(CHAT, 400, "invalid_value", "temperature"), (CHAT, 404, "model_not_found", None), ("none", 404, "not_found", None)]
    assert "another" not in json.dumps(found, default=str)


async def test_what_another_time_or_replica_may_take_says_why_it_was_refused():
    with capture_logs() as found:
        async with local_replica() as replica:
            replica.front.replica.in_flight += 256
            await replica.post(CHAT, chat())
            replica.front.replica.in_flight -= 256
            await replica.send(request("POST", CHAT, content_length=str(2**30)).replace(b"content-length: 0\r\n", b""))
            await replica.until(lambda: len(request_lines(found)) == 2)
    fields = [(line["status"], line["refusal"], line.get("why")) for line in request_lines(found)]
    assert fields == [
        (503, "overloaded", "this replica holds 256 requests; at most 256 are allowed"),
        (413, "request_too_large", None),
    ]


async def test_garbage_is_one_line_however_much_of_it_comes():
    with capture_logs() as found:
        async with local_replica() as replica:
            for _ in range(5):
                assert b" 400 " in await replica.send(b"garbage\r\n\r\n")
    assert [line for line in found if line["event"] == "connections_refused"] == [
        {"event": "connections_refused", "log_level": "warning", "malformed_http": 1}
    ]


def test_scrapes_that_went_well_are_not_logged():
    assert [is_logged(*one) for one in (("GET", 200), ("GET", 503), ("POST", 200), ("GET", 499))] == [False, True, True, True]


def test_throughput_is_logged_while_requests_run():
    replica = Replica(0.0, stats=Stats(running=2, waiting=1, blocks_used=25, blocks_total=100))
    before, after = Mark(10.0, 100, 50, 1000), Mark(20.0, 300, 100, 1400)
    assert throughput(before, after, replica) == {
        "prompt_tokens_per_s": 20.0,
        "generation_tokens_per_s": 40.0,
        "running": 2,
        "waiting": 1,
        "kv_used": 0.25,
        "prefix_hits": 0.25,
    }
    assert throughput(before, before._replace(at=20.0), replica) is None
    replica.in_flight = 1
    assert throughput(before, before._replace(at=20.0), replica)["generation_tokens_per_s"] == 0.0
