"""Thousands of requests on one replica, of which three in ten are left: no block, no descriptor and no memory stays behind."""

import random
import re
import time
import urllib.request
from pathlib import Path

import pytest
from support.clients import lean_client
from support.clients.lean_client import Ask
from support.servers.replica import NAME, PATIENCE_S, replica_config, start_replica
from support.suite.profiles import examples

REQUESTS = examples(4_000)
TOKENS = 12
SLACK_BYTES = 6 * 2**20  # over 1,800 requests, per process: 3.5 KB of each would show; over ten times as many, 350 bytes
SLACK_FILES = 8
IDLE = {"num_requests_running": 0, "num_requests_waiting": 0, "kv_cache_usage_perc": 0}  # every block is free
# Few, because the tokenizer remembers thousands of words, and a prompt of this vocabulary is one word: 1.3 KB each until that is full.
WORDS = ["".join(random.Random(at).choices("abcdefgh ", k=1 + at % 60)) for at in range(200)]


def asks(count, luck):
    """Streamed and whole, chat and completion, cut before, in the midst of and shortly before the end of their answers."""
    for _ in range(count):
        words = luck.choice(WORDS)
        body = {"model": NAME, "max_tokens": TOKENS, "ignore_eos": True, "stream": luck.random() < 0.8, "seed": luck.randrange(2**31)}
        if body["stream"]:
            body["stream_options"] = {"include_usage": True}
        cut = luck.randrange(TOKENS) if luck.random() < 0.3 else None
        if not body["stream"]:
            cut = cut and 0  # a whole answer has no events to count
        if luck.random() < 0.5:
            yield Ask("/v1/completions", {**body, "prompt": words}, cut)
        else:
            yield Ask("/v1/chat/completions", {**body, "messages": [{"role": "user", "content": words}]}, cut)


def held(pid):
    """Bytes in memory and open files of a process."""
    resident = int(Path(f"/proc/{pid}/smaps_rollup").read_text().split("Rss:")[1].split()[0]) * 1024
    return resident, len(list(Path(f"/proc/{pid}/fd").iterdir()))


def gauges(replica):
    with urllib.request.urlopen(f"http://{replica.http}/metrics", timeout=PATIENCE_S) as answer:
        text = answer.read().decode()
    return {name: float(re.search(rf"^vllm:{name}\{{[^}}]*}} (\S+)$", text, re.MULTILINE)[1]) for name in IDLE}


def settled(replica):
    """The gauges once nothing runs; the engine hears of the last cuts a step later."""
    deadline = time.monotonic() + PATIENCE_S
    while any((now := gauges(replica)).values()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return now


def soak(replica, count, luck):
    """How many answers were whole and how many cut."""
    host, port = replica.http.split(":")
    whole = cut = 0
    for answer in lean_client.run((host, int(port)), asks(count, luck), 48):
        if answer.cut:
            cut += 1
        else:
            assert (answer.status, answer.tokens) == (200, TOKENS), answer.tail
            whole += 1
    return whole, cut


@pytest.mark.deep
def test_a_replica_keeps_nothing_of_thousands_of_requests(tmp_path):
    luck = random.Random(7)
    with start_replica(replica_config(tmp_path, step_ms=1.0)) as replica:
        pids = {"front": replica.process.pid, "engine": replica.engine_pid()}
        counted, seen = [soak(replica, REQUESTS // 10, luck)], []
        for _ in range(2):
            seen.append({name: held(pid) for name, pid in pids.items()})
            counted.append(soak(replica, REQUESTS * 9 // 20, luck))
            assert settled(replica) == IDLE
        seen.append({name: held(pid) for name, pid in pids.items()})
        whole, cut = (sum(numbers) for numbers in zip(*counted, strict=True))
        assert whole + cut == REQUESTS
        assert 0.25 < cut / REQUESTS < 0.35
        for name in pids:
            (_, _), (middle, files_then), (end, files) = (one[name] for one in seen)
            assert end - middle < SLACK_BYTES, f"{name}: {seen}"
            assert files <= files_then + SLACK_FILES, f"{name}: {seen}"
