"""The other side is gone and nobody was told: connections stay open and say nothing. No zombie may come of it: the operator ends, or says
itself that it is not alive, or hears again."""

import time

import pytest
from pagoda_contracts.names import PATH_LIVE, PATH_READY
from support.harness.service_life import harness_of, run
from support.kube.client import eventually
from support.kube.fault_plan import Plan, Silent, SilentKind, Slow
from support.kube.operator_under_test import under_test

pytestmark = [pytest.mark.cluster, pytest.mark.sweep]
# The bound, and what the machine may take longer; where only its patience is a part of what it is, seconds judge nothing.
RED_S, SLACK_S, PATIENCE_S = 180, 60, 300


def test_a_leader_on_silent_connections_ends_and_waits_for_an_answer_after_its_restart(undisturbed, place, proxy, account):
    plan = Silent()
    with harness_of(place(), proxy, account) as harness:

        def silence():
            plan.silent = True
            proxy.mute_watches()
            harness.real.edit(replicas=2)
            eventually(lambda: harness.life.deaths, "the end of a leader that cannot renew")
            eventually(lambda: harness.life.probe(PATH_READY) == 503, "the next one says that it does no work")
            assert harness.life.probe(PATH_LIVE) == 200  # a restart would not bring the API server back
            assert harness.life.deaths == 1  # later ones are a busy machine's, on which a leader may lose its Lease
            plan.silent = False

        outcome = run("grown", harness, plan, during=silence)
    assert outcome.broken == []
    assert outcome.rests == undisturbed("grown").rests


def test_watches_that_fell_silent_are_begun_anew(undisturbed, place, proxy, account):
    """Its patience is a tenth of what it is: 7 s."""
    with harness_of(place(), proxy, account, program=under_test(haste=10)) as harness:

        def silence():
            since = time.monotonic()
            before = proxy.watched(0)
            proxy.mute_watches()
            harness.real.edit(replicas=2)
            eventually(lambda: proxy.watched(since) >= before, "every watch anew")

        outcome = run("grown", harness, Plan(), during=silence)
    assert outcome.broken == []
    assert outcome.deaths == 0
    assert outcome.rests == undisturbed("grown").rests


@pytest.mark.parametrize("haste", [10, pytest.param(1, marks=[pytest.mark.full, pytest.mark.timeout(900)])])
def test_an_operator_with_silent_watches_fails_its_liveness_probe(haste, undisturbed, place, proxy, account):
    """It holds its Lease and works by its resyncs: the zombie that looks alive. The test does what a kubelet does with a red probe."""
    plan = Silent(watches_only=True)
    with harness_of(place(), proxy, account, program=under_test(haste=haste)) as harness:

        def silence():
            eventually(lambda: harness.life.probe(PATH_LIVE) == 200, "it is alive")
            plan.silent = True
            proxy.mute_watches()
            since = time.monotonic()
            eventually(lambda: harness.life.probe(PATH_LIVE) == 503, "it says so", seconds=RED_S + SLACK_S if haste == 1 else PATIENCE_S)
            print(f"red after {time.monotonic() - since:.0f} s, patience divided by {haste}")
            plan.silent = False
            harness.life.kill()

        outcome = run("grown", harness, plan, during=silence)
    assert outcome.broken == []
    assert outcome.deaths == 1
    assert outcome.rests == undisturbed("grown").rests


@pytest.mark.parametrize("plural", ["inferenceservices", pytest.param("deployments", marks=pytest.mark.full)])
def test_what_a_silent_watch_misses_is_found_by_lists(plural, undisturbed, place, proxy, account):
    """What an API server does whose store was restored. Lists are as frequent here as the resync."""
    plan = SilentKind(plural)
    with harness_of(place(), proxy, account, program=under_test(haste=10)) as harness:

        def silent_watch():
            plan.silent = True
            since = time.monotonic()
            harness.real.edit(replicas=2)
            eventually(lambda: plural in proxy.watched(since), "its watch is begun anew")
            eventually(lambda: harness.real.service()["status"].get("readyReplicas") == 2, "the edit is found")
            plan.silent = False

        outcome = run("grown", harness, plan, during=silent_watch)
    assert outcome.broken == []
    assert outcome.deaths == 0
    assert outcome.rests == undisturbed("grown").rests


def test_a_slow_network_makes_it_slow_and_nothing_else(undisturbed, place, proxy, account):
    with harness_of(place(), proxy, account) as harness:
        outcome = run("grown", harness, Slow(0.3))
    assert outcome.broken == []
    assert outcome.deaths == 0
    assert outcome.rests == undisturbed("grown").rests
