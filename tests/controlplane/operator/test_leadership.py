"""Two operators and one Lease on a real API server: one works, and after its death, its pause or its farewell the other does.

A leader that is killed at any of its requests is in tests/faults/test_kills.py.
"""

import contextlib
import signal
import time

import pytest
from pagoda_contracts.metrics import OPERATOR_RECONCILES
from pagoda_contracts.names import LEASE_OPERATOR
from pagoda_operator.api.state import EVENTS
from support.kube.client import eventually
from support.kube.namespace import NAME
from support.kube.operator_process import LEASES, NAMESPACE, USER, OperatorProcess, by, kubeconfig

pytestmark = pytest.mark.cluster
RUNS = f"{OPERATOR_RECONCILES.name}_total"


@contextlib.contextmanager
def contender(account, name):
    """One operator that strives for the Lease."""
    process = OperatorProcess(account, "--resync", "1s", "--namespace", NAMESPACE, "--identity", name)
    process.account = account
    try:
        yield process
    finally:
        process.process.send_signal(signal.SIGCONT)
        if process.process.poll() is None:
            process.process.kill()
        process.stop(signal.SIGKILL)


@pytest.fixture
def pair(kube, tmp_path_factory):
    """A leader and a standby that has everything but the Lease, each with a token of its own."""
    kube.delete(LEASES, NAMESPACE, LEASE_OPERATOR)
    with contender(kubeconfig(kube, tmp_path_factory.mktemp("first")), "first") as first:
        eventually(lambda: first.events("leading"), "the first one leads")
        eventually(lambda: first.counted(RUNS), "it works: by then it hears signals too")
        with contender(kubeconfig(kube, tmp_path_factory.mktemp("second")), "second") as second:
            yield first, second


def lease(kube):
    found = kube.get(LEASES, NAMESPACE, LEASE_OPERATOR)
    return found["spec"]["holderIdentity"], found["spec"]["leaseTransitions"]


def written(real, process, since):
    """The process's own writes in the test's namespace: one that the other had on the wire when it was stopped may come late."""
    events = [event for event in real.cluster.audit(user=USER, since=since) if event["objectRef"].get("namespace") == real.namespace]
    return [event for event in events if by(event, process.account)]


def rests(process):
    """It has looked several times and had nothing to write: where it is stopped now, it is not in the middle of a write or of its word."""
    said, runs = 0, 0.0

    def look():
        nonlocal said, runs
        if len(process.events("applied")) != said:
            said, runs = len(process.events("applied")), process.counted(RUNS)
        return said and process.counted(RUNS) >= runs + 10

    eventually(look, "ten looks without a write")


def follow(real, second):
    """The successor works: it acts on a change and says so."""
    eventually(lambda: second.events("leading"), "the second one leads")
    real.edit(replicas=2)
    real.serve(2)
    real.reported(Ready="Available")
    eventually(lambda: second.events("applied"), "its word of it is read")
    assert second.events("reconcile_bug") == []


def test_one_works_and_after_kill_9_the_other_takes_over(pair, real, kube):
    first, second = pair
    real.apply()
    real.serve()
    real.reported(Ready="Available")
    eventually(lambda: first.events("applied"), "the first one's word of it is read")
    assert second.events("applied") == []
    assert lease(kube) == ("first", 1)
    first.process.kill()
    follow(real, second)
    assert lease(kube) == ("second", 2)
    told = [event["note"] for event in kube.list(EVENTS, NAMESPACE) if event["reason"] == "LeaderElected"]
    assert "second leads with epoch 2: first did not renew the Lease" in told


def test_a_leader_that_was_stopped_for_longer_than_its_lease_ends_and_writes_nothing(pair, real, kube):
    first, second = pair
    since = time.time()
    real.apply()
    real.serve()
    real.reported(Ready="Available")
    rests(first)
    assert written(real, first, since), "its writes are known by its token"
    first.process.send_signal(signal.SIGSTOP)
    follow(real, second)
    said = len(first.events("applied"))
    # Work for it at the very moment at which it wakes; the successor that would do it first is held for that moment.
    second.process.send_signal(signal.SIGSTOP)
    real.edit(replicas=1)
    since = time.time()
    first.process.send_signal(signal.SIGCONT)
    assert first.process.wait(timeout=300) == 1
    assert written(real, first, since) == []
    assert len(first.events("applied")) == said
    second.process.send_signal(signal.SIGCONT)


def test_a_leader_that_ends_in_an_orderly_way_is_followed_without_waiting_for_its_lease(pair, kube):
    first, second = pair
    assert first.stop() == 0
    assert lease(kube)[0] in ("", "second")  # given back before it ended, else it would still bear its name
    eventually(lambda: second.events("leading"), "the second one leads")
    assert second.events("leading")[0]["epoch"] == 2
    assert second.events("leading")[0]["cause"] == "the leader before it gave the Lease back"


def test_a_terminated_operator_leaves_at_once_and_cleanly(real, account):
    operator = OperatorProcess(account)
    real.apply()
    eventually(lambda: operator.events("applied"), "the first write")
    assert operator.stop() == 0
    assert NAME in {child.split()[1] for child in real.children()} or real.children() == []
