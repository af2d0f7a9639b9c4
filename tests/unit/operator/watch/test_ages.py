"""Times that the operator wrote into an object age by a clock that nobody sets."""

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st
from pagoda_operator.api.state import Key
from pagoda_operator.watch.observe import Ages

KEY = Key("ns", "a")
BEGIN = 1_767_225_600


def stamp(unix):
    return datetime.fromtimestamp(unix, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


LOOKS = st.lists(st.tuples(st.integers(0, 200), st.sampled_from([-300, 0, 300])), min_size=1, max_size=30)


@given(old=st.integers(-300, 500), looks=LOOKS)
def test_an_age_grows_by_the_steady_clock_whatever_the_wall_clock(old, looks):
    passed = 0.0
    ages = Ages(lambda: passed)
    written = stamp(BEGIN - old)
    assert ages.of(KEY, [written], BEGIN) == {written: max(0, old)}
    for seconds, jump in looks:
        passed += seconds
        assert ages.of(KEY, [written], BEGIN + passed + jump) == {written: max(0, old) + passed}


def test_a_late_view_does_not_reset_an_age():
    passed = 0.0
    ages = Ages(lambda: passed)
    before, after = stamp(BEGIN - 900), stamp(BEGIN)
    for shown in (before, after, before):
        ages.of(KEY, [shown], BEGIN)
    passed = 50.0
    assert ages.of(KEY, [after], BEGIN + 350) == {after: 50.0}


def test_ages_of_old_stamps_and_deleted_services_are_dropped():
    ages = Ages(lambda: 0.0)
    for second in range(50):
        ages.of(KEY, [stamp(BEGIN + second)], BEGIN + 50)
    assert len(ages._began[KEY]) < 10
    ages.forget(KEY)
    assert ages._began == {}
    assert ages.of(KEY, ["yesterday"], BEGIN) == {}
