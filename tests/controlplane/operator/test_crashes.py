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
from operator_process import DYING, USER, OperatorProcess, by, kubeconfig, running_operator
from operator_world_real import NAME
from pagoda_contracts.metrics import OPERATOR_RECONCILES

# Some fifteen processes live and die here, and most of a life is imports: 280 s on a machine with a load of ten.
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]
SEED = 3
RUNS = f"{OPERATOR_RECONCILES.name}_total"


def live_and_die(account, rng, until):
    """Operators one after another, each killed after one or two writes, until the world is as wished; how many died."""
    for deaths in range(40):
        operator = OperatorProcess(account, "--resync", "1s", program=DYING, DIE_AFTER=str(rng.randint(1, 2)))
        try:
            eventually(partial(over, until, operator), "a write or the wished state")
        finally:
            operator.process.kill()
            operator.stop()
        if until():
            return deaths
    pytest.fail("forty lives did not suffice")


def over(until, operator):
    return until() or operator.process.poll() is not None


def condition(real, kind):
    service = real.service()
    conditions = {found["type"]: found for found in service.get("status", {}).get("conditions", [])}
    fresh = service.get("status", {}).get("observedGeneration") == service["metadata"]["generation"]
    return conditions.get(kind, {}).get("reason") if fresh else None


def test_killed_again_and_again_the_operator_converges_and_makes_nothing_twice(real, account, tmp_path):
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
    made = [made["objectRef"] for made in ours(real, since, ["create"]) if made["objectRef"]["resource"] != "events"]
    created = Counter(reference["name"] + reference["resource"] for reference in made)
    assert set(created.values()) == {1}
    assert len(created) == 8
    assert len([name for name in before if name in real.children()]) == 2
    stay_quiet(real, tmp_path)


def rolled_out(real):
    real.end_pods()
    return len(real.children()) == 5 and len(real.pods()) == 1 and condition(real, "Reconciling") == "Settled"


def stay_quiet(real, folder):
    """A whole operator finds nothing left to do. It has a token of its own: what the dead had on the wire may come late."""
    own = kubeconfig(real.kube, folder)
    since = time.time()
    with running_operator(own, "--resync", "1s") as operator:
        eventually(lambda: operator.counted(RUNS) >= 10, "ten runs")
    assert [event for event in ours(real, since, "all") if by(event, own)], "it was seen reading"
    assert [event for event in ours(real, since, "write") if by(event, own)] == []


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
