"""What a flooding tenant does to the others: the gateway's own order of held requests over simulated replicas, in virtual time. JSON.

`python -P bench/fairness.py`. A request has a row of a replica until its answer ends. Without a free row it is held, and the order of turns
decides which request is next; `arrival` is the order without it. The time to the first token is the wait for a row plus the prompt at a
fixed pace. Not in it: steps become longer as rows fill up.
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
import statistics
from collections import Counter, deque
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final, NamedTuple

from pagoda_gateway.routing.turns import Key, Turns, emptied, joined, next_key, rank_of, taken

PREFILL_TOKENS_PER_S: Final = 12_000
TOKEN_S: Final = 0.02
LAST_S: Final = 60.0


class Tenant(NamedTuple):
    """`load`: the part of the fleet that its requests would take alone."""

    name: str
    load: float
    weight: int = 1
    priority: int = 0
    tier: str = "interactive"

    @property
    def key(self) -> Key:
        """Its line."""
        return Key(rank_of(self.tier, self.priority), self.name)


class Asked(NamedTuple):
    """One request."""

    at_s: float
    tenant: Tenant
    prefill_s: float
    row_s: float


@dataclass
class Arrival:
    """The order in which requests came."""

    waiting: deque[Asked] = field(default_factory=deque)

    def add(self, asked: Asked, _now: float) -> None:
        """One more waits."""
        self.waiting.append(asked)

    def take(self, _now: float) -> Asked | None:
        """The next one."""
        return self.waiting.popleft() if self.waiting else None


@dataclass
class InTurn:
    """The gateway's order."""

    turns: Turns = field(default_factory=Turns)
    lines: dict[Key, deque[Asked]] = field(default_factory=dict)

    def add(self, asked: Asked, now: float) -> None:
        """One more waits."""
        self.lines.setdefault(asked.tenant.key, deque()).append(asked)
        self.turns = joined(self.turns, asked.tenant.key, asked.tenant.weight, now * 1000)

    def take(self, now: float) -> Asked | None:
        """The next one."""
        key = next_key(self.turns, now * 1000)
        if key is None:
            return None
        self.turns, line = taken(self.turns, key, now * 1000), self.lines[key]
        asked = line.popleft()
        if not line:
            del self.lines[key]
            self.turns = emptied(self.turns, key)
        return asked


def arrivals(tenants: list[Tenant], rows: int, seconds: float, seed: int) -> list[Asked]:
    """Poisson arrivals; prompts and answers are lognormal. A tenant's requests are the same whatever the others do."""
    found = []
    for tenant in tenants:
        chance = random.Random(f"{seed}/{tenant.name}")
        now, mean_s = 0.0, 0.2 + 300 * TOKEN_S
        while (now := now + chance.expovariate(tenant.load * rows / mean_s)) < seconds:
            prefill = 1500 * chance.lognormvariate(-0.5, 1.0) / PREFILL_TOKENS_PER_S + 0.075
            found.append(Asked(now, tenant, prefill, prefill + 300 * TOKEN_S * chance.lognormvariate(-0.32, 0.8)))
    return sorted(found)


def play(asked: list[Asked], rows: int, order: Arrival | InTurn) -> dict[str, list[tuple[float, float]]]:
    """Returns for each tenant when its requests began and their times to the first token."""
    began: dict[str, list[tuple[float, float]]] = {one.tenant.name: [] for one in asked}
    ends, free, number = list[tuple[float, int]](), rows, count()
    coming = deque(asked)
    last_s = asked[-1].at_s
    while coming:
        if ends and ends[0][0] <= coming[0].at_s:
            now, free = heapq.heappop(ends)[0], free + 1
        else:
            now = coming[0].at_s
            order.add(coming.popleft(), now)
        while free and now <= last_s and (one := order.take(now)) is not None:
            free -= 1
            began[one.tenant.name].append((now, now - one.at_s + one.prefill_s))
            heapq.heappush(ends, (now + one.row_s, next(number)))
    return began


def _p(times: list[tuple[float, float]]) -> dict[str, float]:
    cuts = statistics.quantiles([ttft for _, ttft in times], n=100)
    return {"ttft_p50_s": round(cuts[49], 3), "ttft_p99_s": round(cuts[98], 3), "requests": len(times)}


def flooded(rows: int, seconds: float, seed: int) -> dict[str, Any]:
    """Four tenants of a fifth of the fleet each. Then one of them asks for ten times as much."""
    quiet = [Tenant(name, 0.2) for name in ("flood", "b", "c", "d")]
    loud = [tenant._replace(load=2.0) if tenant.name == "flood" else tenant for tenant in quiet]
    plays = {
        "quiet": play(arrivals(quiet, rows, seconds, seed), rows, InTurn()),
        "flood, in turn": play(arrivals(loud, rows, seconds, seed), rows, InTurn()),
        "flood, by arrival": play(arrivals(loud, rows, seconds, seed), rows, Arrival()),
    }
    found: dict[str, Any] = {name: _p(times["b"]) for name, times in plays.items()}
    moved = found["flood, in turn"]["ttft_p99_s"] / found["quiet"]["ttft_p99_s"] - 1
    return found | {"p99 moved by, %": round(100 * moved, 1)}


def shared(rows: int, seconds: float, seed: int) -> dict[str, Any]:
    """All ask for more than there is: what each got by weight, and the least that the batch tier got in any minute."""
    tenants = [Tenant("w1", 1.0), Tenant("w3", 1.0, weight=3), Tenant("low", 1.0, priority=-5), Tenant("batch", 1.0, tier="batch")]
    began = play(arrivals(tenants, rows, seconds, seed), rows, InTurn())
    full = {name: [at for at, _ in times if at > LAST_S] for name, times in began.items()}
    total = sum(map(len, full.values()))
    minutes = {name: Counter(int(at / LAST_S) for at in times) for name, times in full.items()}
    each = [sum(minutes[name][minute] for name in minutes) for minute in range(1, int(seconds / LAST_S))]
    least = {name: min(minutes[name][at + 1] / all_of_it for at, all_of_it in enumerate(each)) for name in minutes}
    return {
        "share of turns": {name: round(len(times) / total, 3) for name, times in full.items()},
        "least share of a minute": {name: round(part, 3) for name, part in least.items()},
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Shows what a flooding tenant does to the others, in virtual time.")
    parser.add_argument("--seconds", type=float, default=600.0, help="virtual time (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="(default: %(default)s)")
    arguments = parser.parse_args()
    found: dict[str, Any] = {}
    for replicas in (1, 2, 4, 8, 16):
        found[f"{replicas} replicas of 64 rows"] = flooded(replicas * 64, arguments.seconds, arguments.seed)
    found["all want more than there is, 8 replicas"] = shared(8 * 64, arguments.seconds, arguments.seed)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
