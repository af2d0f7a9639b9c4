"""Errors become conditions, and what somebody undoes is not fought over."""

import asyncio

import pytest
from pagoda_contracts.resources.profile import ServingProfileSpec
from pagoda_operator.api.errors import Denied, Refused, Unconverged
from pagoda_operator.api.state import DEPLOYMENTS, PODS, PROFILES, SERVICES, Key
from pagoda_operator.run.apply import DEFAULT_KEY
from pagoda_operator.run.queue import Outcome
from pagoda_operator.run.reconcile import Reconciler
from pagoda_operator.run.settings import Settings
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


def test_a_write_that_is_always_undone_backs_off():
    harness = Harness()
    harness.settle()
    written = []

    def undo(verb, kind, name):
        written.append((verb, kind))

    harness.api.before_write = undo

    def fight():
        for _ in range(20):
            harness.api.edit(DEPLOYMENTS, "ns", harness.names(DEPLOYMENTS)[0], lambda body: body["spec"].update(replicas=9))
            harness.run()

    with pytest.raises(Unconverged, match="Apply Deployment"):
        fight()
    assert len(written) == 5


def test_an_edited_default_profile_is_restored():
    api = FakeApi()
    spec = ServingProfileSpec.model_validate({"images": {"daemon": "img:1"}, "allow": ["metadata.labels"]})
    operator = Reconciler(api, Settings(default_profile=spec), now, dependencies_with(api))
    for _ in range(3):
        asyncio.run(operator.reconcile(DEFAULT_KEY))
    assert api.journal == [("apply", "ServingProfile", "default")]
    api.edit(PROFILES, "", "default", lambda body: body["spec"]["images"].update(daemon="img:2"))
    asyncio.run(operator.reconcile(DEFAULT_KEY))
    assert api.of(PROFILES)[0]["spec"]["images"] == {"daemon": "img:1"}


def test_without_a_configured_default_profile_none_is_written():
    api = FakeApi()
    api.put(PROFILES, profile_body())
    operator = Reconciler(api, Settings(), now, dependencies_with(api))
    assert asyncio.run(operator.reconcile(DEFAULT_KEY)) == Outcome()
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
