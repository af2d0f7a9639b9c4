"""Which services run an older rendering than they would get now is told, once, and rolls nothing."""

import pytest
from pagoda_operator.api.state import CONTROLLER_REVISIONS, DEPLOYMENTS, PODS, PROFILES, SERVICES
from pagoda_operator.decide.status.status import outdated
from support.kube.fake_api import profile_body
from support.worlds.world import World


@pytest.fixture
def world():
    made = World()
    made.settle()
    made.make_ready()
    return made


def told(world):
    return world.api.of(SERVICES)[0]["status"].get("outdated")


def status_writes(world, since):
    return [entry for entry in world.api.journal[since:] if entry[1] == SERVICES.kind]


def pods(world):
    return {pod["metadata"]["uid"] for pod in world.api.of(PODS)}


def test_what_was_just_rendered_is_not_outdated(world):
    assert told(world) is None


@pytest.mark.parametrize("replicas", [1, 0])
def test_edited_profile_is_reported_once_rolls_nothing_and_can_be_adopted(world, replicas):
    world.edit(replicas=replicas)
    world.settle()
    before, since = pods(world), len(world.api.journal)
    world.api.edit(PROFILES, "", "default", lambda body: body["spec"].update(images={"daemon": "localhost/daemon:2"}))
    world.settle()
    assert told(world) == "podTemplate.spec.containers[daemon].image"
    assert (len(status_writes(world, since)), len(world.api.journal) - since, pods(world)) == (1, 1, before)
    world.run()
    assert len(world.api.journal) - since == 1
    world.edit(profileRef={"adopt": "2"})
    world.settle()
    assert told(world) is None


def test_profile_edited_back_is_reported_too(world):
    spec = dict(world.api.of(PROFILES)[0]["spec"])
    world.api.edit(PROFILES, "", "default", lambda body: body["spec"].update(args=["--x"]))
    world.settle()
    assert told(world) == "podTemplate.spec.containers[daemon].args"
    world.api.edit(PROFILES, "", "default", lambda body: body.update(spec=spec))
    world.settle()
    assert told(world) is None


def test_outdated_rendering_is_reported_by_the_first_path_of_each_part(world):
    """What it wrote and today's does not, and the other way round."""

    def as_another_would(body):
        del body["data"]["podTemplate"]["spec"]["containers"][0]["env"]
        body["data"]["daemonConfig"]["before"] = "x"

    world.api.edit(CONTROLLER_REVISIONS, "ns", world.names(CONTROLLER_REVISIONS)[0], as_another_would)
    found = world.observed()
    assert outdated(found, world.plan()) == "podTemplate.spec.containers[daemon].env, daemonConfig.before"


def test_report_stays_if_nothing_can_be_rendered_now(world):
    world.api.edit(PROFILES, "", "default", lambda body: body["spec"].update(args=["--x"]))
    world.settle()
    profile = world.api.objects.pop(("ServingProfile", "", "default"))
    world.settle()
    assert told(world) == "podTemplate.spec.containers[daemon].args"
    world.api.objects["ServingProfile", "", "default"] = profile | {"spec": profile_body()["spec"]}
    world.settle()
    assert told(world) is None


def test_a_revision_that_nothing_runs_yet_is_not_outdated(world):
    world.edit(engine={"maxModelLen": 77})
    draft = world.plan()
    assert world.observed().find(DEPLOYMENTS, draft.current.name) is None
    assert outdated(world.observed(), draft) is None
