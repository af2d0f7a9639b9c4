"""Which asks are answered by one request: none by one that began before it was asked, and each by its group's second at the latest."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from pagoda_operator.api.state import Key
from pagoda_operator.client.joining import Line
from support.suite.profiles import examples

MOST, AT_ONCE = 2, 2
KEYS = st.builds(Key, st.sampled_from(["", "n1", "n2"]), st.sampled_from("abcde"))


def by_namespace(key):
    return key.namespace


class Asking(RuleBasedStateMachine):
    """Asks, ends of waits, begins and ends of requests in any order, beside a list of what must be."""

    def __init__(self):
        super().__init__()
        self.line = Line(by_namespace, MOST, AT_ONCE)
        self.waiting = {}
        self.answered = set()
        self.under_way = []

    @rule(key=KEYS)
    def ask(self, key):
        ticket = self.line.ask(key)
        assert ticket not in self.waiting
        assert ticket not in self.answered
        self.waiting[ticket] = key

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def withdraw(self, data):
        ticket = data.draw(st.sampled_from(sorted(self.waiting)))
        self.line.withdraw(ticket)
        del self.waiting[ticket]

    @precondition(lambda self: self.under_way)
    @rule(data=st.data())
    def end(self, data):
        batch = self.under_way.pop(data.draw(st.integers(0, len(self.under_way) - 1)))
        self.line.end(batch)

    @rule()
    def begin(self):
        busy = {batch.group for batch in self.under_way}
        free = {ticket: key for ticket, key in self.waiting.items() if by_namespace(key) not in busy}
        batch = self.line.begin()
        if not free or len(self.under_way) == AT_ONCE:
            assert batch is None
            return
        # For who has waited longest, and with it all of its group that fit, in the order in which they asked.
        group = by_namespace(free[min(free)])
        mine = sorted(ticket for ticket, key in free.items() if by_namespace(key) == group)[:MOST]
        assert (batch.group, dict(batch.asks)) == (group, {ticket: free[ticket] for ticket in mine})
        assert batch.keys == set(batch.asks.values())
        for ticket in mine:
            self.answered.add(ticket)
            del self.waiting[ticket]
        self.under_way.append(batch)

    @invariant()
    def one_of_a_group(self):
        groups = [batch.group for batch in self.under_way]
        assert len(groups) == len(set(groups)) <= AT_ONCE


TestAsking = Asking.TestCase
TestAsking.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)


@pytest.mark.parametrize("before", [0, 1, 5])
def test_an_ask_is_answered_by_the_second_request_at_the_latest(before):
    line = Line(lambda _: "", 64, 4)
    for number in range(before):
        line.ask(Key("ns", f"before-{number}"))
    first = line.begin()
    ticket = line.ask(Key("ns", "mine"))
    if first is not None:
        assert line.begin() is None  # never beside the one under way, which may have read what was before
        line.end(first)
    second = line.begin()
    assert ticket in second.asks


def test_what_does_not_fit_is_in_the_next_request():
    line = Line(by_namespace, MOST, AT_ONCE)
    for name in "abc":
        line.ask(Key("ns", name))
    first = line.begin()
    line.end(first)
    assert [sorted(key.name for key in batch.keys) for batch in (first, line.begin())] == [["a", "b"], ["c"]]


def test_the_same_asked_twice_is_read_once_for_both():
    line = Line(by_namespace, MOST, AT_ONCE)
    tickets = {line.ask(Key("ns", "a")) for _ in range(2)}
    batch = line.begin()
    assert (set(batch.asks), batch.keys) == (tickets, {Key("ns", "a")})
