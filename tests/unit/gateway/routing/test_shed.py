"""Who is refused when many requests wait: the batch tier first, a growing share before the limit, and a flood before others."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pagoda_gateway.routing.revisions import draw
from pagoda_gateway.routing.shed import Fill, shed_share
from pagoda_gateway.routing.turns import rank_of
from support.suite.profiles import examples

BATCH, LOW, USUAL, HIGH = (rank_of(*one) for one in (("batch", 1000), ("interactive", -1), ("interactive", 0), ("interactive", 1)))
FILLS = st.integers(1, 200).flatmap(
    lambda limit: st.integers(0, limit).flatmap(lambda total: st.builds(Fill, st.integers(0, total), st.just(total), st.just(limit)))
)


@pytest.mark.parametrize(
    ("total", "shares"),
    [(500, (0, 0, 0, 0)), (650, (0.5, 0, 0, 0)), (800, (1, 0.6, 0.21, 0)), (900, (1, 1, 0.74, 0)), (999, (1, 1, 1, 0)), (1000, (1,) * 4)],
)
def test_a_growing_share_is_refused_of_the_batch_tier_first_and_of_a_high_priority_at_the_limit_only(total, shares):
    found = [shed_share(rank, Fill(total, total, 1000)) for rank in (BATCH, LOW, USUAL, HIGH)]
    assert found == pytest.approx(shares, abs=0.01)


@settings(max_examples=examples(50), deadline=None)
@given(FILLS)
def test_nobody_is_refused_before_one_of_a_lower_rank(fill):
    shares = [shed_share(rank, fill) for rank in (HIGH, USUAL, LOW, BATCH)]
    if fill.own == fill.total:
        assert shares == sorted(shares)
    assert all((share == 1.0) or fill.total < fill.limit for share in shares)
    assert shares[0] in (0.0, 1.0)


def test_a_flood_leaves_room_for_tenants_that_hold_nothing():
    """A hundred arrivals for each departure: the queue fills up to what is kept free, and each newcomer finds a place."""
    held, refused = 0, 0
    for number in range(20_000):
        if draw(number) >= shed_share(USUAL, Fill(held, held, 1000)):
            held += 1
        else:
            refused += 1
        held -= number % 100 == 0
        assert shed_share(USUAL, Fill(0, held, 1000)) == 0.0
    assert 900 < held <= 950
    assert refused


def test_without_a_flood_a_small_queue_is_used_to_its_limit():
    assert [shed_share(USUAL, Fill(own, own, 4)) for own in range(5)] == [0, 0, 0, 0, 1]
