"""The newest version of an object counts, whatever order it is told in; a list is taken whole."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from pagoda_kube.cache import Cache, Item, Key

A, B = Key("ns", "a"), Key("ns", "b")


class Told(list):
    """What the cache's owner was told."""

    def __call__(self, key, before, after):
        self.append((key.name, before, after))


def item(key, version, value="v"):
    return Item(key, str(version), value)


def made():
    told = Told()
    return Cache(told), told


def test_an_event_that_is_older_than_what_is_known_is_no_news():
    cache, told = made()
    assert cache.put(item(A, 5, "new"))
    assert not cache.put(item(A, 4, "old"))
    assert not cache.put(item(A, 5, "new"))
    assert told == [("a", None, "new")]
    assert cache.values() == {A: "new"}


def test_a_version_without_a_change_that_counts_is_taken_and_told_nobody():
    cache, told = made()
    cache.put(item(A, 5))
    assert cache.put(item(A, 6))
    assert cache.get(A).version == "6"
    assert told == [("a", None, "v")]


def test_what_ended_does_not_come_back_by_an_event_that_was_on_its_way():
    cache, told = made()
    cache.put(item(A, 5))
    assert cache.drop(A, "7")
    assert not cache.put(item(A, 6))
    assert cache.put(item(A, 8, "again"))
    assert told == [("a", None, "v"), ("a", "v", None), ("a", None, "again")]


def test_an_end_that_is_older_than_the_next_object_of_that_name_ends_nothing():
    cache, _ = made()
    cache.put(item(A, 9))
    assert not cache.drop(A, "7")
    assert cache.values() == {A: "v"}


def test_what_a_list_lacks_is_gone_unless_it_is_newer_than_the_list():
    cache, told = made()
    cache.put(item(A, 5))
    since = cache.newest
    cache.put(item(B, 12))  # while the list is on its way
    assert cache.replace([], "10", since) == 1
    assert cache.values() == {B: "v"}
    assert told[-1] == ("a", "v", None)


def test_a_list_does_not_bring_back_what_ended_after_it_was_made():
    cache, _ = made()
    cache.put(item(A, 5))
    since = cache.newest
    cache.drop(A, "11")
    assert cache.replace([item(A, 5)], "10", since) == 0
    assert cache.values() == {}
    cache.replace([], "20", cache.newest)
    assert cache.put(item(A, 21))


def test_a_list_of_some_says_nothing_of_the_others():
    cache, _ = made()
    cache.put(item(A, 5))
    cache.put(item(B, 6))
    assert cache.replace([], "10", cache.newest, among=[A]) == 1
    assert cache.values() == {B: "v"}


def test_a_store_that_was_set_back_is_believed_whole():
    """Its versions count from an earlier one on: else everything it says would be old news for hours."""
    cache, told = made()
    cache.put(item(A, 900))
    cache.put(item(B, 901))
    assert cache.replace([item(A, 300, "restored")], "310", cache.newest) == 2
    assert cache.values() == {A: "restored"}
    assert cache.put(item(A, 311, "edited"))
    assert told[-1] == ("a", "restored", "edited")


def test_versions_that_are_no_numbers_are_believed():
    cache, _ = made()
    cache.put(item(A, "x9", "one"))
    assert cache.put(item(A, "x1", "two"))
    assert cache.replace([], "y", cache.newest) == 1


def test_of_what_nothing_is_kept_the_version_is_known():
    cache, told = made()
    cache.put(item(A, 5, None))
    assert (cache.values(), cache.get(A).version, told) == ({}, "5", [])
    assert not cache.put(item(A, 4, "old"))


# A store with a life of its own; a watch that tells it late, in order; lists and writes' answers that overtake the watch.
STEPS = st.lists(
    st.tuples(st.sampled_from(["write", "delete", "tell", "tell", "list", "own"]), st.sampled_from([A, B])), min_size=1, max_size=40
)


@given(STEPS)
def test_however_lists_events_and_own_writes_overtake_each_other_nothing_newer_is_undone(steps):
    cache, _ = made()
    store, history, version, told = {}, [], 0, 0
    newest = {A: 0, B: 0}  # the newest that the cache can have heard of each

    def known(key):
        found = cache.get(key)
        return found.number if found else 0

    for step, key in steps:
        before = {one: known(one) for one in (A, B)}
        if step in ("write", "own"):
            version += 1
            store[key] = version
            history.append(("put", key, version))
            if step == "own":
                cache.put(item(key, version, version))
                newest[key] = version
        elif step == "delete" and key in store:
            version += 1
            del store[key]
            history.append(("drop", key, version))
        elif step == "tell" and told < len(history):
            kind, which, at = history[told]
            told += 1
            if kind == "put":
                cache.put(item(which, at, at))
            else:
                cache.drop(which, str(at))
            newest[which] = max(newest[which], at)
        elif step == "list":
            cache.replace([item(one, at, at) for one, at in store.items()], str(version), cache.newest)
            newest = dict.fromkeys(newest, version)
        for one in (A, B):
            assert known(one) >= before[one] or known(one) == 0
            # What is kept is what the store held at the newest moment that was heard of, or later.
            held = next((at if kind == "put" else 0 for kind, which, at in reversed(history) if which == one and at <= newest[one]), 0)
            assert known(one) == held
    while told < len(history):
        kind, which, at = history[told]
        told += 1
        cache.put(item(which, at, at)) if kind == "put" else cache.drop(which, str(at))
    assert cache.values() == store
