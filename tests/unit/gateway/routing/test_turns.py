"""The order of held requests: by weight within a rank, a bounded share for other ranks, and nothing is lost or doubled."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from pagoda_gateway.routing.turns import LONGEST_MS, LOW_SHARE, Key, Turns, emptied, in_order, joined, next_key, rank_of, taken
from support.suite.profiles import examples

FEW = settings(max_examples=examples(30), deadline=None)
WEIGHTS = st.integers(1, 10)
LINES = st.dictionaries(st.builds(Key, st.integers(0, 2), st.sampled_from("abcd")), st.tuples(WEIGHTS, st.integers(1, 12)), min_size=1)


def waiting(lines, now_ms=0.0):
    turns = Turns()
    for key, (weight, _) in lines.items():
        turns = joined(turns, key, weight, now_ms)
    return turns


def order(lines, now_ms=0.0):
    return list(in_order(waiting(lines, now_ms), {key: count for key, (_, count) in lines.items()}, now_ms))


def played(lines, count):
    """So many turns of lines that never end."""
    turns, keys = waiting(lines), []
    for _ in range(count):
        keys.append(next_key(turns, 0.0))
        turns = taken(turns, keys[-1], 0.0)
    return keys


@FEW
@given(LINES)
def test_each_request_has_one_turn(lines):
    assert Counter(order(lines)) == {key: count for key, (_, count) in lines.items()}


@FEW
@given(st.dictionaries(st.sampled_from("abcd"), WEIGHTS, min_size=2), st.integers(1, 60))
def test_tenants_that_wait_share_by_weight(weights, count):
    """No two of them are ever further apart than one turn of each, in turns by weight."""
    had = Counter(key.tenant for key in played({Key(0, tenant): (weight, 0) for tenant, weight in weights.items()}, count))
    for one, other in ((one, other) for one in weights for other in weights):
        gap = had[one] / weights[one] - had[other] / weights[other]
        assert gap <= 1 / weights[one] + 1e-9


@FEW
@given(st.integers(1, 60), st.lists(st.integers(1, 5), min_size=1, max_size=3, unique=True))
def test_of_ten_turns_in_a_row_one_goes_to_another_rank_and_never_more(count, others):
    keys = played({Key(rank, "a"): (1, 0) for rank in (0, *others)}, count)
    for at in range(count - LOW_SHARE + 1):
        assert sum(key.rank > 0 for key in keys[at : at + LOW_SHARE]) == 1


def test_the_share_of_other_ranks_goes_round_all_of_them():
    low = [key.rank for key in played({Key(rank, "a"): (1, 0) for rank in range(4)}, 60) if key.rank]
    assert low == [1, 2, 3, 1, 2, 3]


def test_a_rank_that_had_no_turn_for_long_gets_one_and_then_the_first_rank_does():
    turns, ranks = waiting({Key(0, "a"): (1, 0), Key(5, "b"): (1, 0)}), []
    for turn in range(6):  # a turn takes longer than the longest wait
        now_ms = turn * LONGEST_MS
        ranks.append(next_key(turns, now_ms).rank)
        turns = taken(turns, Key(ranks[-1], "ab"[ranks[-1] > 0]), now_ms)
    assert ranks == [0, 5, 0, 5, 0, 5]


@FEW
@given(st.integers(0, 40), st.integers(0, 3))
def test_one_that_begins_to_wait_is_behind_at_most_one_request_of_each_other_tenant(flood, others):
    lines = {Key(0, name): (1, 0) for name in ("flood", *"xyz"[:others])}
    turns = waiting(lines)
    for _ in range(flood):
        turns = taken(turns, next_key(turns, 0.0), 0.0)
    turns, ahead = joined(turns, Key(0, "new"), 1, 0.0), []
    while (key := next_key(turns, 0.0)).tenant != "new":
        ahead.append(key.tenant)
        turns = taken(turns, key, 0.0)
    assert max(Counter(ahead).values(), default=0) <= 1


@FEW
@given(WEIGHTS, st.integers(10, 60))
def test_one_that_sends_its_requests_one_by_one_gets_no_more_than_its_weight(weight, count):
    """Its line is empty after each of its turns, and it comes back at once."""
    one, flood, had = Key(0, "one"), Key(0, "flood"), 0
    turns = joined(waiting({flood: (weight, 0)}), one, 1, 0.0)
    for _ in range(count):
        key = next_key(turns, 0.0)
        turns = taken(turns, key, 0.0)
        if key == one:
            had += 1
            turns = joined(emptied(turns, one), one, 1, 0.0)
    assert had <= count / (weight + 1) + 1


def test_a_line_that_leaves_without_a_turn_has_paid_nothing_and_one_that_waits_for_nothing_is_forgotten():
    turns = emptied(joined(waiting({Key(0, "a"): (1, 0)}), Key(0, "b"), 1, 0.0), Key(0, "b"))
    assert (turns.gone, set(turns.lines)) == ({}, {Key(0, "a")})
    assert emptied(turns, Key(0, "a")) == Turns()
    assert next_key(Turns(), 0.0) is None


def test_ranks_are_those_of_replicas():
    tiers = [("batch", 1000), ("interactive", -1000), ("interactive", 0), ("interactive", 3), ("batch", 0)]
    assert sorted(tiers, key=lambda one: rank_of(*one)) == [
        ("interactive", 3),
        ("interactive", 0),
        ("interactive", -1000),
        ("batch", 1000),
        ("batch", 0),
    ]
