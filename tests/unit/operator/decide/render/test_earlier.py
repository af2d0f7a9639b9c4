"""A service of 0.1 that sets what 0.1 did not count keeps its pods; a change of those words after the upgrade is a change."""

import pytest
from pagoda_contracts.names import ANNOTATION_STANDS_FOR
from pagoda_operator.state import CONFIG_MAPS, CONTROLLER_REVISIONS, DEPLOYMENTS, PODS, SERVICES
from support.kube.fake_api import running
from support.worlds.world import World

WORDS = {"health": {"progressTimeout": "10m"}, "slo": {"ttft": "800ms"}}
TWO_ENTRIES = [{"cpu": {"cores": "250m", "memory": "1Gi"}}, {"cpu": {"cores": "500m", "memory": "1Gi"}}]


def world_of_0_1(**spec):
    """What 0.1 leaves behind: children named without these words, a status that says nothing of scaling, both of this generation."""
    world = World(**spec)
    world.settle()
    world.make_ready()
    (service,) = world.api.of(SERVICES)
    service["spec"].update(WORDS)
    del service["status"]["scaling"]
    world.restart()
    return world


def pods(world):
    return {pod["metadata"]["uid"] for pod in world.api.of(PODS)}


@pytest.mark.parametrize("spec", [{}, {"replicas": 0}, {"accelerators": TWO_ENTRIES}], ids=["one", "none", "alternatives"])
def test_the_upgrade_rolls_no_pod_and_later_edits_of_other_words_neither(spec):
    world = world_of_0_1(**spec)
    before, names, pins = pods(world), world.names(DEPLOYMENTS), [body["data"] for body in world.api.of(CONTROLLER_REVISIONS)]
    world.settle()
    assert (pods(world), world.names(DEPLOYMENTS)) == (before, names)
    assert [body["data"] for body in world.api.of(CONTROLLER_REVISIONS)] == pins
    world.edit(replicas=2)
    world.settle()
    assert (pods(world) >= before, world.names(DEPLOYMENTS), len(pods(world))) == (True, names, 2)
    assert world.names(CONFIG_MAPS) == names
    for pod in world.api.of(PODS):
        pod["status"] = running(ready=True)
    world.settle()
    assert world.reason() == "Available"
    written = len(world.api.journal)
    world.run()
    assert len(world.api.journal) == written


def test_a_change_of_these_words_after_the_upgrade_rolls():
    world = world_of_0_1()
    world.settle()
    (old,) = world.names(DEPLOYMENTS)
    world.edit(health={"progressTimeout": "11m"})
    world.settle()
    assert [name for name in world.names(DEPLOYMENTS) if name != old]


def test_a_change_of_these_words_while_no_operator_looked_rolls():
    world = world_of_0_1()
    (old,) = world.names(DEPLOYMENTS)
    world.edit(health={"progressTimeout": "11m"})
    world.settle()
    assert [name for name in world.names(DEPLOYMENTS) if name != old]


def test_what_this_operator_said_of_a_spec_is_not_taken_for_the_earlier_ones_word():
    """The profile is gone when the words are added: Stalled, at the new generation, and nothing of the new revision exists."""
    world = World()
    world.settle()
    world.make_ready()
    (old,) = world.names(DEPLOYMENTS)
    profile = world.api.objects.pop(("ServingProfile", "", "default"))
    world.edit(**WORDS)
    world.settle()
    assert (world.reason(), world.names(DEPLOYMENTS)) == ("ProfileNotFound", [old])
    world.api.objects["ServingProfile", "", "default"] = profile
    world.settle()
    assert [name for name in world.names(DEPLOYMENTS) if name != old]


def test_the_note_names_the_revision_as_it_would_be_called_now():
    world = world_of_0_1()
    world.settle()
    (deployment,) = world.api.of(DEPLOYMENTS)
    fresh = World(**WORDS)
    fresh.settle()
    assert deployment["metadata"]["annotations"][ANNOTATION_STANDS_FOR] == fresh.names(DEPLOYMENTS)[0]
    assert ANNOTATION_STANDS_FOR not in fresh.api.of(DEPLOYMENTS)[0]["metadata"]["annotations"]
