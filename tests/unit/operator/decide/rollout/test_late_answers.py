"""A replica that drains and once does not answer is late, not gone: it is waited for a moment, and still turned back."""

import pytest
from pagoda_operator.api.state import PODS
from support.worlds.fake_daemons import FakeDaemons
from support.worlds.world import World


@pytest.fixture
def draining():
    """The only replica is on its way out, not Ready for that, with one request left; and its daemon."""
    world = World(replicas=1)
    world.api.graceful = True
    world.daemons = daemons = FakeDaemons(world.api)
    world.restart()
    world.settle()
    daemons.probe()
    world.settle()
    (pod,) = world.api.of(PODS)
    daemons.of(pod).in_flight = 1
    world.edit(replicas=0)
    world.settle()
    daemons.probe()
    world.settle()
    assert daemons.of(pod).draining
    return world, daemons, pod["metadata"]["uid"]


def looks(world):
    """An answer that is missing changes nothing that is stored: each look is taken anew."""
    for _ in range(4):
        world.run()
        world.settle()


def staying(world):
    return [pod["metadata"]["uid"] for pod in world.api.of(PODS) if "deletionTimestamp" not in pod["metadata"]]


def test_one_late_answer_does_not_remove_a_draining_replica(draining):
    world, daemons, uid = draining
    (pod,) = world.api.of(PODS)
    daemons.of(pod).unreachable = True
    looks(world)
    assert staying(world) == [uid]
    daemons.of(pod).unreachable = False
    world.edit(replicas=1)
    world.settle()
    assert (staying(world), daemons.of(pod).draining) == ([uid], False)


def test_a_draining_replica_that_stays_silent_is_removed(draining):
    world, daemons, _uid = draining
    (pod,) = world.api.of(PODS)
    daemons.of(pod).unreachable = True
    looks(world)
    world.tick()
    looks(world)
    assert staying(world) == []
