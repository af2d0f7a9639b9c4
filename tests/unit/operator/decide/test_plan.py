"""What the plan writes in given situations; the long sequences are test_plan_machine's."""

import asyncio
import copy
import json

import pytest
from pagoda_contracts.names import LABEL_SERVICE, LABEL_SERVICE_UID
from pagoda_operator.api.state import (
    CHILD_RESOURCES,
    CONFIG_MAPS,
    CONTROLLER_REVISIONS,
    CORE_SERVICES,
    DEPLOYMENTS,
    DISRUPTION_BUDGETS,
    NETWORK_POLICIES,
    PODS,
    PROFILES,
    RESOURCE_CLAIM_TEMPLATES,
    SERVICES,
)
from pagoda_operator.decide.render.writes import Create, Delete
from pagoda_operator.watch.observe import named
from support.kube.fake_api import Crash, running, service_body
from support.worlds.world import KEY, World


def test_children_that_pin_a_revision_are_created_before_those_that_run_it():
    kinds = [write.resource for write in World().plan().writes]
    assert kinds == [resource for resource in CHILD_RESOURCES if resource not in (NETWORK_POLICIES, RESOURCE_CLAIM_TEMPLATES)]


def test_every_child_is_owned_labelled_and_named_as_promised():
    world = World()
    uid = world.api.of(SERVICES)[0]["metadata"]["uid"]
    drafted = world.plan()
    for write in drafted.writes:
        (owner,) = write.manifest["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["controller"], owner["blockOwnerDeletion"]) == (uid, True, True)
        assert write.manifest["metadata"]["labels"][LABEL_SERVICE_UID] == uid
    assert [write.name for write in drafted.writes] == [drafted.current.name] * 3 + ["tiny", "tiny"]


def test_one_replica_at_a_time_may_be_evicted_and_one_that_is_not_ready_always():
    """kubectl drain asks the budget: it holds for all replicas of the service and for nothing else."""
    world = World(replicas=2)
    world.settle()
    (budget,) = world.api.of(DISRUPTION_BUDGETS)
    selector = {LABEL_SERVICE: "tiny", LABEL_SERVICE_UID: world.observed().meta.uid}
    assert budget["spec"] == {"maxUnavailable": 1, "unhealthyPodEvictionPolicy": "AlwaysAllow", "selector": {"matchLabels": selector}}
    assert (budget["apiVersion"], budget["metadata"]["namespace"], budget["metadata"]["name"]) == ("policy/v1", "ns", "tiny")
    pods = world.api.of(PODS)
    assert len(pods) == 2
    assert all(selector.items() <= pod["metadata"]["labels"].items() for pod in pods)


@pytest.mark.parametrize("change", [{"maxUnavailable": 2}, {"unhealthyPodEvictionPolicy": "IfHealthyBudget"}])
def test_an_edited_disruption_budget_is_restored(change):
    world = World()
    world.settle()
    (budget,) = world.api.of(DISRUPTION_BUDGETS)
    asked = copy.deepcopy(budget["spec"])
    world.api.edit(DISRUPTION_BUDGETS, "ns", "tiny", lambda body: body["spec"].update(change))
    world.settle()
    assert world.api.of(DISRUPTION_BUDGETS)[0]["spec"] == asked


def test_at_rest_there_is_nothing_to_write():
    world = World(replicas=2)
    world.settle()
    world.make_ready()
    assert world.plan().writes == ()
    written = len(world.api.journal)
    for _ in range(5):
        world.run()
    assert len(world.api.journal) == written


def test_an_edited_profile_rolls_nothing():
    world = World()
    world.settle()
    world.make_ready()
    world.api.edit(PROFILES, "", "default", lambda body: body["spec"]["images"].update(daemon="localhost/daemon:2"))
    assert world.plan().writes == ()


def test_an_edited_profile_reaches_a_revision_that_runs_nothing_yet():
    world = World()
    world.run()
    world.api.crash_in = 4  # the ControllerRevision and the ConfigMap exist, the Deployment does not
    with pytest.raises(Crash):
        world.run()
    assert (len(world.names(CONTROLLER_REVISIONS)), world.names(DEPLOYMENTS)) == (1, [])
    world.api.edit(PROFILES, "", "default", lambda body: body["spec"]["images"].update(daemon="localhost/daemon:2"))
    world.settle()
    (deployment,) = world.api.of(DEPLOYMENTS)
    assert deployment["spec"]["template"]["spec"]["containers"][0]["image"] == "localhost/daemon:2"


def test_a_deleted_controller_revision_is_restored_from_the_deployment():
    world = World()
    world.settle()
    world.make_ready()
    template = copy.deepcopy(world.api.of(DEPLOYMENTS)[0]["spec"]["template"])
    (pin,) = world.api.of(CONTROLLER_REVISIONS)
    del world.api.objects[("ControllerRevision", "ns", pin["metadata"]["name"])]
    world.api.edit(PROFILES, "", "default", lambda body: body["spec"]["images"].update(daemon="localhost/daemon:2"))
    world.settle()
    assert world.names(CONTROLLER_REVISIONS) == [pin["metadata"]["name"]]
    assert world.api.of(DEPLOYMENTS)[0]["spec"]["template"] == template


def test_an_old_revision_serves_until_the_new_one_is_available_then_goes():
    world = World()
    world.settle()
    world.make_ready()
    (old,) = world.names(DEPLOYMENTS)
    world.edit(engine={"maxModelLen": 128})
    world.settle()
    replicas = {body["metadata"]["name"]: body["spec"]["replicas"] for body in world.api.of(DEPLOYMENTS)}
    assert replicas == {old: 1, world.plan().current.name: 1}
    world.make_ready()
    assert old not in world.names(DEPLOYMENTS) + world.names(CONFIG_MAPS) + world.names(CONTROLLER_REVISIONS)
    assert world.reason() == "Available"


def test_a_bad_new_model_never_takes_the_old_revision_down_even_while_that_is_unready():
    world = World()
    world.settle()
    world.make_ready()
    (old,) = world.names(DEPLOYMENTS)
    world.edit(model={"uri": "pvc://bad"})
    world.settle()
    for pod in world.api.of(PODS):
        pod["status"] = running(ready=False)
    world.settle()
    assert {body["metadata"]["name"]: body["spec"]["replicas"] for body in world.api.of(DEPLOYMENTS)}[old] == 1


def test_of_two_old_revisions_only_the_one_that_serves_is_kept():
    world = World()
    world.settle()
    world.make_ready()
    (serving,) = world.names(DEPLOYMENTS)
    world.edit(model={"uri": "pvc://bad"})
    world.settle()
    world.edit(model={"uri": "pvc://worse"})
    world.settle()
    assert world.names(DEPLOYMENTS) == sorted([serving, world.plan().current.name])


def test_going_back_takes_the_old_revision_up_again():
    world = World()
    world.settle()
    world.make_ready()
    (first,) = world.names(DEPLOYMENTS)
    world.edit(model={"uri": "pvc://bad"})
    world.settle()
    world.edit(model={"uri": "pvc://models/tiny"})
    world.settle()
    assert (world.names(DEPLOYMENTS), world.reason()) == ([first], "Available")


def test_an_old_revision_is_deleted_only_without_pods():
    world = World()
    world.settle()
    world.make_ready()
    world.edit(engine={"maxModelLen": 128})
    world.settle()
    for pod in world.api.of(PODS):
        pod["status"] = running(ready=True)
    world.api.control()
    world.run()  # scales the old one down; its pod is still there
    assert not [write for write in world.plan().writes if isinstance(write, Delete)]


def test_an_object_of_another_owner_is_never_taken_over():
    world = World()
    foreign = {"metadata": {"name": "tiny", "namespace": "ns"}, "spec": {"ports": []}}
    world.api.put(CORE_SERVICES, foreign)
    world.settle()
    assert world.reason() == "NameConflict"
    assert world.api.of(CORE_SERVICES)[0]["spec"] == {"ports": []}
    assert ("create", "Service", "tiny") not in world.api.journal


def test_a_predecessors_children_are_waited_for():
    world = World()
    world.settle()
    world.api.objects.pop(("InferenceService", "ns", "tiny"))
    world.api.put(SERVICES, service_body())
    written = len(world.api.journal)
    outcomes = [world.run() for _ in range(3)]
    assert outcomes[-1].again == 2.0
    assert world.reason() == "Waiting"
    assert {kind for _, kind, _ in world.api.journal[written:]} == {"InferenceService"}
    world.api.collect_garbage()
    world.settle()
    world.make_ready()
    assert world.reason() == "Available"


def test_foreign_objects_are_looked_up_by_name_before_anything_is_created():
    world = World()
    drafted = world.plan()
    world.api.put(CORE_SERVICES, {"metadata": {"name": "tiny", "namespace": "ns"}})
    found = asyncio.run(named(world.api, KEY, ((write.resource, write.name) for write in drafted.writes)))
    assert [(child.resource, child.name) for child in found] == [(CORE_SERVICES, "tiny")]
    assert all(isinstance(write, Create) for write in drafted.writes)


def test_a_stripped_owner_reference_is_put_back():
    world = World()
    world.settle()
    world.make_ready()
    (deployment,) = world.api.of(DEPLOYMENTS)
    del deployment["metadata"]["ownerReferences"]
    written = len(world.api.journal)
    world.settle()
    assert world.api.journal[written:] == [("apply", "Deployment", deployment["metadata"]["name"])]
    assert world.api.of(DEPLOYMENTS)[0]["metadata"]["ownerReferences"][0]["kind"] == "InferenceService"


@pytest.mark.parametrize("scaled", [None, 0, 3])
def test_a_deleted_controller_revision_is_rendered_again_if_nothing_changed(scaled):
    """What runs bears the API server's defaults: pinned, they would make two services of one spec differ. Also where somebody `scaled` it
    just before: the number that stands there is not the one that it was made with."""
    world = World()
    world.settle()
    world.make_ready()
    (pin,) = copy.deepcopy(world.api.of(CONTROLLER_REVISIONS))
    (deployment,) = copy.deepcopy(world.api.of(DEPLOYMENTS))
    if scaled is not None:
        world.api.edit(DEPLOYMENTS, "ns", deployment["metadata"]["name"], lambda body: body["spec"].update(replicas=scaled))
    del world.api.objects["ControllerRevision", "ns", pin["metadata"]["name"]]
    world.settle()
    (again,) = world.api.of(CONTROLLER_REVISIONS)
    assert (again["data"], again["revision"]) == (pin["data"], pin["revision"])
    assert world.api.of(DEPLOYMENTS)[0]["spec"] == deployment["spec"]


def test_a_deleted_controller_revision_keeps_what_the_profile_no_longer_has():
    """All that would be rendered now is in what runs; what runs has more than that, and not by the API server's defaults."""
    env = {"spec": {"containers": [{"name": "daemon", "env": [{"name": "X", "value": "1"}]}]}}
    more = {"nodeSelector": {"zone": "a"}, "tolerations": [{"key": "dedicated", "operator": "Exists"}], "podTemplate": env}
    world = World()
    world.api.edit(PROFILES, "", "default", lambda body: body["spec"].update(more))
    world.settle()
    world.make_ready()
    (pin,) = world.api.of(CONTROLLER_REVISIONS)
    world.api.edit(PROFILES, "", "default", lambda body: [body["spec"].pop(field) for field in more])
    world.settle()
    (deployment,) = copy.deepcopy(world.api.of(DEPLOYMENTS))
    told = world.api.of(SERVICES)[0]["status"]["outdated"]
    del world.api.objects["ControllerRevision", "ns", pin["metadata"]["name"]]
    world.settle()
    assert world.names(CONTROLLER_REVISIONS) == [pin["metadata"]["name"]]
    assert world.api.of(DEPLOYMENTS)[0]["spec"]["template"] == deployment["spec"]["template"]
    assert world.api.of(SERVICES)[0]["status"]["outdated"].split(".")[0] == told.split(".")[0] == "podTemplate"


@pytest.mark.parametrize("resource", [DEPLOYMENTS, CORE_SERVICES, CONFIG_MAPS])
@pytest.mark.parametrize("label", [None, "another"])
def test_a_child_without_its_label_is_found_by_name_and_labelled_again(resource, label):
    """It is controlled by this very service: to wait for its end, as for a predecessor's, would be to wait for ever."""
    world = World()
    world.settle()
    world.make_ready()
    (body,) = world.api.of(resource)
    labels = body["metadata"]["labels"]
    labels.pop(LABEL_SERVICE) if label is None else labels.update({LABEL_SERVICE: label})
    world.settle()
    assert world.api.of(resource)[0]["metadata"]["labels"][LABEL_SERVICE] == "tiny"
    assert world.reason() == "Available"


def test_replicas_follow_the_spec_down_to_zero():
    world = World(replicas=3)
    world.settle()
    world.make_ready()
    world.edit(replicas=0)
    world.settle()
    assert (world.api.of(PODS), world.reason()) == ([], "ScaledToZero")


@pytest.mark.parametrize(
    ("profile", "spec", "reason"),
    [
        (None, {}, "ProfileNotFound"),
        ({"images": {}}, {}, "InvalidProfile"),
        ({"images": {"daemon": "a"}}, {"replicas": -1}, "InvalidSpec"),
        ({"images": {"daemon": "a"}}, {"podTemplate": {"spec": {"hostPID": True}}}, "PodTemplateForbidden"),
    ],
)
def test_a_bad_spec_or_profile_is_a_condition_and_creates_nothing(profile, spec, reason):
    world = World(**spec)
    if profile is None:
        del world.api.objects[("ServingProfile", "", "default")]
    else:
        world.api.of(PROFILES)[0]["spec"] = profile
    world.settle()
    assert world.reason() == reason
    assert {kind for _, kind, _ in world.api.journal} == {"InferenceService"}


def test_a_running_revision_outlives_its_profile():
    world = World()
    world.settle()
    world.make_ready()
    del world.api.objects[("ServingProfile", "", "default")]
    world.settle()
    assert world.reason() == "Available"


def test_a_controller_revision_is_never_relabelled():
    world = World()
    world.settle()
    (pin,) = world.api.of(CONTROLLER_REVISIONS)
    pin["metadata"]["labels"]["app.kubernetes.io/managed-by"] = "an-earlier-operator"
    pin["metadata"]["annotations"] = {}
    written = len(world.api.journal)
    world.settle()
    assert world.api.journal[written:] == []


@pytest.mark.parametrize("lost", [False, True])
def test_a_config_map_with_another_key_order_is_kept(lost):
    world = World()
    world.settle()
    world.make_ready()
    (pinned,), (live,) = world.api.of(CONTROLLER_REVISIONS), world.api.of(CONFIG_MAPS)
    backwards = dict(reversed(pinned["data"]["daemonConfig"].items()))
    live["data"]["daemon.json"] = json.dumps(backwards, indent=1)
    pinned["data"]["daemonConfig"] = dict(backwards)
    world.settle()
    if lost:  # what pins it is written again, and the server gives its data back in an order of its own
        del world.api.objects["ControllerRevision", "ns", pinned["metadata"]["name"]]
        world.settle()
    (pinned,) = world.api.of(CONTROLLER_REVISIONS)
    pinned["data"]["daemonConfig"] = dict(sorted(pinned["data"]["daemonConfig"].items()))
    world.settle()
    assert world.api.of(CONFIG_MAPS) == [live]
    assert json.loads(live["data"]["daemon.json"]) == backwards
    assert [entry for entry in world.api.journal if entry[:2] == ("delete", "ConfigMap")] == []


def test_revision_data_is_rendered_with_sorted_keys():
    world = World()
    world.settle()
    (pinned,), (live,) = world.api.of(CONTROLLER_REVISIONS), world.api.of(CONFIG_MAPS)
    assert json.dumps(pinned["data"]) == json.dumps(pinned["data"], sort_keys=True)
    assert live["data"]["daemon.json"] == json.dumps(pinned["data"]["daemonConfig"], indent=1)
