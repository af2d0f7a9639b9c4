"""Bounds of numbers in a schema → bounds that the grammar library follows exactly. Pure; called by `schemas`.

The library counts in float64. A bound of an integer that no float64 holds moves inwards to the next one that does, at most 128 away: an
answer is always within the bounds that were asked for, and a few numbers at their edge are never said.
"""

from __future__ import annotations

import math
from typing import Any, Final

KEYWORDS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
EXACT: Final = 2**53
"""All integers up to it are exact in the library. llguidance 1.9 reads every number of a schema as float64, also in `const` and `enum`: it
takes 2**53 for a `const` of 2**53 + 1, and nothing else in a schema names the digits of a number."""
_LARGEST: Final = 10**18 - 128  # of float64 with 18 digits; with 19 a minimum is refused by the library
_MAX_INT64: Final = 2**63 - 1  # the library's own end of integers, which it follows as a maximum


def is_exact(number: int) -> bool:
    """Whether the library writes this integer of a `const` or an `enum` as it is."""
    return abs(number) <= EXACT or (abs(number) <= _LARGEST and int(float(number)) == number)


def fit(schema: dict[str, Any], keyword: str, bound: int) -> bool:
    """Whether the library follows this bound, which is moved inwards in `schema` if it is one of an integer."""
    exclusive = keyword.startswith("exclusive")
    if abs(bound) <= EXACT - exclusive:  # it adds or takes one away from an exclusive one, as a float64
        return True
    if schema.get("type") != "integer":
        return False
    lowest = "inimum" in keyword
    found = _at_least(bound + exclusive) if lowest else _at_most(bound - exclusive)
    if found is None:
        return False
    del schema[keyword]
    name = "minimum" if lowest else "maximum"
    other = schema.get(name)
    if not isinstance(other, int | float) or (found > other if lowest else found < other):
        schema[name] = found
    return True


def _at_least(bound: int) -> int | None:
    """The smallest exact integer that is not below `bound`; None if there is none."""
    if bound > _LARGEST:
        return None
    return bound if abs(bound) <= EXACT else max(-_LARGEST, _rounded_up(bound))


def _at_most(bound: int) -> int | None:
    if bound >= _MAX_INT64:
        return _MAX_INT64
    below = _at_least(-bound)
    return None if below is None else -below


def _rounded_up(bound: int) -> int:
    near = float(max(bound, -(2**62)))
    return int(near if near >= bound else math.nextafter(near, math.inf))
