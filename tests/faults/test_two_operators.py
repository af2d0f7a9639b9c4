"""Two operators behind the proxy, one listener each: whatever becomes of the leader, none writes while the other one holds the Lease."""

import signal

import pytest
from pagoda_contracts.names import LEASE_OPERATOR
from support.harness.service_life import Rivals, living, run
from support.kube.client import eventually
from support.kube.fault_plan import Held, Plan
from support.kube.operator_process import LEASES, NAMESPACE

pytestmark = [pytest.mark.cluster, pytest.mark.sweep]
NAMES = ("first", "second")


@pytest.fixture
def pair(kube, accounts, place, proxy, undisturbed):
    undisturbed("grown")  # before the two are there
    kube.delete(LEASES, NAMESPACE, LEASE_OPERATOR)
    with living(place(), proxy, Rivals(accounts, NAMES)) as harness:
        yield harness
    kube.delete(LEASES, NAMESPACE, LEASE_OPERATOR)


def test_a_leader_that_is_killed_goes_on_where_it_stopped_and_the_second_waits(pair, undisturbed):
    """Its next life has its name, and may take the Lease at once; the epoch tells replicas the two lives apart. The second one is stopped
    meanwhile: where a process takes longer to start than a Lease lasts, it would rightly lead."""

    def killed():
        waiting = pair.life.second.now.process
        waiting.send_signal(signal.SIGSTOP)
        try:
            pair.life.kill()
            eventually(lambda: pair.life.deaths and pair.life.now.events("leading"), "its next life leads")
        finally:
            waiting.send_signal(signal.SIGCONT)

    outcome = run("grown", pair, Plan(), during=killed)
    assert outcome.broken == []
    assert [one.events("leading")[0]["epoch"] for one in pair.life.all] == [1, 2]
    assert pair.life.second.now.events("leading") == []
    assert outcome.rests == undisturbed("grown").rests


def test_a_leader_that_was_stopped_beyond_its_lease_ends_when_it_continues(pair, undisturbed):
    """Stopped with a write on the wire, too, which comes after the successor has made it: it is refused, being of an older version."""
    plan = Held("deployments")

    def stopped():
        plan.armed = True
        pair.real.edit(replicas=2)
        eventually(lambda: plan.caught, "a write of the first one on the wire")
        leader = pair.life.now.process
        leader.send_signal(signal.SIGSTOP)
        try:
            eventually(lambda: pair.life.second.now.events("leading"), "the second one leads")
            eventually(lambda: pair.settled(2), "the second one makes the change")
            plan.armed = False
            eventually(lambda: late().code, "the late write arrives")
        finally:
            leader.send_signal(signal.SIGCONT)
        assert leader.wait(timeout=300) == 1

    def late():
        (entry,) = [entry for entry in pair.proxy.journal.copy() if entry.act == "hold"]
        return entry

    outcome = run("grown", pair, plan, during=stopped)
    assert late().code == 409
    assert outcome.broken == []
    assert outcome.deaths == 1
    assert outcome.rests == undisturbed("grown").rests
