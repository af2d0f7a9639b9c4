"""A bad network between operator and API server: one that carries packets one way only for a while, and one that loses some of all."""

import time

import pytest
from support.harness.service_life import harness_of, run
from support.kube.fault_plan import Lossy, OneWay

pytestmark = [pytest.mark.cluster, pytest.mark.sweep]
# Which way, on a Lease or alone, and for how long.
CASES = [(way, lease, seconds) for way in ("there", "back") for lease in (True, False) for seconds in (20, 60)]
IN_CI = ("back", False, 20)


@pytest.mark.parametrize(
    ("way", "lease", "seconds"), [case if case == IN_CI else pytest.param(*case, marks=pytest.mark.full) for case in CASES]
)
def test_what_was_on_the_wire_comes_late_and_changes_nothing(way, lease, seconds, undisturbed, place, proxy, account):
    """A write that its sender has given up arrives after what was done since; and one whose answer is unknown was made."""
    plan = OneWay(way)
    with harness_of(place(), proxy, account, lease=lease) as harness:

        def cut():
            harness.real.edit(replicas=2)
            plan.cut = True
            time.sleep(seconds)  # the fault itself
            plan.cut = False

        outcome = run("grown", harness, plan, during=cut)
    assert outcome.broken == []
    # A leader ends when it cannot renew; what waits for its first answer then, waits.
    assert outcome.deaths <= lease
    assert outcome.rests == undisturbed("grown").rests


@pytest.mark.full
@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_a_network_that_loses_a_tenth_of_all_makes_it_slow_and_nothing_else(seed, undisturbed, place, proxy, account):
    with harness_of(place(), proxy, account) as harness:
        outcome = run("whole_life", harness, Lossy(seed, 0.1))
    assert outcome.broken == []
    assert outcome.rests == undisturbed("whole_life").rests
