"""A watch that goes on and swallows an event: what it did not tell is found by the next list."""

import pytest
from support.harness.service_life import harness_of, run
from support.kube.fault_plan import AtLine

pytestmark = [pytest.mark.cluster, pytest.mark.sweep]


def test_an_edit_that_a_watch_loses_is_found_by_a_list(undisturbed, place, proxy, account):
    """Runs alone do not find it: they are planned from what was shown."""
    plan = AtLine(-1, "drop")

    def swallow():
        plan.at, plan.plural = 0, "inferenceservices"

    with harness_of(place(), proxy, account) as harness:
        outcome = run("grown", harness, plan, during=swallow)
        assert plan.at == -1, "nothing was swallowed"
        assert harness.life.now.events("list_found_more")
    assert outcome.broken == []
    assert outcome.rests == undisturbed("grown").rests
