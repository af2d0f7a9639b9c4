"""Turns: whose held request goes next when a replica has room. Pure: values and a time come in, values go out.

Called by requests/hold_queue.py. A line is what one tenant holds in one rank. The lowest rank goes first, but of ten turns in a row one
goes to another rank that waits. Within a rank, tenants share turns by weight: each line counts its turns divided by its weight, and the
smallest count is next. A line that begins to wait starts from the smallest count there, so a pause earns no credit. A line whose
requests leave without a turn has paid nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, NamedTuple

LOW_SHARE: Final = 10
"""Of so many turns in a row, one goes to another rank than the first, if one waits."""
LONGEST_MS: Final = 30_000.0
"""A rank that had no turn for so long gets the next one, even if the replicas are so slow that ten turns take minutes."""
PER_TIER: Final = 10_000
"""How far the ranks of the two tiers are apart; priorities are from -1000 to 1000."""


class Key(NamedTuple):
    """A line."""

    rank: int
    tenant: str


class Line(NamedTuple):
    """`served`: its turns divided by its weight; `last`: the number of its last turn."""

    weight: int
    served: float
    last: int


@dataclass(frozen=True, slots=True)
class Turns:
    """The lines that wait. `gone`: lines that wait no more and have had more turns than those that do; `since`: when each rank that waits
    had its last turn or began to wait, and after how many turns of all; `count`: these turns; `passed`: turns in a row of the first rank
    while another one waited."""

    lines: Mapping[Key, Line] = field(default_factory=lambda: MappingProxyType({}))
    gone: Mapping[Key, Line] = field(default_factory=lambda: MappingProxyType({}))
    since: Mapping[int, tuple[float, int]] = field(default_factory=lambda: MappingProxyType({}))
    count: int = 0
    passed: int = 0


def rank_of(tier: str, priority: int) -> int:
    """Returns the rank, as replicas have it: lower goes first. Interactive before batch, then the larger priority."""
    return (PER_TIER if tier == "batch" else 0) - priority


def joined(turns: Turns, key: Key, weight: int, now_ms: float) -> Turns:
    """A line has a request. Its weight counts from now on."""
    known = turns.lines.get(key)
    if known is None:
        before = turns.gone.get(key, Line(weight, 0.0, 0))
        known = before._replace(served=max(before.served, _least(turns, key.rank)))
    elif known.weight == weight:
        return turns
    since = turns.since if key.rank in turns.since else {**turns.since, key.rank: (now_ms, turns.count)}
    gone = {other: line for other, line in turns.gone.items() if other != key}
    return replace(turns, lines={**turns.lines, key: known._replace(weight=weight)}, gone=gone, since=since)


def taken(turns: Turns, key: Key, now_ms: float) -> Turns:
    """A request of this line had its turn."""
    line, count = turns.lines[key], turns.count + 1
    others = any(rank != _first(turns) for rank in turns.since)
    passed = turns.passed + 1 if others and key.rank == _first(turns) else 0
    after = Line(line.weight, line.served + 1 / line.weight, count)
    return replace(turns, lines={**turns.lines, key: after}, since={**turns.since, key.rank: (now_ms, count)}, count=count, passed=passed)


def emptied(turns: Turns, key: Key) -> Turns:
    """A line has no request any more. It is remembered while it has had more turns than a line of its rank that waits."""
    lines = {other: line for other, line in turns.lines.items() if other != key}
    left = replace(turns, lines=lines, gone={**turns.gone, key: turns.lines[key]})
    ranks = {other.rank for other in lines}
    gone = {other: line for other, line in left.gone.items() if other.rank in ranks and line.served > _least(left, other.rank)}
    return replace(left, gone=gone, since={rank: since for rank, since in turns.since.items() if rank in ranks})


def next_key(turns: Turns, now_ms: float) -> Key | None:
    """Returns the line whose first request has the next turn; None if nothing waits."""
    if not turns.lines:
        return None
    rank = _due(turns, now_ms)
    return min((key for key in turns.lines if key.rank == rank), key=lambda key: (turns.lines[key].served, turns.lines[key].last, key))


def in_order(turns: Turns, waiting: Mapping[Key, int], now_ms: float) -> Iterator[Key]:
    """Returns the lines in the order of their turns, each as often as it has requests, as if all turns came now."""
    left = dict(waiting)
    while (key := next_key(turns, now_ms)) is not None:
        yield key
        turns = taken(turns, key, now_ms)
        left[key] -= 1
        if not left[key]:
            turns = emptied(turns, key)


def _due(turns: Turns, now_ms: float) -> int:
    """The first rank, unless another one has waited for its share. After the turn of another one the first rank has at least one."""
    first = _first(turns)
    others = {rank: since for rank, since in turns.since.items() if rank != first}
    if not others or not turns.passed:
        return first
    rank = min(others, key=lambda rank: (others[rank], rank))
    return rank if turns.passed >= LOW_SHARE - 1 or now_ms - others[rank][0] >= LONGEST_MS else first


def _first(turns: Turns) -> int:
    return min(turns.since)


def _least(turns: Turns, rank: int) -> float:
    return min((line.served for key, line in turns.lines.items() if key.rank == rank), default=0.0)
