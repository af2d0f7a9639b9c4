"""The queues of held requests against a model: order, counts, the bound, who looks next, and that no room is left unused."""

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from pagoda_gateway.limits.rules import Policy, Rule
from pagoda_gateway.requests.errors import LoadShed, QueueFull
from pagoda_gateway.requests.hold_queue import Claim, HoldQueue, claim_of
from pagoda_gateway.routing import turns
from pagoda_gateway.routing.request import RoutingRequest
from support.suite.profiles import examples

LIMIT = 6
SERVICES = st.sampled_from(["x", "y"])
CLAIMS = st.builds(Claim, st.sampled_from("ab"), st.integers(0, 1), st.integers(1, 3), st.booleans())


class Queues(RuleBasedStateMachine):
    """A model: for each service, the requests of each line in order. `looked`: those that looked in vain since the sweep began; `again`:
    services that changed during one; `full`: those whose last sweep ended because all was full."""

    def __init__(self):
        super().__init__()
        self.queue = HoldQueue(LIMIT)
        self.lines = {"x": {}, "y": {}}
        self.looked = set()
        self.again = set()
        self.full = set()
        self.since = {}

    def waiting(self, service):
        return [ticket for line in self.lines[service].values() for ticket in line]

    @rule(service=SERVICES, claim=CLAIMS, now=st.integers(1, 1000))
    def enter(self, service, claim, now):
        if sum(len(self.waiting(one)) for one in self.lines) == LIMIT:
            with pytest.raises(QueueFull):
                self.queue.enter(service, now, claim)
            return
        ticket = self.queue.enter(service, now, claim)
        self.since[ticket] = now
        self.entered(ticket)

    def entered(self, ticket):
        line = self.lines[ticket.service].setdefault(ticket.key, [])
        line.insert(0 if ticket.claim.first else len(line), ticket)

    def left(self, ticket):
        self.lines[ticket.service][ticket.key].remove(ticket)
        self.looked.discard(ticket)

    def looking(self, service):
        return {one for one in self.waiting(service) if one.woken}

    def stopped_looking(self, service):
        """The only one that was woken is no more. Returns whether another one is now: one that has not looked, or the first if a sweep is
        due."""
        if service not in self.full and set(self.waiting(service)) - self.looked:
            return True
        if service not in self.again:
            return False
        self.begins(service)
        return bool(self.waiting(service))

    def begins(self, service):
        """A sweep."""
        self.looked -= set(self.waiting(service))
        self.again.discard(service)
        self.full.discard(service)

    def one(self, number):
        tickets = [ticket for service in self.lines for ticket in self.waiting(service)]
        return tickets[number % len(tickets)]

    @precondition(lambda self: self.queue.total)
    @rule(number=st.integers(0, LIMIT))
    def leave(self, number):
        """A client leaves, whether it was about to look or not."""
        ticket = self.one(number)
        self.taken_out(ticket)
        self.queue.leave(ticket)

    def taken_out(self, ticket):
        others = self.looking(ticket.service) - {ticket}
        self.left(ticket)
        if ticket.woken and not others:
            self.stopped_looking(ticket.service)
        if not self.waiting(ticket.service):
            self.begins(ticket.service)

    @precondition(lambda self: self.queue.total)
    @rule(number=st.integers(0, LIMIT), service=SERVICES)
    def move(self, number, service):
        ticket = self.one(number)
        self.taken_out(ticket)
        moved = self.queue.move(ticket, service)
        self.since[moved] = self.since[ticket]
        self.entered(moved)

    @rule(service=SERVICES)
    def change(self, service):
        if self.looking(service):
            self.again.add(service)
        elif self.waiting(service):
            self.begins(service)
        self.queue.wake(service)
        assert any(ticket.woken for ticket in self.waiting(service)) or not self.waiting(service)

    @rule()
    def names_change(self):
        self.queue.wake_all()
        self.looked.clear()
        self.full.clear()
        assert all(ticket.woken for service in self.lines for ticket in self.waiting(service))

    @rule(service=SERVICES, found=st.sampled_from(["room", "none", "full"]))
    def look(self, service, found):
        """One that is woken looks."""
        ticket = next((one for one in self.waiting(service) if one.woken), None)
        if ticket is None:
            return
        others = self.looking(service) - {ticket}
        if found == "room":
            self.left(ticket)
        else:
            self.looked.add(ticket)
        if found == "full":
            self.full.add(service)
        expected = bool(others) or self.stopped_looking(service)
        ticket._woken.clear()
        if found == "room":
            self.queue.leave(ticket, served=True)
        else:
            self.queue.looked(ticket, full=found == "full")
        woken = self.looking(service)
        assert bool(woken) == expected, "room is left unused, or one looks for nothing"
        assert others or woken <= set(self.waiting(service)) - self.looked
        if not self.waiting(service):
            self.begins(service)

    @rule()
    def all_are_served_in_the_order_of_their_lines(self):
        for service, lines in self.lines.items():
            served = []
            self.queue.wake(service)
            while (ticket := next((one for one in self.waiting(service) if one.woken), None)) is not None:
                served.append(ticket)
                self.left(ticket)
                self.queue.leave(ticket, served=True)
            assert not any(lines.values()), "lost"
            assert len(set(served)) == len(served)
            self.begins(service)

    @invariant()
    def queues_agree(self):
        held = {service: self.waiting(service) for service in self.lines}
        assert self.queue.total == sum(map(len, held.values())) <= LIMIT
        for service, tickets in held.items():
            assert self.queue.count(service) == len(tickets)
            assert self.queue.oldest(service) == min((self.since[ticket] for ticket in tickets), default=None)


TestQueues = Queues.TestCase
TestQueues.settings = settings(max_examples=examples(40), deadline=None)


def served(queue, service="x"):
    """Takes all out, as they are woken."""
    waiting, order = {ticket for one in queue._queues.values() for ticket in one.tickets()}, []
    queue.wake(service)
    while waiting:
        (ticket,) = (one for one in waiting if one.woken)
        waiting.discard(ticket)
        order.append(ticket)
        queue.leave(ticket, served=True)
    return order


@pytest.mark.parametrize(("full", "others"), [(False, [False, True]), (True, [False, False])])
def test_one_that_looks_in_vain_lets_the_next_one_look_unless_all_is_full(full, others):
    queue = HoldQueue(10)
    first, second = queue.enter("x"), queue.enter("x")
    queue.wake("x")
    assert (first.woken, second.woken) == (True, False)
    first._woken.clear()
    queue.looked(first, full=full)
    assert [first.woken, second.woken] == others


def test_one_request_behind_a_flood_is_second_and_the_flood_keeps_its_order():
    queue = HoldQueue(1000)
    flood = [queue.enter("x", 0, Claim("flood")) for _ in range(500)]
    other = queue.enter("x", 0, Claim("other"))
    order = served(queue)
    assert order.index(other) <= 1
    assert [ticket for ticket in order if ticket is not other] == flood


def test_a_request_whose_replica_refused_it_goes_before_its_tenants_others():
    queue = HoldQueue(10)
    later, again = queue.enter("x", 0, Claim("a")), queue.enter("x", 0, Claim("a", first=True))
    assert served(queue) == [again, later]


def test_the_share_is_that_of_the_tenants_quotas_and_of_the_requests_tier():
    policy = Policy((Rule("q", weight=5, priority=7),))
    assert claim_of(RoutingRequest("m", tenant="t"), policy) == Claim("t", -7, 5)
    assert claim_of(RoutingRequest("m", tenant="t", tier="batch"), policy).rank > claim_of(RoutingRequest("m"), Policy()).rank


def test_requests_are_shed_by_what_their_tenant_holds_and_one_that_had_its_turn_is_not():
    queue = HoldQueue(100)
    for _ in range(90):
        queue.enter("x", 0, Claim("flood"))
    with pytest.raises(LoadShed, match="90 of this tenant"):
        queue.enter("x", 0, Claim("flood"), luck=0.5)
    queue.enter("x", 0, Claim("other"), luck=0.0)
    queue.enter("x", 0, Claim("flood", first=True), luck=0.0)
    with pytest.raises(LoadShed):
        queue.enter("x", 0, claim_of(RoutingRequest("m", tenant="other", tier="batch"), Policy()), luck=0.99)


def test_a_services_own_limit_sheds_by_what_is_held_for_that_service():
    queue = HoldQueue(1000)
    for _ in range(9):
        queue.enter("x", 0, Claim("flood"))
    with pytest.raises(LoadShed):
        queue.enter("x", 0, Claim("flood"), most=10, luck=0.4)
    queue.enter("y", 0, Claim("flood"), most=10, luck=0.0)


def test_a_sweep_of_a_thousand_computes_a_thousand_turns(monkeypatch):
    """Each step once began with the first of all: half a million turns, 8 s."""
    computed = Counter()
    taken = turns.taken

    def counted(*args):
        computed["turns"] += 1
        return taken(*args)

    monkeypatch.setattr(turns, "taken", counted)
    queue = HoldQueue(1000)
    tickets = [queue.enter("x", 0, Claim(str(number % 10))) for number in range(1000)]
    queue.wake("x")
    for _ in tickets:
        (ticket,) = (one for one in tickets if one.woken)
        ticket._woken.clear()
        queue.looked(ticket, full=False)
    assert 1000 <= computed["turns"] <= 1001


def test_changes_during_a_sweep_keep_nobody_from_looking():
    queue = HoldQueue(100)
    tickets = [queue.enter("x") for _ in range(100)]
    looked = []
    queue.wake("x")
    for _ in range(150):
        (ticket,) = (one for one in tickets if one.woken)
        ticket._woken.clear()
        looked.append(ticket)
        queue.looked(ticket, full=False)
        queue.wake("x")
    assert looked == tickets + tickets[:50]


def test_one_that_comes_looks_and_the_others_do_not_again_unless_all_was_full():
    queue = HoldQueue(10)
    first = queue.enter("x")
    queue.wake("x")
    first._woken.clear()
    queue.looked(first, full=False)
    queue.came(second := queue.enter("x"))
    assert (first.woken, second.woken) == (False, True)
    second._woken.clear()
    queue.looked(second, full=True)
    queue.came(third := queue.enter("x"))
    assert (first.woken, third.woken) == (True, False)
