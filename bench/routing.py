"""Which replica a request goes to: the gateway's own pick over simulated replicas, beside the least loaded one and a central oracle. JSON.

`python -P bench/routing.py`. Time is virtual, so the figures do not depend on the machine. A replica prefills one prompt after the other at
a fixed pace, skips the chunks that its cache has (least recently used ones go), and then decodes all answers side by side. A request for an
adapter that is not loaded waits until it is; the one that was used least recently goes for it. Gateways see loads, resident chunks and
adapters by frames that are 100 ms old, and their own requests at once. The oracle sees everything at once and picks the shortest wait
until the first token.
"""

from __future__ import annotations

import argparse
import heapq
import json
import statistics
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple

from pagoda_gateway.routing.endpoint import Endpoint
from pagoda_gateway.routing.scorers import LEAST_LOAD, SCORERS

sys.path.insert(0, str(Path(__file__).parent / "common"))
from routing_replicas import CACHE_CHUNKS, MAX_LOADED, Gateway, SimulatedReplica
from routing_traces import CHUNK_TOKENS, Asked, Trace, adapters, agents, single_turns

REPLICAS: Final = 8


class Played(NamedTuple):
    """What one run gave."""

    hit_rate: float
    ttft_p50_s: float
    ttft_p99_s: float
    requests_most_over_mean: float
    prefill_most_over_mean: float
    resident_rate: float


class Oracle:
    """Knows everything at once."""

    def __init__(self, replicas: list[SimulatedReplica]) -> None:
        self._replicas, self.endpoints = replicas, dict[str, Endpoint]()

    def choose(self, asked: Asked, now: float) -> SimulatedReplica:
        return min(self._replicas, key=lambda replica: (replica.wait_s(asked, now), replica.running, replica.served))


def play(trace: Trace, paces: list[float], make: Callable[[list[SimulatedReplica]], list[Any]]) -> Played:
    """Runs a trace to its end: requests come, wait, end, and the conversations go on."""
    replicas = [SimulatedReplica(f"r{number}", pace) for number, pace in enumerate(paces)]
    views = make(replicas)
    order, queue, ttfts, hits, chunks, turn, resident = count(), list[Any](), list[float](), 0, 0, 0, 0
    for conversation in trace:
        heapq.heappush(queue, (conversation[0].wait_s, next(order), None, conversation, 0))
    while queue:
        now, _, ended, conversation, at = heapq.heappop(queue)
        if ended is not None:
            _end(ended[0], ended[1], now)
            if at < len(conversation):
                heapq.heappush(queue, (now + conversation[at].wait_s, next(order), None, conversation, at))
            continue
        asked, view = conversation[at].asked, views[turn % len(views)]
        turn += 1
        replica = view.choose(asked, now)
        if (endpoint := view.endpoints.get(replica.name)) is not None:
            endpoint.in_flight, endpoint.last_pick = endpoint.in_flight + 1, turn
        resident += replica.has(asked.adapter)
        first, end, found = replica.take(asked, now)
        ttfts.append(first - now)
        hits, chunks = hits + found, chunks + len(asked.chunks)
        heapq.heappush(queue, (end, next(order), (replica, endpoint), conversation, at + 1))
    quantiles = statistics.quantiles(ttfts, n=100)
    served, work = ([replica.served / replica.pace for replica in replicas], [replica.busy_s * replica.pace for replica in replicas])
    uneven = [max(values) / statistics.mean(values) for values in (served, work)]
    return Played(hits / chunks, quantiles[49], quantiles[98], *uneven, resident / turn)


def _end(replica: SimulatedReplica, endpoint: Endpoint | None, now: float) -> None:
    replica.end(now)
    if endpoint is not None:
        endpoint.in_flight -= 1


def scenarios(requests: int) -> dict[str, tuple[Trace, list[float]]]:
    """Traces, and the paces of the replicas that play them."""
    even = [1.0] * REPLICAS
    return {
        "shared 0 %": (single_turns(0.0, requests, 24), even),
        "shared 50 %": (single_turns(0.5, requests, 36), even),
        "shared 90 %": (single_turns(0.9, requests, 60), even),
        "shared 50 %, bursts": (single_turns(0.5, requests, 30, burst=1.6), even),
        "shared 50 %, half of the replicas half as fast": (single_turns(0.5, requests, 24), [1.0, 0.5] * (REPLICAS // 2)),
        "100 agents of 43 turns": (agents(), even),
        "200 adapters": (adapters(requests, 24), even),
        "200 adapters, one of them in a burst": (adapters(requests, 24, burst=True), even),
    }


class Goals(NamedTuple):
    """Each is the worst case of the run with 1 and with 4 gateways."""

    hit_rate_over_oracle: float
    ttft_p99_over_least_load: float
    requests_most_over_mean: float
    resident_rate: float

    @property
    def met(self) -> bool:
        """Whether all hold."""
        even = self.ttft_p99_over_least_load <= 1.0 and self.requests_most_over_mean <= 1.25
        return even and self.hit_rate_over_oracle >= 0.9 and self.resident_rate >= 0.9


def judged(by_policy: dict[str, Played]) -> Goals:
    """Returns what one trace gave, as the goals count it."""
    ours = [by_policy["ours, 1 gateway"], by_policy["ours, 4 gateways"]]
    least, oracle = [by_policy["least load"], by_policy["least load, 4 gateways"]], by_policy["oracle"]
    return Goals(
        min(one.hit_rate for one in ours) / oracle.hit_rate if oracle.hit_rate else 1.0,
        max(mine.ttft_p99_s / theirs.ttft_p99_s for mine, theirs in zip(ours, least, strict=True)),
        max(one.requests_most_over_mean for one in ours),
        min(one.resident_rate for one in ours),
    )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Compares ways to pick a replica, in virtual time.")
    parser.add_argument("--requests", type=int, default=6000, help="requests of a trace of single turns (default: %(default)s)")
    arguments = parser.parse_args()
    policies: dict[str, Callable[[list[SimulatedReplica]], list[Any]]] = {
        "oracle": lambda replicas: [Oracle(replicas)],
        "least load": lambda replicas: [Gateway(replicas, LEAST_LOAD)],
        "least load, 4 gateways": lambda replicas: [Gateway(replicas, LEAST_LOAD) for _ in range(4)],
        "ours, 1 gateway": lambda replicas: [Gateway(replicas, SCORERS)],
        "ours, 4 gateways": lambda replicas: [Gateway(replicas, SCORERS) for _ in range(4)],
    }
    found = {
        name: {policy: play(trace, paces, make) for policy, make in policies.items()}
        for name, (trace, paces) in scenarios(arguments.requests).items()
    }
    goals = {name: judged(by_policy) for name, by_policy in found.items()}
    reported = {name: {policy: played._asdict() for policy, played in by_policy.items()} for name, by_policy in found.items()}
    judgement = {name: goal._asdict() | {"met": goal.met} for name, goal in goals.items()}
    print(
        json.dumps(
            {
                "replicas": REPLICAS,
                "cache_tokens": CACHE_CHUNKS * CHUNK_TOKENS,
                "max_loaded": MAX_LOADED,
                "goals": judgement,
                "scenarios": reported,
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
