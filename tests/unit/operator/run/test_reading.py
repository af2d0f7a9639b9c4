"""What a run reads anew: as little as its deeds allow, and everything where something is made, removed or mended that stands still."""

from __future__ import annotations

import pytest
from pagoda_contracts.names import LABEL_SERVICE_UID
from pagoda_operator.api.callers import Callers
from pagoda_operator.api.errors import Conflict
from pagoda_operator.api.state import (
    CONFIG_MAPS,
    CONTROLLER_REVISIONS,
    DEPLOYMENTS,
    DISRUPTION_BUDGETS,
    NETWORK_POLICIES,
    PODS,
    PROFILES,
    SERVICES,
)
from pagoda_operator.run.reading import EVERYTHING, GROWING, REPLICAS, SERVICE
from pagoda_operator.run.settings import Settings
from pagoda_operator.watch.floors import EXPECTED
from pagoda_operator.watch.mirror import MIRRORED
from support.kube.fake_api import profile_body
from support.worlds.mirrored import Mirrored, get_ready


@pytest.fixture
def world() -> Mirrored:
    made = Mirrored()
    made.settle()
    made.make_ready()
    return made


def asked(world: Mirrored) -> set[str]:
    """The kinds that one run reads, once the watches have caught up."""
    world.show()
    begun = len(world.api.kinds_read)
    world.run()
    return set(world.api.kinds_read[begun:])


def kinds(read: frozenset) -> set[str]:
    return {resource.kind for resource in read}


def test_everything_is_all_that_the_watches_fill() -> None:
    assert set(MIRRORED) == EVERYTHING


def test_more_replicas_read_the_service_its_replicas_and_what_fences_and_feeds_them(world: Mirrored) -> None:
    world.edit(replicas=2)
    assert asked(world) == kinds(GROWING)
    assert world.api.of(DEPLOYMENTS)[0]["spec"]["replicas"] == 2


def test_fewer_replicas_read_the_service_and_its_replicas(world: Mirrored) -> None:
    world.edit(replicas=0)
    while world.api.of(DEPLOYMENTS)[0]["spec"]["replicas"]:
        assert asked(world) == kinds(SERVICE)


def test_a_replica_that_gets_ready_costs_a_look_at_the_replicas(world: Mirrored) -> None:
    world.edit(replicas=2)
    world.settle()
    world.api.control()
    for pod in world.api.of(PODS):
        get_ready(world, pod)
    assert asked(world) == kinds(REPLICAS)
    assert world.conditions()["Ready"]["status"] == "True"


def test_of_an_edit_that_was_not_shown_a_status_says_nothing(world: Mirrored) -> None:
    """The status is another service's than the one that was shown: nothing is written before that is read."""
    world.edit(replicas=2)
    world.settle()
    for pod in world.api.of(PODS):
        get_ready(world, pod)
    world.show(PODS)
    world.edit(replicas=3)  # nobody has shown this yet
    begun = len(world.api.kinds_read)
    world.run()
    assert set(world.api.kinds_read[begun:]) == kinds(EVERYTHING)
    assert world.api.of(SERVICES)[0]["status"]["observedGeneration"] == world.api.of(SERVICES)[0]["metadata"]["generation"]
    assert world.conditions()["Ready"]["status"] != "True"


def test_by_a_service_that_was_shown_long_ago_no_number_is_written(world: Mirrored) -> None:
    """Another operator has brought it to three, and of that only a pod was shown."""
    for pod in world.api.of(PODS):
        pod["status"] = {}
        world.api._touch(pod)
    world.show()
    world.edit(replicas=3)
    world.api.edit(DEPLOYMENTS, "ns", world.names(DEPLOYMENTS)[0], lambda body: body["spec"].update(replicas=3))
    numbers: list[int] = []
    world.api.wrote = lambda resource, _, body: numbers.append(body["spec"]["replicas"]) if resource == DEPLOYMENTS else None
    world.run()
    assert numbers == [3]


def test_a_new_revision_is_made_of_what_is_not_of_what_was_shown(world: Mirrored) -> None:
    world.edit(engine={"maxModelLen": 64})
    assert asked(world) >= kinds(EVERYTHING)


@pytest.mark.parametrize("resource", [CONFIG_MAPS, DISRUPTION_BUDGETS])
def test_what_stands_still_is_read_before_it_is_mended(world: Mirrored, resource) -> None:
    (body,) = [body for body in world.api.of(resource) if LABEL_SERVICE_UID in body["metadata"]["labels"]]
    world.api.edit(resource, "ns", body["metadata"]["name"], lambda found: found.update(data={}, spec={}))
    written = len(world.api.journal)
    assert asked(world) >= kinds(EVERYTHING)
    assert resource.kind in {kind for _, kind, _ in world.api.journal[written:]}


@pytest.mark.parametrize("resource", [NETWORK_POLICIES, CONFIG_MAPS])
def test_no_replica_is_added_without_what_fences_or_feeds_it_though_its_end_was_not_shown(resource) -> None:
    world = Mirrored()
    world.settings = Settings(callers=Callers(gateway="pagoda-system/gateway", operator="pagoda-system/operator"))
    world.restart()
    world.settle()
    world.make_ready()
    world.edit(replicas=2)
    world.show()
    del world.api.objects[resource.kind, "ns", world.names(resource)[0]]
    written = len(world.api.journal)
    world.run()
    made = [kind for _, kind, _ in world.api.journal[written:] if kind in (resource.kind, "Deployment")]
    assert made == [resource.kind, "Deployment"]


def test_by_a_rendering_that_was_shown_late_no_pod_is_rolled(world: Mirrored) -> None:
    (revision,) = world.live(CONTROLLER_REVISIONS)
    world.edit(replicas=2)
    world.show()
    world.clock.now += EXPECTED + 1  # from here on older news is believed
    revision["data"]["podTemplate"]["spec"]["containers"][0]["image"] = "old:image"
    world.mirror.put(CONTROLLER_REVISIONS, revision | {"metadata": revision["metadata"] | {"resourceVersion": "1"}})
    before = world.api.of(DEPLOYMENTS)[0]["spec"]["template"]
    world.run()
    (deployment,) = world.api.of(DEPLOYMENTS)
    assert (deployment["spec"]["template"], deployment["spec"]["replicas"]) == (before, 2)


def test_a_profile_that_was_not_shown_yet_is_not_called_missing(world: Mirrored) -> None:
    world.api.put(PROFILES, profile_body("p2"))
    world.edit(profileRef={"name": "p2"}, engine={"maxModelLen": 99})
    world.show(SERVICES)
    world.run()
    assert world.conditions()["Stalled"]["status"] != "True"


def test_a_rendering_whose_end_was_shown_and_whose_return_was_not_is_not_called_lost(world: Mirrored) -> None:
    for resource in (CONTROLLER_REVISIONS, CONFIG_MAPS):
        (body,) = world.live(resource)
        world.mirror.drop(resource, body | {"metadata": body["metadata"] | {"resourceVersion": "99999"}})
    world.run()
    assert world.conditions()["Stalled"]["status"] != "True"


def test_nor_is_one_that_came_with_its_service() -> None:
    world = Mirrored()
    world.run()
    world.show(SERVICES)
    world.run()
    assert world.conditions()["Stalled"]["status"] != "True"


def test_what_an_edited_profile_makes_of_a_rendering_is_told_once_though_it_is_shown_late(world: Mirrored) -> None:
    world.api.edit(PROFILES, "", "default", lambda body: body["spec"]["images"].update(daemon="new:1"))
    del world.api.objects["PodDisruptionBudget", "ns", "tiny"]
    world.show(DISRUPTION_BUDGETS)
    told: list[str | None] = []
    for shown in (False, False, True, True):
        if shown:
            world.show()
        world.run()
        told.append(world.api.of(SERVICES)[0]["status"].get("outdated"))
    assert told == [told[0]] * 4
    assert told[0]


def test_a_conflict_over_the_deployment_is_the_queues_to_try_again(world: Mirrored) -> None:
    world.edit(replicas=2)
    world.show()
    world.api.refuse["Deployment"] = Conflict("409: the object has been modified")
    with pytest.raises(Conflict):
        world.run()
