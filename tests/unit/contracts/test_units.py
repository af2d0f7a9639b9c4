"""Durations and quantities parse as Kubernetes parses them, and refuse with the value and what is accepted."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pagoda_contracts.units import parse_duration, parse_quantity


@pytest.mark.parametrize(("text", "seconds"), [("800ms", 0.8), ("30s", 30), ("10m", 600), ("1h30m", 5400), ("1.5s", 1.5), ("2h0.5m", 7230)])
def test_durations_are_go_strings(text, seconds):
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "10", "10 s", "ten", "-1s", "1d", "1s\n", "1..5s", "s"])
def test_what_is_no_duration_is_named(text):
    with pytest.raises(ValueError, match="such as 800ms"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "value"), [("250m", Decimal("0.25")), ("4Gi", Decimal(2**32)), ("2", Decimal(2)), ("1.5G", Decimal(15) * 10**8)]
)
def test_quantities_are_exact(text, value):
    assert parse_quantity(text) == value


@pytest.mark.parametrize("text", ["", "4gb", "-1", "1e3", "Gi", "1.2.3", "4Gi "])
def test_what_is_no_quantity_is_named(text):
    with pytest.raises(ValueError, match="such as 250m or 4Gi"):
        parse_quantity(text)


@given(st.integers(0, 10**9), st.sampled_from([("ms", 1), ("s", 1000), ("m", 60_000)]))
def test_a_duration_is_its_number_times_its_unit(number, unit):
    if number < 10**9:
        assert parse_duration(f"{number}{unit[0]}") == pytest.approx(number * unit[1] / 1000)
