"""How many replicas spec.scaling allows at a time, and how fast their number may change. Pure: the time is a parameter.

Schedules: cronsim reads cron, zoneinfo reads time zones. On a day that skips an hour, a start within it comes right after; on a day that
repeats an hour, a start comes once, as with Debian's cron. A duration is elapsed time: ten hours are ten hours on every day.

Behavior has the shape and the rules of HorizontalPodAutoscaler v2. `autoscale` applies the stabilization windows. Policies limit how much
is added or removed per period.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError
from pagoda_contracts.resources.scaling import ScalingBehavior, ScalingPolicy, ScalingRules, ScalingSpec, Schedule
from pagoda_contracts.units import parse_duration

DOWN_WINDOW_S: Final = 300.0
"""The default, as an HPA's."""
IDLE_AFTER_S: Final = 300.0
_LONGEST: Final = timedelta(days=400)
"""How far back a start is searched: a longer schedule that comes yearly always applies."""


@dataclass(frozen=True, slots=True)
class Behavior:
    """Both directions of spec.scaling.behavior."""

    up: ScalingRules = field(default=ScalingRules())
    down: ScalingRules = field(default=ScalingRules())

    @property
    def down_window_s(self) -> float:
        """How long a smaller number must be enough."""
        window = self.down.stabilization_window_seconds
        return DOWN_WINDOW_S if window is None else window

    @property
    def memory_s(self) -> float:
        """The age from which recommendations and changes no longer count."""
        periods = [policy.period_seconds for policy in (*self.up.policies, *self.down.policies)]
        return max([self.down_window_s, self.up.stabilization_window_seconds or 0, *periods])


@dataclass(frozen=True, slots=True)
class Bounds:
    """The fewest and the most replicas, and the names of what says so. After `idle_after_s` without requests zero is enough, if `least` is
    0."""

    least: int
    most: int
    idle_after_s: float = math.inf
    behavior: Behavior = field(default=Behavior())
    least_by: str = "min"
    most_by: str = "max"

    def awake(self) -> Bounds:
        """Returns them where no gateway is installed: nothing would start a service at zero."""
        return self if self.least or not self.most else replace(self, least=1, least_by="least without a gateway")

    def clamp(self, replicas: int) -> int:
        """Returns the nearest allowed number; `most` wins over `least`."""
        return min(self.most, max(self.least, replicas))


@dataclass(frozen=True, slots=True)
class Change:
    """So many replicas were added, or removed if `by` is negative."""

    at: float
    by: int


def bounds_of(spec: ScalingSpec, now: float) -> Bounds:
    """Returns the bounds at a time. A schedule replaces `min` and, if it has one, `max`. Of several schedules the largest counts."""
    most, idle, behavior = spec.max if spec.max is not None else spec.min, idle_after_s(spec), behavior_of(spec)
    running = [schedule for schedule in spec.schedules if _running(schedule, now) is not None]
    if not running:
        return Bounds(min(spec.min, most), most, idle, behavior)
    floor = max(running, key=lambda schedule: schedule.min)
    roof = max(running, key=lambda schedule: schedule.max if schedule.max is not None else most)
    highest, by = (most, "max") if roof.max is None else (roof.max, f"max of schedule {roof.name}")
    return Bounds(min(floor.min, highest), highest, idle, behavior, f"min of schedule {floor.name}", by)


def idle_after_s(spec: ScalingSpec) -> float:
    """Returns after how many seconds without requests zero replicas are enough."""
    return parse_duration(spec.idle_after) if spec.idle_after else IDLE_AFTER_S


def behavior_of(spec: ScalingSpec) -> Behavior:
    """Returns spec.scaling.behavior with its defaults."""
    wished = spec.behavior or ScalingBehavior()
    return Behavior(wished.scale_up or ScalingRules(), wished.scale_down or ScalingRules())


# Schedules


def next_edge(schedules: Sequence[Schedule], now: float) -> float | None:
    """Returns the Unix time at which the next schedule begins or may end; None if none ever does."""
    edges = [edge for schedule in schedules for edge in _edges(schedule, now)]
    return min(edges, default=None)


def refused(spec: ScalingSpec | None) -> str:
    """Returns what a schema cannot check: a start that is no cron expression, an unknown time zone. Empty if all are valid."""
    for index, schedule in enumerate(spec.schedules if spec else ()):
        where = f"scaling.schedules[{index}]"
        try:
            zone = ZoneInfo(schedule.time_zone)
        except (KeyError, ValueError, OSError):
            return f"{where}.timeZone: {schedule.time_zone!r} is not a known time zone; use an IANA name such as Europe/Berlin"
        try:
            first = next(CronSim(schedule.start, datetime(2024, 1, 1, tzinfo=zone)), None)
        except CronSimError as error:
            return f"{where}.start: {schedule.start!r}: {error}; it must be five cron fields such as 0 8 * * 1-5"
        if first is None:
            return f"{where}.start: {schedule.start!r} never occurs"
    return ""


def _running(schedule: Schedule, now: float) -> datetime | None:
    """Returns the first start within a duration before now, None if there was none."""
    at = datetime.fromtimestamp(now, UTC)
    first = next(_starts(schedule, at - _duration(schedule)), None)
    return first if first is not None and first <= at else None


def _edges(schedule: Schedule, now: float) -> Iterator[float]:
    if (first := _running(schedule, now)) is not None:
        yield (first + _duration(schedule)).timestamp()
    if (start := next(_starts(schedule, datetime.fromtimestamp(now, UTC)), None)) is not None:
        yield start.timestamp()


def _starts(schedule: Schedule, after: datetime) -> Iterator[datetime]:
    """In UTC, so that adding durations means elapsed time. cronsim begins with the next second."""
    for start in CronSim(schedule.start, after.astimezone(ZoneInfo(schedule.time_zone))):
        if (found := start.astimezone(UTC)) > after:  # a skipped hour's start comes twice: as itself, and right after
            yield found


def _duration(schedule: Schedule) -> timedelta:
    return timedelta(seconds=min(parse_duration(schedule.duration), _LONGEST.total_seconds()))


# Behavior


def paced(wish: int, current: int, changes: Sequence[Change], behavior: Behavior, now: float) -> int:
    """Returns the number nearest to the wish that the policies allow. From zero the first replica is always allowed."""
    if wish > current:
        most = _reach(current, changes, behavior.up, now, 1)
        return min(wish, max(most, current, 1))
    if wish < current:
        least = _reach(current, changes, behavior.down, now, -1)
        return max(wish, min(least, current))
    return wish


def _reach(current: int, changes: Sequence[Change], rules: ScalingRules, now: float, sign: int) -> int:
    """The furthest number that a direction's policies allow."""
    if rules.select_policy == "Disabled":
        return current
    if not rules.policies:
        return current + sign * 1_000_000
    reached = []
    for policy in rules.policies:
        recent = sum(change.by for change in changes if change.at > now - policy.period_seconds)
        reached.append(_allowed(policy, current - recent, sign))
    widest: Callable[[list[int]], int] = max if (rules.select_policy == "Max") == (sign > 0) else min
    return widest(reached)


def _allowed(policy: ScalingPolicy, before: int, sign: int) -> int:
    """Percent rounds up when scaling up and down when scaling down, as the HPA's controller does."""
    if policy.type == "Pods":
        return before + sign * policy.value
    share = before * (100 + sign * policy.value) / 100
    return math.ceil(share) if sign > 0 else int(share)
