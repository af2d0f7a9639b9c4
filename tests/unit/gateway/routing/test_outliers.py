"""Which replicas are left out: after five failures in a row, for a time that doubles, and never so many that the others are too few."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pagoda_gateway.routing.endpoint import NO_FAILURES, Endpoint, Failures, Frame
from pagoda_gateway.routing.outliers import answered, back, failed, without_outliers

NOW = 1_000_000.0


def of(row, failures=NO_FAILURES, now_ms=NOW):
    """What so many failures in a row make of it."""
    for _ in range(row):
        failures = failed(failures, now_ms)
    return failures


def endpoint(name, *, out=False, phase="ready", revision=""):
    made = Endpoint(name, "ns/s", f"{name}:8000", frame=Frame(1, phase, 0, 0, 0, revision=revision), frame_made_ms=NOW, connected=True)
    made.failures = of(5) if out else NO_FAILURES
    return made


def test_it_is_left_out_after_five_failures_in_a_row_and_an_answer_between_them_counts():
    assert of(4).until_ms == 0
    assert of(4, answered(of(4))).until_ms == 0
    assert of(5).until_ms == NOW + 5_000


def test_what_was_under_way_when_it_was_left_out_does_not_make_the_time_longer():
    assert of(40) == of(5)


def test_the_first_request_after_that_decides_and_each_time_is_twice_as_long_up_to_a_minute():
    failures, times = of(5), []
    for _ in range(6):
        now_ms = failures.until_ms
        failures = failed(failures, now_ms)
        times.append(failures.until_ms - now_ms)
    assert times == [10_000, 20_000, 40_000, 60_000, 60_000, 60_000]
    now_ms = failures.until_ms
    assert of(4, answered(failures), now_ms).until_ms <= now_ms


@pytest.mark.parametrize(("after_ms", "again_ms"), [(1_000, 10_000), (299_000, 10_000), (301_000, 5_000)])
def test_one_that_comes_and_goes_is_left_out_for_longer_until_that_is_forgotten(after_ms, again_ms):
    now_ms = of(5).until_ms + after_ms
    assert of(5, answered(of(5)), now_ms).until_ms == now_ms + again_ms


def test_one_that_was_started_again_is_asked_at_once_and_its_past_is_remembered():
    assert back(of(5), NOW + 1) == Failures(0, 1, NOW + 1)


def test_the_only_one_is_never_left_out():
    alone = [endpoint("a", out=True)]
    assert without_outliers(alone, NOW) is alone
    beside_a_loading_one = [endpoint("a", out=True), endpoint("b", phase="loading")]
    assert without_outliers(beside_a_loading_one, NOW) is beside_a_loading_one


def test_a_canary_whose_replicas_all_fail_is_not_left_out_and_one_of_several_is():
    old = [endpoint(name, revision="old") for name in "abc"]
    canary = [endpoint("new", out=True, revision="new")]
    assert without_outliers([*old, *canary], NOW) == [*old, *canary]
    one_of_two = [*canary, endpoint("newer", revision="new")]
    assert without_outliers([*old, *one_of_two], NOW) == [*old, one_of_two[1]]


@given(st.lists(st.tuples(st.booleans(), st.sampled_from(["ready", "loading"])), max_size=8))
def test_half_of_those_that_can_take_requests_are_left_or_none_is_left_out(drawn):
    endpoints = [endpoint(str(number), out=out, phase=phase) for number, (out, phase) in enumerate(drawn)]
    kept = without_outliers(endpoints, NOW)
    able = [one for one in endpoints if one.frame.phase == "ready"]
    left = [one for one in able if one in kept]
    assert 2 * len(left) >= len(able)
    outliers = [one for one in endpoints if one.failures.until_ms > NOW]
    assert kept == endpoints or not [one for one in kept if one in outliers]
    if 2 * len([one for one in able if one not in outliers]) >= max(1, len(able)) and [one for one in able if one not in outliers]:
        assert not [one for one in kept if one in outliers]
