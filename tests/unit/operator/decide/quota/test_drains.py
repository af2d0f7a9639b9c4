"""A quota that shrinks takes replicas away as any scale-down does: their requests end first, or their time is over."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from pagoda_contracts.names import ANNOTATION_DELETION_COST, ANNOTATION_DRAIN_DEADLINE
from support.harness.fake_daemons import FakeDaemons
from support.harness.quota import QuotaHarness
from support.suite.profiles import examples

# The default of spec.drain.timeout.
DRAIN_S = 30


class Served(QuotaHarness):
    """Replicas have daemons; one that drains is not Ready. Each that a ReplicaSet takes is judged."""

    def __init__(self):
        super().__init__()
        self.daemons = FakeDaemons(self.api)
        self.taken = []
        self.restart()

    def control(self):
        super().control()
        self.daemons.probe()

    def delete_pod(self, pod):
        self.taken.append(pod["metadata"]["name"])
        daemon, until = self.daemons.of(pod), self.deadline(pod)
        assert until is not None, "taken away without a drain"
        assert self.now_ms() >= until or (daemon.draining and not daemon.in_flight), f"taken away with {daemon} before {until}"
        super().delete_pod(pod)

    def restart(self, *, crashed=False):
        if isinstance(self.daemons, FakeDaemons):
            self.daemons.epoch += 1
        super().restart(crashed=crashed)

    def now_ms(self):
        return self.now().timestamp() * 1000

    def deadline(self, pod):
        found = pod["metadata"].get("annotations", {}).get(ANNOTATION_DRAIN_DEADLINE)
        return int(found) if found is not None else None

    def draining(self):
        return [pod for pod in self.staying if self.deadline(pod) is not None]


def serving(replicas, cap):
    harness = Served()
    harness.cap(cap, "ns")
    key = harness.serve("ns", replicas)
    harness.round(key, 6)
    assert (harness.replicas(key), len(harness.staying), harness.draining(), harness.daemons.reported) == (replicas, replicas, [], [])
    for pod in harness.staying:
        harness.daemons.of(pod).in_flight = 1
    return harness, key


@pytest.mark.parametrize(("replicas", "cap"), [(1, 0), (2, 1), (3, 1)])
def test_shrunk_quota_drains_the_replicas_that_it_removes(replicas, cap):
    harness, key = serving(replicas, replicas)
    harness.recap(cap)
    harness.round(key, 5)
    going, too_many = harness.draining(), replicas - cap
    names = {pod["metadata"]["name"] for pod in going}
    assert len(going) == too_many
    assert {harness.deadline(pod) for pod in going} == {int(harness.now_ms() + DRAIN_S * 1000)}
    assert set(harness.daemons.reported) == {(name, "drain") for name in names}
    assert all(harness.daemons.of(pod).draining for pod in going)
    assert (harness.replicas(key), len(harness.staying), harness.taken) == (replicas, replicas, [])
    assert harness.condition(key, "Stalled")["reason"] == "QuotaExceeded"
    for pod in going:
        assert harness.replicas(key) > cap
        harness.daemons.of(pod).in_flight = 0
        harness.round(key, 3)
    assert (harness.replicas(key), set(harness.taken)) == (cap, names)
    assert [harness.daemons.of(pod).in_flight for pod in harness.staying] == [1] * cap  # who stays has lost nothing


def test_pod_is_annotated_before_its_daemon_drains_and_ranked_before_the_scale_down():
    harness, key = serving(2, 2)
    harness.recap(1)
    first = frozenset((ANNOTATION_DRAIN_DEADLINE,))
    runs = [seen_after_a_run(harness, key) for _ in range(5)]
    assert list(dict.fromkeys(runs)) == [(first, False, 2), (first, True, 2)]
    (pod,) = harness.draining()
    harness.daemons.of(pod).in_flight = 0
    runs = [seen_after_a_run(harness, key) for _ in range(3)]
    both = frozenset((ANNOTATION_DRAIN_DEADLINE, ANNOTATION_DELETION_COST))
    assert list(dict.fromkeys(runs)) == [(both, True, 2), (both, True, 1)]


def seen_after_a_run(harness, key):
    """What stands on the one that goes, whether its daemon was told, and what the Deployment wants."""
    harness.run(key)
    (pod,) = harness.draining()
    ours = frozenset(pod["metadata"]["annotations"]) & {ANNOTATION_DRAIN_DEADLINE, ANNOTATION_DELETION_COST}
    return ours, bool(harness.daemons.reported), harness.replicas(key)


def test_request_longer_than_the_drain_timeout_does_not_delay_the_quota():
    harness, key = serving(1, 1)
    harness.recap(0)
    harness.round(key, 3)
    harness.later += DRAIN_S - 1
    harness.round(key, 3)
    assert (harness.replicas(key), harness.taken) == (1, [])
    harness.later += 1
    harness.round(key, 3)
    assert (harness.replicas(key), len(harness.taken)) == (0, 1)


def test_quota_that_grows_again_cancels_the_drain():
    harness, key = serving(2, 2)
    before = {pod["metadata"]["uid"] for pod in harness.staying}
    harness.recap(1)
    harness.round(key, 3)
    (pod,) = harness.draining()
    harness.recap(2)
    harness.round(key, 4)
    assert {pod["metadata"]["uid"] for pod in harness.staying} == before
    assert (harness.replicas(key), harness.draining(), harness.daemons.of(pod).draining, harness.taken) == (2, [], False, [])
    assert harness.condition(key)["reason"] == "Available"


class Shrinks(RuleBasedStateMachine):
    """Two services under one quota that shrinks and grows while requests land and end and operators follow each other."""

    @initialize(cap=st.integers(0, 4))
    def start(self, cap):
        self.harness = Served()
        self.harness.cap(cap, "ns")
        self.keys = [self.harness.serve("ns", 2), self.harness.serve("ns", 2)]
        self.look(5)

    @rule(cap=st.integers(0, 4))
    def people_change_the_quota(self, cap):
        self.harness.recap(cap)

    @rule(data=st.data())
    def a_request_lands(self, data):
        if pods := self.harness.daemons.routable():
            self.harness.daemons.of(data.draw(st.sampled_from(pods))).in_flight += 1

    @rule(data=st.data())
    def a_request_ends(self, data):
        if busy := [pod for pod in self.harness.staying if self.harness.daemons.of(pod).in_flight]:
            self.harness.daemons.of(data.draw(st.sampled_from(busy))).in_flight -= 1

    @rule(seconds=st.sampled_from([1, 10, 31]))
    def time_passes(self, seconds):
        self.harness.later += seconds

    @rule()
    def an_operator_follows(self):
        self.harness.restart()

    @rule(which=st.integers(0, 1))
    def reconcile(self, which):
        self.harness.run(self.keys[which])

    @rule()
    def control(self):
        self.harness.control()

    @rule(times=st.integers(1, 3))
    def look(self, times):
        for _ in range(times):
            for key in self.keys:
                self.harness.round(key)

    def teardown(self):
        """Requests end: as many serve as the quota allows, and nobody drains."""
        if not hasattr(self, "harness"):
            return
        for _ in range(12):
            for pod in self.harness.staying:
                self.harness.daemons.of(pod).in_flight = 0
            self.look(1)
        (quota,) = self.harness.seen()
        allowed = sum(quota.caps.values())
        assert sum(map(self.harness.replicas, self.keys)) == min(4, allowed) == len(self.harness.staying)
        assert self.harness.draining() == []


TestShrinks = Shrinks.TestCase
TestShrinks.pytestmark = [pytest.mark.deep]
TestShrinks.settings = settings(max_examples=examples(30), stateful_step_count=30, deadline=None)
