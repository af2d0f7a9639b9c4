"""Restarts at rest: a process that begins where all is well finds nothing to write."""

import pytest
from pagoda_contracts.metrics import OPERATOR_RECONCILES
from pagoda_operator.api.state import CHILD_RESOURCES, PODS, SERVICES
from support.harness.service_life import harness_of, run
from support.judges.pacing import stirred
from support.kube.client import eventually
from support.kube.fault_plan import Plan

pytestmark = [pytest.mark.cluster, pytest.mark.sweep]
RESTARTS, ALL_RESTARTS = 5, 20
RUNS = f"{OPERATOR_RECONCILES.name}_total"


def test_restarts_at_rest_ask_for_no_write(undisturbed, place, proxy, account, request):
    """On a Lease, as installed. Each life is killed once it has looked at the service by an event and by a resync."""
    times = ALL_RESTARTS if request.config.getoption("--all") else RESTARTS
    with harness_of(place(), proxy, account) as harness:

        def restart():
            died = harness.life.deaths
            harness.life.kill()
            eventually(lambda: harness.life.deaths > died and harness.life.now.counted(RUNS) >= 2, "the next life has looked twice")

        def restarts():
            restart()  # does what the life before, which was not at its end, may have left undone
            before, begun = versions(harness.real), len(proxy.journal)
            for _ in range(times):
                restart()
            assert list(stirred(proxy.journal[begun:])) == []
            assert versions(harness.real) == before

        outcome = run("grown", harness, Plan(), during=restarts)
    assert outcome.broken == []
    assert outcome.deaths > times  # more on a busy machine, where a leader may lose its Lease
    assert outcome.rests == undisturbed("grown").rests


def versions(real):
    found = [body for resource in (SERVICES, PODS, *CHILD_RESOURCES) for body in real.kube.list(resource, real.namespace)]
    return {(body["metadata"]["uid"], body["metadata"]["resourceVersion"]) for body in found}
