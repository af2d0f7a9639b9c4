"""Which revision a request goes to while the operator splits requests between revisions. Pure; called by route.py.

Draws are points of a low-discrepancy sequence, not of chance: of any n requests in a row a revision with w percent gets n * w / 100, give
or take three, so that a canary's share is its share from the first hundred on. Copies of the gateway draw each for itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

# The fractional part of n times the golden ratio: the most even of all sequences n * x mod 1.
_GOLDEN: Final = 0.6180339887498949


def draw(number: int) -> float:
    """The point of the `number`-th request, 0 <= point < 1."""
    return number * _GOLDEN % 1.0


def order(weights: Sequence[tuple[str, int]], point: float) -> tuple[str, ...]:
    """Revisions as they are asked: the one whose share holds the point, then the others by weight, for when it has no able endpoint."""
    chosen, rest = _chosen(weights, point), sorted(weights, key=lambda entry: (-entry[1], entry[0]))
    return (chosen, *(revision for revision, _ in rest if revision != chosen))


def _chosen(weights: Sequence[tuple[str, int]], point: float) -> str:
    left = point * sum(weight for _, weight in weights)
    for revision, weight in weights:
        if left < weight:
            return revision
        left -= weight
    return max(weights, key=lambda entry: entry[1])[0]  # all weigh nothing, or the last one's share ended in a rounding
