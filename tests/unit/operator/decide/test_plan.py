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
from support.harness.harness import KEY, Harness
from support.kube.fake_api import Crash, running, service_body


def test_children_that_pin_a_revision_are_created_before_those_that_run_it():
    kinds = [write.resource for write in Harness().plan().writes]
    assert kinds == [resource for resource in CHILD_RESOURCES if resource not in (NETWORK_POLICIES, RESOURCE_CLAIM_TEMPLATES)]


def test_every_child_is_owned_labelled_and_named_as_promised():
    harness = Harness()
    uid = harness.api.of(SERVICES)[0]["metadata"]["uid"]
    drafted = harness.plan()
    for write in drafted.writes:
        (owner,) = write.manifest["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["controller"], owner["blockOwnerDeletion"]) == (uid, True, True)
        assert write.manifest["metadata"]["labels"][LABEL_SERVICE_UID] == uid
    assert [write.name for write in drafted.writes] == ["tiny", *[drafted.current.name] * 3, "tiny"]


def test_one_replica_at_a_time_may_be_evicted_and_one_that_is_not_ready_always():
    """kubectl drain asks the budget: it holds for all replicas of the service and for nothing else."""
    harness = Harness(replicas=2)
    harness.settle()
    (budget,) = harness.api.of(DISRUPTION_BUDGETS)
    selector = {LABEL_SERVICE: "tiny", LABEL_SERVICE_UID: harness.observed().meta.uid}
    assert budget["spec"] == {"maxUnavailable": 1, "unhealthyPodEvictionPolicy": "AlwaysAllow", "selector": {"matchLabels": selector}}
    assert (budget["apiVersion"], budget["metadata"]["namespace"], budget["metadata"]["name"]) == ("policy/v1", "ns", "tiny")
    pods = harness.api.of(PODS)
    assert len(pods) == 2
    assert all(selector.items() <= pod["metadata"]["labels"].items() for pod in pods)


@pytest.mark.parametrize("change", [{"maxUnavailable": 2}, {"unhealthyPodEvictionPolicy": "IfHealthyBudget"}])
def test_an_edited_disruption_budget_is_restored(change):
    harness = Harness()
    harness.settle()
    (budget,) = harness.api.of(DISRUPTION_BUDGETS)
    asked = copy.deepcopy(budget["spec"])
    harness.api.edit(DISRUPTION_BUDGETS, "ns", "tiny", lambda body: body["spec"].update(change))
    harness.settle()
    assert harness.api.of(DISRUPTION_BUDGETS)[0]["spec"] == asked


def test_at_rest_there_is_nothing_to_write():
    harness = Harness(replicas=2)
    harness.settle()
    harness.make_ready()
    assert harness.plan().writes == ()
    written = len(harness.api.journal)
    for _ in range(5):
        harness.run()
    assert len(harness.api.journal) == written


def test_an_edited_profile_rolls_nothing():
    harness = Harness()
    harness.settle()
    harness.make_ready()
    harness.api.edit(PROFILES, "", "default", lambda body: body["spec"]["images"].update(daemon="localhost/daemon:2"))
    assert harness.plan().writes == ()


def test_an_edited_profile_reaches_a_revision_that_runs_nothing_yet():
    harness = Harness()
    harness.run()
    harness.api.crash_in = 5  # the ControllerRevision and the ConfigMap exist, the Deployment does not
    with pytest.raises(Crash):
        harness.run()
    assert (len(harness.names(CONTROLLER_REVISIONS)), harness.names(DEPLOYMENTS)) == (1, [])
    harness.api.edit(PROFILES, "", "default", lambda body: body["spec"]["images"].update(daemon="localhost/daemon:2"))
    harness.settle()
    (deployment,) = harness.api.of(DEPLOYMENTS)
    assert deployment["spec"]["template"]["spec"]["containers"][0]["image"] == "localhost/daemon:2"


def test_a_deleted_controller_revision_is_restored_from_the_deployment():
    harness = Harness()
    harness.settle()
    harness.make_ready()
    template = copy.deepcopy(harness.api.of(DEPLOYMENTS)[0]["spec"]["template"])
    (pin,) = harness.api.of(CONTROLLER_REVISIONS)
    del harness.api.objects[("ControllerRevision", "ns", pin["metadata"]["name"])]
    harness.api.edit(PROFILES, "", "default", lambda body: body["spec"]["images"].update(daemon="localhost/daemon:2"))
    harness.settle()
    assert harness.names(CONTROLLER_REVISIONS) == [pin["metadata"]["name"]]
    assert harness.api.of(DEPLOYMENTS)[0]["spec"]["template"] == template


def test_an_old_revision_serves_until_the_new_one_is_available_then_goes():
    harness = Harness()
    harness.settle()
    harness.make_ready()
    (old,) = harness.names(DEPLOYMENTS)
    harness.edit(engine={"maxModelLen": 128})
    harness.settle()
    replicas = {body["metadata"]["name"]: body["spec"]["replicas"] for body in harness.api.of(DEPLOYMENTS)}
    assert replicas == {old: 1, harness.plan().current.name: 1}
    harness.make_ready()
    assert old not in harness.names(DEPLOYMENTS) + harness.names(CONFIG_MAPS) + harness.names(CONTROLLER_REVISIONS)
    assert harness.reason() == "Available"


def test_a_bad_new_model_never_takes_the_old_revision_down_even_while_that_is_unready():
    harness = Harness()
    harness.settle()
    harness.make_ready()
    (old,) = harness.names(DEPLOYMENTS)
    harness.edit(model={"uri": "pvc://bad"})
    harness.settle()
    for pod in harness.api.of(PODS):
        pod["status"] = running(ready=False)
    harness.settle()
    assert {body["metadata"]["name"]: body["spec"]["replicas"] for body in harness.api.of(DEPLOYMENTS)}[old] == 1


def test_of_two_old_revisions_only_the_one_that_serves_is_kept():
    harness = Harness()
    harness.settle()
    harness.make_ready()
    (serving,) = harness.names(DEPLOYMENTS)
    harness.edit(model={"uri": "pvc://bad"})
    harness.settle()
    harness.edit(model={"uri": "pvc://worse"})
    harness.settle()
    assert harness.names(DEPLOYMENTS) == sorted([serving, harness.plan().current.name])


def test_going_back_takes_the_old_revision_up_again():
    harness = Harness()
    harness.settle()
    harness.make_ready()
    (first,) = harness.names(DEPLOYMENTS)
    harness.edit(model={"uri": "pvc://bad"})
    harness.settle()
    harness.edit(model={"uri": "pvc://models/tiny"})
    harness.settle()
    assert (harness.names(DEPLOYMENTS), harness.reason()) == ([first], "Available")


def test_an_old_revision_is_deleted_only_without_pods():
    harness = Harness()
    harness.settle()
    harness.make_ready()
    harness.edit(engine={"maxModelLen": 128})
    harness.settle()
    for pod in harness.api.of(PODS):
        pod["status"] = running(ready=True)
    harness.api.control()
    harness.run()  # scales the old one down; its pod is still there
    assert not [write for write in harness.plan().writes if isinstance(write, Delete)]


def test_an_object_of_another_owner_is_never_taken_over():
    harness = Harness()
    foreign = {"metadata": {"name": "tiny", "namespace": "ns"}, "spec": {"ports": []}}
    harness.api.put(CORE_SERVICES, foreign)
    harness.settle()
    assert harness.reason() == "ObjectExists"
    assert harness.api.of(CORE_SERVICES)[0]["spec"] == {"ports": []}
    assert ("create", "Service", "tiny") not in harness.api.journal


STOPPED = {
    "InvalidSpec": {"replicas": -1},
    "NoAccelerator": {"accelerators": [{"gpu": {"products": ["H100"]}}]},
    "PodTemplateForbidden": {"podTemplate": {"spec": {"hostPID": True}}},
}


@pytest.mark.parametrize("reason", [*STOPPED, "ProfileNotFound"])
def test_the_service_by_which_gateways_know_replicas_is_restored_also_while_nothing_else_is_decided(reason):
    harness = Harness()
    harness.settle()
    harness.make_ready()
    (asked,) = copy.deepcopy(harness.api.of(CORE_SERVICES))
    if reason in STOPPED:
        harness.edit(**STOPPED[reason])
    else:
        harness.edit(engine={"maxModelLen": 128})
        harness.api.objects.pop(("ServingProfile", "", "default"))
    harness.api.objects.pop(("Service", "ns", "tiny"))
    harness.settle()
    assert harness.reason() == reason
    assert harness.api.of(CORE_SERVICES)[0]["spec"] == asked["spec"]
    harness.api.edit(CORE_SERVICES, "ns", "tiny", lambda body: body["spec"].update(selector={}))
    harness.settle()
    assert harness.api.of(CORE_SERVICES)[0]["spec"] == asked["spec"]
    harness.api.objects.pop(("Service", "ns", "tiny"))
    harness.api.put(CORE_SERVICES, {"metadata": {"name": "tiny", "namespace": "ns"}, "spec": {}})
    harness.settle()
    assert (harness.reason(), harness.api.of(CORE_SERVICES)[0]["spec"]) == (reason, {})


def test_a_predecessors_children_are_waited_for():
    harness = Harness()
    harness.settle()
    harness.api.objects.pop(("InferenceService", "ns", "tiny"))
    harness.api.put(SERVICES, service_body())
    written = len(harness.api.journal)
    outcomes = [harness.run() for _ in range(3)]
    assert outcomes[-1].again == 2.0
    assert harness.reason() == "Waiting"
    assert {kind for _, kind, _ in harness.api.journal[written:]} == {"InferenceService"}
    harness.api.collect_garbage()
    harness.settle()
    harness.make_ready()
    assert harness.reason() == "Available"


def test_foreign_objects_are_looked_up_by_name_before_anything_is_created():
    harness = Harness()
    drafted = harness.plan()
    harness.api.put(CORE_SERVICES, {"metadata": {"name": "tiny", "namespace": "ns"}})
    found = asyncio.run(named(harness.api, KEY, ((write.resource, write.name) for write in drafted.writes)))
    assert [(child.resource, child.name) for child in found] == [(CORE_SERVICES, "tiny")]
    assert all(isinstance(write, Create) for write in drafted.writes)


def test_a_stripped_owner_reference_is_put_back():
    harness = Harness()
    harness.settle()
    harness.make_ready()
    (deployment,) = harness.api.of(DEPLOYMENTS)
    del deployment["metadata"]["ownerReferences"]
    written = len(harness.api.journal)
    harness.settle()
    assert harness.api.journal[written:] == [("apply", "Deployment", deployment["metadata"]["name"])]
    assert harness.api.of(DEPLOYMENTS)[0]["metadata"]["ownerReferences"][0]["kind"] == "InferenceService"


@pytest.mark.parametrize("scaled", [None, 0, 3])
def test_a_deleted_controller_revision_is_rendered_again_if_nothing_changed(scaled):
    """What runs bears the API server's defaults: pinned, they would make two services of one spec differ. Also where somebody `scaled` it
    just before: the number that stands there is not the one that it was made with."""
    harness = Harness()
    harness.settle()
    harness.make_ready()
    (pin,) = copy.deepcopy(harness.api.of(CONTROLLER_REVISIONS))
    (deployment,) = copy.deepcopy(harness.api.of(DEPLOYMENTS))
    if scaled is not None:
        harness.api.edit(DEPLOYMENTS, "ns", deployment["metadata"]["name"], lambda body: body["spec"].update(replicas=scaled))
    del harness.api.objects["ControllerRevision", "ns", pin["metadata"]["name"]]
    harness.settle()
    (again,) = harness.api.of(CONTROLLER_REVISIONS)
    assert (again["data"], again["revision"]) == (pin["data"], pin["revision"])
    assert harness.api.of(DEPLOYMENTS)[0]["spec"] == deployment["spec"]


def test_a_deleted_controller_revision_keeps_what_the_profile_no_longer_has():
    """All that would be rendered now is in what runs; what runs has more than that, and not by the API server's defaults."""
    env = {"spec": {"containers": [{"name": "daemon", "env": [{"name": "X", "value": "1"}]}]}}
    more = {"nodeSelector": {"zone": "a"}, "tolerations": [{"key": "dedicated", "operator": "Exists"}], "podTemplate": env}
    harness = Harness()
    harness.api.edit(PROFILES, "", "default", lambda body: body["spec"].update(more))
    harness.settle()
    harness.make_ready()
    (pin,) = harness.api.of(CONTROLLER_REVISIONS)
    harness.api.edit(PROFILES, "", "default", lambda body: [body["spec"].pop(field) for field in more])
    harness.settle()
    (deployment,) = copy.deepcopy(harness.api.of(DEPLOYMENTS))
    reported = harness.api.of(SERVICES)[0]["status"]["outdated"]
    del harness.api.objects["ControllerRevision", "ns", pin["metadata"]["name"]]
    harness.settle()
    assert harness.names(CONTROLLER_REVISIONS) == [pin["metadata"]["name"]]
    assert harness.api.of(DEPLOYMENTS)[0]["spec"]["template"] == deployment["spec"]["template"]
    assert harness.api.of(SERVICES)[0]["status"]["outdated"].split(".")[0] == reported.split(".")[0] == "podTemplate"


@pytest.mark.parametrize("resource", [DEPLOYMENTS, CORE_SERVICES, CONFIG_MAPS])
@pytest.mark.parametrize("label", [None, "another"])
def test_a_child_without_its_label_is_found_by_name_and_labelled_again(resource, label):
    """It is controlled by this very service: to wait for its end, as for a predecessor's, would be to wait for ever."""
    harness = Harness()
    harness.settle()
    harness.make_ready()
    (body,) = harness.api.of(resource)
    labels = body["metadata"]["labels"]
    labels.pop(LABEL_SERVICE) if label is None else labels.update({LABEL_SERVICE: label})
    harness.settle()
    assert harness.api.of(resource)[0]["metadata"]["labels"][LABEL_SERVICE] == "tiny"
    assert harness.reason() == "Available"


def test_replicas_follow_the_spec_down_to_zero():
    harness = Harness(replicas=3)
    harness.settle()
    harness.make_ready()
    harness.edit(replicas=0)
    harness.settle()
    assert (harness.api.of(PODS), harness.reason()) == ([], "ScaledToZero")


# The API server knows no schema of a podTemplate.
MISSHAPEN = (7, {"initContainers": [5]}, {"initContainers": [{}]}, {"tolerations": 5}, {"volumes": [{"name": "model", "emptyDir": 5}]})


@pytest.mark.parametrize(
    ("profile", "spec", "reason"),
    [
        (None, {}, "ProfileNotFound"),
        ({"images": {}}, {}, "InvalidProfile"),
        *(({"images": {"daemon": "a"}, "podTemplate": {"spec": spec}}, {}, "InvalidProfile") for spec in MISSHAPEN),
        *(({"images": {"daemon": "a"}, "allow": ["spec"]}, {"podTemplate": {"spec": spec}}, "InvalidSpec") for spec in MISSHAPEN),
        ({"images": {"daemon": "a"}}, {"replicas": -1}, "InvalidSpec"),
        ({"images": {"daemon": "a"}}, {"podTemplate": {"spec": {"hostPID": True}}}, "PodTemplateForbidden"),
    ],
)
def test_a_bad_spec_or_profile_is_a_condition_and_creates_nothing(profile, spec, reason):
    harness = Harness(**spec)
    if profile is None:
        del harness.api.objects[("ServingProfile", "", "default")]
    else:
        harness.api.of(PROFILES)[0]["spec"] = profile
    harness.settle()
    assert harness.reason() == reason
    assert {kind for _, kind, _ in harness.api.journal} == {"InferenceService"}


def test_a_running_revision_outlives_its_profile():
    harness = Harness()
    harness.settle()
    harness.make_ready()
    del harness.api.objects[("ServingProfile", "", "default")]
    harness.settle()
    assert harness.reason() == "Available"


def test_a_controller_revision_is_never_relabelled():
    harness = Harness()
    harness.settle()
    (pin,) = harness.api.of(CONTROLLER_REVISIONS)
    pin["metadata"]["labels"]["app.kubernetes.io/managed-by"] = "an-earlier-operator"
    pin["metadata"]["annotations"] = {}
    written = len(harness.api.journal)
    harness.settle()
    assert harness.api.journal[written:] == []


@pytest.mark.parametrize("lost", [False, True])
def test_a_config_map_with_another_key_order_is_kept(lost):
    harness = Harness()
    harness.settle()
    harness.make_ready()
    (pinned,), (live,) = harness.api.of(CONTROLLER_REVISIONS), harness.api.of(CONFIG_MAPS)
    backwards = dict(reversed(pinned["data"]["daemonConfig"].items()))
    live["data"]["daemon.json"] = json.dumps(backwards, indent=1)
    pinned["data"]["daemonConfig"] = dict(backwards)
    harness.settle()
    if lost:  # what pins it is written again, and the server gives its data back in an order of its own
        del harness.api.objects["ControllerRevision", "ns", pinned["metadata"]["name"]]
        harness.settle()
    (pinned,) = harness.api.of(CONTROLLER_REVISIONS)
    pinned["data"]["daemonConfig"] = dict(sorted(pinned["data"]["daemonConfig"].items()))
    harness.settle()
    assert harness.api.of(CONFIG_MAPS) == [live]
    assert json.loads(live["data"]["daemon.json"]) == backwards
    assert [entry for entry in harness.api.journal if entry[:2] == ("delete", "ConfigMap")] == []


def test_revision_data_is_rendered_with_sorted_keys():
    harness = Harness()
    harness.settle()
    (pinned,), (live,) = harness.api.of(CONTROLLER_REVISIONS), harness.api.of(CONFIG_MAPS)
    assert json.dumps(pinned["data"]) == json.dumps(pinned["data"], sort_keys=True)
    assert live["data"]["daemon.json"] == json.dumps(pinned["data"]["daemonConfig"], indent=1)
