"""Which revision a request goes to while the operator splits requests between revisions. Pure; called by pick.py and requests/router.py.

Points come from a low-discrepancy sequence, not from chance. Of any n requests in a row a revision with w percent gets n * w / 100, give or
take three, so a canary has its share from the first hundred requests on. Each gateway process draws its own points.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

# The fractional part of the golden ratio: of all sequences n * x mod 1 this one is the most even.
_GOLDEN: Final = 0.6180339887498949


def draw(number: int) -> float:
    """Returns the point of the `number`-th request, 0 <= point < 1."""
    return number * _GOLDEN % 1.0


def in_order(weights: Sequence[tuple[str, int]], point: float) -> tuple[str, ...]:
    """Returns all revisions: first the one whose share holds the point, then the others by weight."""
    chosen, rest = _chosen(weights, point), sorted(weights, key=lambda entry: (-entry[1], entry[0]))
    return (chosen, *(revision for revision, _ in rest if revision != chosen))


def _chosen(weights: Sequence[tuple[str, int]], point: float) -> str:
    left = point * sum(weight for _, weight in weights)
    for revision, weight in weights:
        if left < weight:
            return revision
        left -= weight
    return max(weights, key=lambda entry: entry[1])[0]  # all weights are 0, or the last share ended in a rounding error
