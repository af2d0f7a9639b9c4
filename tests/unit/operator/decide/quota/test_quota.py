"""TenantQuota on devices: which service gets how many, waits, or gives back, and that no order of events exceeds a cap."""

import asyncio
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from pagoda_contracts.names import ANNOTATION_DEVICES, LABEL_CLASS, LABEL_SERVICE, of_class
from pagoda_contracts.resources.placement import Accelerator
from pagoda_operator.api.caps import Quota
from pagoda_operator.api.errors import Unavailable
from pagoda_operator.api.signals import Decision, Recommendation
from pagoda_operator.api.state import DEPLOYMENTS, PODS, PROFILES, QUOTAS, RESOURCE_QUOTAS, SERVICES, Key
from pagoda_operator.decide.plan import plan
from pagoda_operator.decide.quota import Age, Ledger
from pagoda_operator.decide.render.writes import Create
from pagoda_operator.decide.status.status import status
from pagoda_operator.quota.keeper import Quotas
from pagoda_operator.quota.native import singles
from pagoda_operator.run.queue import Outcome
from pagoda_operator.run.reconcile import Reconciler
from pagoda_operator.run.settings import Settings
from pagoda_operator.watch.observe import observe
from pagoda_placement.charges import Grant, Holding, devices_of, holdings, needs, written
from support.harness.harness import Harness
from support.harness.inventories import H100, cut, inventory, node, whole
from support.harness.quota import LATE_S, SLICE, JitteryApi, LateApi, QuotaHarness
from support.harness.stubs import Unscaled, dependencies_with
from support.kube.fake_api import Crash
from support.suite.profiles import examples

OLD, NEW = Age("2026-01-01", "a"), Age("2026-01-02", "b")
A, B = Key("ns", "a"), Key("ns", "b")


# What a replica is charged


@pytest.mark.parametrize(
    ("entry", "devices"),
    [
        ({"gpu": {"product": "H100", "count": 4}}, {"gpu": 4}),
        ({"mig": {"profile": "3g.40gb"}}, {"mig-3g.40gb": 1}),
        ({"mig": {"profile": "1g.5gb+me"}}, {"mig-1g.5gb.me": 1}),
        ({"mig": {"minMemory": "40Gi"}}, {}),
        ({"dra": {"deviceClassName": "gpu.nvidia.com", "count": 2}}, {"gpu": 2}),
        ({"cpu": {"cores": "1", "memory": "1Gi"}}, {}),
    ],
)
def test_a_replica_s_devices_follow_from_its_entry(entry, devices):
    assert needs(Accelerator.model_validate(entry)) == devices
    assert devices_of({"annotations": {ANNOTATION_DEVICES: written(devices)}}, {}) == devices


def test_a_pod_that_says_nothing_is_charged_for_what_it_requests():
    limits = {"nvidia.com/gpu": "2", "nvidia.com/mig-1g.5gb.me": 1, "cpu": "3"}
    assert devices_of({}, {"containers": [{"resources": {"limits": limits, "requests": limits}}, {}]}) == {"gpu": 2, "mig-1g.5gb.me": 1}
    assert devices_of({}, {"containers": [{}]}) == {}


@pytest.mark.parametrize("lie", ["", "gpu", "gpu=0", "gpu=-1", "gpu=1,", "gpus=1", "gpu=1;mig-1g.5gb=1", "gpu=1,gpu=1"])
def test_invalid_annotation_does_not_lower_the_charge(lie):
    spec = {"containers": [{"resources": {"limits": {"nvidia.com/gpu": 8}}}]}
    assert devices_of({"annotations": {ANNOTATION_DEVICES: lie}}, spec) == {"gpu": 8}


def test_a_service_cannot_say_what_it_is_charged():
    harness = Harness(podTemplate={"metadata": {"annotations": {ANNOTATION_DEVICES: "gpu=1"}}})
    harness.api.edit(PROFILES, "", "default", lambda body: body["spec"].update(allow=["metadata.annotations"]))
    harness.settle()
    assert harness.reason() == "PodTemplateForbidden"


def pod(uid="u", revision="r", **meta):
    labels = {"serving.pagoda.dev/service-uid": uid, "serving.pagoda.dev/revision": revision, "serving.pagoda.dev/accelerator": "c"}
    return {"metadata": {"name": "p", "labels": labels, **meta}, "status": {"phase": "Running"}}


def deployment(replicas, **meta):
    annotated = {"labels": pod()["metadata"]["labels"], "annotations": {ANNOTATION_DEVICES: "gpu=2"}}
    return {"metadata": {"name": "d", **meta}, "spec": {"replicas": replicas, "template": {"metadata": annotated, "spec": {}}}}


@pytest.mark.parametrize(
    ("target", "staying", "ending", "charged"),
    [(2, 0, 0, 4), (2, 2, 0, 4), (2, 1, 0, 4), (1, 3, 0, 6), (2, 1, 2, 8), (0, 0, 3, 6), (0, 1, 0, 2)],
)
def test_charge_is_the_larger_of_present_and_target_plus_terminating(target, staying, ending, charged):
    pods = [pod() for _ in range(staying)] + [pod(deletionTimestamp="t") for _ in range(ending)]
    (found,) = holdings([deployment(target)], pods)
    assert found.charge() == ({"gpu": charged} if charged else {})
    assert found.lasting == ({"gpu": 2 * target} if target else {})


def test_a_raised_target_does_not_count_on_pods_that_may_be_ending():
    """Three pods, one wanted, the controller about to end two: raised to three again, five may be there at once."""
    (found,) = holdings([deployment(1)], [pod()] * 3)
    assert found.charge(3) == {"gpu": 10}


def test_finished_pods_are_not_charged_and_a_predecessor_s_are():
    gone = pod() | {"status": {"phase": "Failed"}}
    before = pod(uid="before", annotations={ANNOTATION_DEVICES: "gpu=2"})
    assert [found.charge() for found in holdings([deployment(0, deletionTimestamp="t")], [gone, before])] == [{}, {"gpu": 2}]


# The ledger


def quota(count, *namespaces, name="team", word="gpu"):
    return Quota(name, frozenset(namespaces or ("ns",)), {word: count})


def of(target, leaving=0, name="d", each=1):
    return (Holding(name, {"gpu": each}, target, leaving),)


def test_admitted_devices_are_not_offered_to_the_next_service():
    ledger, team = Ledger(), quota(1)
    for key, age in ((A, OLD), (B, NEW)):
        ledger.settle(key, (), age, 0)
        assert ledger.offer(key, (), "d", {"gpu": 1}, [team]).replicas == (1 if key == A else 0)
        assert bool(ledger.admit(key, of(1), [team], 0)) is (key == B)


def test_stale_read_does_not_free_admitted_devices():
    ledger, team = Ledger(), quota(1)
    ledger.settle(A, (), OLD, 0)
    assert ledger.admit(A, of(1), [team], 0) == ""
    ledger.settle(A, (), OLD, 5)  # a mirror that does not show the write yet
    ledger.settle(B, (), NEW, 5)
    assert ledger.admit(B, of(1), [team], 5)
    ledger.settle(A, of(1), OLD, 6)  # now it does
    ledger.settle(A, (), OLD, 7)  # and later that it is gone
    assert ledger.admit(B, of(1), [team], 7) == ""


def test_admitted_devices_of_two_kinds_count_until_a_read_shows_both():
    """A rollout from GPUs to slices: the read shows the old Deployment, and the new one not yet."""
    ledger, team = Ledger(), Quota("team", frozenset({"ns"}), {"gpu": 1, "mig-1g.10gb": 1})
    old, new = Holding("old", {"gpu": 1}, 1), Holding("new", {"mig-1g.10gb": 1}, 1)
    ledger.settle(A, (), OLD, 0)
    assert ledger.admit(A, (old, new), [team], 0) == ""
    ledger.settle(A, (old,), OLD, 5)
    assert ledger.used(team) == {"gpu": 1, "mig-1g.10gb": 1}
    ledger.settle(B, (), NEW, 5)
    assert ledger.admit(B, (new,), [team], 5)


def test_charge_of_a_lost_write_expires_later_if_it_had_no_answer():
    team = quota(1)
    for silent, free_at in ((False, 30), (True, 65)):
        ledger = Ledger()
        ledger.settle(A, (), OLD, 0)
        ledger.admit(A, of(1), [team], 0)
        if silent:
            ledger.unanswered(A, 0)
        ledger.settle(A, (), OLD, free_at - 1)
        assert ledger.used(team) == {"gpu": 1}
        assert ledger.settle(A, (), OLD, free_at)
        assert ledger.used(team) == {"gpu": 0}


def test_all_quotas_of_a_namespace_apply():
    ledger = Ledger()
    ledger.settle(A, of(1), OLD, 0)
    offer = ledger.offer(A, of(1), "d", {"gpu": 1}, [quota(9), quota(2, name="tight"), quota(5, "ns", "other")])
    assert (offer.replicas, offer.why) == (2, "TenantQuota tight allows 2 GPUs, and 1 is in use")


def test_old_replicas_of_a_rollout_leave_no_room_for_new_ones():
    ledger, team = Ledger(), quota(3)
    found = (*of(2, name="old"), *of(0, name="new"))
    ledger.settle(A, found, OLD, 0)
    offer = ledger.offer(A, found, "new", {"gpu": 1}, [team])
    assert (offer.replicas, offer.room) == (3, 1)


def test_a_shrunk_quota_takes_from_the_newest_no_more_than_is_too_much():
    ledger, services = Ledger(), [(Key("ns", name), Age("2026", name)) for name in "abc"]
    for key, age in services:
        ledger.settle(key, of(2), age, 0)
    for cap, kept in ((6, [2, 2, 2]), (5, [2, 2, 1]), (3, [2, 1, 0]), (1, [1, 0, 0]), (0, [0, 0, 0])):
        offers = [ledger.offer(key, of(2), "d", {"gpu": 1}, [quota(cap)]) for key, _ in services]
        assert [offer.replicas for offer in offers] == kept
        assert [offer.room for offer in offers] == kept


def test_replicas_of_several_devices_give_back_whole_ones():
    ledger = Ledger()
    ledger.settle(A, of(3, each=4), OLD, 0)
    assert ledger.offer(A, of(3, each=4), "d", {"gpu": 4}, [quota(11)]).replicas == 2


def test_what_is_not_capped_is_not_limited():
    ledger = Ledger()
    ledger.settle(A, (), OLD, 0)
    assert ledger.offer(A, (), "d", {"mig-1g.10gb": 1}, [quota(0)]) is None
    assert ledger.admit(A, of(7), [quota(0, word="mig-1g.10gb")], 0) == ""


# Services


def test_second_service_of_a_tenant_waits_and_reports_why():
    harness = QuotaHarness()
    harness.cap(1, "ns", "other")
    first, second = harness.serve("ns", 1), harness.serve("other", 1)
    for key in (first, second):
        harness.run(key, 8)
    assert (harness.replicas(first), harness.replicas(second)) == (1, 0)
    reported = harness.condition(second, "Stalled")
    assert (reported["status"], reported["reason"]) == ("True", "QuotaExceeded")
    assert reported["message"] == f"0 of 1 replicas ready: TenantQuota team allows 1 {SLICE} slices, and 1 is in use"
    assert harness.condition(first, "Stalled")["status"] == "False"


@pytest.mark.parametrize(("granted", "kind", "reason"), [(0, "Stalled", "QuotaExceeded"), (1, "Ready", "Available")])
def test_quota_limits_scaling_and_the_condition_says_so(granted, kind, reason):
    harness = QuotaHarness()
    harness.cap(1, "ns")
    key = harness.serve("ns", 1)
    harness.run(key, 5)
    harness.control()
    observed = asyncio.run(observe(harness.api, key))
    found = Decision(granted, Recommendation(0, 3, 3), "3 wanted", "load, quota")
    observed = replace(observed, scaling=found, quota=Grant(granted, granted, "TenantQuota team allows 1, and 1 is in use"))
    lines = {line["type"]: line for line in status(observed, plan(observed), None, "t")["conditions"]}
    assert (lines[kind]["status"], lines[kind]["reason"]) == ("True", reason)
    assert "TenantQuota team allows 1, and 1 is in use" in lines["Ready"]["message"]


def test_a_revision_after_one_that_never_served_gets_what_the_ending_replicas_leave_of_the_quota():
    """All of it at once would be refused, and nothing would start before the last of them is gone."""
    harness = Harness(replicas=2)
    harness.settle()
    harness.edit(engine={"maxModelLen": 128})
    drafted = plan(replace(harness.observed(), quota=Grant(2, 1, "TenantQuota team allows 2, and 1 is in use")))
    made = [write.manifest for write in drafted.writes if isinstance(write, Create) and write.resource == DEPLOYMENTS]
    assert [manifest["spec"]["replicas"] for manifest in made] == [1]


def test_waiting_service_is_requeued_when_the_pod_that_used_a_slice_is_gone():
    harness = QuotaHarness()
    harness.cap(1, "ns")
    first, second = harness.serve("ns", 1), harness.serve("ns", 1)
    for key in (first, second):
        harness.run(key, 8)
    harness.control()
    harness.ask(first, 0)
    harness.run(first, 3)
    harness.control()
    for key in (first, second):
        harness.run(key, 3)
    assert (harness.replicas(second), harness.total) == (0, 1)  # the pod still ends
    harness.woken.clear()
    harness.end_pods()
    harness.run(first)
    assert harness.woken == [second]
    harness.run(second, 3)
    assert harness.replicas(second) == 1


def test_a_deleted_service_s_slice_is_free_when_its_last_pod_is_gone():
    harness = QuotaHarness()
    harness.cap(1, "ns")
    first, second = harness.serve("ns", 1), harness.serve("ns", 1)
    harness.run(first, 5)
    harness.control()
    harness.run(second, 5)
    harness.remove(first)
    for _ in range(2):
        harness.run(first)
        harness.run(second)
    assert harness.replicas(second) == 0
    harness.end_pods()
    harness.run(first)
    assert second in harness.woken
    harness.run(second, 3)
    assert harness.replicas(second) == 1


class Wishes(Unscaled):
    """Scaling that wants four, as far as quota grants them."""

    async def complete(self, key, observed):  # noqa: ARG002 (the protocol's words)
        count = 4 if observed.granted is None else min(4, observed.granted)
        return replace(observed, scaling=Decision(count, Recommendation(0, 4, 4), "4 wanted", "load"))


@pytest.mark.parametrize("asked", [0, 1, 4])
def test_rollout_under_a_full_quota_replaces_one_replica_at_a_time(asked):
    harness = QuotaHarness()
    harness.cap(2, "ns")
    harness.operator = Reconciler(
        harness.api, Settings(), harness.now, dependencies_with(harness.api, quota=harness.quotas, scaling=Wishes())
    )
    key = harness.serve("ns", asked)
    harness.round(key, 4)
    (old,) = (body["metadata"]["name"] for body in harness.api.of(DEPLOYMENTS))
    harness.api.edit(SERVICES, "ns", key.name, lambda body: body["spec"].update(engine={"maxModelLen": 77}))
    served = []
    for _ in range(10):
        harness.round(key)
        served.append(sum(body["status"]["availableReplicas"] for body in harness.api.of(DEPLOYMENTS)))
        assert harness.total <= 2
    (new,) = harness.api.of(DEPLOYMENTS)
    assert (new["metadata"]["name"] != old, new["spec"]["replicas"]) == (True, 2)
    assert min(served) == 1
    decisions = harness.api.objects[SERVICES.kind, "ns", key.name]["status"]["scaling"].get("lastDecisions", [])
    assert [decision["desired"] for decision in decisions] == [2]


def test_deleted_service_is_requeued_until_its_last_pod_is_gone():
    harness = QuotaHarness()
    harness.cap(1, "ns")
    first, second = harness.serve("ns", 1), harness.serve("ns", 1)
    harness.round(first, 3)
    harness.run(second, 3)
    harness.remove(first)
    harness.run(first)
    assert harness.outcome == Outcome(again=30.0)
    harness.end_pods()
    harness.run(first)
    assert harness.outcome == Outcome(gone=True)
    assert second in harness.woken


def test_a_shrunk_quota_drains_and_a_grown_one_gives_back():
    harness = QuotaHarness()
    harness.cap(4, "ns")
    keys = [harness.serve("ns", 2), harness.serve("ns", 2)]
    for key in keys:
        harness.run(key, 6)
    harness.control()
    harness.recap(3)
    deletions = [entry for entry in harness.api.journal if entry[0] == "delete"]
    for key in keys * 2:
        harness.run(key, 3)
    assert [harness.replicas(key) for key in keys] == [2, 1]
    assert [entry for entry in harness.api.journal if entry[0] == "delete"] == deletions  # lowered, never deleted
    assert harness.condition(keys[1], "Stalled")["reason"] == "QuotaExceeded"
    harness.recap(4)
    harness.control()
    harness.end_pods()
    for key in keys:
        harness.run(key, 6)
    assert [harness.replicas(key) for key in keys] == [2, 2]


def test_invalid_quota_lets_nothing_grow_and_takes_nothing_away():
    harness = QuotaHarness()
    harness.cap(9, "ns")
    first, second = harness.serve("ns", 2), harness.serve("ns", 0)
    harness.round(first, 4)
    spec = harness.api.objects[QUOTAS.kind, "", "team"]["spec"]
    readable = dict(spec)
    spec["devices"] = {"gpus": "many"}
    for asked in (1, 2):
        harness.ask(second, asked)
        harness.round(second, 2)
    harness.ask(first, 3)
    harness.round(first, 3)
    harness.restart()
    for key in (first, second):
        harness.round(key, 3)
    assert (harness.replicas(first), harness.replicas(second), harness.total) == (2, 0, 2)
    line = harness.condition(first, "Stalled")
    assert (line["reason"], line["message"]) == (
        "QuotaExceeded",
        f"2 of 3 replicas ready: TenantQuota team cannot be read, so its services do not grow; 2 {SLICE} slices are in use",
    )
    unhealthy = harness.staying[0]
    harness.break_device(unhealthy)
    harness.round(first, 6)
    assert (unhealthy in harness.staying, harness.replicas(first), harness.total) == (True, 2, 2)
    asyncio.run(harness.status_writer.write())
    stalled = reported(harness)["conditions"][2]
    assert (stalled["status"], stalled["reason"]) == ("True", "InvalidSpec")
    assert stalled["message"].endswith(". Its namespaces keep the devices that they have and get no more until the spec is corrected.")
    spec.update(readable)
    harness.round(second, 3)
    harness.round(first, 3)
    assert (harness.replicas(first), harness.replicas(second)) == (3, 2)


@pytest.mark.parametrize("spec", [None, [], {"subjects": 3}, {"subjects": {"namespaces": "ns"}}, {"subjects": {"namespaces": [3]}}])
def test_quota_with_invalid_namespaces_limits_none_and_says_so(spec):
    harness = QuotaHarness()
    harness.cap(0, "ns")
    harness.api.objects[QUOTAS.kind, "", "team"]["spec"] = spec
    key = harness.serve("ns", 1)
    harness.round(key, 3)
    asyncio.run(harness.status_writer.write())
    assert harness.replicas(key) == 1
    assert reported(harness)["conditions"][2]["message"].endswith("Its namespaces cannot be read either, so it limits none.")


def test_at_rest_nothing_is_written_after_any_number_of_restarts():
    harness = QuotaHarness()
    harness.cap(3, "ns")
    keys = [harness.serve("ns", 2), harness.serve("ns", 2)]
    for key in keys * 3:
        harness.run(key, 4)
        harness.control()
    asyncio.run(harness.status_writer.write())
    written = len(harness.api.journal)
    for _ in range(20):
        harness.restart()
        for key in reversed(keys):
            harness.run(key, 2)
        asyncio.run(harness.status_writer.write())
    assert len(harness.api.journal) == written


def test_new_process_grants_no_devices_that_are_in_use():
    harness = QuotaHarness()
    harness.cap(2, "ns", "other")
    first, second = harness.serve("ns", 2), harness.serve("other", 1)
    harness.run(first, 6)
    harness.restart()  # and the first thing it sees is the other one
    harness.run(second, 6)
    assert (harness.replicas(first), harness.replicas(second)) == (2, 0)


@pytest.mark.parametrize(("mine", "counted"), [("", False), ("blue", True)])
def test_devices_of_another_install_s_services_are_not_charged(mine, counted):
    harness = QuotaHarness()
    harness.cap(9, "ns")
    key = harness.serve("ns", 1)
    harness.run(key, 3)
    harness.control()
    for body in (*harness.api.of(DEPLOYMENTS), *harness.api.of(PODS)):
        body["metadata"]["labels"][LABEL_CLASS] = "blue"
    quotas = Quotas(harness.api, harness.seen, lambda _: None, lambda: 0.0, selector=of_class(mine, LABEL_SERVICE))
    asyncio.run(quotas.fill())
    assert (key in quotas.ledger) == counted


class Counted(dict):
    """Labels that count how often they are read."""

    reads = 0

    def __getitem__(self, name):
        Counted.reads += 1
        return super().__getitem__(name)


@pytest.mark.deep
def test_a_new_process_reads_a_large_fleet_once_not_once_per_service():
    """2,000 services and 5,000 pods took 8 s of CPU, in which no Lease is renewed."""
    harness, count = QuotaHarness(), 40
    harness.cap(count, "ns")
    for key in [harness.serve("ns", 1) for _ in range(count)]:
        harness.run(key, 3)
    harness.control()
    for body in (*harness.api.of(DEPLOYMENTS), *harness.api.of(PODS)):
        body["metadata"]["labels"] = Counted(body["metadata"]["labels"])
    harness.restart()
    Counted.reads = 0
    asyncio.run(harness.quotas.fill())
    assert len(harness.api.of(PODS)) == count
    assert Counted.reads < 20 * count


@pytest.mark.parametrize("jump", [0, 300, -300])
def test_unanswered_write_is_charged_for_a_fixed_time_whatever_the_wall_clock(jump):
    harness = QuotaHarness()
    harness.cap(1, "ns")
    first, second = harness.serve("ns", 1), harness.serve("ns", 1)
    harness.run(first)  # says that it is there
    harness.api.refuse["Deployment"] = Unavailable("no answer in 30 s")
    with pytest.raises(Unavailable):
        harness.run(first)
    harness.api.refuse.clear()
    harness.later += 40  # the first one's next try is later still
    harness.jump = jump
    harness.run(second, 4)
    assert harness.quotas.booked(first, observed_of(harness, first)) is False
    assert harness.replicas(second) == 0
    harness.ask(first, 0)
    harness.run(first, 2)
    harness.run(second, 3)
    assert harness.replicas(second) == 0
    harness.later += 26  # 66 s since, by a clock that nobody sets
    harness.run(first)
    harness.run(second, 2)
    assert (harness.replicas(first), harness.replicas(second)) == (0, 1)


def observed_of(harness, key):
    return asyncio.run(observe(harness.api, key))


def test_service_with_an_overdue_charge_is_requeued_and_others_get_the_room():
    """His write never happened, and his own next run is the resync's."""
    harness = QuotaHarness()
    harness.cap(1, "ns")
    first, second = harness.serve("ns", 1), harness.serve("ns", 1)
    harness.run(first)  # says that it is there
    harness.api.refuse["Deployment"] = Unavailable("500")
    with pytest.raises(Unavailable):
        harness.run(first)
    harness.api.refuse.clear()
    harness.ask(first, 0)
    harness.run(first, 2)
    harness.run(second, 3)
    assert harness.replicas(second) == 0
    for harness.later, woken in ((64, []), (66, [first]), (68, [first])):
        asyncio.run(harness.status_writer.write())
        assert [key for key in harness.woken if key == first] == woken
    harness.woken.clear()
    harness.run(first)
    assert harness.woken == [second]
    harness.run(second, 3)
    assert (harness.replicas(second), harness.total) == (1, 1)


def late(*, answered):
    """An operator dies with the order for the last slice on the wire; the next one looks at the other service first."""
    harness = QuotaHarness(LateApi())
    harness.cap(1, "ns", "other")
    first, second = harness.serve("ns", 1), harness.serve("other", 1)
    harness.run(first)  # says that it is there
    harness.api.dies_ordering = True
    with pytest.raises(Crash):
        harness.run(first)
    assert [(verb, resource.kind) for verb, resource, _ in harness.api.wire] == [("create", "Deployment")]
    harness.restart(crashed=not answered)
    harness.run(second, 4)
    return harness, first, second


def test_late_writes_of_a_dead_leader_exceed_no_cap():
    harness, first, second = late(answered=False)
    assert harness.replicas(second) == 0
    assert "TenantQuota team: scaling up is paused for a minute after a leader change" in harness.condition(second)["message"]
    assert harness.outcome.again == 2
    harness.later += LATE_S - 1
    harness.api.arrive()
    harness.run(second, 2)
    harness.later += 1
    harness.round(second, 3)
    assert (harness.replicas(first), harness.replicas(second), harness.total) == (1, 0, 1)
    assert "allows 1 1g.10gb slices, and 1 is in use" in harness.condition(second)["message"]


def test_late_write_for_an_idle_service_is_counted():
    harness = QuotaHarness(LateApi())
    harness.cap(2, "ns", "other")
    first, second = harness.serve("ns", 1), harness.serve("other", 0)
    harness.round(first, 3)
    harness.ask(first, 2)
    harness.ask(second, 1)
    harness.api.dies_ordering = True
    with pytest.raises(Crash):
        harness.run(first)
    harness.restart(crashed=True)
    harness.run(second, 3)
    assert harness.replicas(second) == 0, "what is there was counted, and it is one"
    harness.api.arrive()
    harness.later += LATE_S
    harness.run(second, 3)
    assert (harness.replicas(first), harness.replicas(second)) == (2, 0)


def test_lost_write_is_not_charged_after_a_minute():
    harness, first, second = late(answered=False)
    harness.api.wire.clear()
    harness.later += LATE_S
    harness.round(second, 3)
    assert (harness.replicas(first), harness.replicas(second)) == (0, 1)


def test_no_pause_after_a_leader_whose_writes_were_all_answered():
    harness, _, second = late(answered=True)
    assert harness.replicas(second) == 1


def test_run_with_an_old_read_does_not_free_devices_of_a_later_write():
    ledger = Ledger()
    ledger.settle(A, of(0), OLD, 0.0)
    ledger.recount(A, of(1), OLD, 60.0)
    ledger.settle(A, of(0), OLD, 61.0)
    assert ledger.used(quota(1)) == {"gpu": 1}
    ledger.settle(A, of(0), OLD, 91.0)
    assert ledger.used(quota(1)) == {"gpu": 0}


def race(seed):
    """Two services, two workers, one slice, an API server whose calls overlap at random."""
    api = JitteryApi(seed)
    harness = QuotaHarness(api)
    harness.cap(1, "ns", "other")
    keys = [harness.serve("ns", 1), harness.serve("other", 1)]
    most = [0]

    def watch(*_):
        most[0] = max(most[0], harness.total)

    api.before_write = watch

    async def work():
        await asyncio.gather(*(worker(harness, key) for key in keys))

    asyncio.run(work())
    watch()
    return most[0], sorted(harness.replicas(key) for key in keys)


async def worker(harness, key):
    for _ in range(5):
        await harness.operator.reconcile(key)


@pytest.mark.deep
def test_of_two_that_race_for_the_last_slice_exactly_one_gets_it():
    assert {(most, tuple(got)) for most, got in map(race, range(30))} == {(1, (0, 1))}


@pytest.mark.deep
def test_of_two_that_race_for_the_last_slice_exactly_one_gets_it_hundreds_of_times():
    assert {(most, tuple(got)) for most, got in map(race, range(30, 30 + examples(200)))} == {(1, (0, 1))}


# The quota's own status, and the native one behind it


def reported(harness, name="team"):
    return harness.api.objects[QUOTAS.kind, "", name]["status"]


def test_quota_reports_usage_once_a_minute_and_spec_changes_at_once():
    harness = QuotaHarness()
    harness.cap(2, "ns")
    key = harness.serve("ns", 1)
    asyncio.run(harness.status_writer.write())
    assert reported(harness)["usage"]["migSlices"] == [{"profile": SLICE, "count": 0}]
    assert {line["type"]: line["status"] for line in reported(harness)["conditions"]} == {
        "Ready": "True",
        "Reconciling": "False",
        "Stalled": "False",
    }
    harness.run(key, 4)
    for turn in range(29):
        harness.later += 2
        harness.jump = (-300, 0, 300)[turn % 3]  # somebody sets the clock
        asyncio.run(harness.status_writer.write())
    assert reported(harness)["usage"]["migSlices"][0]["count"] == 0
    harness.later += 2
    asyncio.run(harness.status_writer.write())
    assert reported(harness)["usage"]["migSlices"][0]["count"] == 1
    harness.recap(0)
    asyncio.run(harness.status_writer.write())
    assert (reported(harness)["observedGeneration"], reported(harness)["conditions"][1]["reason"]) == (2, "Draining")


def test_unenforced_fields_are_named_and_an_invalid_spec_is_stalled():
    harness = QuotaHarness()
    harness.cap(1, "ns")
    harness.api.edit(QUOTAS, "", "team", lambda body: body["spec"].update(weight=3, maxConcurrency=4))
    asyncio.run(harness.status_writer.write())
    ready = reported(harness)["conditions"][0]
    wanted = "subjects.apiKeysSecretRef must name a Secret of API keys in the gateways' namespace, and it names none"
    assert (ready["status"], ready["reason"]) == ("False", "NotEnforced")
    assert ready["message"] == f"not enforced: maxConcurrency, weight. {wanted}"
    harness.api.edit(QUOTAS, "", "team", lambda body: body["spec"].update(weight=-3))
    asyncio.run(harness.status_writer.write())
    assert reported(harness)["conditions"][2]["reason"] == "InvalidSpec"
    assert harness.seen()[0].caps == {}


@pytest.mark.parametrize("counts", [(7, 1), (1, 7)])
def test_smaller_cap_of_two_spellings_applies_and_is_reported(counts):
    harness = QuotaHarness()
    slices = [{"profile": profile, "count": count} for profile, count in zip(("1g.5gb+me", "1g.5gb.me"), counts, strict=True)]
    harness.cap(0, "ns", migSlices=slices)
    assert harness.seen()[0].caps == {"mig-1g.5gb.me": 1}
    asyncio.run(harness.status_writer.write())
    assert (
        reported(harness)["conditions"][0]["message"] == "in force; 1g.5gb+me and 1g.5gb.me are the same slices, so the smaller cap applies"
    )


def test_native_quota_is_created_updated_and_deleted():
    harness = QuotaHarness()
    body = harness.cap(2, "ns", resourceQuota=True)
    asyncio.run(harness.status_writer.write())
    (native,) = harness.api.of(RESOURCE_QUOTAS)
    assert native["spec"]["hard"] == {"requests.nvidia.com/mig-1g.10gb": "2"}
    assert (native["metadata"]["namespace"], native["metadata"]["ownerReferences"][0]["uid"]) == ("ns", body["metadata"]["uid"])
    written = len(harness.api.journal)
    harness.later += 61
    asyncio.run(harness.status_writer.write())
    assert len(harness.api.journal) == written
    devices = {"migSlices": [{"profile": SLICE, "count": 3}], "gpus": 1, "resourceQuota": True}
    harness.api.edit(QUOTAS, "", "team", lambda found: found["spec"].update(devices=devices))
    asyncio.run(harness.status_writer.write())
    assert harness.api.of(RESOURCE_QUOTAS)[0]["spec"]["hard"]["requests.nvidia.com/gpu"] == "1"
    harness.recap(3)
    asyncio.run(harness.status_writer.write())
    assert harness.api.of(RESOURCE_QUOTAS) == []


def claiming(harness, class_name):
    key = harness.serve("ns", 1)
    dra = [{"dra": {"deviceClassName": class_name, "count": 1}}]
    harness.api.edit(SERVICES, key.namespace, key.name, lambda body: body["spec"].update(accelerators=dra))


def native_of_gpus(harness, *more):
    harness.cap(2, "ns")
    devices = {"gpus": 4, "resourceQuota": True}
    harness.api.edit(QUOTAS, "", "team", lambda found: found["spec"].update(devices=devices))
    asyncio.run(harness.status_writer.write())
    return harness.api.of(RESOURCE_QUOTAS)[0]


def by_class(*names):
    return {f"{name}.deviceclass.resource.k8s.io/devices": "4" for name in names}


def test_a_native_quota_on_gpus_limits_claims_too_by_every_class_that_is_used():
    harness = QuotaHarness()
    claiming(harness, "big.example.com")
    hard = {"requests.nvidia.com/gpu": "4"} | by_class("gpu.nvidia.com", "mig.nvidia.com", "big.example.com")
    assert native_of_gpus(harness)["spec"]["hard"] == hard
    claiming(harness, "x" * 240)
    harness.later += 61
    asyncio.run(harness.status_writer.write())
    assert harness.api.of(RESOURCE_QUOTAS)[0]["spec"]["hard"] == hard, "no ResourceQuota could have this name"


def test_api_server_that_counts_no_claims_is_reported():
    harness = QuotaHarness()
    native = native_of_gpus(harness)
    hard = native["spec"]["hard"]

    def reported_with(status):
        harness.api.edit(RESOURCE_QUOTAS, "ns", "pagoda-team", lambda found: found.update(status=status))
        harness.later += 61
        asyncio.run(harness.status_writer.write())
        return reported(harness)["conditions"][0]["message"]

    assert reported(harness)["conditions"][0]["message"] == "in force"
    assert reported_with({"hard": hard, "used": dict.fromkeys(hard, "0")}) == "in force"
    said = reported_with({"hard": hard, "used": {"requests.nvidia.com/gpu": "0"}})
    assert said.startswith("in force; the ResourceQuota does not count claims of gpu.nvidia.com, mig.nvidia.com")
    assert reported(harness)["conditions"][2]["status"] == "False", "the TenantQuota itself holds"
    assert reported_with({}) == "in force"


@pytest.mark.parametrize(("gpus", "limit"), [(0, "7"), (2, "9"), (None, None)])
def test_native_quota_allows_slices_that_are_requested_as_gpus(gpus, limit):
    harness = QuotaHarness()
    devices = {} if gpus is None else {"gpus": gpus}
    harness.cap(7, "ns", resourceQuota=True, **devices)
    harness.single = singles(inventory(node("a", H100, cut(1, p1g_10gb=7), strategy="single"), node("b", H100, whole(8))))
    asyncio.run(harness.status_writer.write())
    (native,) = harness.api.of(RESOURCE_QUOTAS)
    hard = native["spec"]["hard"]
    assert (hard.get("requests.nvidia.com/gpu"), hard[f"requests.nvidia.com/mig-{SLICE}"]) == (limit, "7")
    said = f"allows {limit} of GPUs and {SLICE} slices together" if limit else f"does not limit {SLICE} slices of MIG strategy single"
    assert f"; the ResourceQuota {said}" in reported(harness)["conditions"][0]["message"]
    harness.later += 61
    harness.single = singles(inventory(node("b", H100, whole(8))))
    asyncio.run(harness.status_writer.write())
    (native,) = harness.api.of(RESOURCE_QUOTAS)
    assert native["spec"]["hard"].get("requests.nvidia.com/gpu") == (None if gpus is None else str(gpus))
    assert reported(harness)["conditions"][0]["message"] == "in force"


def test_resource_quota_of_another_owner_is_left_alone():
    harness = QuotaHarness()
    harness.cap(2, "ns", resourceQuota=True)
    harness.api.put(RESOURCE_QUOTAS, {"metadata": {"name": "pagoda-team", "namespace": "ns"}, "spec": {"hard": {"pods": "1"}}})
    asyncio.run(harness.status_writer.write())
    assert reported(harness)["conditions"][2]["reason"] == "ResourceQuotaRefused"
    assert harness.api.of(RESOURCE_QUOTAS)[0]["spec"] == {"hard": {"pods": "1"}}


# An unhealthy replica under a full quota


def full(replicas, cap=None, **spec):
    """One service that has all that its tenant may have, and a rival who wants one."""
    harness = QuotaHarness()
    harness.cap(replicas if cap is None else cap, "ns")
    key = harness.serve("ns", replicas, **spec)
    harness.round(key, 3)
    rival = harness.serve("ns", 1)
    harness.round(rival, 2)
    return harness, key, rival


@pytest.mark.parametrize("replicas", [1, 3])
def test_unhealthy_replica_stays_under_a_full_quota_and_the_condition_names_the_cap(replicas):
    harness, key, rival = full(replicas)
    there = list(harness.staying)
    harness.break_device(harness.staying[0])
    for _ in range(6):
        harness.later += 60
        for turn in (key, rival):
            harness.run(turn)
        harness.control()
        assert (harness.staying, harness.total, harness.replicas(rival)) == (there, replicas, 0)
    line = harness.condition(key, "Degraded")
    verb = "is" if replicas == 1 else "are"
    assert line["reason"] == "ReplacementDelayed"
    assert f"TenantQuota team allows {replicas} {SLICE} slices, and {replicas} {verb} in use" in line["message"]
    assert harness.condition(key, "Stalled")["status"] == "False", "the service has what it asks for"
    written = len(harness.api.journal)
    harness.run(key, 3)
    assert len(harness.api.journal) == written


@pytest.mark.parametrize("crashed", [False, True])
def test_successor_is_made_when_the_quota_grows_and_charged_until_the_unhealthy_replica_is_gone(crashed):
    harness, key, rival = full(2)
    unhealthy = harness.staying[0]
    harness.break_device(unhealthy)
    harness.run(key, 2)
    harness.recap(3)
    harness.run(key, 2)
    assert (harness.replicas(key), harness.total) == (3, 3)
    harness.restart(crashed=crashed)
    harness.run(rival, 2)
    harness.control()
    harness.run(key, 6)
    harness.control()
    harness.run(rival, 3)
    assert (unhealthy in harness.staying, harness.replicas(key), harness.total, harness.replicas(rival)) == (False, 2, 3, 0), (
        "it ends, and holds its slice"
    )
    harness.later += LATE_S * 2
    harness.end_pods()
    harness.run(key)
    harness.run(rival, 3)
    assert (harness.replicas(key), harness.replicas(rival), harness.total) == (2, 1, 3)


def test_two_services_get_a_successor_in_the_last_slice_one_after_the_other():
    harness = QuotaHarness()
    harness.cap(5, "ns")
    keys = [harness.serve("ns", 2), harness.serve("ns", 2)]
    for key in keys:
        harness.round(key, 3)
    unhealthy = harness.staying[::2]
    for pod in unhealthy:
        harness.break_device(pod)
    for _ in range(8):
        for key in keys:
            harness.run(key, 2)
            assert harness.total <= 5
        harness.control()
        harness.end_pods()
    assert ([harness.replicas(key) for key in keys], harness.total) == ([2, 2], 4)
    assert not [pod for pod in unhealthy if pod in harness.staying]


def test_shrunk_cap_removes_the_successor_and_no_wanted_replica():
    harness, key, _ = full(2, cap=3)
    harness.round(key, 2)
    harness.recap(2)
    harness.ask(Key("ns", "s2"), 0)
    harness.round(Key("ns", "s2"), 3)
    harness.recap(3)
    unhealthy = harness.staying[0]
    harness.break_device(unhealthy)
    harness.run(key, 2)
    assert harness.replicas(key) == 3
    harness.recap(2)
    harness.run(key, 4)
    harness.control()
    assert (harness.replicas(key), len(harness.staying)) == (2, 2)
    assert "TenantQuota team allows 2" in harness.condition(key, "Degraded")["message"]
    written = len(harness.api.journal)
    harness.run(key, 6)
    assert len(harness.api.journal) == written


def test_no_successor_is_made_for_a_minute_after_a_killed_leader():
    harness, key, _ = full(1, cap=3)
    harness.break_device(harness.staying[0])
    harness.restart(crashed=True)
    harness.run(key, 3)
    assert (harness.replicas(key), "paused for a minute" in harness.condition(key, "Degraded")["message"]) == (1, True)
    harness.later += LATE_S
    harness.run(key, 3)
    assert harness.replicas(key) == 2


def test_a_successor_that_was_made_before_a_leader_was_killed_stays():
    harness, key, _ = full(1, cap=3)
    harness.break_device(harness.staying[0])
    harness.run(key, 3)
    harness.restart(crashed=True)
    harness.run(key, 3)
    assert harness.replicas(key) == 2


@pytest.mark.parametrize("spec", [{"accelerators": []}, {"podTemplate": {"spec": {"hostNetwork": True}}}])
def test_invalid_spec_does_not_keep_an_unhealthy_replica(spec):
    harness, key, rival = full(2)
    harness.ask(rival, 0)
    harness.round(rival, 2)
    harness.recap(3)
    unhealthy = harness.staying[0]
    harness.break_device(unhealthy)
    harness.api.edit(SERVICES, *key, lambda body: body["spec"].update(spec))
    for _ in range(6):
        harness.run(key, 2)
        harness.control()
        assert harness.total <= 3
        harness.end_pods()
    assert (harness.replicas(key), harness.total, unhealthy in harness.staying) == (2, 2, False)


# Any order of events


class Tenants(RuleBasedStateMachine):
    """Three services in two namespaces under one quota; people, controllers, kubelets and a mortal operator act in any order."""

    @initialize(cap=st.integers(0, 5))
    def begin(self, cap):
        self.harness = QuotaHarness(LateApi())
        self.quota = self.cap_on_wire = cap
        self.harness.cap(cap, "ns", "other")
        self.keys = [self.harness.serve(namespace, 0) for namespace in ("ns", "other", "ns")]
        self.gone = set()
        self.before = 0

    @rule(index=st.integers(0, 2), replicas=st.integers(0, 4))
    def ask(self, index, replicas):
        if self.keys[index] not in self.gone:
            self.harness.ask(self.keys[index], replicas)

    @rule(index=st.integers(0, 2), times=st.integers(1, 4), dies=st.none() | st.just("ordering") | st.integers(0, 3))
    def reconcile(self, index, times, dies):
        self.harness.api.crash_in = dies if isinstance(dies, int) else None
        self.harness.api.dies_ordering = dies == "ordering"
        self.cap_on_wire = max(self.quota, self.cap_on_wire if self.harness.api.wire else 0)
        try:
            self.harness.run(self.keys[index], times)
        except Crash:
            self.harness.restart(crashed=True)
        self.harness.api.crash_in, self.harness.api.dies_ordering = None, False

    @rule()
    def arrive(self):
        """What the last operator had on the wire happens after all; under a cap that shrank meanwhile it is as if it had been there."""
        self.harness.api.arrive()
        self.harness.collect()
        self.before = max(self.before, min(self.harness.total, self.cap_on_wire))

    @rule(dead=st.integers(0, 2), heir=st.integers(0, 2))
    def arrive_behind_the_heirs_back(self, dead, heir):
        self.ask(dead, 4)
        self.ask(heir, 4)
        self.reconcile(dead, 2, "ordering")
        self.reconcile(heir, 3, None)
        self.arrive()

    @rule(index=st.integers(0, 2), model=st.sampled_from("abc"))
    def roll(self, index, model):
        key = self.keys[index]
        if key not in self.gone:
            self.harness.api.edit(SERVICES, *key, lambda body: body["spec"].update(model={"uri": f"pvc://models/{model}"}))

    @rule(jump=st.sampled_from([-300, 0, 300]))
    def set_the_clock(self, jump):
        self.harness.jump = jump

    @rule(data=st.data())
    def make_unhealthy(self, data):
        """A device breaks: the operator replaces the replica, within the cap."""
        if pods := self.harness.staying:
            self.harness.break_device(data.draw(st.sampled_from(pods)))

    @rule(data=st.data())
    def somebody_deletes_a_pod(self, data):
        """Its controller makes another at once, beside it. Nobody can keep that within the cap: it excuses this one and no growth after."""
        if pods := self.harness.staying:
            more = self.harness.total
            self.harness.delete_pod(data.draw(st.sampled_from(pods)))
            self.before += self.harness.total - more

    @rule()
    def restart(self):
        self.harness.restart()

    @rule()
    def control(self):
        self.harness.control()

    @rule(most=st.integers(1, 4))
    def end(self, most):
        self.harness.end_pods(most)

    @rule(seconds=st.sampled_from([1, 31, 70]))
    def wait(self, seconds):
        self.harness.later += seconds
        if seconds >= LATE_S:
            self.harness.api.wire.clear()

    @rule(cap=st.integers(0, 5))
    def recap(self, cap):
        self.quota = cap
        self.harness.recap(cap)

    @rule(index=st.integers(0, 2))
    @precondition(lambda self: len(self.gone) < 2)
    def remove(self, index):
        if self.keys[index] not in self.gone:
            self.gone.add(self.keys[index])
            self.harness.remove(self.keys[index])

    @invariant()
    def never_more_than_allowed(self):
        """Over the cap there may be only what was there when it shrank."""
        total = self.harness.total
        assert total <= max(self.quota, self.before), (total, self.quota, self.before)
        self.before = total

    def teardown(self):
        """Left alone, all that the quota allows is used: nobody waits beside a free slice, nobody holds more than was asked."""
        if not hasattr(self, "harness"):
            return
        harness = self.harness
        harness.api.wire.clear()
        quiet = 0
        for _ in range(12):
            before = harness.api.journal.copy(), len(harness.staying), harness.total
            harness.later += 70
            for key in self.keys:
                harness.run(key, 3)
            harness.control()
            harness.end_pods()
            quiet = quiet + 1 if before == (harness.api.journal, len(harness.staying), harness.total) else 0
            if quiet == 3:
                break
        alive = [key for key in self.keys if key not in self.gone]
        asked = sum(harness.api.objects["InferenceService", *key]["spec"]["replicas"] for key in alive)
        assert sum(harness.replicas(key) for key in alive) == min(asked, self.quota) == harness.total


class LongTenants(Tenants):
    """The same, longer."""


LongTenants.TestCase.settings = settings(max_examples=examples(16), stateful_step_count=30, deadline=None)
test_no_order_of_events_exceeds_a_cap = pytest.mark.deep(LongTenants.TestCase)
