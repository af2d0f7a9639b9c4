"""What a run reads anew: as little as its deeds allow, and everything where something is made, removed or mended that stands still."""

from __future__ import annotations

import pytest
from mirrored import Mirrored, get_ready
from pagoda_contracts.names import LABEL_SERVICE_UID
from pagoda_operator.errors import Conflict
from pagoda_operator.mirror import MIRRORED
from pagoda_operator.reading import EVERYTHING, REPLICAS, SERVICE
from pagoda_operator.state import CONFIG_MAPS, DEPLOYMENTS, DISRUPTION_BUDGETS, PODS, SERVICES


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


def test_another_number_of_replicas_reads_the_service_and_its_replicas(world: Mirrored) -> None:
    world.edit(replicas=2)
    assert asked(world) == kinds(SERVICE)
    assert world.api.of(DEPLOYMENTS)[0]["spec"]["replicas"] == 2


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


def test_a_conflict_over_the_deployment_is_the_queues_to_try_again(world: Mirrored) -> None:
    world.edit(replicas=2)
    world.show()
    world.api.refuse["Deployment"] = Conflict("409: the object has been modified")
    with pytest.raises(Conflict):
        world.run()
