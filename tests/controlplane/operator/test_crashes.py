"""kill -9 after a few writes, again and again, from apply through a rollout: the next process goes on where the dead one stopped.

That every single write may be the last one is swept on a fake server by tests/unit/operator/test_plan_machine.py.
"""

import random
import time
from collections import Counter
from functools import partial

import pytest
from fake_api import running
from kube import eventually
from operator_process import DYING, USER, OperatorProcess, running_operator
from operator_world_real import NAME
from pagoda_operator.state import SERVICES

pytestmark = pytest.mark.cluster
SEED = 3


def live_and_die(account, rng, until):
    """Operators one after another, each killed after one or two writes, until the world is as wished; how many died."""
    for deaths in range(40):
        operator = OperatorProcess(account, "--resync", "1s", program=DYING, DIE_AFTER=str(rng.randint(1, 2)))
        try:
            eventually(partial(over, until, operator), "a write or the wished state", seconds=60)
        finally:
            operator.process.kill()
            operator.stop()
        if until():
            return deaths
    pytest.fail("forty lives did not suffice")


def over(until, operator):
    return until() or operator.process.poll() is not None


def condition(real, kind):
    conditions = {found["type"]: found for found in real.service().get("status", {}).get("conditions", [])}
    fresh = real.service().get("status", {}).get("observedGeneration") == real.service()["metadata"]["generation"]
    return conditions.get(kind, {}).get("reason") if fresh else None


def test_killed_again_and_again_the_operator_converges_and_makes_nothing_twice(real, account):
    since, rng = time.time(), random.Random(SEED)
    real.apply()
    deaths = live_and_die(account, rng, lambda: len(real.children()) == 5 and condition(real, "Reconciling") == "PullingImage")
    (pod,) = real.node.placed(real.namespace, 1)
    real.node.tell(pod, running(ready=True))
    deaths += live_and_die(account, rng, lambda: condition(real, "Ready") == "Available")
    before = real.children()
    real.edit(engine={"maxModelLen": 128})
    deaths += live_and_die(account, rng, lambda: len(real.children()) == 8 and condition(real, "Reconciling") == "PullingImage")
    fresh = next(pod for pod in real.node.placed(real.namespace, 2) if pod["status"]["phase"] == "Pending")
    real.node.tell(fresh, running(ready=True))
    deaths += live_and_die(account, rng, lambda: rolled_out(real))
    assert deaths >= 5
    created = Counter(made["objectRef"]["name"] + made["objectRef"]["resource"] for made in ours(real, since, ["create"]))
    assert set(created.values()) == {1}
    assert len(created) == 8
    assert len([name for name in before if name in real.children()]) == 2
    stay_quiet(real, account)


def rolled_out(real):
    real.end_pods()
    return len(real.children()) == 5 and condition(real, "Reconciling") == "Settled"


def stay_quiet(real, account):
    """A whole operator finds nothing left to do."""
    since = time.time()
    with running_operator(account, "--resync", "1s"):
        eventually(lambda: looks(real, since) >= 5, "five looks", seconds=60)
    assert ours(real, since, "write") == []


def looks(real, since):
    """How often the service was read."""
    return sum(event["objectRef"]["resource"] == SERVICES.plural for event in ours(real, since, ["get"]))


def ours(real, since, verbs):
    """What the operator's account asked in this namespace and got."""
    events = real.cluster.audit(user=USER, since=since, verbs=verbs)
    return [
        event for event in events if event.get("objectRef", {}).get("namespace") == real.namespace and event["responseStatus"]["code"] < 300
    ]


def test_a_terminated_operator_leaves_at_once_and_cleanly(real, account):
    operator = OperatorProcess(account)
    real.apply()
    eventually(lambda: operator.events("applied"), "the first write")
    assert operator.stop() == 0
    assert NAME in {child.split()[1] for child in real.children()} or real.children() == []
