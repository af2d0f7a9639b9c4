"""What clients that leave in the midst of a stream cost: tokens that the engine computed and no client read. Prints JSON.

A real replica, front and engine in two processes, and the clients in a third one. The engine's own counter of computed tokens
(`vllm:iteration_tokens_total_sum`) is compared with what the clients had read when they left. So tokens on their way to a client count
too: the number is an upper bound of what was computed after it had left. `worst_at_front` is the largest such difference of one client,
of tokens that the front had heard of (`/v1/requests/ID/trace`).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1] / "tests")]

from support.servers.replica import NAME, Replica, replica_config, start_replica

AT_ONCE, PROMPT, MOST_READ, WANTED = 32, 8, 40, 400
"""Clients beside each other, tokens of a prompt, tokens that one reads at most before it leaves, tokens that it asks for."""
_USED = re.compile(rb'"completion_tokens":(\d+)')
_ID = re.compile(rb'"id":"cmpl-([0-9a-f]{32})')


def ask(number: int) -> bytes:
    """A prompt of its own for each client. Every chunk says how many tokens the answer has so far."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    prompt = [number // 200 % 200, number % 200, *range(PROMPT - 2)]
    wanted = {"model": NAME, "prompt": prompt, "max_tokens": WANTED, "ignore_eos": True, "stream": True, "stream_options": options}
    body = json.dumps(wanted).encode()
    return b"POST /v1/completions HTTP/1.1\r\nhost: bench\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)


async def leave(replica: Replica, number: int, most: int) -> tuple[str, int]:
    """Reads about `most` tokens, and leaves: half of the clients with a FIN, half with a reset. Its request's id and what it has read."""
    host, port = replica.http.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(ask(number))
    got, used = b"", 0
    while used < most:
        got += await reader.read(65536)
        used = int(_USED.findall(got)[-1]) if _USED.search(got) else 0
    writer.close() if number % 2 else writer.transport.abort()
    found = _ID.search(got)
    assert found is not None, got[:300]
    return found[1].decode(), used


def get(replica: Replica, path: str) -> str:
    with urllib.request.urlopen(f"http://{replica.http}{path}", timeout=60) as answer:
        return str(answer.read().decode())


def metric(replica: Replica, name: str) -> float:
    text = get(replica, "/metrics")
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(f"{name}{{"))


async def at_rest(replica: Replica) -> float:
    """Tokens computed since the start, once nothing runs and the engine has told its last count."""
    while True:
        before = metric(replica, "vllm:iteration_tokens_total_sum")
        await asyncio.sleep(1.0)
        idle = metric(replica, "vllm:num_requests_running") == metric(replica, "vllm:num_requests_waiting") == 0
        if idle and before == metric(replica, "vllm:iteration_tokens_total_sum"):
            return before


async def measure(replica: Replica, clients: int, seed: int) -> dict[str, Any]:
    chance, places, before = random.Random(seed), asyncio.Semaphore(AT_ONCE), await at_rest(replica)
    most = [chance.randint(1, MOST_READ) for _ in range(clients)]

    async def one(number: int) -> tuple[str, int]:
        async with places:
            return await leave(replica, number, most[number])

    left = await asyncio.gather(*map(one, range(clients)))
    computed = await at_rest(replica) - before - clients * PROMPT + clients  # a prompt's last step gives the first token
    read = sum(used for _, used in left)
    heard = [json.loads(get(replica, f"/v1/requests/{name}/trace"))["completion_tokens"] - used for name, used in left]
    return {
        "clients": clients,
        "asked": clients * WANTED,
        "read": read,
        "computed": int(computed),
        "unread_per_client": round((computed - read) / clients, 2),
        "worst_at_front": max(heard),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=500)
    parser.add_argument("--step-ms", type=float, nargs="+", default=[2.0, 10.0, 30.0])
    given = parser.parse_args()
    found = {}
    for step_ms in given.step_ms:
        with tempfile.TemporaryDirectory() as folder:
            engine = {"prefix_caching": False, "max_model_len": 512}
            with start_replica(replica_config(Path(folder), step_ms=step_ms, engine=engine)) as replica:
                found[f"step of {step_ms:g} ms"] = asyncio.run(measure(replica, given.clients, 7))
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
