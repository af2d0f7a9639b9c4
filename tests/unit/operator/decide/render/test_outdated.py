"""Which services run an older rendering than they would get now is told, once, and rolls nothing."""

import pytest
from pagoda_operator.api.state import CONTROLLER_REVISIONS, DEPLOYMENTS, PODS, PROFILES, SERVICES
from pagoda_operator.decide.status.status import outdated
from support.harness.harness import Harness
from support.kube.fake_api import profile_body


@pytest.fixture
def harness():
    made = Harness()
    made.settle()
    made.make_ready()
    return made


def reported(harness):
    return harness.api.of(SERVICES)[0]["status"].get("outdated")


def status_writes(harness, since):
    return [entry for entry in harness.api.journal[since:] if entry[1] == SERVICES.kind]


def pods(harness):
    return {pod["metadata"]["uid"] for pod in harness.api.of(PODS)}


def test_what_was_just_rendered_is_not_outdated(harness):
    assert reported(harness) is None


@pytest.mark.parametrize("replicas", [1, 0])
def test_edited_profile_is_reported_once_rolls_nothing_and_can_be_adopted(harness, replicas):
    harness.edit(replicas=replicas)
    harness.settle()
    before, since = pods(harness), len(harness.api.journal)
    harness.api.edit(PROFILES, "", "default", lambda body: body["spec"].update(images={"daemon": "localhost/daemon:2"}))
    harness.settle()
    assert reported(harness) == "podTemplate.spec.containers[daemon].image"
    assert (len(status_writes(harness, since)), len(harness.api.journal) - since, pods(harness)) == (1, 1, before)
    harness.run()
    assert len(harness.api.journal) - since == 1
    harness.edit(profileRef={"adopt": "2"})
    harness.settle()
    assert reported(harness) is None


def test_profile_edited_back_is_reported_too(harness):
    spec = dict(harness.api.of(PROFILES)[0]["spec"])
    harness.api.edit(PROFILES, "", "default", lambda body: body["spec"].update(args=["--x"]))
    harness.settle()
    assert reported(harness) == "podTemplate.spec.containers[daemon].args"
    harness.api.edit(PROFILES, "", "default", lambda body: body.update(spec=spec))
    harness.settle()
    assert reported(harness) is None


def test_outdated_rendering_is_reported_by_the_first_path_of_each_part(harness):
    """What it wrote and today's does not, and the other way round."""

    def as_another_would(body):
        del body["data"]["podTemplate"]["spec"]["containers"][0]["env"]
        body["data"]["daemonConfig"]["before"] = "x"

    harness.api.edit(CONTROLLER_REVISIONS, "ns", harness.names(CONTROLLER_REVISIONS)[0], as_another_would)
    found = harness.observed()
    assert outdated(found, harness.plan()) == "podTemplate.spec.containers[daemon].env, daemonConfig.before"


def test_report_stays_if_nothing_can_be_rendered_now(harness):
    harness.api.edit(PROFILES, "", "default", lambda body: body["spec"].update(args=["--x"]))
    harness.settle()
    profile = harness.api.objects.pop(("ServingProfile", "", "default"))
    harness.settle()
    assert reported(harness) == "podTemplate.spec.containers[daemon].args"
    harness.api.objects["ServingProfile", "", "default"] = profile | {"spec": profile_body()["spec"]}
    harness.settle()
    assert reported(harness) is None


def test_a_revision_that_nothing_runs_yet_is_not_outdated(harness):
    harness.edit(engine={"maxModelLen": 77})
    draft = harness.plan()
    assert harness.observed().find(DEPLOYMENTS, draft.current.name) is None
    assert outdated(harness.observed(), draft) is None
