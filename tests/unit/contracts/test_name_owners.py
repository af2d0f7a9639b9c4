"""A name belongs to the object that has it, else to the oldest one, in whatever order the objects are seen."""

from hypothesis import given
from hypothesis import strategies as st
from pagoda_contracts.name_owners import ServedName, resolve

OLD, NEW = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"
ONE = st.builds(
    ServedName,
    name=st.sampled_from("abc"),
    created=st.sampled_from([OLD, NEW]),
    uid=st.uuids().map(str),
    owner=st.just("ns/x"),
    owns=st.booleans(),
    served=st.booleans(),
)
NAMES = st.lists(ONE, max_size=8, unique_by=lambda one: one.uid)


def test_the_oldest_object_keeps_the_name():
    first, second = ServedName("m", OLD, "z", "ns/first"), ServedName("m", NEW, "a", "ns/second")
    assert resolve([second, first]) == {"m": first}


def test_equal_age_is_settled_by_uid():
    assert resolve([ServedName("m", OLD, "b", "ns/b"), ServedName("m", OLD, "a", "ns/a")])["m"].owner == "ns/a"


@given(NAMES, st.randoms())
def test_the_order_of_objects_changes_nothing_and_no_wanted_name_is_lost(wanted, random):
    shuffled = list(wanted)
    random.shuffle(shuffled)
    assert resolve(shuffled) == resolve(wanted)
    assert resolve(wanted).keys() == {one.name for one in wanted}


def test_the_owner_of_a_name_keeps_it_from_an_older_object_and_of_two_owners_the_older_keeps_it():
    older, younger = ServedName("m", OLD, "a", "ns/older"), ServedName("m", NEW, "b", "ns/younger", owns=True)
    assert resolve([older, younger])["m"] == younger
    both = older._replace(owns=True)
    assert resolve([younger, both])["m"] == both


def test_an_owner_that_has_served_goes_before_one_that_has_not_and_that_before_one_that_only_wants_the_name():
    served = ServedName("m", NEW, "c", "ns/served", owns=True)
    started, wants = (ServedName("m", OLD, uid, f"ns/{uid}", owns=uid == "b", served=False) for uid in ("b", "a"))
    assert resolve([wants, started, served])["m"] == served
    assert resolve([wants, started])["m"] == started
