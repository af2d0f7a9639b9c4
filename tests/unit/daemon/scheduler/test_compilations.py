"""Grammars that wait to be compiled: which one is next, who is refused, who leaves. Counts and order only."""

from collections import Counter, deque

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from pagoda_daemon.core.batch import WorkerLimits
from pagoda_daemon.core.messages import Grammar, Submit
from pagoda_daemon.core.sampling import Sampling
from pagoda_daemon.scheduler import compilations
from pagoda_daemon.scheduler.admission import abort, expire, knows
from pagoda_daemon.scheduler.compilations import Compilations
from pagoda_daemon.scheduler.grammars import refuse_compiling
from pagoda_daemon.scheduler.limits import Limits
from pagoda_daemon.scheduler.state import State
from support.suite.profiles import examples

PLENTY = 10_000


def request(name, text=None, tenant="a", deadline_ms=None, prompt=3):
    return Submit(name, (1,) * prompt, Sampling(5), tenant=tenant, deadline_ms=deadline_ms, grammar=Grammar("regex", text or name))


def pushed(queue, *messages):
    for message in messages:
        queue.push(message, message.grammar.digest)


def order(queue, most=10_000):
    """The texts of all that is compiled from now on."""
    found = []
    while len(found) < most and (begun := queue.begin(0.0)) is not None:
        found.append(begun[1].text)
        queue.finish(0.0)
    return found


def full(queue, message):
    return queue.full(message, message.grammar.digest, PLENTY)


def test_sixteen_bad_grammars_of_a_tenant_cost_another_tenant_one():
    queue = Compilations()
    pushed(queue, *(request(f"bad{at}", tenant="bad") for at in range(16)))
    compiled = [queue.begin(0.0)[1].text]
    pushed(queue, request("honest", tenant="honest"))
    queue.finish(0.0)
    compiled += order(queue)
    assert compiled[:2] == ["bad0", "honest"]
    assert compiled[2:] == [f"bad{at}" for at in range(1, 16)]


def test_a_tenant_that_comes_again_and_again_goes_behind_one_that_waits():
    """A turn is remembered after the tenant has left: else whoever sends one at a time would always be new, and always first."""
    queue = Compilations()
    pushed(queue, *(request(f"flood{at}", tenant="flood") for at in range(3)))
    compiled = order(queue, 1)
    for at in range(3):
        pushed(queue, request(f"x{at}", tenant="x"), request(f"y{at}", tenant="y"))
        compiled += order(queue, 3 if at < 2 else 2)
    assert compiled == ["flood0", "x0", "y0", "flood1", "x1", "y1", "flood2", "x2", "y2"]


def test_requests_with_one_grammar_share_its_compilation():
    queue = Compilations()
    pushed(queue, request("r1", "same"), request("r2", "same", "b"), request("r3", "other", "b"))
    assert queue.begin(0.0)[1].text == "same"
    assert queue.begin(0.0) is None, "one at a time"
    pushed(queue, request("r4", "same", "c"))
    assert [message.request_id for message in queue.finish(0.0)] == ["r1", "r2", "r4"]
    assert order(queue) == ["other"]
    assert len(queue) == queue.tokens == 0


def test_the_queue_of_a_tenant_is_bounded_and_others_still_enter():
    queue = Compilations()
    pushed(queue, *(request(f"g{at}") for at in range(compilations.MOST_OF_TENANT)))
    refused = full(queue, request("more"))
    assert (refused.reason, refused.retry_after_s) == ("queue_full", 1.0)
    assert "128 grammars of this tenant wait to be compiled; at most 128 may" in refused.message
    assert full(queue, request("again", "g7")) is None, "it waits for a compilation that is queued anyway"
    assert full(queue, request("other", tenant="b")) is None
    queue.begin(0.0)
    assert full(queue, request("more")) is None


def test_all_tenants_together_are_bounded(monkeypatch):
    monkeypatch.setattr(compilations, "MOST", 3)
    queue = Compilations()
    pushed(queue, *(request(f"g{at}", tenant=f"t{at}") for at in range(3)))
    assert "3 grammars wait to be compiled; at most 3 may" in full(queue, request("x", tenant="x")).message


def test_prompts_that_wait_here_are_bounded_in_tokens():
    queue = Compilations()
    pushed(queue, request("long", prompt=PLENTY - 3))
    assert full(queue, request("fits", "long")) is None
    assert "9997 prompt tokens wait for grammars to be compiled; at most 10000 may" in full(queue, request("not", "long", prompt=4)).message


def test_a_refusal_says_when_there_should_be_room():
    queue = Compilations()
    queue.begin(0.0)
    pushed(queue, *(request(f"g{at}") for at in range(compilations.MOST_OF_TENANT + 2)))
    queue.begin(0.0)
    queue.finish(9999.0)  # the first one waited for the worker to start: it counts for nothing
    queue.begin(0.0)
    queue.finish(250.0)
    assert full(queue, request("more")).retry_after_s == pytest.approx(128 * 0.25)


def test_a_request_that_leaves_before_its_turn_is_not_compiled():
    queue = Compilations()
    pushed(queue, request("a"), request("b"), request("c"), request("c2", "c", "x"))
    queue.begin(0.0)
    assert [queue.drop(name) for name in ("a", "b", "c", "nobody")] == [True, True, True, False]
    assert queue.finish(0.0) == [], "what was under way ends, for nobody"
    assert order(queue) == ["c"], "somebody else wants it"
    assert (len(queue), queue._lines) == (0, {})


def state():
    return State(Limits.of(WorkerLimits(64, 4, 97, 64), 4, 16))


def test_an_expired_or_aborted_request_leaves_the_queue():
    made = state()
    pushed(made.compilations, request("now"), request("late", deadline_ms=50), request("gone"), request("later", deadline_ms=60))
    assert (knows(made, "late"), knows(made, "gone")) == (True, True)
    assert [row.finish_reason for row in abort(made, "gone")] == ["abort"]
    assert expire(made, 49.0) == []
    [row] = expire(made, 50.0)
    assert (row.request_id, row.refusal.reason) == ("late", "deadline")
    assert row.refusal.message == "the deadline passed before the grammar was compiled"
    assert not knows(made, "late")
    assert order(made.compilations) == ["now", "later"]
    assert expire(made, 100.0) == [], "it was given its verdict before"


def test_the_deadline_of_a_request_whose_id_came_again_does_not_end_the_second_one():
    made = state()
    pushed(made.compilations, request("x", deadline_ms=50))
    made.compilations.drop("x")
    pushed(made.compilations, request("x", deadline_ms=90))
    assert expire(made, 60.0) == []
    assert [row.request_id for row in expire(made, 90.0)] == ["x"]


def test_what_waits_is_counted_as_waiting_for_no_step():
    made = state()
    pushed(made.compilations, request("a", prompt=5), request("b", "a", prompt=2))
    stats = made.stats()
    assert (stats.waiting, stats.compiling, stats.waiting_tokens) == (0, 2, 7)


def test_the_wait_for_a_compilation_is_part_of_the_predicted_first_token():
    made = state()
    queue = made.compilations
    pushed(queue, *(request(f"g{at}") for at in range(5)))
    for _ in range(2):
        queue.begin(0.0)
        queue.finish(100.0)
    queue.begin(0.0)
    late = request("late", deadline_ms=300)
    refused = refuse_compiling(made, late, late.grammar.digest, 0.0)
    assert refused.reason == "deadline"
    assert refused.message == "the first token is expected in 300 ms, the deadline is in 300 ms"
    other = request("other", tenant="b", deadline_ms=300)  # one under way: the flood had its turn
    assert queue.wait_ms("b", other.grammar.digest) == 100.0
    assert refuse_compiling(made, other, other.grammar.digest, 0.0) is None


TENANTS = [f"t{number}" for number in range(4)]
TEXTS = [f"g{number}" for number in range(12)]


class Queueing(RuleBasedStateMachine):
    """A model beside it knows every request and how often each other tenant had a turn since a tenant waits with its first grammar."""

    def __init__(self):
        super().__init__()
        self.queue = Compilations()
        self.waiting = {}  # request id → message
        self.lines = {tenant: deque() for tenant in TENANTS}  # digests in the order of arrival
        self.overtaken = {tenant: Counter() for tenant in TENANTS}
        self.begun = None
        self.number = 0
        self.now = 0.0

    def leave(self, name):
        message = self.waiting.pop(name)
        digest, line = message.grammar.digest, self.lines[message.tenant]
        wanted = any(one.grammar.digest == digest and one.tenant == message.tenant for one in self.waiting.values())
        if digest in line and not wanted:
            line.remove(digest)
            if not line:
                self.overtaken[message.tenant].clear()

    @rule(
        tenant=st.sampled_from(TENANTS), texts=st.lists(st.sampled_from(TEXTS), min_size=1, max_size=5), wait=st.none() | st.integers(1, 20)
    )
    def come(self, tenant, texts, wait):
        for text in texts:
            self.come_one(tenant, text, wait)

    def come_one(self, tenant, text, wait):
        self.number += 1
        deadline = None if wait is None else int(self.now) + wait
        message = request(f"r{self.number}", text, tenant, deadline)
        digest = message.grammar.digest
        refusal = full(self.queue, message)
        line = self.lines[tenant]
        new = digest not in line and digest != self.begun
        assert (refusal is not None) == (new and (len(line) >= 3 or sum(map(len, self.lines.values())) >= 8))
        if refusal is None:
            pushed(self.queue, message)
            self.waiting[message.request_id] = message
            if new:
                line.append(digest)

    @rule(turns=st.integers(1, 4))
    def take_turns(self, turns):
        for _ in range(turns):
            self.begin()
            self.finish()

    @rule()
    def begin(self):
        begun = self.queue.begin(self.now)
        if self.begun is not None or not any(self.lines.values()):
            assert begun is None
            return
        digest, grammar = begun
        assert grammar.digest == digest
        served = self.queue._turns and next(reversed(self.queue._turns))
        assert self.lines[served][0] == digest, "the oldest one of the tenant whose turn it is"
        for tenant, line in self.lines.items():
            if tenant != served and line and line[0] != digest:
                self.overtaken[tenant][served] += 1
                assert self.overtaken[tenant][served] <= 1, f"{served} had two turns while {tenant} waited"
            if digest in line:
                if line[0] == digest or len(line) == 1:
                    self.overtaken[tenant].clear()
                line.remove(digest)
        self.begun = digest

    @rule()
    def finish(self):
        if self.begun is None:
            return
        settled = {message.request_id for message in self.queue.finish(self.now)}
        assert settled == {name for name, message in self.waiting.items() if message.grammar.digest == self.begun}
        for name in settled:
            del self.waiting[name]
        self.begun = None

    @rule(which=st.randoms(use_true_random=False))
    def go(self, which):
        name = which.choice(sorted(self.waiting) or ["nobody"])
        assert self.queue.drop(name) == (name in self.waiting)
        if name in self.waiting:
            self.leave(name)

    @rule(ms=st.integers(1, 10))
    def pass_time(self, ms):
        self.now += ms
        late = {name for name, message in self.waiting.items() if message.deadline_ms is not None and message.deadline_ms <= self.now}
        assert {row.request_id for row in self.queue.expire(self.now)} == late
        for name in sorted(late):
            self.leave(name)

    @invariant()
    def nothing_is_lost(self):
        assert set(self.queue._places) == set(self.waiting)
        assert len(self.queue) == len(self.waiting)
        assert self.queue.tokens == 3 * len(self.waiting)
        assert {tenant: list(line) for tenant, line in self.queue._lines.items()} == {
            tenant: list(line) for tenant, line in self.lines.items() if line
        }

    def teardown(self):
        """All that is left is compiled, each grammar once."""
        self.finish()
        left = {message.grammar.text for message in self.waiting.values()}
        assert sorted(order(self.queue)) == sorted(left)
        assert len(self.queue) == self.queue.tokens == 0


class TestQueueing(Queueing.TestCase):
    settings = settings(max_examples=examples(40), stateful_step_count=15, deadline=None)

    @pytest.fixture(autouse=True)
    def small(self, monkeypatch):
        monkeypatch.setattr(compilations, "MOST_OF_TENANT", 3)
        monkeypatch.setattr(compilations, "MOST", 8)
