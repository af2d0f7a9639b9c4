"""A watch that goes on and swallows an event, under the resync that an operator is installed with: what it did not tell is found by the
comparison with the API server, minutes before each service is looked at again."""

import pytest
from fault_plan import AtLine
from fault_world import run, world_of

pytestmark = [pytest.mark.cluster, pytest.mark.sweep]


@pytest.mark.parametrize("plural", ["inferenceservices", pytest.param("pods", marks=pytest.mark.full)])
def test_a_swallowed_event_is_found_by_the_comparison(plural, undisturbed, place, proxy, account):
    with world_of(place(), proxy, account, resync="1h") as world:
        outcome = run("grown", world, AtLine(1, "drop", plural))
        assert world.life.now.events("mirror_repaired")
    assert outcome.broken == []
    assert outcome.rests == undisturbed("grown").rests
