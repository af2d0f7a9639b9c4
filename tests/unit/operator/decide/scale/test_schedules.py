"""Bounds by the clock: cron, time zones, days that skip or repeat an hour, and what cannot be a schedule."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pagoda_contracts.resources.scaling import ScalingSpec
from pagoda_operator.decide.scale.bounds import bounds_of, next_edge, refused
from support.suite.profiles import examples

BERLIN = "Europe/Berlin"


def spec(*schedules: dict[str, object], low: int = 1, high: int = 10) -> ScalingSpec:
    named = [{"name": f"s{index}", "min": 4, "duration": "1h"} | schedule for index, schedule in enumerate(schedules)]
    return ScalingSpec.model_validate({"mode": "Auto", "min": low, "max": high, "schedules": named})


def at(text: str, zone: str = "UTC") -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()


def span(of: ScalingSpec, now: float) -> tuple[int, int]:
    found = bounds_of(of, now)
    return found.least, found.most


def utc(seconds: float | None) -> str:
    assert seconds is not None
    return datetime.fromtimestamp(seconds, UTC).strftime("%m-%d %H:%M")


def test_a_schedule_applies_from_its_start_for_its_duration() -> None:
    office = spec({"start": "0 8 * * 1-5", "duration": "10h", "timeZone": BERLIN, "min": 6, "max": 20})
    moments = ["2026-06-08T07:59:59", "2026-06-08T08:00:00", "2026-06-08T17:59:59", "2026-06-08T18:00:00", "2026-06-07T12:00:00"]
    found = [bounds_of(office, at(moment, BERLIN)) for moment in moments]
    assert [(one.least, one.most) for one in found] == [(1, 10), (6, 20), (6, 20), (1, 10), (1, 10)]
    assert found[1].least_by == "min of schedule s0"
    assert found[1].most_by == "max of schedule s0"
    assert (found[0].least_by, found[0].most_by) == ("min", "max")


def test_schedules_over_midnight_and_overlapping() -> None:
    night = spec({"start": "0 22 * * *", "duration": "8h"})
    assert bounds_of(night, at("2026-06-08T05:59:00")).least == 4
    assert bounds_of(night, at("2026-06-08T06:00:00")).least == 1
    always = spec({"start": "0 * * * *", "duration": "90m"})
    assert {bounds_of(always, at(f"2026-06-08T{hour:02}:{minute}:00")).least for hour in range(24) for minute in (10, 50)} == {4}


def test_the_largest_of_several_schedules_counts_and_max_wins() -> None:
    both = spec({"start": "0 8 * * *", "duration": "4h", "min": 3, "max": 5}, {"start": "0 9 * * *", "min": 8})
    assert span(both, at("2026-06-08T08:30:00")) == (3, 5)
    assert span(both, at("2026-06-08T09:30:00")) == (8, 10)
    assert span(spec({"start": "0 9 * * *", "min": 40}), at("2026-06-08T09:30:00")) == (10, 10)


@pytest.mark.parametrize(
    ("start", "before", "begins"),
    [
        # 29 March 2026: 02:00 becomes 03:00. A start that the day skips comes right after.
        ("30 2 * * *", "2026-03-29T00:10:00", "03-29 01:00"),
        ("0 8 * * *", "2026-03-29T00:10:00", "03-29 06:00"),
        ("0 8 * * *", "2026-03-28T00:10:00", "03-28 07:00"),
        # 25 October 2026: 03:00 becomes 02:00. A start that the day repeats comes once.
        ("30 2 * * *", "2026-10-25T00:10:00", "10-25 00:30"),
        ("0 8 * * *", "2026-10-25T00:10:00", "10-25 07:00"),
    ],
)
def test_days_that_skip_or_repeat_an_hour(start: str, before: str, begins: str) -> None:
    daily = spec({"start": start, "timeZone": BERLIN})
    assert utc(next_edge(daily.schedules, at(before, BERLIN))) == begins


def test_on_a_day_that_repeats_an_hour_a_start_comes_once() -> None:
    daily = spec({"start": "30 2 * * *", "duration": "30m", "timeZone": BERLIN})
    first = at("2026-10-25T00:30:00")  # in UTC: the first 02:30
    held = [bounds_of(daily, first + minute * 60).least for minute in range(-5, 95, 5)]
    assert held == [1] + [4] * 6 + [1] * 13


def test_ten_hours_are_ten_hours_on_a_day_that_skips_one() -> None:
    long = spec({"start": "0 22 * * *", "duration": "10h", "timeZone": BERLIN})
    begin = at("2026-03-28T22:00:00", BERLIN)
    assert bounds_of(long, begin + 10 * 3600 - 1).least == 4
    assert bounds_of(long, begin + 10 * 3600).least == 1
    assert utc(begin + 10 * 3600) == "03-29 07:00", "nine by the wall clock in Berlin"


@settings(max_examples=examples(60), deadline=None)
@given(
    st.sampled_from(["0 8 * * 1-5", "*/17 * * * *", "30 2 * * *", "15 1-3 * * *", "0 0 1 * *"]),
    st.sampled_from(["UTC", BERLIN, "America/New_York", "Australia/Lord_Howe"]),
    st.integers(1, 40),
    st.floats(at("2026-03-01T00:00:00"), at("2026-11-15T00:00:00")),
)
def test_between_two_edges_nothing_changes(start: str, zone: str, hours: int, now: float) -> None:
    one = spec({"start": start, "timeZone": zone, "duration": f"{hours}h"})
    edge = next_edge(one.schedules, now)
    assert edge is not None
    assert edge > now
    here = bounds_of(one, now)
    assert all(bounds_of(one, now + (edge - now) * part) == here for part in (0.2, 0.5, 0.9))
    assert bounds_of(one, edge - 1e-3) == here


@pytest.mark.parametrize(
    ("schedule", "named"),
    [
        ({"start": "0 25 * * *"}, "scaling.schedules[0].start: '0 25 * * *'"),
        ({"start": "0 8 * * FOO"}, "it must be five cron fields"),
        ({"start": "0 0 30 2 *"}, "schedules[0].start"),
        ({"start": "0 8 * * *", "timeZone": "Europe/Atlantis"}, "'Europe/Atlantis' is not a known time zone; use an IANA name"),
        ({"start": "0 8 * * *", "timeZone": "Europe"}, "timeZone: 'Europe'"),
    ],
)
def test_an_invalid_schedule_is_named(schedule: dict[str, object], named: str) -> None:
    assert named in refused(spec(schedule))


def test_a_valid_schedule_is_accepted() -> None:
    assert refused(None) == ""
    assert refused(spec({"start": "*/5 0-7,20-23 * JAN-MAR MON"}, {"start": "0 0 29 2 *"}, {"start": "0 0 L * *"})) == ""


def test_without_schedules_there_is_no_edge() -> None:
    assert next_edge((), 0.0) is None
