"""schedules: which bounds hold at a time, and when that changes next. Pure: the time comes in. Called by `scaling`.

Cron is read by cronsim, time zones by zoneinfo. On days that skip an hour, a start within it comes right after; on days that repeat one, it
comes once, as with Debian's cron. A duration is elapsed time: ten hours stay ten hours on every day.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError
from pagoda_contracts.resources.scaling import ScalingSpec, Schedule
from pagoda_contracts.units import parse_duration

_LONGEST: Final = timedelta(days=400)
"""How far back a start is looked for: a longer schedule that comes yearly holds always."""


class Limits(NamedTuple):
    """Fewest and most replicas, and who says so."""

    least: int
    most: int
    least_by: str
    most_by: str


def limits(spec: ScalingSpec, now: float) -> Limits:
    """A schedule replaces `min` and, where it says one, `max`; of several at once the largest counts. `max` is the stronger."""
    most = spec.max if spec.max is not None else spec.min
    running = [schedule for schedule in spec.schedules if next(_runs(schedule, now), None) is not None]
    if not running:
        return Limits(min(spec.min, most), most, "min", "max")
    floor = max(running, key=lambda schedule: schedule.min)
    roof = max(running, key=lambda schedule: schedule.max if schedule.max is not None else most)
    highest, by = (most, "max") if roof.max is None else (roof.max, f"max of schedule {roof.name}")
    return Limits(min(floor.min, highest), highest, f"min of schedule {floor.name}", by)


def next_edge(schedules: Sequence[Schedule], now: float) -> float | None:
    """Seconds of Unix time at which a schedule begins or may end next; None where none ever does."""
    edges = [edge for schedule in schedules for edge in _edges(schedule, now)]
    return min(edges, default=None)


def refused(spec: ScalingSpec | None) -> str:
    """What a schema cannot say: a start that is no cron expression, a time zone that does not exist. Empty where all are good."""
    for index, schedule in enumerate(spec.schedules if spec else ()):
        where = f"scaling.schedules[{index}]"
        try:
            zone = _zone(schedule)
        except (KeyError, ValueError, OSError):
            return f"{where}.timeZone: {schedule.time_zone!r} is not a known time zone; use an IANA name such as Europe/Berlin"
        try:
            first = next(CronSim(schedule.start, datetime(2024, 1, 1, tzinfo=zone)), None)
        except CronSimError as error:
            return f"{where}.start: {schedule.start!r}: {error}; it must be five cron fields such as 0 8 * * 1-5"
        if first is None:
            return f"{where}.start: {schedule.start!r} never occurs"
    return ""


def _runs(schedule: Schedule, now: float) -> Iterator[datetime]:
    """Starts that still last: the first one within a duration before now, if it was."""
    at = datetime.fromtimestamp(now, UTC)
    first = next(_starts(schedule, at - _duration(schedule)), None)
    if first is not None and first <= at:
        yield first


def _edges(schedule: Schedule, now: float) -> Iterator[float]:
    at = datetime.fromtimestamp(now, UTC)
    for first in _runs(schedule, now):
        yield (first + _duration(schedule)).timestamp()
    for start in _starts(schedule, at):
        yield start.timestamp()
        return


def _starts(schedule: Schedule, after: datetime) -> Iterator[datetime]:
    """In UTC, where adding durations means elapsed time. cronsim looks from the next second on."""
    zone = _zone(schedule)
    for start in CronSim(schedule.start, after.astimezone(zone)):
        if (found := start.astimezone(UTC)) > after:  # a skipped hour's start is told twice: as itself, and right after
            yield found


def _duration(schedule: Schedule) -> timedelta:
    seconds = min(parse_duration(schedule.duration), _LONGEST.total_seconds())
    return timedelta(seconds=seconds)


def _zone(schedule: Schedule) -> ZoneInfo:
    return ZoneInfo(schedule.time_zone)
