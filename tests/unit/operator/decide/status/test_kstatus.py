"""Tools that wait: in every state that a service can be in, kstatus says what is true of it."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from pagoda_contracts.resources.service import InferenceServiceStatus
from pagoda_operator.sickness import Sickness
from pagoda_operator.state import PODS, SERVICES
from pagoda_operator.status_health import HELD, WELL
from support.judges.history import Version, violations
from support.judges.kstatus import kstatus
from support.judges.reasons import reasons, reasons_in
from support.kube.fake_api import copied, crashed, running
from support.worlds.status_states import STATES
from support.worlds.world import World

README = Path(__file__).parents[5] / "operator/README.md"


@pytest.mark.parametrize("name", STATES)
def test_every_state_is_read_as_what_it_is(name):
    state = STATES[name]
    body = state.body()
    reasons = {line["reason"] for line in body["status"]["conditions"] if line["type"] == "Ready"}
    assert (reasons, kstatus(body)) == ({state.reason}, state.verdict)
    assert violations([Version(body)]) == []
    assert all(re.fullmatch("[A-Z][A-Za-z]+", line["reason"]) for line in body["status"]["conditions"])
    assert InferenceServiceStatus.model_validate(body["status"]).wire() == body["status"]


def test_every_reason_that_the_code_can_write_is_in_the_table():
    assert {state.reason for state in STATES.values()} == reasons()


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ('SpecProblem("NewFault", why)', {"NewFault"}),
        ("SpecProblem(NEW, why)", {"Constant"}),
        ('Held(reason="NewFault", message=why)', {"NewFault"}),
        ('Verdict("settled", "One" if pods else elsewhere.NEW, "")', {"One", "Constant"}),
        ('return ("NewStage", "said") if pods else None', {"NewStage"}),
        ('return told[0] if told else ("Other", "said")', {"Other"}),
        ('Verdict("stalled", problem.reason, "")', set()),
    ],
)
def test_a_new_reason_is_found_however_it_is_written(line, found):
    names = {"NEW": "Constant", "elsewhere": SimpleNamespace(NEW="Constant")}
    assert set(reasons_in(f"def f(pods) -> tuple[str, str] | None:\n    {line}\n", names, pairs=True)) == found


def test_a_reason_that_cannot_be_told_is_not_passed_over():
    with pytest.raises(ValueError, match="line 2"):
        set(reasons_in('def f():\n    Held(f"No{what}", "")\n', {}, pairs=False))


def test_every_reason_is_written_down_under_its_condition():
    """And nothing else is."""
    told = README.read_text().partition("**Conditions.**")[2].partition("\n\n")[0]
    parts = re.split(r"(Reconciling|Stalled|Ready|Degraded)[:( ]", told)[1:]
    named = {
        kind: {word for group in re.findall(r"`([^`]+)`", text) for word in group.split()}
        for kind, text in zip(parts[::2], parts[1::2], strict=True)
    }
    spoken = {kind: set() for kind in ("Ready", "Reconciling", "Stalled")}
    for state in STATES.values():
        spoken[loudest(state.body())].add(state.reason)
    assert named == spoken | {"Degraded": {*Sickness, HELD, WELL}}


def loudest(body):
    """The condition that a person looks for: a bad one where one is true."""
    held = {line["type"] for line in body["status"]["conditions"] if line["status"] == "True"}
    return next((kind for kind in ("Stalled", "Reconciling") if kind in held), "Ready")


def test_an_edited_service_is_under_way_before_the_operator_has_looked():
    body = STATES["serving"].body()
    body["metadata"]["generation"] += 1
    assert kstatus(body) == "InProgress"


def test_a_deleted_service_is_terminating_whatever_its_status_says():
    body = STATES["serving"].body()
    body["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert kstatus(body) == "Terminating"


class Recorded(World):
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
    world = Recorded(replicas=2)
    world.settle()
    for status in (running(), running(ready=True), crashed(code=1), running(ready=True)):
        world.fate(status)
    world.make_ready()
    for change in ({"engine": {"maxModelLen": 128}}, {"replicas": 3}, {"replicas": 0}, {"profileRef": {"name": "nobody"}}):
        world.changes += 1
        world.edit(**change)
        world.settle()
        world.make_ready()
    assert len(world.versions) > 15
    assert violations(world.versions) == []


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda status: status.update(readyReplicas=0), "Ready with 0 of 1"),
        (lambda status: status.pop("observedGeneration"), "observedGeneration None"),
        (lambda status: status["conditions"].pop(), "conditions"),
        (lambda status: status["conditions"][2].update(status="True"), "all True"),
        (lambda status: status["conditions"][0].update(status="False"), "neither ready nor"),
        (lambda status: status["conditions"][0].update(observedGeneration=7), "another generation"),
    ],
)
def test_a_dishonest_version_is_found(spoil, told):
    body = STATES["serving"].body()
    spoil(body["status"])
    (fault, *_) = violations([Version(body)])
    assert told in fault


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
