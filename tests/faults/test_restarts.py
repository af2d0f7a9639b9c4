"""Restarts at rest: a process that begins where all is well finds nothing to write."""

import pytest
from fault_plan import Plan
from fault_world import run, world_of
from kube import eventually
from pacing import stirred
from pagoda_contracts.metrics import OPERATOR_RECONCILES
from pagoda_operator.state import CHILD_RESOURCES, PODS, SERVICES

pytestmark = [pytest.mark.cluster, pytest.mark.sweep]
RESTARTS = 20
RUNS = f"{OPERATOR_RECONCILES.name}_total"


def test_twenty_restarts_at_rest_ask_for_no_write(undisturbed, place, proxy, account):
    """On a Lease, as installed. Each life is killed once it has looked at the service by an event and by a resync."""
    with world_of(place(), proxy, account) as world:

        def restart(number):
            world.life.kill()
            eventually(lambda: world.life.deaths == number and world.life.now.counted(RUNS) >= 2, f"life {number} has looked twice")

        def restarts():
            restart(1)  # does what the life before, which was not at its end, may have left undone
            before, begun = versions(world.real), len(proxy.journal)
            for number in range(2, RESTARTS + 2):
                restart(number)
            assert list(stirred(proxy.journal[begun:])) == []
            assert versions(world.real) == before

        outcome = run("grown", world, Plan(), during=restarts)
    assert outcome.broken == []
    assert outcome.deaths == RESTARTS + 1
    assert outcome.rests == undisturbed("grown").rests


def versions(real):
    found = [body for resource in (SERVICES, PODS, *CHILD_RESOURCES) for body in real.kube.list(resource, real.namespace)]
    return {(body["metadata"]["uid"], body["metadata"]["resourceVersion"]) for body in found}
