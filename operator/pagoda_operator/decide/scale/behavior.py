"""behavior: how fast the number of replicas may change, in the shape and by the rules of HorizontalPodAutoscaler v2. Pure.

Called by `autoscale`. Stabilisation: of what was recommended within a direction's window the number nearest to the present one counts, so
that a single peak or dip moves nothing. Policies: from the number at the period's beginning at most so much is added or taken away.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

DOWN_WINDOW_S: Final = 300.0
"""Of a service that says nothing of it, as an HPA's."""


@dataclass(frozen=True, slots=True)
class Limit:
    """At most `value` pods, or percent of the replicas at the period's beginning, within `period_s`."""

    kind: Literal["Pods", "Percent"]
    value: int
    period_s: float


@dataclass(frozen=True, slots=True)
class Direction:
    """One way. `window_s` is None where nobody set it: autoscale then knows better than a maximum what a backlog's help is worth."""

    window_s: float | None = None
    limits: tuple[Limit, ...] = ()
    select: Literal["Max", "Min", "Disabled"] = "Max"


@dataclass(frozen=True, slots=True)
class Behavior:
    """Both ways."""

    up: Direction = field(default=Direction())
    down: Direction = field(default=Direction())

    @property
    def down_window_s(self) -> float:
        """How long a smaller number must hold."""
        return DOWN_WINDOW_S if self.down.window_s is None else self.down.window_s

    @property
    def memory_s(self) -> float:
        """How far back it looks."""
        periods = [limit.period_s for way in (self.up, self.down) for limit in way.limits]
        return max([self.down_window_s, self.up.window_s or 0.0, *periods])


@dataclass(frozen=True, slots=True)
class Change:
    """So many replicas were added, or taken away where `by` is negative."""

    at: float
    by: int


def stabilized(wish: int, current: int, past: Iterable[tuple[float, int]], behavior: Behavior, now: float) -> int:
    """The recommendation that counts: not below the most of the down window, not above the least of the up window."""
    recent = list(past)
    lowest = min([wish, *(count for at, count in recent if at > now - (behavior.up.window_s or 0.0))])
    highest = max([wish, *(count for at, count in recent if at > now - behavior.down_window_s)])
    return max(min(current, highest), lowest)


def paced(wish: int, current: int, changes: Sequence[Change], behavior: Behavior, now: float) -> int:
    """As near to the wish as the policies let it come; from nothing the first replica always comes."""
    if wish > current:
        most = _reach(current, changes, behavior.up, now, 1)
        return min(wish, max(most, current, 1))
    if wish < current:
        least = _reach(current, changes, behavior.down, now, -1)
        return max(wish, min(least, current))
    return wish


def _reach(current: int, changes: Sequence[Change], way: Direction, now: float, sign: int) -> int:
    """The furthest number that a direction's policies allow."""
    if way.select == "Disabled":
        return current
    if not way.limits:
        return current + sign * 1_000_000
    reached = [_allowed(limit, current - _changed(changes, now - limit.period_s), sign) for limit in way.limits]
    widest: Callable[[list[int]], int] = max if (way.select == "Max") == (sign > 0) else min
    return widest(reached)


def _allowed(limit: Limit, before: int, sign: int) -> int:
    """Percent rounds up on the way up and towards less left on the way down, as the HPA's controller does."""
    if limit.kind == "Pods":
        return before + sign * limit.value
    share = before * (100 + sign * limit.value) / 100
    return math.ceil(share) if sign > 0 else int(share)


def _changed(changes: Sequence[Change], since: float) -> int:
    return sum(change.by for change in changes if change.at > since)


def resumes(changes: Sequence[Change], way: Direction, now: float) -> float | None:
    """When the next period ends, which lets a policy allow more; None where none runs."""
    ends = [change.at + limit.period_s for change in changes for limit in way.limits if change.at + limit.period_s > now]
    return min(ends, default=None)
