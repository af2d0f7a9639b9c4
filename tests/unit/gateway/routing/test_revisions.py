"""Requests between revisions: shares are exact early, and a revision that can take nothing loses nothing."""

from hypothesis import given
from hypothesis import strategies as st
from pagoda_gateway.routing.revisions import draw, in_order

WEIGHTS = st.integers(0, 100).map(lambda percent: (("old", 100 - percent), ("new", percent)))


@given(WEIGHTS, st.integers(0, 10_000), st.integers(1, 1_000))
def test_of_any_requests_in_a_row_each_revision_gets_its_share(weights, start, count):
    chosen = [in_order(weights, draw(start + n))[0] for n in range(count)]
    for revision, percent in weights:
        assert abs(chosen.count(revision) - count * percent / 100) <= 3.5


@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 100)), min_size=1, unique_by=lambda w: w[0]),
    st.floats(0, 1, exclude_max=True),
)
def test_every_revision_is_asked_once_and_the_heavier_first_after_the_chosen(weights, point):
    asked = in_order(weights, point)
    assert sorted(asked) == sorted(revision for revision, _ in weights)
    rest = [dict(weights)[revision] for revision in asked[1:]]
    assert rest == sorted(rest, reverse=True)


@given(WEIGHTS, st.floats(0, 1, exclude_max=True))
def test_a_revision_without_a_share_is_never_the_first(weights, point):
    first = in_order(weights, point)[0]
    assert dict(weights)[first] > 0
