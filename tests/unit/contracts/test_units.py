"""Durations and quantities parse as Kubernetes parses them, and refuse with the value and what is accepted."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pagoda_contracts.units import QUANTITY_PATTERN, parse_duration, parse_quantity, read_quantity


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


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        *((".5", "0.5"), ("5.", "5"), ("+1", "1"), ("1e3", "1000"), ("1E-3", "0.001"), ("100u", "0.0001"), ("7n", "7e-9"), ("-1", "-1")),
        *(("1Ei", str(1 << 60)), ("2E", "2e18"), ("3P", "3e15"), ("1Pi", str(1 << 50)), ("5Gi", str(5 << 30)), (".5Ki", "512"), (2, "2")),
        *(
            (1.5, "1.5"),
            (None, "0"),
            ("", "0"),
            (".", "0"),
            ("1e", "0"),
            ("1Gib", "0"),
            ("1e3Gi", "0"),
            ("1 ", "0"),
            (True, "0"),
            ([], "0"),
        ),
        *(("NaN", "0"), ("Infinity", "0"), (float("nan"), "0"), ("1e999999999", "0"), ("٣", "0")),
    ],
)
def test_quantities_from_other_sources_are_read_as_kubernetes_does(value, wanted):
    assert read_quantity(value) == Decimal(wanted)


@given(st.from_regex(QUANTITY_PATTERN, fullmatch=True))
def test_what_services_may_write_means_the_same_in_other_objects(text):
    if text.isascii():
        assert read_quantity(text) == parse_quantity(text)


@given(
    st.none()
    | st.text()
    | st.integers(-(10**6), 10**30)
    | st.floats()
    | st.lists(st.integers())
    | st.from_regex(r"[+-]?[0-9.eEGiMmk]{1,9}")
)
def test_nothing_in_the_place_of_a_quantity_is_an_error(value):
    assert read_quantity(value).is_finite()


@given(st.integers(0, 10**9), st.sampled_from([("ms", 1), ("s", 1000), ("m", 60_000)]))
def test_a_duration_is_its_number_times_its_unit(number, unit):
    if number < 10**9:
        assert parse_duration(f"{number}{unit[0]}") == pytest.approx(number * unit[1] / 1000)
