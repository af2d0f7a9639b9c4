"""The API server itself is killed and started again, its store forgets the past: the operator goes on as if it had been asleep."""

import time

import pytest
from support.kube.control_plane import API_SERVER, Part, away, compact
from support.kube.fault_plan import Away, Plan
from support.worlds.service_life import run, world_of

pytestmark = [pytest.mark.cluster, pytest.mark.sweep]

LONG = [pytest.param(seconds, marks=pytest.mark.full) for seconds in (30, 70)]


@pytest.fixture
def server(cluster):
    return Part(cluster, API_SERVER)


@pytest.mark.parametrize("seconds", [1, *LONG])
def test_an_api_server_that_was_killed_finds_the_operator_at_work_again(seconds, server, kube, undisturbed, place, proxy, account):
    """With a Lease, as installed: who cannot renew it ends, and is started again once at the most."""
    with world_of(place(), proxy, account) as world:

        def killed():
            world.real.edit(replicas=2)
            with away(server, kube):
                time.sleep(seconds)  # the fault itself: how long nobody answers

        outcome = run("grown", world, Plan(), during=killed)
    assert outcome.broken == []
    assert outcome.deaths <= 1
    assert outcome.rests == undisturbed("grown").rests


def test_versions_that_the_store_has_forgotten_are_not_asked_for_again(server, kube, undisturbed, place, proxy, account):
    """Watches that were cut want to go on from before a compaction, and a new API server has no memory of its own: 410 Gone."""
    plan = Away()
    with world_of(place(), proxy, account, lease=False) as world:

        def forget():
            plan.away = True
            proxy.cut_watches()
            world.real.edit(replicas=2)
            world.real.edit(replicas=1)
            compact(server, int(kube.version()))
            with away(server, kube):
                pass
            plan.away = False

        outcome = run("grown", world, plan, during=forget)
    assert outcome.broken == []
    assert outcome.deaths == 0
    assert proxy.forgotten > 0, "nothing was asked for that is forgotten"
    assert outcome.rests == undisturbed("grown").rests
