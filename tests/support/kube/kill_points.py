"""Where the operator is killed: points of a scenario, by the number of a request and how it dies there; drawn or all, cut into lives, and
what became of each. Pure; played by tests/faults/test_kills.py."""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from support.kube.fault_plan import KILLS
from support.kube.fault_proxy import Entry

IN_A_LIFE = 5
# A process has made its first requests, 25 or so, and some that count.
APART = 50


class Point(NamedTuple):
    number: int
    act: str

    def __str__(self) -> str:
        return f"{self.number}={self.act}"


def drawn(requests: int, count: int, seed: str, known: Collection[Point] = ()) -> Iterator[list[Point]]:
    """Distinct points of a scenario, none that is `known`, those of a life together and at different requests: at one request only one can
    be played."""
    rng = random.Random(seed)
    there = [point for number in range(1, requests + 1) for act in KILLS if (point := Point(number, act)) not in known]
    left = rng.sample(there, min(count, len(there)))
    while left:
        life = {point.number: point for point in reversed(left[:IN_A_LIFE])}
        yield sorted(life.values())
        left = [point for point in left if life.get(point.number) != point]


def every(requests: int) -> list[list[Point]]:
    """Every point, those of a life APART: who dies as soon as it has begun does nothing between."""
    starts = range(1, min(APART, requests) + 1)
    return [[Point(number, act) for number in range(first, requests + 1, APART)] for act in KILLS for first in starts]


def line_of(name: str, points: Iterable[Point]) -> str:
    return f"{name}:" + ",".join(map(str, points))


def points_of(line: str) -> tuple[str, list[Point]]:
    name, _, rest = line.partition(":")
    return name, [Point(int(number), act) for number, _, act in (point.partition("=") for point in rest.split(","))]


def shares(names: Sequence[str], count: int) -> dict[str, int]:
    """How many each has of so many in all."""
    return {name: count // len(names) + (number < count % len(names)) for number, name in enumerate(names)}


def sliced(whole: Sequence[tuple[str, list[Point]]], part: str) -> Sequence[tuple[str, list[Point]]]:
    """Of "2/3" every third from the second on."""
    first, _, step = part.partition("/")
    return whole[int(first) - 1 :: int(step)]


def length(journal: Sequence[Entry]) -> int:
    """How many requests a life had."""
    return max((entry.seen.number for entry in journal), default=0)


def unplayed(points: Iterable[Point], journal: Sequence[Entry]) -> Iterator[str]:
    """Those of a life's points at which nobody was killed, and why."""
    came = {entry.seen.number: entry for entry in journal if entry.seen.number > 0}
    last = length(journal)
    for point in points:
        entry = came.get(point.number)
        if entry is None:
            yield f"{point}: the life had {last} requests"
        elif not entry.killed:
            answered = entry.code or point.act == "kill_before"
            yield f"{point}: {'nobody was alive any more' if answered else 'it was not answered'}"


def nth(values: Iterable[float], share: float) -> float:
    """The least that so many of them do not exceed; 0 of none."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * share) - 1)] if ordered else 0.0
