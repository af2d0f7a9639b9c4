"""A watch that goes on and swallows an event, under a resync that is too rare to make up for it: what it did not tell is found by the
comparison with the API server."""

import pytest
from support.kube.fault_plan import AtLine
from support.worlds.service_life import run, world_of

pytestmark = [pytest.mark.cluster, pytest.mark.sweep]


def test_an_edit_that_a_watch_swallows_is_found_by_the_comparison(undisturbed, place, proxy, account):
    plan = AtLine(-1, "drop")

    def swallow():
        plan.at, plan.plural = 0, "inferenceservices"

    with world_of(place(), proxy, account, resync="1h") as world:
        outcome = run("grown", world, plan, during=swallow)
        assert plan.at == -1, "nothing was swallowed"
        assert world.life.now.events("mirror_repaired")
    assert outcome.broken == []
    assert outcome.rests == undisturbed("grown").rests
