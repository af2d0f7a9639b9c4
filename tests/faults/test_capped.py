"""A tenant's cap under faults: whatever goes wrong, at no instant is more held or promised than the cap allows.

Alone: on a Lease that it took from a life that ended without a word an operator promises nothing for a minute.
"""

import pytest
from support.harness.service_life import harness_of, restart_as_of, run
from support.kube.fault_plan import EveryWrite, Late, Reaction, Stale, Storm

pytestmark = [pytest.mark.cluster, pytest.mark.sweep]

IN_CI = ("a storm of conflicts", "writes that are made and answered with 500")
PLANS = {
    "a storm of conflicts": lambda: Storm(3, (409,), 0.34, only_writes=True),
    "writes that are lost after they were made": lambda: EveryWrite(4, Reaction("lose")),
    "writes that are made and answered with 500": lambda: EveryWrite(3, Reaction("commit_then_500")),
    "pods that are seen late": lambda: Late("pods", 2.0),
    "quotas that are seen late": lambda: Late("tenantquotas", 2.0),
}


@pytest.mark.parametrize("name", [name if name in IN_CI else pytest.param(name, marks=pytest.mark.full) for name in PLANS])
def test_a_cap_holds_under(name, undisturbed, place, proxy, account):
    with harness_of(place(), proxy, account, lease=False) as harness:
        outcome = run("capped", harness, PLANS[name]())
    assert outcome.broken == []
    assert outcome.rests == undisturbed("capped").rests


def test_a_cap_holds_over_a_restart_on_a_stale_view(undisturbed, place, proxy, account):
    """As of before anything was there: to the new process all seems free."""
    plan = Stale()
    with harness_of(place(), proxy, account, lease=False) as harness:
        early = harness.real.kube.version()
        outcome = run("capped", harness, plan, during=lambda: restart_as_of(harness, plan, early))
    assert outcome.broken == []
    assert outcome.rests == undisturbed("capped").rests
