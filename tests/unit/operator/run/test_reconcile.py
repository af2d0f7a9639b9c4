"""Errors become conditions, and what somebody undoes is not fought over."""

import asyncio
import copy
from datetime import timedelta

import pytest
from pagoda_contracts.names import LABEL_CLASS
from pagoda_contracts.resources.profile import ServingProfileSpec
from pagoda_operator.api.callers import Callers
from pagoda_operator.api.errors import Denied, Refused
from pagoda_operator.api.state import CORE_SERVICES, DEPLOYMENTS, EVENTS, NETWORK_POLICIES, PODS, PROFILES, SERVICES, Key
from pagoda_operator.decide.render.overlay import merge
from pagoda_operator.run.apply import UNDONE_DELAYS, Repeats
from pagoda_operator.run.queue import Outcome
from pagoda_operator.run.reconcile import Reconciler
from pagoda_operator.run.settings import Settings
from support.clients.hand_edits import EDITS
from support.harness.fake_daemons import FakeDaemons
from support.harness.harness import Harness, now
from support.harness.stubs import dependencies_with
from support.kube.fake_api import FakeApi, profile_body


def test_a_deleted_or_terminating_service_is_not_changed():
    harness = Harness()
    harness.settle()
    written = len(harness.api.journal)
    harness.api.of(SERVICES)[0]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert harness.run() == Outcome(gone=True)
    harness.api.objects.pop(("InferenceService", "ns", "tiny"))
    assert harness.run() == Outcome(gone=True)
    assert len(harness.api.journal) == written


def test_a_refused_child_stalls_with_the_servers_message():
    harness = Harness()
    harness.api.refuse["Deployment"] = Refused("422: spec.nodeSelektor: unknown field")
    harness.run()
    harness.run()
    line = harness.conditions()["Stalled"]
    assert (line["status"], line["reason"]) == ("True", "InvalidSpec")
    assert "nodeSelektor" in line["message"]


def test_a_denied_child_is_reported_and_retried():
    harness = Harness()
    harness.api.refuse["Deployment"] = Denied("403: exceeded quota")
    harness.run()
    with pytest.raises(Denied):
        harness.run()
    line = harness.conditions()["Reconciling"]
    assert (line["status"], line["reason"]) == ("True", "Forbidden")
    assert "exceeded quota" in line["message"]


@pytest.mark.parametrize("how", ["a foreign object", "a refusal"])
def test_what_another_object_causes_is_looked_at_again_soon_and_then_more_rarely(how):
    harness = Harness()
    if how == "a refusal":
        harness.api.refuse["Service"] = Refused("422: denied by the webhook")
    else:
        stranger = {"metadata": {"name": "tiny", "namespace": "ns"}, "spec": {}}
        harness.api.put(CORE_SERVICES, stranger)
    again = [harness.run().again for _ in range(14)]
    waits = [seconds for seconds in again if seconds]
    assert waits[:7] == [2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 60.0]
    assert harness.conditions()["Stalled"]["status"] == "True"
    harness.api.refuse.clear()
    harness.api.objects.pop(("Service", "ns", "tiny"), None)
    harness.settle()
    harness.make_ready()
    assert harness.reason() == "Available"
    harness.api.refuse["Service"] = Refused("422: denied by the webhook")
    edit(harness, lambda body: body["spec"].update(selector={}), resource=CORE_SERVICES)
    assert harness.run().again == 2.0, "another time it begins anew"


def at_rest():
    """A service that serves, and the spec of its Deployment."""
    harness = Harness()
    harness.settle()
    harness.make_ready()
    (deployment,) = harness.api.of(DEPLOYMENTS)
    return harness, copy.deepcopy(deployment["spec"])


def edit(harness, change, manager="vandal", resource=DEPLOYMENTS):
    (body,) = harness.api.of(resource)
    harness.api.edit(resource, "ns", body["metadata"]["name"], change, manager)


def notes(harness, reason):
    return [event["note"] for event in harness.api.of(EVENTS) if event["reason"] == reason]


@pytest.mark.parametrize(("patch", "path"), EDITS.values(), ids=EDITS)
def test_what_somebody_adds_by_hand_is_removed_and_its_manager_is_named(patch, path):
    harness, asked = at_rest()
    edit(harness, lambda body: body["spec"]["template"].update(spec=merge(body["spec"]["template"]["spec"], patch)))
    assert harness.api.of(DEPLOYMENTS)[0]["spec"] != asked
    harness.settle()
    (deployment,) = harness.api.of(DEPLOYMENTS)
    assert deployment["spec"] == asked
    (note,) = notes(harness, "EditUndone")
    assert "field manager 'vandal'" in note
    assert path in note
    assert harness.reason() == "Available"
    written = len(harness.api.journal)
    harness.settle()
    assert len(harness.api.journal) == written


def test_an_edit_is_undone_in_the_write_that_scales_and_other_managers_keep_what_is_theirs():
    harness, asked = at_rest()
    edit(harness, lambda body: body["spec"]["template"]["spec"].update(hostNetwork=True))
    edit(harness, lambda body: body["metadata"].update(annotations=body["metadata"]["annotations"] | {"team": "a"}), "team")
    harness.edit(replicas=2)
    before = len(harness.api.journal)
    harness.run()
    (deployment,) = harness.api.of(DEPLOYMENTS)
    assert [entry[:2] for entry in harness.api.journal[before:]] == [("patch", "Deployment"), ("status", "InferenceService")]
    assert deployment["spec"] == asked | {"replicas": 2}
    assert deployment["metadata"]["annotations"]["team"] == "a"


def test_a_restart_by_kubectl_stays():
    harness, _ = at_rest()
    restarted = {"kubectl.kubernetes.io/restartedAt": "2026-01-01T00:00:00Z"}
    edit(harness, lambda body: body["spec"]["template"]["metadata"].update(annotations=restarted), "kubectl-rollout")
    assert harness.plan().writes == ()


@pytest.mark.parametrize(("manager", "who"), [("kubectl-scale", "field manager 'kubectl-scale'"), ("", "another client")])
def test_a_number_of_replicas_set_by_hand_is_undone_and_told(manager, who):
    harness, asked = at_rest()
    edit(harness, lambda body: body["spec"].update(replicas=5), manager)
    harness.settle()
    assert harness.api.of(DEPLOYMENTS)[0]["spec"] == asked
    (note,) = notes(harness, "EditUndone")
    assert f"{who} had changed spec.replicas" in note


def test_an_own_change_of_a_child_is_no_edit_by_hand():
    harness, _ = at_rest()
    harness.edit(replicas=3)
    harness.settle()
    harness.edit(engine={"maxModelLen": 128})
    harness.settle()
    harness.make_ready()
    assert notes(harness, "EditUndone") == []


def test_a_services_own_type_is_restored():
    harness, _ = at_rest()
    edit(harness, lambda body: body["spec"].update(type="LoadBalancer"), resource=CORE_SERVICES)
    harness.settle()
    assert "type" not in harness.api.of(CORE_SERVICES)[0]["spec"]


def test_a_write_that_was_undone_twice_is_made_more_rarely_and_told():
    harness, asked = at_rest()
    began, times = harness.later, []
    for _ in range(120):
        edit(harness, lambda body: body["spec"].update(replicas=9))
        before = len(harness.api.journal)
        harness.run()
        if ("apply", "Deployment") in [entry[:2] for entry in harness.api.journal[before:]]:
            times.append((harness.later - began).total_seconds())
        harness.later += timedelta(seconds=0.5)
    assert times == [0.0, 0.5, 1.5, 3.5, 8.5, 18.5, 48.5]
    assert "field manager 'vandal' changes spec.replicas each time" in notes(harness, "WriteContested")[0]
    harness.edit(replicas=2)
    harness.settle()
    assert harness.api.of(DEPLOYMENTS)[0]["spec"] == asked | {"replicas": 2}, "another number is written at once"


def test_a_write_that_waits_is_due_by_itself():
    harness, _ = at_rest()
    for _ in range(3):
        edit(harness, lambda body: body["spec"].update(replicas=9))
        again = harness.run().again
    assert again == UNDONE_DELAYS[1]


def test_a_child_that_loses_its_owner_in_the_midst_of_a_fight_gets_it_back_at_once():
    harness, _ = at_rest()
    for _ in range(len(UNDONE_DELAYS)):
        edit(harness, lambda body: body["spec"].update(replicas=9))
        harness.run()
    assert harness.api.of(DEPLOYMENTS)[0]["spec"]["replicas"] == 9, "the fight is slow by now"
    edit(harness, lambda body: body["metadata"].pop("ownerReferences"))
    harness.run()
    harness.run()  # who adopts reads again first
    assert harness.api.of(DEPLOYMENTS)[0]["metadata"]["ownerReferences"]


def test_repeats_are_forgotten_after_a_quiet_time_and_a_clock_that_was_set_back_does_not_hold_them():
    repeats, key = Repeats(), Key("ns", "a")
    for moment in (100.0, 100.0, 200.0):
        assert repeats.may(key, "Service a", "x", moment)
        repeats.wrote(key, "Service a", "x", moment)
    assert not repeats.may(key, "Service a", "x", 0.0)
    assert repeats.again(key, 0.0) == UNDONE_DELAYS[2]
    assert repeats.may(key, "Service a", "y", 200.0)
    assert repeats.wrote(key, "Service a", "x", 900.0) == 1


def test_two_operators_that_want_something_else_do_not_fight_over_each_object():
    """Two installs that both act: gateways of different namespaces."""
    harness = Harness()
    others = [
        Settings(callers=Callers(gateway=f"{name}/gateway", operator=f"{name}/operator"), url=f"http://{name}") for name in ("one", "two")
    ]
    operators = [Reconciler(harness.api, settings, lambda: now() + harness.later, dependencies_with(harness.api)) for settings in others]

    async def turn():
        for operator in operators:
            await operator.reconcile(Key("ns", "tiny"))
            await operator._dependencies.events.write_pending()

    for _ in range(100):
        asyncio.run(turn())
        harness.api.control()
        harness.later += timedelta(seconds=1)
    written = [(verb, kind) for verb, kind, _ in harness.api.journal]
    assert written.count(("apply", NETWORK_POLICIES.kind)) <= 14
    assert written.count(("status", SERVICES.kind)) <= 24
    assert "another Pagoda operator changes it each time" in notes(harness, "WriteContested")[0]


def test_an_edited_default_profile_is_restored():
    api = FakeApi()
    spec = ServingProfileSpec.model_validate({"images": {"daemon": "img:1"}, "allow": ["metadata.labels"]})
    operator = Reconciler(api, Settings(default_profile=spec), now, dependencies_with(api))
    for _ in range(3):
        asyncio.run(operator.reconcile(Key("", "default")))
    assert api.journal == [("apply", "ServingProfile", "default")]
    api.edit(PROFILES, "", "default", lambda body: body["spec"]["images"].update(daemon="img:2"))
    asyncio.run(operator.reconcile(Key("", "default")))
    assert api.of(PROFILES)[0]["spec"]["images"] == {"daemon": "img:1"}


def test_an_install_with_a_class_keeps_a_profile_of_that_name_and_not_the_default_one():
    api = FakeApi()
    spec = ServingProfileSpec.model_validate({"images": {"daemon": "img:1"}})
    operator = Reconciler(api, Settings(default_profile=spec, service_class="blue"), now, dependencies_with(api))
    assert asyncio.run(operator.reconcile(Key("", "default"))) == Outcome(gone=True)
    asyncio.run(operator.reconcile(Key("", "blue")))
    assert api.journal == [("apply", "ServingProfile", "blue")]
    assert api.of(PROFILES)[0]["metadata"]["labels"][LABEL_CLASS] == "blue", "so that its status is written by this install"


def test_without_a_configured_default_profile_none_is_written():
    api = FakeApi()
    api.put(PROFILES, profile_body())
    operator = Reconciler(api, Settings(), now, dependencies_with(api))
    assert asyncio.run(operator.reconcile(Key("", "default"))) == Outcome()
    assert asyncio.run(operator.reconcile(Key("", "h100"))) == Outcome(gone=True)
    assert api.journal == []


def serving(replicas):
    """That many replicas serve; their daemons."""
    harness = Harness(replicas=replicas)
    harness.daemons = daemons = FakeDaemons(harness.api)
    harness.restart()
    harness.settle()
    daemons.probe()
    harness.settle()
    return harness, daemons


def test_a_drained_replica_is_removed_in_three_runs():
    """Marked; told and, since its answer says so, made the cheapest; one less is asked for: each is seen before the next is begun."""
    harness, daemons = serving(2)
    harness.edit(replicas=1)
    written = len(harness.api.journal)
    steps = []
    for _ in range(3):
        harness.run()
        steps.append([entry[:2] for entry in harness.api.journal[written:] if entry[1] != "InferenceService"])
        written = len(harness.api.journal)
    assert steps == [[("annotate", "Pod")], [("annotate", "Pod")], [("apply", "Deployment")]]
    assert [word for _, word in daemons.reported] == ["drain"]


def test_a_draining_replica_with_requests_only_gets_the_order_again():
    harness, daemons = serving(2)
    for pod in harness.api.of(PODS):
        daemons.of(pod).in_flight = 1
    harness.edit(replicas=1)
    written = len(harness.api.journal)
    for _ in range(4):
        harness.run()
    assert [entry[:2] for entry in harness.api.journal[written:] if entry[1] != "InferenceService"] == [("annotate", "Pod")]
    assert len(daemons.reported) >= 2
