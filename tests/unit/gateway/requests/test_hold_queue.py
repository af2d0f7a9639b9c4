"""The queues of held requests against a model: order, counts, the bound, and who was woken."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule
from pagoda_gateway.requests.errors import QueueFull
from pagoda_gateway.requests.hold_queue import HoldQueue

LIMIT = 4
SERVICES = st.sampled_from(["x", "y"])


class Queues(RuleBasedStateMachine):
    """A model: the list of which request waits where, in order, since when, and which was woken."""

    tickets = Bundle("tickets")

    def __init__(self):
        super().__init__()
        self.queue = HoldQueue(LIMIT)
        self.waiting = []
        self.woken = set()
        self.since = {}

    @rule(target=tickets, service=SERVICES, now=st.integers(1, 1000))
    def enter(self, service, now):
        if len(self.waiting) == LIMIT:
            with pytest.raises(QueueFull):
                self.queue.enter(service, now)
            return None
        ticket = self.queue.enter(service, now)
        self.waiting.append((ticket, service))
        self.since[ticket] = now
        return ticket

    @rule(ticket=consumes(tickets))
    def leave(self, ticket):
        if ticket is not None:
            self.queue.leave(ticket)
            self.waiting = [entry for entry in self.waiting if entry[0] is not ticket]

    @rule(target=tickets, ticket=consumes(tickets), service=SERVICES)
    def move(self, ticket, service):
        if ticket is None:
            return None
        moved = self.queue.move(ticket, service)
        self.since[moved] = self.since[ticket]
        self.waiting = [entry for entry in self.waiting if entry[0] is not ticket] + [(moved, service)]
        return moved

    @rule(service=SERVICES)
    def wake(self, service):
        self.queue.wake(service)
        self.woken |= {ticket for ticket, place in self.waiting if place == service}

    @rule()
    def wake_all(self):
        self.queue.wake_all()
        self.woken |= {ticket for ticket, _ in self.waiting}

    @invariant()
    def queues_agree(self):
        assert self.queue.total == len(self.waiting) <= LIMIT
        for service in ("x", "y"):
            since = [self.since[ticket] for ticket, place in self.waiting if place == service]
            assert (self.queue.count(service), self.queue.oldest(service)) == (len(since), min(since, default=None))
        for ticket, _ in self.waiting:
            assert ticket.woken == (ticket in self.woken)


TestQueues = Queues.TestCase
