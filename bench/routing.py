"""Which replica a request goes to: the gateway's own pick over simulated replicas, beside the least loaded one and a central oracle. JSON.

`python -P bench/routing.py`. Time is virtual, so the figures do not depend on the machine. A replica prefills one prompt after the other at
a fixed pace, skips the chunks that its cache has (least recently used ones go), and then decodes all answers side by side. Gateways see
loads and resident chunks by frames that are 100 ms old, and their own requests at once. The oracle sees everything at once and picks the
shortest wait until the first token.
"""

from __future__ import annotations

import argparse
import hashlib
import heapq
import json
import statistics
import sys
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple

from pagoda_contracts.prefix import MAX_TEXT_HASHES
from pagoda_gateway.routing import share
from pagoda_gateway.routing.endpoint import Endpoint, Frame
from pagoda_gateway.routing.pick import Pick, pick
from pagoda_gateway.routing.predict import missed_tokens
from pagoda_gateway.routing.request import RoutingRequest
from pagoda_gateway.routing.scorers import LEAST_LOAD, SCORERS, Weighted

sys.path.insert(0, str(Path(__file__).parent / "common"))
from routing_traces import CHUNK_TOKENS, Asked, Trace, agents, single_turns

PREFILL_TOKENS_PER_S: Final = 12_000
TOKEN_S: Final = 0.02
FRAME_S: Final = 0.1
CACHE_CHUNKS: Final = 2_400  # 307,200 tokens
REPLICAS: Final = 8


class Change(NamedTuple):
    """What a frame tells: at this time, so many requests more, prompts computed by then, and these names of chunks came and went."""

    at_s: float
    running: int
    free_at: float
    gained: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()


@dataclass
class SimulatedReplica:
    """A replica in virtual time. `pace`: prefill, relative to PREFILL_TOKENS_PER_S."""

    name: str
    pace: float = 1.0
    cache: OrderedDict[str, None] = field(default_factory=OrderedDict)
    changes: list[Change] = field(default_factory=list)
    free_at: float = 0.0
    running: int = 0
    served: int = 0
    busy_s: float = 0.0

    def hits(self, chunks: tuple[str, ...]) -> int:
        """How many chunks from the beginning it has."""
        return next((at for at, chunk in enumerate(chunks) if chunk not in self.cache), len(chunks))

    def wait_s(self, asked: Asked, now: float) -> float:
        """Until the first token, if it came here now."""
        missed = (len(asked.chunks) - self.hits(asked.chunks)) * CHUNK_TOKENS
        return max(0.0, self.free_at - now) + missed / (PREFILL_TOKENS_PER_S * self.pace)

    def take(self, asked: Asked, now: float) -> tuple[float, float, int]:
        """Begins a request: when its first token comes, when it ends, and the chunks that it found."""
        found, ttft = self.hits(asked.chunks), self.wait_s(asked, now)
        self.busy_s += now + ttft - max(now, self.free_at)
        self.free_at = now + ttft
        gained = tuple(chunk for chunk in asked.chunks if chunk not in self.cache)
        for chunk in asked.chunks:
            self.cache[chunk] = None
            self.cache.move_to_end(chunk)
        lost = tuple(self.cache.popitem(last=False)[0] for _ in range(len(self.cache) - CACHE_CHUNKS))
        self.running, self.served = self.running + 1, self.served + 1
        self.changes.append(Change(now, 1, self.free_at, gained, lost))
        return now + ttft, now + ttft + asked.output_tokens * TOKEN_S, found

    def end(self, now: float) -> None:
        """A request ended."""
        self.running -= 1
        self.changes.append(Change(now, -1, self.free_at))


class Gateway:
    """One gateway's view of the replicas."""

    def __init__(self, replicas: list[SimulatedReplica], scorers: tuple[Weighted, ...]) -> None:
        self._replicas, self._scorers = {replica.name: replica for replica in replicas}, scorers
        self._read = dict.fromkeys(self._replicas, 0)
        self.endpoints = {replica.name: Endpoint(replica.name, "s", replica.name, connected=True) for replica in replicas}

    def _see(self, now: float) -> None:
        """Takes the frames that have come by now. Each tells what was so at the last full FRAME_S."""
        framed_at = now // FRAME_S * FRAME_S
        for name, replica in self._replicas.items():
            endpoint, at = self.endpoints[name], self._read[name]
            running = endpoint.frame.running if endpoint.frame else 0
            while at < len(replica.changes) and replica.changes[at].at_s <= framed_at:
                running += replica.changes[at].running
                endpoint.resident.update(map(_hash, replica.changes[at].gained))
                endpoint.resident.difference_update(map(_hash, replica.changes[at].lost))
                at += 1
            if at != self._read[name] or endpoint.frame is None:
                endpoint.in_flight_at_frame, endpoint.sent_tokens = endpoint.in_flight, 0
            self._read[name] = at
            left_s = replica.changes[at - 1].free_at - framed_at if at else 0.0
            endpoint.frame, endpoint.frame_made_ms = _frame(replica, running, left_s), now * 1000

    def choose(self, asked: Asked, now: float) -> SimulatedReplica:
        """As the gateway does it."""
        self._see(now)
        names = tuple(map(_hash, asked.chunks[:MAX_TEXT_HASHES]))
        request = RoutingRequest("m", session=asked.session, prefix_hashes=names, prompt_tokens=len(asked.chunks) * CHUNK_TOKENS)
        choice = pick(list(self.endpoints.values()), request, {}, now * 1000, self._scorers)
        assert isinstance(choice, Pick)
        choice.endpoint.sent_tokens += missed_tokens(choice.endpoint, request)
        share.count(choice.endpoint, self.endpoints.values())
        return self._replicas[choice.endpoint.name]


def _frame(replica: SimulatedReplica, running: int, left_s: float) -> Frame:
    """What the replica tells when it will have computed its prompts in so many seconds."""
    tokens_per_s = PREFILL_TOKENS_PER_S * replica.pace
    left = round(max(0.0, left_s) * tokens_per_s)
    return Frame(1, "ready", running, 0, 0, frozenset("m"), prefill_tokens=left, step_token_us=1e6 / tokens_per_s)


class Played(NamedTuple):
    """What one run gave."""

    hit_rate: float
    ttft_p50_s: float
    ttft_p99_s: float
    requests_most_over_mean: float
    prefill_most_over_mean: float


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
    order, queue, ttfts, hits, chunks, turn = count(), list[Any](), list[float](), 0, 0, 0
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
        first, end, found = replica.take(asked, now)
        ttfts.append(first - now)
        hits, chunks = hits + found, chunks + len(asked.chunks)
        heapq.heappush(queue, (end, next(order), (replica, endpoint), conversation, at + 1))
    quantiles = statistics.quantiles(ttfts, n=100)
    served, work = ([replica.served / replica.pace for replica in replicas], [replica.busy_s * replica.pace for replica in replicas])
    uneven = [max(values) / statistics.mean(values) for values in (served, work)]
    return Played(hits / chunks, quantiles[49], quantiles[98], *uneven)


def _end(replica: SimulatedReplica, endpoint: Endpoint | None, now: float) -> None:
    replica.end(now)
    if endpoint is not None:
        endpoint.in_flight -= 1


@cache
def _hash(chunk: str) -> bytes:
    return hashlib.blake2b(chunk.encode(), digest_size=16).digest()


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
    }


class Goals(NamedTuple):
    """Each is the worst case of the run with 1 and with 4 gateways."""

    hit_rate_over_oracle: float
    ttft_p99_over_least_load: float
    requests_most_over_mean: float

    @property
    def met(self) -> bool:
        """Whether all hold."""
        return self.hit_rate_over_oracle >= 0.9 and self.ttft_p99_over_least_load <= 1.0 and self.requests_most_over_mean <= 1.25


def judged(by_policy: dict[str, Played]) -> Goals:
    """Returns what one trace gave, as the goals count it."""
    ours = [by_policy["ours, 1 gateway"], by_policy["ours, 4 gateways"]]
    least, oracle = [by_policy["least load"], by_policy["least load, 4 gateways"]], by_policy["oracle"]
    return Goals(
        min(one.hit_rate for one in ours) / oracle.hit_rate if oracle.hit_rate else 1.0,
        max(mine.ttft_p99_s / theirs.ttft_p99_s for mine, theirs in zip(ours, least, strict=True)),
        max(one.requests_most_over_mean for one in ours),
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
        json.dumps({"replicas": REPLICAS, "cache_tokens": CACHE_CHUNKS * CHUNK_TOKENS, "goals": judgement, "scenarios": reported}, indent=2)
    )


if __name__ == "__main__":
    main()
