"""Tools that wait: in every state that a service can be in, kstatus says what is true of it."""

import re

import pytest
from pagoda_contracts.conditions.service import NOT_STALLED, SETTLED
from pagoda_contracts.conditions.table import reasons
from pagoda_contracts.conditions.types import DEGRADED, SERVICE, SERVING
from pagoda_contracts.resources.service import InferenceServiceStatus
from pagoda_operator.api.state import PODS, SERVICES
from support.harness.harness import Harness
from support.harness.status_states import STATES
from support.judges.history import Version, violations
from support.judges.kstatus import kstatus
from support.kube.fake_api import copied, crashed, running


@pytest.mark.parametrize("name", STATES)
def test_every_state_is_read_as_what_it_is(name):
    state = STATES[name]
    body = state.body()
    reported = {line["reason"] for line in body["status"]["conditions"] if line["type"] == "Ready"}
    assert (reported, kstatus(body)) == ({state.reason}, state.verdict)
    assert violations([Version(body)]) == []
    assert all(re.fullmatch("[A-Z][A-Za-z]+", line["reason"]) for line in body["status"]["conditions"])
    assert InferenceServiceStatus.model_validate(body["status"]).wire() == body["status"]


def test_every_reason_is_shown_by_a_state_and_stands_under_the_condition_that_a_person_reads():
    spoken = {(loudest(state.body()), state.reason) for state in STATES.values()}
    quiet = {(reason.condition.name, reason.name) for reason in (SETTLED, NOT_STALLED)}
    apart = (SERVING, DEGRADED)
    ours = {(reason.condition.name, reason.name) for reason in reasons() if reason.kind == SERVICE and reason.condition not in apart}
    assert ours - quiet == spoken


def test_every_reason_of_serving_is_shown_by_a_state():
    shown = {line["reason"] for state in STATES.values() for line in state.body()["status"]["conditions"] if line["type"] == SERVING.name}
    assert shown == {reason.name for reason in reasons() if reason.condition == SERVING}


def loudest(body):
    """The condition that a person looks for: a bad one where one is true."""
    held = {line["type"] for line in body["status"]["conditions"] if line["status"] == "True"}
    return next((kind for kind in ("Stalled", "Reconciling") if kind in held), "Ready")


def test_an_edited_service_is_reconciling_before_the_operator_has_seen_it():
    body = STATES["serving"].body()
    body["metadata"]["generation"] += 1
    assert kstatus(body) == "InProgress"


def test_a_deleted_service_is_terminating_whatever_its_status_says():
    body = STATES["serving"].body()
    body["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert kstatus(body) == "Terminating"


class Recorded(Harness):
    """Keeps every version of the service."""

    def __init__(self, **spec):
        self.versions, self.changes = [], 0
        super().__init__(**spec)
        touch = self.api._touch

        def touched(live):
            touch(live)
            if live["kind"] == SERVICES.kind:
                self.versions.append(Version(copied(live), self.changes))

        self.api._touch = touched

    def fate(self, status):
        self.changes += 1
        self.api.of(PODS)[-1]["status"] = copied(status)
        self.settle()


def test_through_start_crash_recovery_rollout_and_scale_the_status_stays_honest():
    harness = Recorded(replicas=2)
    harness.settle()
    for status in (running(), running(ready=True), crashed(code=1), running(ready=True)):
        harness.fate(status)
    harness.make_ready()
    for change in ({"engine": {"maxModelLen": 128}}, {"replicas": 3}, {"replicas": 0}, {"profileRef": {"name": "nobody"}}):
        harness.changes += 1
        harness.edit(**change)
        harness.settle()
        harness.make_ready()
    assert len(harness.versions) > 15
    assert violations(harness.versions) == []


@pytest.mark.parametrize(
    ("spoil", "reported"),
    [
        (lambda status: status.update(readyReplicas=0), "Ready with 0 of 1"),
        (lambda status: status.pop("observedGeneration"), "observedGeneration None"),
        (lambda status: status["conditions"].pop(), "conditions"),
        (lambda status: status["conditions"][2].update(status="True"), "all True"),
        (lambda status: status["conditions"][0].update(status="False"), "neither ready nor"),
        (lambda status: status["conditions"][0].update(observedGeneration=7), "another generation"),
    ],
)
def test_a_dishonest_version_is_found(spoil, reported):
    body = STATES["serving"].body()
    spoil(body["status"])
    (fault, *_) = violations([Version(body)])
    assert reported in fault


def test_flips_and_times_and_generations_are_judged_over_the_history():
    versions = [copied(STATES["serving"].body()) for _ in range(5)]
    for number, body in enumerate(versions):
        body["status"]["conditions"][0].update(status="True" if number % 2 == 0 else "Unknown", lastTransitionTime=str(number))
        body["status"]["conditions"][1].update(status="False" if number % 2 == 0 else "True", lastTransitionTime="0")
    together = violations([Version(body, 1) for body in versions])
    assert together == ["change 1: Ready flipped True → Unknown → True → Unknown → True"] + [
        fault for fault in together if "Reconciling flipped" in fault
    ]
    assert violations([Version(body, number) for number, body in enumerate(versions)]) == []
    versions[1]["status"]["conditions"][0].update(status="True")
    versions[1]["status"]["conditions"][1].update(status="False")
    assert "lastTransitionTime moved" in violations([Version(body, number) for number, body in enumerate(versions)])[0]
