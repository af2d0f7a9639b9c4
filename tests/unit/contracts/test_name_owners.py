"""A name belongs to the object that has it, else to the oldest one, in whatever order the objects are seen."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pagoda_contracts.name_owners import ServedName, read_reserved, resolve

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


RESERVED = read_reserved('{"prod-*": ["platform", "team-b"], "prod-special*": ["team-a"], "gpt-4o": ["team-a"], "gone": []}')


@pytest.mark.parametrize(
    ("name", "namespace", "why"),
    [
        ("free", "anybody", ""),
        ("GPT-4o", "anybody", ""),
        ("gpt-4o", "team-a", ""),
        ("gpt-4o", "team-b", "'gpt-4o' is reserved for namespaces team-a by reservedNames 'gpt-4o'"),
        ("prod-chat", "team-b", ""),
        ("prod-chat", "team-a", "'prod-chat' is reserved for namespaces platform, team-b by reservedNames 'prod-*'"),
        ("prod-special-1", "team-a", ""),
        ("prod-special-1", "platform", "'prod-special-1' is reserved for namespaces team-a by reservedNames 'prod-special*'"),
        ("gone", "team-a", "'gone' is reserved for no namespace by reservedNames 'gone'"),
    ],
)
def test_of_the_patterns_that_match_a_name_the_longest_says_which_namespaces_may_have_it(name, namespace, why):
    assert RESERVED.why_not(name, namespace) == why


def test_a_reserved_name_belongs_to_the_oldest_object_that_may_have_it_and_else_to_none():
    had, wants, younger = (ServedName("gpt-4o", OLD, uid, owner) for uid, owner in (("a", "x/had"), ("b", "team-a/1"), ("c", "team-a/2")))
    assert resolve([had._replace(owns=True), younger, wants], RESERVED) == {"gpt-4o": wants}
    assert resolve([had._replace(owns=True)], RESERVED) == {}
