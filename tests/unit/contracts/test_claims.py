"""A name belongs to the oldest claimer, whatever order the claims are seen in."""

from hypothesis import given
from hypothesis import strategies as st
from pagoda_contracts.claims import Claim, resolve

OLD, NEW = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"
ONE = st.builds(
    Claim,
    name=st.sampled_from("abc"),
    created=st.sampled_from([OLD, NEW]),
    uid=st.uuids().map(str),
    owner=st.just("ns/x"),
    holds=st.booleans(),
)
CLAIMS = st.lists(ONE, max_size=8, unique_by=lambda claim: claim.uid)


def test_the_oldest_claimer_keeps_the_name():
    first, second = Claim("m", OLD, "z", "ns/first"), Claim("m", NEW, "a", "ns/second")
    assert resolve([second, first]) == {"m": first}


def test_equal_age_is_settled_by_uid():
    assert resolve([Claim("m", OLD, "b", "ns/b"), Claim("m", OLD, "a", "ns/a")])["m"].owner == "ns/a"


@given(CLAIMS, st.randoms())
def test_order_of_sight_changes_nothing_and_no_claimed_name_is_lost(claims, random):
    shuffled = list(claims)
    random.shuffle(shuffled)
    assert resolve(shuffled) == resolve(claims)
    assert resolve(claims).keys() == {claim.name for claim in claims}


def test_who_holds_a_name_keeps_it_from_an_older_one_and_of_two_holders_the_older_does():
    older, younger = Claim("m", OLD, "a", "ns/older"), Claim("m", NEW, "b", "ns/younger", holds=True)
    assert resolve([older, younger])["m"] == younger
    both = older._replace(holds=True)
    assert resolve([younger, both])["m"] == both
