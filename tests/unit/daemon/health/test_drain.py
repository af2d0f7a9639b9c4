"""Draining by order and by signal: fenced, reversible until SIGTERM, and never past the first deadline."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from pagoda_daemon.core.errors import StaleOrder
from pagoda_daemon.health.drain import Drain, Until
from support.suite.profiles import examples

TIMES = st.integers(1, 10**6).map(lambda at: Until(at, at + 7))
EPOCHS = st.integers(0, 5)


class Orders(RuleBasedStateMachine):
    """Beside the drain runs a history of what was said, from which the truth is read anew."""

    def __init__(self):
        super().__init__()
        self.drain = Drain()
        self.said = []
        self.obeyed = [0]

    def order(self, epoch, act):
        before = self.drain
        stale = epoch < max(self.obeyed)
        try:
            self.drain = act()
        except StaleOrder:
            assert self.drain is before
            return False
        assert not stale
        self.obeyed.append(epoch)
        return True

    @rule(deadline=TIMES, epoch=EPOCHS)
    def drain_by_order(self, deadline, epoch):
        if self.order(epoch, lambda: self.drain.begin(deadline, epoch)):
            self.said.append(("drain", deadline))
        else:
            assert epoch < max(self.obeyed)

    @rule(epoch=EPOCHS)
    def serve_by_order(self, epoch):
        ended = any(word == "end" for word, _ in self.said)
        if self.order(epoch, lambda: self.drain.turn_back(epoch)):
            assert not ended
            self.said.append(("serve", 0))
        else:
            assert ended or epoch < max(self.obeyed)

    @rule(deadline=TIMES)
    def signal(self, deadline):
        self.drain = self.drain.end(deadline)
        self.said.append(("end", deadline))

    @invariant()
    def it_is_where_the_last_word_put_it(self):
        since = self.said
        turned_back = [at for at, (word, _) in enumerate(since) if word == "serve"]
        current = since[turned_back[-1] + 1 :] if turned_back else since
        assert self.drain.draining == bool(current)
        assert self.drain.final == any(word == "end" for word, _ in since)
        assert self.drain.epoch == max(self.obeyed)
        if not current:
            assert self.drain.until == Until()
            return
        first = current[0][1]
        signals = [deadline for word, deadline in current if word == "end"]
        assert self.drain.until == (min(first, signals[0]) if signals else first)


TestOrders = Orders.TestCase
TestOrders.settings = settings(max_examples=examples(60), stateful_step_count=20, deadline=None)


def test_an_order_may_be_repeated():
    once = Drain().begin(Until(500), 1)
    assert once.begin(Until(900), 1) == once
    assert once.turn_back(1).turn_back(1) == Drain(epoch=1)


@pytest.mark.parametrize(("ordered", "killed"), [(500, 900), (900, 500)])
def test_a_signal_leaves_the_earlier_of_two_deadlines(ordered, killed):
    drain = Drain().begin(Until(ordered), 1).end(Until(killed))
    assert drain.until == Until(500)
    assert drain.end(Until(100)) == drain, "a second signal changes nothing"


def test_a_stale_order_names_both_epochs():
    with pytest.raises(StaleOrder, match=r"epoch 1 .* epoch 2"):
        Drain(epoch=2).begin(Until(5), 1)


def test_what_is_left_is_never_negative():
    assert Drain(until=Until(1500)).left_s(500) == 1.0
    assert Drain(until=Until(1500)).left_s(2000) == 0.0
