"""Scaling in the operator's runs: what is written, what outlasts a process, and when it looks again."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from pagoda_contracts.names import HISTORY_KEY
from pagoda_contracts.resources.meta import ObjectMeta
from pagoda_contracts.resources.profile import ServingProfileSpec
from pagoda_contracts.resources.service import InferenceServiceSpec
from pagoda_operator.api.pods import Pod
from pagoda_operator.api.state import CONFIG_MAPS, DEPLOYMENTS, PODS, SERVICES, Observed
from pagoda_operator.decide.scale.inputs import basis_of
from pagoda_operator.decide.scale.learned import decode
from pagoda_operator.run import scaler
from pagoda_placement.inventory import Inventory
from structlog.testing import capture_logs
from support.harness.harness import KEY, now
from support.harness.inventories import H100, TINY, gpu, inventory, node, pod, whole
from support.harness.scaled import PAGE, ScaledHarness
from support.kube.fake_api import is_ready, profile_body, running, service_body

AUTO: dict[str, Any] = {"mode": "Auto", "min": 0, "max": 8}
ENGINE = {"maxConcurrency": 16}


def harness(**scaling: Any) -> ScaledHarness:
    made = ScaledHarness(scaling=AUTO | scaling, replicas=1, engine=ENGINE)
    made.settle()
    made.serve()
    return made


def test_from_one_to_zero_to_many_and_back_without_writing_the_spec() -> None:
    here = harness(idleAfter="4m", behavior={"scaleDown": {"stabilizationWindowSeconds": 300}})
    here.flow(300)
    assert here.wanted() == 0
    assert here.reason() == "ScaledToZero"
    here.hold(2)
    assert here.wanted() == 1, "before any bin has ended"
    here.serve()
    here.gateways.held, here.gateways.rate = 0, 6.0
    here.flow(120)
    many = here.wanted()
    assert many >= 4
    here.gateways.rate = 0.4
    here.flow(150)
    assert here.wanted() == many, "within the window"
    here.flow(400)
    assert here.wanted() == 1
    reported = here.reported()
    assert reported["desired"] == 1
    assert len(reported["lastDecisions"]) == 5
    for last, after in zip(reported["lastDecisions"], reported["lastDecisions"][1:], strict=False):
        assert last["desired"] == after["from"] != after["desired"]
        assert last["time"] <= after["time"]
    assert all(decision["reason"] for decision in reported["lastDecisions"])
    assert reported["lastDecisions"][-1]["desired"] == reported["desired"], "the newest are kept"
    assert [line for line in here.writes(kind=SERVICES.kind) if line[0] != "status"] == []


@pytest.mark.parametrize("scaling", [{}, {"mode": "External"}])
def test_a_model_that_loads_for_longer_than_idle_after_keeps_its_time(scaling: dict[str, Any]) -> None:
    here = ScaledHarness(scaling=AUTO | {"idleAfter": "4m"} | scaling, replicas=1 if not scaling else 0, engine=ENGINE)
    here.settle()
    if scaling:
        here.hold(1)
        here.gateways.held = 0
    here.flow(2400, serve=False)
    assert here.wanted() == 1, "its client is gone, and it still loads"
    assert here.conditions()["Ready"]["status"] != "True"
    here.serve()
    here.flow(200)
    assert here.wanted() == 1, "time counts from the first Ready"
    here.flow(100)
    assert (here.wanted(), here.reason()) == (0, "ScaledToZero")


def test_a_new_revision_that_never_served_is_not_put_to_sleep_with_the_old_one() -> None:
    here = harness(idleAfter="4m")
    here.edit(engine={"maxConcurrency": 8})
    here.settle()
    here.flow(600, serve=False)
    assert here.wanted() == 1
    assert here.reason() != "ScaledToZero"


@pytest.mark.parametrize("newer", [False, True])
def test_a_service_that_cannot_start_gives_its_devices_back(newer: bool) -> None:
    here = harness(idleAfter="4m") if newer else ScaledHarness(scaling=AUTO | {"idleAfter": "4m"}, replicas=1, engine=ENGINE)
    if newer:
        here.edit(engine={"maxConcurrency": 8})
    here.settle()
    here.later += timedelta(seconds=3500)
    here.flow(60, serve=False)
    assert here.wanted() == 1
    here.flow(340, serve=False)
    assert all(one["spec"]["replicas"] == 0 for one in here.api.of(DEPLOYMENTS)), "an hour and idleAfter"


@pytest.mark.parametrize(("status", "generation", "awaited"), [("True", 3, False), ("True", 2, True), ("False", 3, True)])
def test_replicas_are_not_awaited_while_the_service_waits_for_a_person(status: str, generation: int, awaited: bool) -> None:
    stalled = {"type": "Stalled", "status": status, "reason": "NoNodesCame", "message": "", "observedGeneration": generation}
    said = {"conditions": [stalled | {"lastTransitionTime": "2026-01-01T00:00:00Z"}]}
    spec = InferenceServiceSpec.model_validate(service_body()["spec"])
    meta = ObjectMeta(name="tiny", namespace="ns", uid="uid-tiny", generation=3)
    assert (basis_of(Observed(meta, said, spec=spec), None).arrives_until > 0) == awaited


def test_replicas_are_awaited_for_the_time_that_the_profile_allows_a_start() -> None:
    spec = InferenceServiceSpec.model_validate(service_body()["spec"])
    profile = ServingProfileSpec.model_validate(profile_body(nodeDeadline="3h")["spec"])
    observed = Observed(ObjectMeta(name="tiny"), {}, spec=spec, profile=profile, pods=(Pod("tiny-1", "r1", "cpu", created=1000.0),))
    assert basis_of(observed, None).arrives_until == 1000.0 + 3 * 3600


def test_a_replica_that_served_and_is_not_ready_for_a_while_is_not_awaited_again() -> None:
    here = harness(idleAfter="4m")
    here.flow(200)
    for one in here.api.of(PODS):
        here.api.report(one, running(ready=False))
    here.settle()
    here.flow(20, serve=False)
    here.serve()
    here.flow(60)
    assert here.wanted() == 0


def test_a_first_decision_that_agrees_with_the_spec_is_no_change() -> None:
    here = harness(min=1)
    assert here.reported() == {
        "desired": 1,
        "reason": "No recent metrics from the gateway; keeping the current replica count.",
        "lastDecisions": [],
    }
    here.restart()
    before = len(here.api.journal)
    here.settle()
    assert len(here.api.journal) == before


def test_a_restarted_operator_removes_nothing_for_a_window() -> None:
    here = harness(min=1)
    here.gateways.rate = 6.0
    here.flow(200)
    many = here.wanted()
    assert many >= 4
    here.restart()
    here.settle()
    assert here.wanted() == many
    here.flow(290)
    assert here.wanted() == many
    here.flow(60)
    assert here.wanted() == 1


def test_steady_load_costs_at_most_a_status_a_minute_and_rest_costs_nothing() -> None:
    here = harness(min=2)
    here.flow(600)
    before = len(here.api.journal)
    here.flow(3600)
    for _ in range(12):
        here.run()
    assert len(here.api.journal) == before, "at rest"
    here.gateways.rate = 3.0
    here.flow(900)
    before = len(here.writes("status"))
    for minute in range(30):
        here.gateways.rate = 3.0 + 0.4 * (minute % 2)
        here.flow(60)
        here.run()
    assert len(here.writes("status")) - before <= 30


@pytest.mark.parametrize("short", [True, False])
def test_an_idle_service_is_decided_once_a_minute_and_learns_the_same(short: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    here, looks = harness(min=1), []
    here.short = short
    decided = scaler.decide
    monkeypatch.setattr(scaler, "decide", lambda *reported: looks.append(reported) or decided(*reported))
    here.flow(900)
    looks.clear()
    here.flow(600)
    assert len(looks) <= (10 if short else 120)
    assert len(looks) >= (9 if short else 120)
    learned = here.scaler._kept[KEY].memory.learned
    assert (learned.open.count, learned.open.total, learned.days[20454][0]) == (121, 0.0, 0.0)
    here.gateways.rate = 6.0
    here.flow(20)
    assert here.wanted() >= 2
    assert here.scaler._kept[KEY].memory.learned.open.total > 0


def test_at_rest_only_the_resync_runs() -> None:
    here = harness(min=1)
    here.flow(900)
    assert here.run().again is None
    sleeping = harness(idleAfter="4m")
    sleeping.flow(60)
    assert (sleeping.run().again or 0) == pytest.approx(180.0, abs=6.0), "the idle timer"
    sleeping.flow(600)
    assert sleeping.run().again is None


def test_a_schedule_begins_in_time() -> None:
    here = harness(min=1, schedules=[{"name": "noon", "start": "2 0 1 1 *", "duration": "10m", "min": 3}])
    assert here.wanted() == 1
    assert (here.run().again or 0) == pytest.approx(120.0, abs=1.0)
    here.later += timedelta(seconds=120)
    here.settle()
    assert here.wanted() == 3
    assert here.reported()["reason"] == "No recent metrics from the gateway; min of schedule noon is 3."


def test_a_bad_schedule_stalls_and_touches_no_child() -> None:
    here = harness(min=1)
    before = len(here.writes(kind=DEPLOYMENTS.kind))
    here.edit(scaling=AUTO | {"schedules": [{"name": "x", "start": "99 0 * * *", "duration": "1h", "min": 3}]})
    here.settle()
    assert here.conditions()["Stalled"]["reason"] == "InvalidSpec"
    assert "scaling.schedules[0].start: '99 0 * * *'" in here.conditions()["Stalled"]["message"]
    assert len(here.writes(kind=DEPLOYMENTS.kind)) == before


def test_external_and_manual_do_what_spec_says() -> None:
    for mode in ("External", "Manual"):
        here = ScaledHarness(scaling={"mode": mode}, replicas=3, engine=ENGINE)
        here.settle()
        here.gateways.rate = 40.0
        here.flow(300)
        assert here.wanted() == 3
        here.edit(replicas=5)
        here.settle()
        assert here.wanted() == 5
        assert here.reported() == {"desired": 5, "lastDecisions": []}


def test_external_at_zero_serves_a_held_request_and_goes_back_to_zero() -> None:
    here = ScaledHarness(scaling={"mode": "External", "min": 0, "idleAfter": "2m"}, replicas=0, engine=ENGINE)
    here.settle()
    here.flow(60)
    assert here.wanted() == 0
    here.hold(1)
    assert here.wanted() == 1
    here.serve()
    here.gateways.held, here.gateways.rate = 0, 0.4
    here.flow(300)
    assert here.wanted() == 1
    here.edit(replicas=3)
    here.settle()
    assert here.wanted() == 3, "the HPA took over"
    here.edit(replicas=0)
    here.settle()
    assert here.wanted() == 1, "requests came within idleAfter"
    here.gateways.rate = 0.0
    here.flow(180)
    assert here.wanted() == 0
    manual = ScaledHarness(replicas=0)
    manual.settle()
    manual.hold(5)
    assert manual.wanted() == 0, "a person switched it off"


def test_a_restarted_operator_keeps_a_started_replica_until_a_gateway_reports() -> None:
    here = ScaledHarness(scaling={"mode": "External", "min": 0, "idleAfter": "2m"}, replicas=0, engine=ENGINE)
    here.flow(60)
    here.hold(1)
    here.serve()
    here.restart()
    here.gateways.known = False
    here.settle()
    assert here.wanted() == 1
    assert here.reported()["desired"] == 1
    here.gateways.known = True
    here.flow(180)
    assert here.wanted() == 0


# What outlasts the process


@pytest.mark.deep
def test_the_page_is_written_hourly_and_only_after_load() -> None:
    here = harness(min=1)
    here.flow(3 * 3600)
    here.run()
    assert here.page() is None, "no load, nothing learned"
    here.gateways.rate = 1.0
    written = []
    for _ in range(150):
        here.flow(60)
        here.run()
        written.append(len(here.writes(kind=CONFIG_MAPS.kind)))
    page = here.page()
    assert page is not None
    assert written[-1] - written[0] in (2, 3)
    assert [owner["name"] for owner in page["metadata"]["ownerReferences"]] == ["tiny"]
    learned = decode(page["data"][HISTORY_KEY])
    assert any(load for loads in learned.days.values() for load in loads)
    assert len(here.names(CONFIG_MAPS)) == 2, "the plan takes it for nobody's leftover"
    here.gateways.rate = 0.0
    here.flow(2 * 3600)
    here.run()
    before = len(here.writes(kind=CONFIG_MAPS.kind))
    here.restart()
    here.flow(3 * 3600)
    here.run()
    assert len(here.writes(kind=CONFIG_MAPS.kind)) == before, "at rest"


def test_how_long_a_start_takes_is_learned_and_outlasts_the_process() -> None:
    here = harness(min=1)
    here.gateways.rate = 6.0
    here.flow(30, serve=False)
    here.later += timedelta(seconds=70)
    here.serve()
    starts = here.scaler._kept[KEY].memory.learned.starts
    assert len(starts) == 1
    (accelerator,) = starts
    assert 70.0 <= starts[accelerator][-1] <= 105.0
    here.flow(3700)
    here.run()
    here.restart()
    here.settle()
    again = here.scaler._kept[KEY].memory.learned
    assert again.starts[accelerator] == starts[accelerator]
    assert again.start_s(accelerator) == starts[accelerator][-1]


def test_a_starting_service_reports_when_it_should_serve() -> None:
    here = harness(idleAfter="4m", behavior={"scaleDown": {"stabilizationWindowSeconds": 300}})
    for woken in range(2):
        here.gateways.held = 0
        here.flow(400)
        assert here.wanted() == 0
        here.hold(1)
        due = here.later + timedelta(seconds=70)
        reported = here.api.of(SERVICES)[0]["status"].get("readyExpectedAt")
        assert reported == ((now() + due).strftime("%Y-%m-%dT%H:%M:%SZ") if woken else None)
        here.later = due
        here.serve()
        assert "readyExpectedAt" not in here.api.of(SERVICES)[0]["status"]


@pytest.mark.deep
@pytest.mark.parametrize("data", [{}, {HISTORY_KEY: "{"}, {HISTORY_KEY: json.dumps({"version": 9})}, {"other": "x"}, None])
def test_an_invalid_page_is_logged_and_written_again(data: dict[str, str] | None) -> None:
    here = harness(min=1)
    uid = here.api.of(SERVICES)[0]["metadata"]["uid"]
    owners = [{"kind": "InferenceService", "name": "tiny", "uid": uid, "controller": True}]
    here.api.put(CONFIG_MAPS, {"metadata": {"name": PAGE, "namespace": "ns", "ownerReferences": owners}, "data": data})
    here.restart()
    with capture_logs() as lines:
        here.settle()
    assert [line["event"] for line in lines if line["log_level"] == "warning"] == ["history_ignored"]
    here.gateways.rate = 1.0
    here.flow(3700)
    here.run()
    page = here.page()
    assert page is not None
    assert decode(page["data"][HISTORY_KEY]).days


def test_a_configmap_of_another_owner_is_not_touched() -> None:
    here = harness(min=1)
    theirs = here.api.put(CONFIG_MAPS, {"metadata": {"name": PAGE, "namespace": "ns"}, "data": {"theirs": "x"}})
    before = dict(theirs)
    here.gateways.rate = 1.0
    with capture_logs() as lines:
        here.flow(3700)
        here.run()
        here.run()
    assert here.page() == before
    assert [line["event"] for line in lines if line["log_level"] == "warning"] == ["history_not_written"]
    assert here.reason() == "Available"


def test_a_recreated_service_remembers_nothing() -> None:
    here = harness(min=1)
    here.gateways.rate = 6.0
    here.flow(120)
    assert here.wanted() > 1
    del here.api.objects[SERVICES.kind, "ns", "tiny"]
    here.api.collect_garbage()
    here.gateways.rate = 0.0
    here.gateways.measures.clear()
    here.api.put(SERVICES, service_body(scaling=AUTO | {"min": 1}, replicas=1, engine=ENGINE))
    here.settle()
    assert here.wanted() == 1


def test_what_can_be_placed_limits_what_is_ordered_but_for_one_that_waits() -> None:
    here = ScaledHarness(scaling=AUTO, replicas=1, engine=ENGINE | {"maxModelLen": 4096}, accelerators=[gpu("H100")], model={"uri": TINY})
    here.inventory = old_inventory(gpus=3)
    here.restart()
    here.settle()
    here.serve()
    here.gateways.rate = 12.0
    while here.gateways.measures == [] or len(here.pods()) < 4:
        assert len(here.gateways.measures) < 200, here.reported()
        here.flow(5, serve=False)
        for body in here.pods()[:3]:
            if not is_ready(body):
                body["status"] = running(ready=True)
        here.inventory = old_inventory(gpus=3, used=min(3, len(here.pods())))
    here.flow(300, serve=False)
    assert here.wanted() == 4
    assert here.reported()["reason"].endswith(", but 3 can be placed now, and one more waits for capacity.")


def old_inventory(gpus: int, used: int = 0) -> Inventory:
    body = node("a", H100, whole(gpus))
    body["metadata"]["creationTimestamp"] = "2025-06-01T00:00:00Z"
    return inventory(body, pods=tuple(pod("a", f"p{n}", gpu=1) for n in range(used)))
