"""One fault each between the operator and a real API server: whatever it is, the service comes to be what was asked for, stays so, and
nothing that must hold was broken on the way."""

import time

import pytest
from pagoda_contracts.names import PATH_LIVE, PATH_READY
from pagoda_operator.api.state import PODS
from pagoda_operator.serve.watches import KOPF_KINDS
from support.clients.harmless_edits import DEFINITIONS, KINDS, HarmlessEdits
from support.harness.service_life import harness_of, restart_as_of, run
from support.kube.client import PATIENCE_S, eventually
from support.kube.control_plane import STORE, Part
from support.kube.fault_plan import LINES, AtLine, Away, EachKind, EveryWrite, Late, Plan, Reaction, Stale, Storm
from support.kube.operator_under_test import under_test

pytestmark = [pytest.mark.cluster, pytest.mark.sweep]

PLANS = {
    "writes in a storm of conflicts": lambda: Storm(3, (409,), 0.34, only_writes=True),
    "a storm of 429 and 5xx": lambda: Storm(18, (429, 500, 503, 504), 0.3, count=40),
    "writes in a storm of 429 and 5xx": lambda: Storm(18, (429, 500, 503, 504), 0.3, only_writes=True),
    "writes that are lost after they were made": lambda: EveryWrite(4, Reaction("lose")),
    "writes that are made and answered with 500": lambda: EveryWrite(3, Reaction("commit_then_500")),
    "pods that are seen late": lambda: Late("pods", 2.0),
    "Deployments that are seen late": lambda: Late("deployments", 2.0),
}
POISON = [what for what in LINES if what not in ("drop", "twice")]
# Those end the process again and again, two minutes each over every kind: without `--all` they strike at pods alone.
SLOW = ("500", "504", "garbage", "empty object")
# The stream goes on, and whoever reads it may go on reading.
GOES_ON = ("unknown type",)
# Kopf's watches go on from a version that the server has not reached, which accepts them and tells them nothing: what they would have told
# is found by lists. The other kinds' watches begin anew with a list.
DEAFENS = ("far version",)


@pytest.mark.parametrize("name", PLANS)
def test_a_service_under_faults_ends_as_one_without_them(name, undisturbed, place, proxy, account):
    with harness_of(place(), proxy, account) as harness:
        outcome = run("whole_life", harness, PLANS[name]())
    struck = [entry for entry in proxy.journal if entry.act != "forward" and entry.seen.write >= ("writes" in name)]
    assert len(struck) >= 5 or "late" in name, "hardly anything was struck"
    assert outcome.broken == []
    assert outcome.rests == undisturbed("whole_life").rests


@pytest.mark.full
@pytest.mark.parametrize("name", ["a storm of 429 and 5xx", "writes that are made and answered with 500", "pods that are seen late"])
def test_what_came_to_rest_stays_so_for_two_minutes(name, undisturbed, place, proxy, account):
    """120 resyncs, none of which asks for a write."""
    with harness_of(place(), proxy, account) as harness:
        harness.hold_s = 120
        outcome = run("grown", harness, PLANS[name]())
    assert outcome.broken == []
    assert outcome.rests == undisturbed("grown").rests


def heard_again(harness, what, kinds):
    """Each of these kinds is watched anew since its watch was poisoned, by whichever process, and told of. A life that ends well does not
    show it: the resync, every second here, finds what no watch tells. A red probe is a kubelet's business, which the test plays."""
    edits, struck, anew = HarmlessEdits(harness.real), dict(harness.proxy.struck.copy()), what not in GOES_ON

    def hears():
        if harness.life.probe(PATH_LIVE) == 503:
            harness.life.kill()
        silent = [kind for kind in kinds if not harness.proxy.hears(kind.plural, struck[kind.plural], anew=anew)]
        return not [edits.edit(kind) for kind in silent]

    since = time.monotonic()
    eventually(hears, "every watch is begun anew and tells")
    print(f"{what}: heard again after {time.monotonic() - since:.1f} s and {harness.life.deaths} deaths")


@pytest.mark.parametrize("what", SLOW)
def test_a_corrupted_watch_is_survived_or_ends_the_process(what, undisturbed, place, proxy, account):
    with harness_of(place(), proxy, account) as harness:
        outcome = run("grown", harness, AtLine(1, what, "pods"), during=lambda: heard_again(harness, what, [PODS]))
    assert outcome.broken == []
    assert outcome.rests == undisturbed("grown").rests


@pytest.mark.parametrize("what", [pytest.param(what, marks=[pytest.mark.full] if what in SLOW else []) for what in POISON])
def test_every_kinds_watch_may_be_corrupted(what, undisturbed, place, proxy, account):
    """One event of each, whatever the process does about the first of them."""
    plan = EachKind(what)
    hear = [kind for kind in KINDS if what not in DEAFENS or kind not in (*KOPF_KINDS, DEFINITIONS)]
    with harness_of(place(), proxy, account) as harness:
        edits = HarmlessEdits(harness.real)

        def poison():
            plan.armed = True
            # As the proxy says, which notes an event after the plan has decided on it.
            eventually(
                lambda: not [edits.edit(kind) for kind in KINDS if kind.plural not in dict(harness.proxy.struck)], "every kind struck"
            )
            heard_again(harness, what, hear)
            edits.leave()

        outcome = run("grown", harness, plan, during=poison)
    assert plan.struck == {kind.plural for kind in KINDS}, "a kind is watched that nobody edits"
    assert outcome.broken == []
    assert outcome.rests == undisturbed("grown").rests


@pytest.mark.parametrize("plural", ["pods", "deployments", "inferenceservices"])
def test_an_event_that_never_comes_is_made_up_for_by_the_resync(plural, undisturbed, place, proxy, account):
    with harness_of(place(), proxy, account) as harness:
        outcome = run("grown", harness, AtLine(1, "drop", plural))
    assert outcome.broken == []
    assert outcome.rests == undisturbed("grown").rests


@pytest.mark.parametrize("seconds", [1, *(pytest.param(long, marks=pytest.mark.full) for long in (30, 70))])
def test_an_api_server_that_was_away_is_found_again_by_the_same_process(seconds, undisturbed, place, proxy, account):
    """Alone: who holds a Lease and cannot renew it ends (test_outages.py)."""
    plan = Away()
    with harness_of(place(), proxy, account, lease=False) as harness:

        def away():
            plan.away = True
            proxy.cut_watches()
            harness.real.edit(replicas=2)
            time.sleep(seconds)  # the fault itself: how long nobody answers
            assert harness.life.deaths == 0
            plan.away = False

        outcome = run("grown", harness, plan, during=away)
    assert outcome.broken == []
    assert outcome.deaths == 0
    assert outcome.rests == undisturbed("grown").rests


def test_a_restart_on_a_stale_view_makes_and_removes_nothing_wrong(undisturbed, place, proxy, account):
    plan = Stale()
    with harness_of(place(), proxy, account) as harness:
        early = harness.real.kube.version()
        outcome = run("grown", harness, plan, during=lambda: restart_as_of(harness, plan, early))
    assert outcome.broken == []
    assert outcome.rests == undisturbed("grown").rests


@pytest.mark.parametrize("skew", [300, -300])
def test_a_clock_that_is_five_minutes_wrong_changes_nothing(skew, undisturbed, place, proxy, account):
    with harness_of(place(), proxy, account, program=under_test(skew_s=skew)) as harness:
        outcome = run("whole_life", harness, Plan())
    assert outcome.broken == []
    assert outcome.deaths == 0
    assert outcome.rests == undisturbed("whole_life").rests


@pytest.mark.parametrize("lease", [pytest.param(True, id="as installed"), pytest.param(False, id="alone")])
def test_a_store_that_stands_still_for_20_s_is_waited_for(lease, cluster, undisturbed, place, proxy, account):
    """Whoever leads cannot renew its Lease and ends before another one could lead; its next life waits, does no work and says so. Who is
    alone lives on."""
    store = Part(cluster, STORE)
    with harness_of(place(), proxy, account, lease=lease) as harness:

        def pause():
            leader, began = harness.life.now, time.monotonic()
            harness.real.edit(replicas=2)
            with store.stopped():
                if lease:
                    assert leader.process.wait(PATIENCE_S) == 1
                    eventually(lambda: harness.life.probe(PATH_READY) == 503, "the next one says that it does no work")
                    assert harness.life.probe(PATH_LIVE) == 200
                time.sleep(max(0.0, began + 20 - time.monotonic()))  # the fault itself
            if lease:
                eventually(lambda: harness.life.now.events("leading"), "it leads")

        outcome = run("grown", harness, Plan(), during=pause)
    assert outcome.broken == []
    assert outcome.deaths == lease
    assert outcome.rests == undisturbed("grown").rests
