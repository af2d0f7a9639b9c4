"""What a storm of refused hostile requests costs the streams beside it: their tokens per engine CPU-second, and by the clock. Prints JSON.

A real replica (two processes) with a device that computes nothing, so that the engine's CPU is its own work alone. Rounds alternate,
A B A B: 32 streams alone, and the same beside clients that send without a pause what `clients/hostile_requests.py` draws from a seed.
Of these only what is refused is sent (found out beforehand, one by one): what is served computes tokens, and its cost is its own. Client,
front and engine share the machine: by the clock, the storm's client costs as much as the storm.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "tests")]

import httpx
from slow_readers import engine_cpu_s, read_all
from support.clients.hostile_requests import Hostile, hostile_requests
from support.servers.replica import Replica, replica_config, start_replica

STREAMS, ANSWER, SEED, OTHERS = 32, 400, 20, 200


@dataclass
class Storm:
    """What is sent, round and round, and how much of it was refused."""

    requests: list[Hostile]
    refused: int = 0
    other: int = 0
    over: asyncio.Event = field(default_factory=asyncio.Event)


async def send(client: httpx.AsyncClient, hostile: Hostile) -> int:
    """The status; 0 where the connection was closed on it."""
    headers = {name: text.encode("latin-1") for name, text in hostile.headers.items()}
    try:
        answer = await client.request(hostile.method, hostile.path, content=hostile.body, headers=headers)  # type: ignore[arg-type]
    except httpx.RemoteProtocolError:
        return 0
    return answer.status_code


async def refused_ones(client: httpx.AsyncClient, count: int) -> list[Hostile]:
    found: list[Hostile] = []
    for hostile in hostile_requests(OTHERS, SEED, whole=True):
        if 400 <= await send(client, hostile) < 500:
            found.append(hostile)
        if len(found) == count:
            break
    return found


async def rage(client: httpx.AsyncClient, storm: Storm, first: int) -> None:
    for hostile in cycle(storm.requests[first:] + storm.requests[:first]):
        if storm.over.is_set():
            return
        if 400 <= await send(client, hostile) < 500:
            storm.refused += 1
        else:
            storm.other += 1


async def streams(replica: Replica, rounds: int) -> dict[str, float]:
    """Tokens of the innocent per second of the engine's CPU, and by the clock."""
    pid = replica.engine_pid()
    cpu, clock = engine_cpu_s(pid), time.monotonic()
    for _ in range(rounds):
        await asyncio.gather(*(read_all(replica, [250, n], ANSWER) for n in range(STREAMS)))
    tokens = STREAMS * ANSWER * rounds
    return {"per_engine_cpu_s": tokens / (engine_cpu_s(pid) - cpu), "per_s": tokens / (time.monotonic() - clock)}


async def beside(replica: Replica, client: httpx.AsyncClient, storm: Storm, arguments: argparse.Namespace) -> dict[str, float]:
    storm.over.clear()
    before, clock = storm.refused, time.monotonic()
    step = max(1, len(storm.requests) // arguments.clients)
    raging = [asyncio.create_task(rage(client, storm, n * step)) for n in range(arguments.clients)]
    found = await streams(replica, arguments.rounds)
    refused = (storm.refused - before) / (time.monotonic() - clock)
    storm.over.set()
    await asyncio.gather(*raging)
    return found | {"refused_per_s": refused}


async def measure(replica: Replica, arguments: argparse.Namespace) -> dict[str, Any]:
    engine = replica.engine_pid()
    rows: list[tuple[dict[str, float], dict[str, float]]] = []
    async with httpx.AsyncClient(base_url=f"http://{replica.http}", timeout=90, trust_env=False) as client:
        storm = Storm(await refused_ones(client, arguments.requests))
        await streams(replica, 1)
        while len(rows) < arguments.turns:
            rows += [(await streams(replica, arguments.rounds), await beside(replica, client, storm, arguments))]
    assert replica.engine_pid() == engine
    return {
        "requests": len(storm.requests),
        "clients": arguments.clients,
        "refused": storm.refused,
        "not_refused": storm.other,
        "alone": [alone for alone, _ in rows],
        "beside": [stormy for _, stormy in rows],
        "beside_over_alone": {name: median(stormy[name] / alone[name] for alone, stormy in rows) for name in ("per_engine_cpu_s", "per_s")},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--requests", type=int, default=600)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--turns", type=int, default=4)
    arguments = parser.parse_args()
    engine = {"max_model_len": 1024, "max_concurrency": 64, "kv_bytes": 64 * 2**20}
    with tempfile.TemporaryDirectory() as folder, start_replica(replica_config(Path(folder), step_ms=1.0, engine=engine)) as replica:
        found = asyncio.run(measure(replica, arguments))
    print(json.dumps(found, indent=2, default=lambda value: round(value, 4)))


if __name__ == "__main__":
    main()
