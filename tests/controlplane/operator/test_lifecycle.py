"""The operator against a real API server, scheduler, controllers and garbage collector: from apply to delete."""

import functools
import json
import time

import pytest
from pagoda_contracts.launch import DaemonConfig
from pagoda_contracts.metrics import OPERATOR_RECONCILES
from pagoda_contracts.names import DAEMON_CONFIG_KEY
from pagoda_operator.api.state import (
    CHILD_RESOURCES,
    CONFIG_MAPS,
    CONTROLLER_REVISIONS,
    CORE_SERVICES,
    DEPLOYMENTS,
    DISRUPTION_BUDGETS,
    EVENTS,
    PODS,
    PROFILES,
    SERVICES,
)
from pagoda_operator.decide.render.overlay import merge
from support.clients.hand_edits import EDITS
from support.kube.client import eventually
from support.kube.fake_api import crashed, running, waiting
from support.kube.namespace import NAME
from support.kube.operator_process import USER

pytestmark = pytest.mark.cluster
RUNS = f"{OPERATOR_RECONCILES.name}_total"


def test_a_service_gets_its_children_and_pods_that_pass_restricted(real, operator):
    made = real.apply(replicas=2)
    pods = real.node.placed(real.namespace, 2)
    (deployment,) = real.kube.list(DEPLOYMENTS, real.namespace)
    name = deployment["metadata"]["name"]
    expected = sorted(
        [f"ConfigMap {name}", f"ControllerRevision {name}", f"Deployment {name}", f"PodDisruptionBudget {NAME}", f"Service {NAME}"]
    )
    # Pods may be placed before the last child is written.
    eventually(lambda: real.children() == expected, f"children {expected}")
    for resource in CHILD_RESOURCES:
        for child in real.kube.list(resource, real.namespace):
            owners = [(owner["uid"], owner["controller"]) for owner in child["metadata"].get("ownerReferences", [])]
            assert owners in ([], [(made["metadata"]["uid"], True)])  # kube-root-ca.crt is nobody's
            assert "finalizers" not in child["metadata"]
    # Nothing of Kopf's and nothing that holds up a deletion.
    assert {"annotations", "finalizers"} & real.service()["metadata"].keys() == set()
    assert [pod["status"]["phase"] for pod in pods] == ["Pending", "Pending"]


def test_status_is_honest_through_the_phases_of_a_start(real, operator):
    real.apply()
    (pod,) = real.node.placed(real.namespace, 1)
    first = real.reported(Reconciling="PullingImage")
    assert (first["Ready"]["status"], first["Stalled"]["status"]) == ("Unknown", "False")
    real.node.report(pod, waiting("ErrImagePull", 'failed to pull image "localhost/daemon:1": not found'))
    assert "not found" in real.reported(Reconciling="ImagePull")["Reconciling"]["message"]
    real.node.report(pod, running())
    real.reported(Reconciling="LoadingModel")
    real.node.report(pod, running(ready=True))
    last = real.reported(Ready="Available")
    assert {kind: line["status"] for kind, line in last.items()} == {
        "Ready": "True",
        "Reconciling": "False",
        "Stalled": "False",
        "Serving": "True",
    }
    status = real.service()["status"]
    assert (status["replicas"], status["readyReplicas"], status["placement"]["chosen"]) == (1, 1, "cpu[0]")
    assert status["url"] == "http://pagoda-gateway.pagoda-system.svc:8080/v1"
    assert len(real.kube.list(PODS, real.namespace, status["selector"])) == 1


def test_an_unschedulable_pod_says_why(real, operator):
    real.apply(accelerators=[{"cpu": {"cores": 1000, "memory": "1Gi"}}])
    reported = eventually(lambda: real.reported(Reconciling="WaitingForCapacity"), "the scheduler's reason")["Reconciling"]["message"]
    assert "cpu[0] since " in reported
    assert "needs 1,000 cores on one node, but the largest node has 64 cores; " in reported
    assert "Insufficient cpu" in reported
    assert len(real.pods()) == 1


def test_a_rejected_model_stalls_with_the_daemons_words_and_a_corrected_one_serves(real, operator):
    real.apply()
    (pod,) = real.node.placed(real.namespace, 1)
    real.node.report(pod, crashed(message="config.json: architecture GrandioseForCausalLM is unknown\n"))
    lines = real.reported(Stalled="ModelRejected")
    assert (lines["Ready"]["status"], lines["Reconciling"]["status"]) == ("False", "False")
    assert lines["Stalled"]["message"] == "config.json: architecture GrandioseForCausalLM is unknown"
    real.edit(model={"uri": "pvc://mended"})
    eventually(real.end_pods, "the rejected pod goes")
    real.serve()
    assert real.reported(Ready="Available")["Stalled"]["status"] == "False"


def test_a_crash_that_a_restart_may_fix_is_not_stalled(real, operator):
    real.apply()
    (pod,) = real.node.placed(real.namespace, 1)
    real.node.report(pod, crashed(code=137, message="", reason="OOMKilled"))
    lines = real.reported(Reconciling="CrashLooping")
    assert lines["Stalled"]["status"] == "False"
    assert "exit code 137: OOMKilled" in lines["Ready"]["message"]


def test_a_spec_change_rolls_to_a_new_revision_and_the_old_one_goes(real, operator):
    real.apply()
    real.serve()
    real.reported(Ready="Available")
    before = real.children()
    real.edit(engine={"maxModelLen": 128, "toolParser": "hermes", "threads": 1, "loadTimeout": "10m"})
    fresh = [pod for pod in real.node.placed(real.namespace, 2) if pod["status"]["phase"] == "Pending"]
    assert len(fresh) == 1
    assert real.reported(Reconciling="PullingImage")["Ready"]["message"].endswith("1 ready replica of an older revision continues to serve")
    assert set(before) < set(real.children())
    (named,) = [volume["configMap"]["name"] for volume in fresh[0]["spec"]["volumes"] if volume["name"] == "config"]
    told = DaemonConfig.model_validate_json(real.kube.get(CONFIG_MAPS, real.namespace, named)["data"][DAEMON_CONFIG_KEY])
    assert (told.engine.tool_parser, told.engine.threads, told.health.load_timeout) == ("hermes", 1, "10m")
    real.node.report(fresh[0], running(ready=True))
    assert real.reported(Reconciling="RollingOut")["Ready"]["status"] == "True"
    eventually(real.end_pods, "the old pod goes")
    real.reported(Reconciling="Settled")
    gone = [name for name in before if name not in real.children()]
    assert sorted(name.split()[0] for name in gone) == ["ConfigMap", "ControllerRevision", "Deployment"]


def test_an_edited_profile_rolls_no_pod(real, operator):
    real.apply()
    real.serve()
    real.reported(Ready="Available")
    (before,) = real.kube.list(DEPLOYMENTS, real.namespace)
    real.kube.merge(PROFILES, "", real.namespace, {"spec": {"images": {"daemon": "localhost/daemon:2"}}})
    real.edit(replicas=2)
    real.serve(2)
    real.reported(Ready="Available")
    (after,) = real.kube.list(DEPLOYMENTS, real.namespace)
    assert after["spec"]["template"] == before["spec"]["template"]


def test_what_the_api_server_refuses_stalls_with_its_words(real, operator):
    real.kube.merge(PROFILES, "", real.namespace, {"spec": {"allow": ["spec"]}})
    real.apply(podTemplate={"spec": {"nodeSelektor": {"a": "b"}}})
    assert "nodeSelektor" in real.reported(Stalled="InvalidSpec")["Stalled"]["message"]


def test_a_forbidden_overlay_is_named(real, operator):
    real.apply(podTemplate={"spec": {"hostNetwork": True}})
    assert "spec.hostNetwork" in real.reported(Stalled="PodTemplateForbidden")["Stalled"]["message"]
    assert real.children() == []


def test_a_missing_profile_is_waited_for(real, operator):
    real.apply(profileRef={"name": "nobody"})
    real.reported(Stalled="ProfileNotFound")
    real.edit(profileRef={"name": real.namespace})
    real.serve()
    real.reported(Ready="Available")


def test_pods_that_admission_forbids_say_so(real, operator):
    relaxed = {"podTemplate": {"spec": {"securityContext": {"runAsNonRoot": False, "runAsUser": 0}}}}
    real.kube.merge(PROFILES, "", real.namespace, {"spec": relaxed})
    real.apply()
    message = eventually(
        lambda: next(
            (m for c in real.service().get("status", {}).get("conditions", []) if "violates PodSecurity" in (m := c["message"])), None
        ),
        "PodSecurity named",
    )
    assert "runAsNonRoot" in message


def test_a_service_object_of_another_owner_is_left_alone(real, operator):
    ports = {"ports": [{"port": 1, "targetPort": 1, "protocol": "TCP"}]}
    before = real.kube.create(CORE_SERVICES, real.namespace, {"metadata": {"name": NAME}, "spec": ports})
    real.apply()
    real.reported(Stalled="ObjectExists")
    assert real.kube.get(CORE_SERVICES, real.namespace, NAME) == before
    real.kube.delete(CORE_SERVICES, real.namespace, NAME)
    real.serve()
    real.reported(Ready="Available")


def test_foreign_changes_are_undone(real, operator):
    real.apply()
    real.serve()
    real.reported(Ready="Available")
    (deployment,) = real.kube.list(DEPLOYMENTS, real.namespace)
    name = deployment["metadata"]["name"]
    real.kube.merge(DEPLOYMENTS, real.namespace, name, {"spec": {"replicas": 5}})
    real.kube.delete(CORE_SERVICES, real.namespace, NAME)
    real.kube.delete(CONTROLLER_REVISIONS, real.namespace, name)
    eventually(lambda: real.kube.get(CORE_SERVICES, real.namespace, NAME), "the Service comes back")
    eventually(lambda: real.kube.get(CONTROLLER_REVISIONS, real.namespace, name), "the pin comes back")
    eventually(lambda: real.kube.get(DEPLOYMENTS, real.namespace, name)["spec"]["replicas"] == 1, "replicas as the spec says")


def test_what_somebody_adds_to_a_deployment_is_removed_and_its_manager_is_named(real, operator):
    """Among it what makes server-side apply invalid: a second source of a volume, a privileged container that may not escalate."""
    real.apply()
    real.serve()
    real.reported(Ready="Available")
    (before,) = real.kube.list(DEPLOYMENTS, real.namespace)
    place = (before["metadata"]["name"], "-n", real.namespace)
    patch = json.dumps({"spec": {"template": {"spec": functools.reduce(merge, (patch for patch, _ in EDITS.values()), {})}}})
    real.cluster.kubectl("patch", "deployment", *place, "-p", patch, "--field-manager=vandal")

    def spec():
        return (real.kube.get(DEPLOYMENTS, real.namespace, place[0]) or {})["spec"]

    eventually(lambda: spec() == before["spec"], "the template as it was rendered")
    told = eventually(lambda: [event for event in real.kube.list(EVENTS, real.namespace) if event["reason"] == "EditUndone"], "an Event")
    assert "field manager 'vandal' had changed spec.template.spec." in told[0]["note"]
    assert told[0]["type"] == "Warning"
    real.cluster.kubectl("scale", "deployment", *place, "--replicas=5")
    eventually(lambda: spec() == before["spec"], "replicas as the service says")
    real.edit(replicas=2)
    eventually(lambda: spec()["replicas"] == 2, "the service is obeyed")
    real.serve(2)
    assert real.reported(Ready="Available", Reconciling="Settled")["Stalled"]["status"] == "False"


def test_what_somebody_adds_to_other_children_is_removed(real, operator):
    real.apply()
    real.serve()
    real.reported(Ready="Available")
    for resource, patch in (
        (CORE_SERVICES, {"spec": {"type": "NodePort", "externalIPs": ["192.0.2.1"]}}),
        (DISRUPTION_BUDGETS, {"spec": {"selector": {"matchLabels": {"another": "label"}}}}),
    ):
        before = real.kube.get(resource, real.namespace, NAME)["spec"]
        real.kube.merge(resource, real.namespace, NAME, patch)
        eventually(lambda: real.kube.get(resource, real.namespace, NAME)["spec"] == before, f"{resource.kind} as it was")  # noqa: B023


def test_at_rest_the_operator_writes_nothing_however_often_it_looks(real, operator):
    real.apply(replicas=2)
    real.serve(2)
    real.reported(Ready="Available", Reconciling="Settled")
    eventually(lambda: "Available" in reported_by_events(real), "its last write, the Event of that word")
    eventually(lambda: used(real) == (1, "True", "Accepted"), "its profile says what it offers, and for how many")
    written = real.cluster.audit(user=USER)
    assert {event["verb"] for event in written} >= {"create", "patch"}, "the audit log shows no writes at all: it counts nothing"
    since, runs = time.time(), operator.counted(RUNS)
    eventually(lambda: operator.counted(RUNS) > runs + 30, "fifteen resyncs, of the service and of the default profile")
    assert [(event["verb"], event["objectRef"]) for event in real.cluster.audit(user=USER, since=since)] == []


def used(real):
    status = (real.kube.get(PROFILES, "", real.namespace) or {}).get("status", {})
    (ready,) = [one for one in status.get("conditions", ()) if one["type"] == "Ready"] or [{"status": "", "reason": ""}]
    return status.get("services"), ready["status"], ready["reason"]


def reported_by_events(real):
    return [event["reason"] for event in real.kube.list(EVENTS, real.namespace)]


def place(event):
    """Namespace and kind that a request was about; discovery is about none."""
    about = event.get("objectRef", {})
    return about.get("namespace"), about.get("resource")


def test_one_start_costs_few_writes(real, operator):
    since = time.time()
    real.apply()
    real.serve()
    real.reported(Ready="Available", Reconciling="Settled")
    mine = [e for e in real.cluster.audit(user=USER, since=since) if place(e)[0] == real.namespace]
    reported = [event for event in mine if event["objectRef"]["resource"] == "events"]
    children = [event for event in mine if event["objectRef"]["resource"] not in (SERVICES.plural, "events")]
    assert sorted((event["verb"], event["objectRef"]["resource"]) for event in children) == [
        ("create", "configmaps"),
        ("create", "controllerrevisions"),
        ("create", "deployments"),
        ("create", "poddisruptionbudgets"),
        ("create", "services"),
    ]
    assert len(reported) <= 5  # one per reason
    assert len(mine) - len(children) - len(reported) <= 5  # status: first word, pods made, scheduled, running, available


def test_delete_leaves_nothing(real, operator):
    real.apply()
    real.serve()
    real.reported(Ready="Available")
    real.kube.delete(SERVICES, real.namespace, NAME)
    eventually(lambda: not real.end_pods() and not real.children() and not real.pods(), "all children collected")


def test_a_service_deleted_without_its_children_goes_and_leaves_them_serving(real, operator):
    real.apply()
    real.serve()
    real.reported(Ready="Available")
    kept = real.children()
    real.cluster.kubectl("delete", "inferenceservice", NAME, "--namespace", real.namespace, "--cascade=orphan", "--wait=false")
    eventually(lambda: real.kube.get(SERVICES, real.namespace, NAME) is None, "the service gone")
    listed = [(resource, item) for resource in CHILD_RESOURCES for item in real.kube.list(resource, real.namespace)]
    left = {f"{resource.kind} {item['metadata']['name']}": item for resource, item in listed}
    deletes = [(event["user"]["username"], event.get("objectRef", {})) for event in real.cluster.audit(verbs=["delete"])]
    gone = [(user, ref["resource"], ref["name"]) for user, ref in deletes if ref.get("namespace") == real.namespace]
    assert [entry for entry in gone if entry[0] == USER] == []
    assert left.keys() >= set(kept), f"deleted in this namespace, and by whom: {gone}"
    assert [name for name in kept if "ownerReferences" in left[name]["metadata"]] == []
    assert [pod for pod in real.pods() if "deletionTimestamp" in pod["metadata"]] == []
    real.kube.delete(DEPLOYMENTS, real.namespace, real.kube.list(DEPLOYMENTS, real.namespace)[0]["metadata"]["name"])


def test_a_service_made_anew_under_its_old_name_starts_clean(real, operator):
    real.apply()
    real.serve()
    real.reported(Ready="Available")
    real.kube.delete(SERVICES, real.namespace, NAME)
    made = real.apply()
    eventually(real.end_pods, "the old pod goes")
    eventually(lambda: len(real.children()) == 5, "five children again")
    real.serve()
    real.reported(Ready="Available")
    (deployment,) = real.kube.list(DEPLOYMENTS, real.namespace)
    assert deployment["metadata"]["ownerReferences"][0]["uid"] == made["metadata"]["uid"]
