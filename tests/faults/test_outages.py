"""The API server itself is killed and started again, its store forgets the past: the operator goes on as if it had been asleep."""

import time

import pytest
from support.harness.service_life import harness_of, run
from support.kube.control_plane import API_SERVER, Part, away, compact
from support.kube.fault_plan import Away, Plan

pytestmark = [pytest.mark.cluster, pytest.mark.sweep]

LONG = [pytest.param(seconds, marks=pytest.mark.full) for seconds in (30, 70)]


@pytest.fixture
def server(cluster):
    return Part(cluster, API_SERVER)


@pytest.mark.parametrize("seconds", [1, *LONG])
def test_an_api_server_that_was_killed_finds_the_operator_at_work_again(seconds, server, kube, undisturbed, place, proxy, account):
    """With a Lease, as installed: who cannot renew it ends, and is started again once at the most."""
    with harness_of(place(), proxy, account) as harness:

        def killed():
            harness.real.edit(replicas=2)
            with away(server, kube):
                time.sleep(seconds)  # the fault itself: how long nobody answers

        outcome = run("grown", harness, Plan(), during=killed)
    assert outcome.broken == []
    assert outcome.deaths <= 1
    assert outcome.rests == undisturbed("grown").rests


def test_versions_that_the_store_has_forgotten_are_not_asked_for_again(server, kube, undisturbed, place, proxy, account):
    """Watches that were cut want to go on from before a compaction, and a new API server has no memory of its own: 410 Gone."""
    plan = Away()
    with harness_of(place(), proxy, account, lease=False) as harness:

        def forget():
            plan.away = True
            proxy.cut_watches()
            harness.real.edit(replicas=2)
            harness.real.edit(replicas=1)
            compact(server, int(kube.version()))
            with away(server, kube):
                pass
            plan.away = False

        outcome = run("grown", harness, plan, during=forget)
    assert outcome.broken == []
    assert outcome.deaths == 0
    assert proxy.forgotten > 0, "nothing was asked for that is forgotten"
    assert outcome.rests == undisturbed("grown").rests
