"""Replicas in virtual time, and a gateway's view of them, for bench/routing.py."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass, field
from functools import cache
from typing import Final, NamedTuple

from pagoda_contracts.prefix import MAX_TEXT_HASHES
from pagoda_gateway.routing import share
from pagoda_gateway.routing.endpoint import Endpoint, Frame
from pagoda_gateway.routing.pick import Pick, pick
from pagoda_gateway.routing.predict import missed_tokens
from pagoda_gateway.routing.request import RoutingRequest
from pagoda_gateway.routing.scorers import Weighted
from routing_traces import CATALOGUE, CHUNK_TOKENS, Asked

PREFILL_TOKENS_PER_S: Final = 12_000
TOKEN_S: Final = 0.02
FRAME_S: Final = 0.1
CACHE_CHUNKS: Final = 2_400  # 307,200 tokens
LOAD_S: Final = 0.3
MAX_LOADED: Final = 40


class Change(NamedTuple):
    """What a frame tells: at this time, so many requests more, prompts computed by then, and these names of chunks came and went.
    `loaded`: the adapters in memory from then on."""

    at_s: float
    running: int
    free_at: float
    gained: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    loaded: frozenset[str] = frozenset()


@dataclass
class SimulatedReplica:
    """A replica in virtual time. `pace`: prefill, relative to PREFILL_TOKENS_PER_S. `adapters`: since when each is loaded."""

    name: str
    pace: float = 1.0
    cache: OrderedDict[str, None] = field(default_factory=OrderedDict)
    adapters: OrderedDict[str, float] = field(default_factory=OrderedDict)
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
        loading = max(0.0, self.adapters.get(asked.adapter, now + LOAD_S) - now) if asked.adapter else 0.0
        return max(loading, self.free_at - now) + missed / (PREFILL_TOKENS_PER_S * self.pace)

    def has(self, adapter: str) -> bool:
        """Whether a request for it finds it."""
        return not adapter or adapter in self.adapters

    def load(self, adapter: str, now: float) -> None:
        """Loads it, if it is not there, and notes that it is used."""
        if adapter:
            self.adapters.setdefault(adapter, now + LOAD_S)
            self.adapters.move_to_end(adapter)
            if len(self.adapters) > MAX_LOADED:
                self.adapters.popitem(last=False)

    def take(self, asked: Asked, now: float) -> tuple[float, float, int]:
        """Begins a request: when its first token comes, when it ends, and the chunks that it found."""
        found, ttft = self.hits(asked.chunks), self.wait_s(asked, now)
        self.load(asked.adapter, now)
        self.busy_s += now + ttft - max(now, self.free_at)
        self.free_at = now + ttft
        gained = tuple(chunk for chunk in asked.chunks if chunk not in self.cache)
        for chunk in asked.chunks:
            self.cache[chunk] = None
            self.cache.move_to_end(chunk)
        lost = tuple(self.cache.popitem(last=False)[0] for _ in range(len(self.cache) - CACHE_CHUNKS))
        self.running, self.served = self.running + 1, self.served + 1
        self.changes.append(Change(now, 1, self.free_at, gained, lost, frozenset(self.adapters)))
        return now + ttft, now + ttft + asked.output_tokens * TOKEN_S, found

    def end(self, now: float) -> None:
        """A request ended."""
        self.running -= 1
        self.changes.append(Change(now, -1, self.free_at, loaded=frozenset(self.adapters)))


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
            loaded = replica.changes[at - 1].loaded if at else frozenset()
            endpoint.frame = _frame(replica, running, left_s)._replace(adapters=CATALOGUE, loaded=loaded)
            endpoint.frame_made_ms = now * 1000

    def choose(self, asked: Asked, now: float) -> SimulatedReplica:
        """As the gateway does it."""
        self._see(now)
        names = tuple(map(_hash, asked.chunks[:MAX_TEXT_HASHES]))
        request = RoutingRequest(
            asked.adapter or "m", session=asked.session, prefix_hashes=names, prompt_tokens=len(asked.chunks) * CHUNK_TOKENS
        )
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


@cache
def _hash(chunk: str) -> bytes:
    return hashlib.blake2b(chunk.encode(), digest_size=16).digest()
