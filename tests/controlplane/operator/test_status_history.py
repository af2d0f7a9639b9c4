"""Every version of a status that the API server showed was honest: through start, scaling, rollout, a bad image, and recovery."""

import pytest
from pagoda_contracts.names import API_VERSION
from pagoda_operator.api.state import EVENTS, PODS, SERVICES
from support.judges.deletes import unplanned
from support.judges.history import Recorder, violations
from support.judges.status_truth import unfounded
from support.kube import recorded
from support.kube.client import Body, eventually
from support.kube.fake_api import crashed, running, waiting
from support.kube.namespace import NAME
from support.kube.operator_process import USER

pytestmark = pytest.mark.cluster


@pytest.fixture
def history(real):
    """Judged by its own words in the test, and by the pods in the end."""
    with recorded.Recorder(real.kube, real.namespace, (SERVICES, PODS)) as record:
        recorder = Recorder(real.kube, SERVICES, real.namespace, NAME)
        yield recorder
        recorder.stop()
    assert [*unfounded(record.ordered()), *unplanned(record.ordered())] == []


def serve_new(real, count: int, status: Body) -> None:
    """The pods that are not up yet get this status."""
    for pod in real.node.placed(real.namespace, count):
        if pod["status"]["phase"] == "Pending":
            real.node.report(pod, status)


def test_every_status_is_honest_through_start_scale_rollout_a_bad_image_and_recovery(real, operator, history):
    history.change("applied")
    real.apply()
    serve_new(real, 1, running())
    real.reported(Reconciling="LoadingModel")
    real.serve()
    real.reported(Ready="Available", Reconciling="Settled")
    history.change("scaled up")
    real.edit(replicas=3)
    serve_new(real, 3, running(ready=True))
    real.reported(Ready="Available", Reconciling="Settled")
    history.change("a bad image")
    real.edit(engine={"maxModelLen": 128})
    serve_new(real, 6, waiting("ErrImagePull", "not found"))
    reported = real.reported(Reconciling="ImagePull")
    assert reported["Ready"]["message"].endswith("3 ready replicas of an older revision continue to serve")
    history.change("mended")
    serve_new(real, 6, running(ready=True))
    eventually(lambda: not real.end_pods() and len(real.pods()) == 3, "the old pods go")
    real.reported(Ready="Available", Reconciling="Settled")
    history.change("a crash")
    real.node.report(real.pods()[0], crashed(code=1, message="boom"))
    real.reported(Reconciling="CrashLooping")
    history.change("recovered")
    real.node.report(real.pods()[0], running(ready=True))
    real.serve(3)
    real.reported(Ready="Available", Reconciling="Settled")
    history.change("scaled to zero")
    real.edit(replicas=0)
    eventually(lambda: not real.end_pods() and not real.pods(), "all pods go")
    real.reported(Ready="ScaledToZero", Reconciling="Settled")
    versions = history.stop()
    assert len([version for version in versions if version.status]) >= 10
    assert violations(versions) == []


def test_each_change_has_one_event_and_rest_has_none(real, operator):
    real.apply()
    real.serve()
    real.reported(Ready="Available", Reconciling="Settled")
    reported = eventually(lambda: [e for e in stories(real) if e["reason"] == "Available"] and stories(real), "the last word")
    assert len({event["reason"] for event in reported}) == len(reported)
    assert {event["regarding"]["name"] for event in reported} == {NAME}
    described = real.cluster.kubectl("describe", "inferenceservice", NAME, "-n", real.namespace)
    assert "1 of 1 replicas ready" in described.partition("Events:")[2]


def stories(real):
    return [event for event in real.kube.list(EVENTS, real.namespace) if event["regarding"]["kind"] == SERVICES.kind]


def test_a_served_name_belongs_to_the_oldest_and_passes_on_when_it_goes(real, operator):
    real.apply(model={"uri": "pvc://models", "servedNames": [real.namespace]})
    real.serve()
    real.reported(Ready="Available")
    spec = real.service()["spec"]
    later = {"apiVersion": API_VERSION, "kind": SERVICES.kind, "metadata": {"name": "later", "namespace": real.namespace}, "spec": spec}
    real.kube.create(SERVICES, real.namespace, later)

    def conflict():
        lines = (real.kube.get(SERVICES, real.namespace, "later") or {}).get("status", {}).get("conditions", [])
        return next((line["message"] for line in lines if line["type"] == "Stalled" and line["reason"] == "NameConflict"), None)

    assert f"{real.namespace!r} belongs to {real.namespace}/{NAME}" in eventually(conflict, "the later one is told")
    assert not [child for child in real.children() if "later" in child]
    assert real.reported(Ready="Available")
    real.kube.delete(SERVICES, real.namespace, NAME)
    eventually(lambda: conflict() is None and [child for child in real.children() if "later" in child], "its turn")
    real.kube.delete(SERVICES, real.namespace, "later")


def test_an_older_service_does_not_take_a_served_name_that_a_younger_one_has(real, operator):
    mine, other = real.namespace, f"{real.namespace}-other"
    real.apply(model={"uri": "pvc://models", "servedNames": [mine]})
    real.serve()
    real.reported(Ready="Available")
    spec = real.service()["spec"] | {"model": {"uri": "pvc://models", "servedNames": [other]}}
    younger = {"apiVersion": API_VERSION, "kind": SERVICES.kind, "metadata": {"name": "later", "namespace": real.namespace}, "spec": spec}
    real.kube.create(SERVICES, real.namespace, younger)

    def names(service):
        return (real.kube.get(SERVICES, real.namespace, service) or {}).get("status", {}).get("servedNames")

    eventually(lambda: names("later") == [other], "it has its name")
    real.edit(model={"uri": "pvc://models", "servedNames": [mine, other]})
    assert f"{other!r} belongs to {real.namespace}/later" in real.reported(Stalled="NameConflict")["Stalled"]["message"]
    assert (names(NAME), names("later")) == ([mine], [other])
    real.kube.delete(SERVICES, real.namespace, "later")
    eventually(lambda: names(NAME) == [mine, other], "free for the next")


def test_printer_columns_show_what_an_admin_wants(real, operator):
    real.apply()
    real.serve()
    real.reported(Ready="Available", Reconciling="Settled")
    head, line = real.cluster.kubectl("get", "inferenceservices", "-n", real.namespace).splitlines()
    assert head.split() == ["NAME", "READY", "REASON", "REPLICAS", "DESIRED", "ACCELERATOR", "AGE"]
    assert line.split()[:6] == [NAME, "True", "Available", "1", "1", "cpu[0]"]


def test_nobody_but_the_operator_writes_its_events(real, operator):
    real.apply()
    real.serve()
    real.reported(Ready="Available")

    def reported():
        return [e for e in real.cluster.audit(user=USER, verbs=["create"]) if e["objectRef"]["resource"] == "events"]

    eventually(reported, "its Events in the audit log")  # each is posted after the status that it is about
    assert {event["objectRef"]["apiGroup"] for event in reported()} == {"events.k8s.io"}
