"""What a replica logs of its traffic: a line for each request, and its throughput while it is busy. Never text, never a key."""

from __future__ import annotations

import json

import pytest
from pagoda_daemon.api.http.lines import Mark, is_logged, throughput
from pagoda_daemon.health.replica import Replica
from pagoda_daemon.nouns.messages import Stats
from structlog.testing import capture_logs
from support.judges.refusals import CHAT, COMPLETIONS, chat, completion
from support.servers.local_replica import NAME, local_replica

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
    told = [(line["route"], line["status"], line.get("refusal")) for line in request_lines(found)]
    assert told == [(CHAT, 400, "invalid_value"), (CHAT, 404, "model_not_found"), ("none", 404, None)]


def test_scrapes_that_went_well_are_not_logged():
    assert [is_logged(*one) for one in (("GET", 200), ("GET", 503), ("POST", 200), ("GET", 499))] == [False, True, True, True]


def test_throughput_is_told_while_something_happens():
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
