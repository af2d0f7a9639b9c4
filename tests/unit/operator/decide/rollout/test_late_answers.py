"""A replica that drains and once does not answer is late, not gone: it is waited for a moment, and still turned back."""

import pytest
from pagoda_operator.api.state import PODS
from support.harness.fake_daemons import FakeDaemons
from support.harness.harness import Harness


@pytest.fixture
def draining():
    """The only replica is on its way out, not Ready for that, with one request left; and its daemon."""
    harness = Harness(replicas=1)
    harness.api.graceful = True
    harness.daemons = daemons = FakeDaemons(harness.api)
    harness.restart()
    harness.settle()
    daemons.probe()
    harness.settle()
    (pod,) = harness.api.of(PODS)
    daemons.of(pod).in_flight = 1
    harness.edit(replicas=0)
    harness.settle()
    daemons.probe()
    harness.settle()
    assert daemons.of(pod).draining
    return harness, daemons, pod["metadata"]["uid"]


def looks(harness):
    """An answer that is missing changes nothing that is stored: each look is taken anew."""
    for _ in range(4):
        harness.run()
        harness.settle()


def staying(harness):
    return [pod["metadata"]["uid"] for pod in harness.api.of(PODS) if "deletionTimestamp" not in pod["metadata"]]


def test_one_late_answer_does_not_remove_a_draining_replica(draining):
    harness, daemons, uid = draining
    (pod,) = harness.api.of(PODS)
    daemons.of(pod).unreachable = True
    looks(harness)
    assert staying(harness) == [uid]
    daemons.of(pod).unreachable = False
    harness.edit(replicas=1)
    harness.settle()
    assert (staying(harness), daemons.of(pod).draining) == ([uid], False)


def test_a_draining_replica_that_stays_silent_is_removed(draining):
    harness, daemons, _uid = draining
    (pod,) = harness.api.of(PODS)
    daemons.of(pod).unreachable = True
    looks(harness)
    harness.tick()
    looks(harness)
    assert staying(harness) == []
