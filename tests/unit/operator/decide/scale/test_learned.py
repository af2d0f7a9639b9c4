"""What scaling learns, its page, and what it predicts."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pagoda_operator.decide.scale.learned import (
    BINS,
    DAY_S,
    DAYS,
    UNKNOWN_START_S,
    Learned,
    decode,
    encode,
    forecast,
    loaded,
    started,
)
from pydantic import ValidationError
from support.suite.profiles import examples

HOUR = 3600.0


def wave(at: float, day_s: float = DAY_S) -> float:
    """A day's load: 4 rows at midnight, 100 at noon."""
    return 52.0 - 48.0 * math.cos(2 * math.pi * at / day_s)


def days(count: float, *, factor: float = 1.0) -> Learned:
    learned = Learned()
    for minute in range(int(count * DAY_S / 300)):
        learned = loaded(learned, factor * wave(minute * 300.0), minute * 300.0)
    return learned


def test_the_forecast_is_the_same_time_of_previous_days() -> None:
    now = 3 * DAY_S + 9 * HOUR
    for ahead in (0.0, 600.0, 2 * HOUR):
        assert forecast(days(3.4), wave(now), now, ahead) == pytest.approx(wave(now + ahead), rel=0.08)


def test_the_forecast_scales_with_a_busier_day_within_limits() -> None:
    now, learned = 2 * DAY_S + 9 * HOUR, days(2.2)
    usual = forecast(learned, wave(now), now, HOUR)
    assert forecast(learned, 1.2 * wave(now), now, HOUR) == pytest.approx(1.2 * usual, rel=0.02)
    assert forecast(learned, 50 * wave(now), now, HOUR) == pytest.approx(1.5 * usual, rel=0.05)
    assert forecast(learned, 0.0, now, HOUR) == pytest.approx(0.5 * usual, rel=0.05)


def test_the_forecast_ignores_one_odd_day() -> None:
    learned = days(4.2)
    odd = {**learned.days, 2: tuple(50.0 * (load or 0.0) for load in learned.days[2])}
    now = 4 * DAY_S + 6 * HOUR
    assert forecast(Learned(days=odd), wave(now), now, HOUR) == pytest.approx(wave(now + HOUR), rel=0.1)


def test_there_is_no_forecast_without_a_previous_day() -> None:
    assert forecast(Learned(), 10.0, 5 * DAY_S, HOUR) == 0.0
    assert forecast(days(0.9), 10.0, 0.5 * DAY_S, HOUR) == 0.0, "the present day is no previous one"


def test_old_days_are_forgotten() -> None:
    learned = days(DAYS + 3)
    assert len(learned.days) == DAYS + 1
    later = loaded(learned, 1.0, 100 * DAY_S)
    assert dict(later.days) == {}


def test_the_start_time_is_the_median_of_the_last_starts() -> None:
    learned = Learned()
    assert learned.start_s("h100") == UNKNOWN_START_S
    for seconds in (300.0, 90.0, 100.0, 95.0):
        learned = started(learned, "h100", seconds)
    assert learned.start_s("h100") == 100.0
    assert learned.start_s("mig") == UNKNOWN_START_S
    for _ in range(20):
        learned = started(learned, "h100", 40.0)
    assert learned.starts["h100"] == (40.0,) * 8


@settings(max_examples=examples(40), deadline=None)
@given(
    st.lists(st.tuples(st.text("abc-0123", min_size=1, max_size=63), st.floats(0, 1e6)), max_size=40),
    st.lists(st.tuples(st.integers(0, 12 * BINS), st.floats(0, 1e8)), max_size=60),
)
def test_a_page_is_read_as_it_was_written_and_is_bounded(starts: list[tuple[str, float]], loads: list[tuple[int, float]]) -> None:
    learned = Learned()
    for name, seconds in starts:
        learned = started(learned, name, seconds)
    for number, load in sorted(loads):
        learned = loaded(learned, load, (number + 0.5) * DAY_S / BINS)
    page = encode(learned, 1_800_000_000.0)
    assert len(page.encode()) <= 64 * 1024
    again = decode(page)
    assert dict(again.starts) == dict(learned.starts)
    assert dict(again.days) == dict(learned.days)
    assert again.written_at == 1_800_000_000.0


def test_the_fullest_page_is_below_16_kib() -> None:
    learned = Learned()
    for number in range(40):
        for _ in range(9):
            learned = started(learned, f"{number:0120}", 999_999.9)
    for number in range((DAYS + 2) * BINS):
        learned = loaded(learned, 123_456.789e3, (number + 0.5) * DAY_S / BINS)
    assert 4_000 < len(encode(learned, 2e9)) < 16 * 1024


def _page(**changed: object) -> str:
    return json.dumps({"version": 1, "written": 5, "starts": {"a": [1.0]}, "days": {"3": [None] * BINS}} | changed)


@pytest.mark.parametrize(
    "page",
    [
        "",
        "{",
        "[]",
        "null",
        _page(version=2),
        _page(written=-1),
        _page(starts={"a": ["soon"]}),
        _page(starts={"a": [1e400]}),
        _page(starts={"a": [1.0] * 9}),
        _page(days={"today": [None] * BINS}),
        _page(days={"3": [None]}),
        _page(days={"3": [-1.0] * BINS}),
        _page(days={str(day): [None] * BINS for day in range(9)}),
    ],
)
def test_an_invalid_page_is_refused(page: str) -> None:
    with pytest.raises(ValidationError):
        decode(page)


@settings(max_examples=examples(100), deadline=None)
@given(
    st.text(max_size=200)
    | st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["version", "written", "starts", "days", "3"]), inner),
        max_leaves=8,
    ).map(json.dumps)
)
def test_any_text_is_read_or_refused(page: str) -> None:
    try:
        found = decode(page)
    except ValidationError:
        return
    assert decode(encode(found, found.written_at)) == found


def test_unknown_fields_of_a_page_are_ignored() -> None:
    assert decode(_page(more={"new": 1})).starts == {"a": (1.0,)}
    assert decode(_page()).days == {3: (None,) * BINS}
