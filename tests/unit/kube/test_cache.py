"""The newest version of an object counts, whatever order it is told in; a list is taken whole."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from pagoda_kube.cache import Cache, Item, Key

A, B = Key("ns", "a"), Key("ns", "b")


class Changes(list):
    """The changes that the cache reported."""

    def __call__(self, key, before, after):
        self.append((key.name, before, after))


def item(key, version, value="v"):
    return Item(key, str(version), value)


def made():
    reported = Changes()
    return Cache(reported), reported


def test_an_event_that_is_older_than_the_cache_is_ignored():
    cache, reported = made()
    assert cache.put(item(A, 5, "new"))
    assert not cache.put(item(A, 4, "old"))
    assert not cache.put(item(A, 5, "new"))
    assert reported == [("a", None, "new")]
    assert cache.values() == {A: "new"}


def test_a_version_without_a_change_that_counts_is_stored_and_not_reported():
    cache, reported = made()
    cache.put(item(A, 5))
    assert cache.put(item(A, 6))
    assert cache.get(A).version == "6"
    assert reported == [("a", None, "v")]


def test_what_ended_does_not_come_back_by_an_event_that_was_on_its_way():
    cache, reported = made()
    cache.put(item(A, 5))
    assert cache.drop(A, "7")
    assert not cache.put(item(A, 6))
    assert cache.put(item(A, 8, "again"))
    assert reported == [("a", None, "v"), ("a", "v", None), ("a", None, "again")]


def test_an_end_that_is_older_than_the_next_object_of_that_name_ends_nothing():
    cache, _ = made()
    cache.put(item(A, 9))
    assert not cache.drop(A, "7")
    assert cache.values() == {A: "v"}


def test_what_a_list_lacks_is_gone_unless_it_is_newer_than_the_list():
    cache, reported = made()
    cache.put(item(A, 5))
    since = cache.newest
    cache.put(item(B, 12))  # while the list is on its way
    assert cache.take_list([], "10", since) == 1
    assert cache.values() == {B: "v"}
    assert reported[-1] == ("a", "v", None)


def test_a_list_does_not_bring_back_what_ended_after_it_was_made():
    cache, _ = made()
    cache.put(item(A, 5))
    since = cache.newest
    cache.drop(A, "11")
    assert cache.take_list([item(A, 5)], "10", since) == 0
    assert cache.values() == {}
    cache.take_list([], "20", cache.newest)
    assert cache.put(item(A, 21))


def test_a_list_of_some_says_nothing_of_the_others():
    cache, _ = made()
    cache.put(item(A, 5))
    cache.put(item(B, 6))
    assert cache.take_list([], "10", cache.newest, among=[A]) == 1
    assert cache.values() == {B: "v"}


def test_after_a_restore_of_the_store_a_list_replaces_the_whole_cache():
    """Its versions count from an earlier one on: else everything it says would be old news for hours."""
    cache, reported = made()
    cache.put(item(A, 900))
    cache.put(item(B, 901))
    assert cache.take_list([item(A, 300, "restored")], "310", cache.newest) == 2
    assert cache.values() == {A: "restored"}
    assert cache.put(item(A, 311, "edited"))
    assert reported[-1] == ("a", "restored", "edited")


def test_a_list_finds_what_a_restored_store_hid():
    """Its versions had passed the old ones before the next list: nobody saw that they went back."""
    cache, _ = made()
    cache.take_list([item(A, 300, "lost")], "310", cache.newest)
    assert not cache.put(item(B, 305))  # as old as the list that was taken before the store went back
    assert cache.take_list([item(A, 250, "restored"), item(B, 305)], "320", cache.newest) == 2
    assert cache.values() == {A: "restored", B: "v"}


def test_a_list_that_a_later_one_overtook_is_not_taken():
    cache, _ = made()
    since = cache.newest
    cache.take_list([item(A, 5)], "20", since)
    assert cache.take_list([item(B, 6)], "10", since) == 0
    assert cache.values() == {A: "v"}


def test_versions_that_are_no_numbers_are_accepted():
    cache, _ = made()
    cache.put(item(A, "x9", "one"))
    assert cache.put(item(A, "x1", "two"))
    assert cache.take_list([], "y", cache.newest) == 1


def test_of_what_nothing_is_kept_the_version_is_known():
    cache, reported = made()
    cache.put(item(A, 5, None))
    assert (cache.values(), cache.get(A).version, reported) == ({}, "5", [])
    assert not cache.put(item(A, 4, "old"))


class Life:
    """A store with a life of its own; a watch that tells it late, in order; lists and writes' answers that overtake the watch."""

    def __init__(self):
        self.cache, self.objects, self.version = Cache(), {}, 0
        self.history, self.reported = [], 0
        self.heard = {A: 0, B: 0}  # the newest that the cache can have heard of each

    def write(self, key):
        self.version += 1
        self.objects[key] = self.version
        self.history.append((key, self.version, True))

    def own(self, key):
        self.write(key)
        self.cache.put(item(key, self.version, self.version))
        self.heard[key] = self.version

    def delete(self, key):
        if self.objects.pop(key, None) is not None:
            self.version += 1
            self.history.append((key, self.version, False))

    def report(self, _key=None):
        if self.reported < len(self.history):
            key, at, lives = self.history[self.reported]
            self.reported += 1
            if lives:
                self.cache.put(item(key, at, at))
            else:
                self.cache.drop(key, str(at))
            self.heard[key] = max(self.heard[key], at)

    def list(self, _key):
        self.cache.take_list([item(key, at, at) for key, at in self.objects.items()], str(self.version), self.cache.newest)
        self.heard = dict.fromkeys(self.heard, self.version)

    def known(self, key):
        found = self.cache.get(key)
        return found.number if found else 0

    def held(self, key):
        """What the store held of it at the newest moment that was heard of."""
        moments = [(at, lives) for which, at, lives in self.history if which == key and at <= self.heard[key]]
        at, lives = moments[-1] if moments else (0, False)
        return at if lives else 0


STEPS = st.lists(
    st.tuples(st.sampled_from(["write", "delete", "report", "report", "list", "own"]), st.sampled_from([A, B])), min_size=1, max_size=40
)


@given(STEPS)
def test_however_lists_events_and_own_writes_overtake_each_other_nothing_newer_is_undone(steps):
    life = Life()
    for step, key in steps:
        before = {one: life.known(one) for one in (A, B)}
        getattr(life, step)(key)
        for one in (A, B):
            assert life.known(one) >= before[one] or life.known(one) == 0
            assert life.known(one) == life.held(one)
    while life.reported < len(life.history):
        life.report()
    assert life.cache.values() == life.objects
