"""Request traces for bench/routing.py: what clients ask, when, and which beginnings their prompts share. Pure; a seed makes a trace.

A prompt is a chain of chunks of 128 tokens (512 bytes of text). Equal chunk ids at the beginning are an equal beginning.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Final, NamedTuple

CHUNK_TOKENS: Final = 128
SEED: Final = 20_261_124
_PREFIXES: Final = 64
_PROMPT: Final = 16  # chunks: 2,048 tokens
_SYSTEM: Final = 47  # chunks: 6,016 tokens
CATALOGUE: Final = frozenset(f"adapter-{number}" for number in range(200))


class Asked(NamedTuple):
    """One request. `session` is what its client sends or repeats, "" for a first turn without one; `key` names its conversation."""

    at_s: float
    chunks: tuple[str, ...]
    output_tokens: int
    session: str
    key: str
    adapter: str = ""


class Turn(NamedTuple):
    """A later request of a conversation: it comes `wait_s` after the answer before."""

    wait_s: float
    asked: Asked


Trace = list[list[Turn]]
"""Conversations; the first turn's `wait_s` counts from the trace's begin."""


def single_turns(share: float, count: int, per_s: float, burst: float = 1.0) -> Trace:
    """Independent requests, of whose prompts `share` is one of 64 beginnings, drawn by Zipf's law. `burst`: arrivals come so many times as
    fast in half of the time, and accordingly slower in the other half."""
    luck = random.Random(f"{SEED}/{share}/{burst}")
    shared, at, found = round(share * _PROMPT), 0.0, []
    weights = [1 / (rank + 1) for rank in range(_PREFIXES)]
    for number in range(count):
        busy = int(at / 10) % 2 == 0
        at += luck.expovariate(per_s * (burst if busy else max(0.1, 2 - burst)))
        prefix = luck.choices(range(_PREFIXES), weights)[0]
        chunks = (*(f"p{prefix}.{at_chunk}" for at_chunk in range(shared)), *(f"r{number}.{chunk}" for chunk in range(_PROMPT - shared)))
        found.append([Turn(at, Asked(at, chunks, round(luck.uniform(16, 240)), "", f"r{number}"))])
    return found


def adapters(requests: int, per_s: float, burst: bool = False) -> Trace:
    """Independent requests for the adapters of CATALOGUE, drawn by Zipf's law. `burst`: for 30 s of each minute every second request is for
    one adapter of the tail."""
    luck, at, found = random.Random(f"{SEED}/adapters/{burst}"), 0.0, []
    names = sorted(CATALOGUE)
    weights = [1 / (rank + 1) for rank in range(len(names))]
    for number in range(requests):
        at += luck.expovariate(per_s)
        adapter = luck.choices(names, weights)[0]
        if burst and int(at / 30) % 2 and luck.random() < 0.5:
            adapter = names[-1]
        chunks = tuple(f"r{number}.{chunk}" for chunk in range(_PROMPT))
        found.append([Turn(at, Asked(at, chunks, round(luck.uniform(16, 240)), "", f"r{number}", adapter))])
    return found


def agents(count: int = 100, turns: int = 43) -> Trace:
    """Agents with one system prompt of 6k tokens. Each turn adds 2 to 14 chunks, and the next comes after a tool ran for 1 to 600 s."""
    luck = random.Random(f"{SEED}/agents")
    return [list(_agent(number, turns, luck)) for number in range(count)]


def _agent(number: int, turns: int, luck: random.Random) -> Iterator[Turn]:
    chunks = tuple(f"system.{chunk}" for chunk in range(_SYSTEM))
    for turn in range(turns):
        chunks += tuple(f"a{number}.{turn}.{chunk}" for chunk in range(luck.randint(2, 14)))
        wait = luck.uniform(0, 120) if turn == 0 else math.exp(luck.uniform(0, math.log(600)))
        # A conversation names itself by its first user turn from the second turn on.
        yield Turn(wait, Asked(0.0, chunks, round(luck.uniform(16, 160)), f"a{number}" if turn else "", f"a{number}"))
