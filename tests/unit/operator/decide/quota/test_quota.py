"""TenantQuota on devices: which service gets how many, waits, or gives back, and that no order of events exceeds a cap."""

import asyncio
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from pagoda_contracts.names import ANNOTATION_DEVICES
from pagoda_contracts.resources.placement import Accelerator
from pagoda_operator.api.errors import Unavailable
from pagoda_operator.api.quota import Grant, Holding, devices_of, holdings, needs, written
from pagoda_operator.api.signals import Decision, Recommendation
from pagoda_operator.api.state import DEPLOYMENTS, PODS, PROFILES, QUOTAS, RESOURCE_QUOTAS, SERVICES, Key
from pagoda_operator.decide.plan import plan
from pagoda_operator.decide.quota import Age, Ledger, Quota
from pagoda_operator.decide.render.writes import Create
from pagoda_operator.decide.status.status import status
from pagoda_operator.quota.native import singles
from pagoda_operator.run.queue import Outcome
from pagoda_operator.run.reconcile import Reconciler
from pagoda_operator.run.settings import Settings
from pagoda_operator.watch.observe import observe
from support.kube.fake_api import Crash
from support.suite.profiles import examples
from support.worlds.fleets import H100, cut, fleet, node, whole
from support.worlds.quota import LATE_S, SLICE, JitteryApi, LateApi, QuotaWorld
from support.worlds.stubs import Unscaled, dependencies_with
from support.worlds.world import World

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
    world = World(podTemplate={"metadata": {"annotations": {ANNOTATION_DEVICES: "gpu=1"}}})
    world.api.edit(PROFILES, "", "default", lambda body: body["spec"].update(allow=["metadata.annotations"]))
    world.settle()
    assert world.reason() == "PodTemplateForbidden"


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
    world = QuotaWorld()
    world.cap(1, "ns", "other")
    first, second = world.serve("ns", 1), world.serve("other", 1)
    for key in (first, second):
        world.run(key, 8)
    assert (world.replicas(first), world.replicas(second)) == (1, 0)
    told = world.condition(second, "Stalled")
    assert (told["status"], told["reason"]) == ("True", "QuotaExceeded")
    assert told["message"] == f"0 of 1 replicas ready: TenantQuota team allows 1 {SLICE} slices, and 1 is in use"
    assert world.condition(first, "Stalled")["status"] == "False"


@pytest.mark.parametrize(("granted", "kind", "reason"), [(0, "Stalled", "QuotaExceeded"), (1, "Ready", "Available")])
def test_quota_limits_scaling_and_the_condition_says_so(granted, kind, reason):
    world = QuotaWorld()
    world.cap(1, "ns")
    key = world.serve("ns", 1)
    world.run(key, 5)
    world.control()
    observed = asyncio.run(observe(world.api, key))
    found = Decision(granted, Recommendation(0, 3, 3), "3 wanted", "load, quota")
    observed = replace(observed, scaling=found, quota=Grant(granted, granted, "TenantQuota team allows 1, and 1 is in use"))
    lines = {line["type"]: line for line in status(observed, plan(observed), None, "t")["conditions"]}
    assert (lines[kind]["status"], lines[kind]["reason"]) == ("True", reason)
    assert "TenantQuota team allows 1, and 1 is in use" in lines["Ready"]["message"]


def test_a_revision_after_one_that_never_served_gets_what_the_ending_replicas_leave_of_the_quota():
    """All of it at once would be refused, and nothing would start before the last of them is gone."""
    world = World(replicas=2)
    world.settle()
    world.edit(engine={"maxModelLen": 128})
    drafted = plan(replace(world.observed(), quota=Grant(2, 1, "TenantQuota team allows 2, and 1 is in use")))
    made = [write.manifest for write in drafted.writes if isinstance(write, Create) and write.resource == DEPLOYMENTS]
    assert [manifest["spec"]["replicas"] for manifest in made] == [1]


def test_waiting_service_is_requeued_when_the_pod_that_used_a_slice_is_gone():
    world = QuotaWorld()
    world.cap(1, "ns")
    first, second = world.serve("ns", 1), world.serve("ns", 1)
    for key in (first, second):
        world.run(key, 8)
    world.control()
    world.ask(first, 0)
    world.run(first, 3)
    world.control()
    for key in (first, second):
        world.run(key, 3)
    assert (world.replicas(second), world.total) == (0, 1)  # the pod still ends
    world.woken.clear()
    world.end_pods()
    world.run(first)
    assert world.woken == [second]
    world.run(second, 3)
    assert world.replicas(second) == 1


def test_a_deleted_service_s_slice_is_free_when_its_last_pod_is_gone():
    world = QuotaWorld()
    world.cap(1, "ns")
    first, second = world.serve("ns", 1), world.serve("ns", 1)
    world.run(first, 5)
    world.control()
    world.run(second, 5)
    world.remove(first)
    for _ in range(2):
        world.run(first)
        world.run(second)
    assert world.replicas(second) == 0
    world.end_pods()
    world.run(first)
    assert second in world.woken
    world.run(second, 3)
    assert world.replicas(second) == 1


class Wishes(Unscaled):
    """Scaling that wants four, as far as quota grants them."""

    async def complete(self, key, observed):  # noqa: ARG002 (the protocol's words)
        count = 4 if observed.granted is None else min(4, observed.granted)
        return replace(observed, scaling=Decision(count, Recommendation(0, 4, 4), "4 wanted", "load"))


@pytest.mark.parametrize("asked", [0, 1, 4])
def test_rollout_under_a_full_quota_replaces_one_replica_at_a_time(asked):
    world = QuotaWorld()
    world.cap(2, "ns")
    world.operator = Reconciler(world.api, Settings(), world.now, dependencies_with(world.api, quota=world.quotas, scaling=Wishes()))
    key = world.serve("ns", asked)
    world.round(key, 4)
    (old,) = (body["metadata"]["name"] for body in world.api.of(DEPLOYMENTS))
    world.api.edit(SERVICES, "ns", key.name, lambda body: body["spec"].update(engine={"maxModelLen": 77}))
    served = []
    for _ in range(10):
        world.round(key)
        served.append(sum(body["status"]["availableReplicas"] for body in world.api.of(DEPLOYMENTS)))
        assert world.total <= 2
    (new,) = world.api.of(DEPLOYMENTS)
    assert (new["metadata"]["name"] != old, new["spec"]["replicas"]) == (True, 2)
    assert min(served) == 1
    decisions = world.api.objects[SERVICES.kind, "ns", key.name]["status"]["scaling"].get("lastDecisions", [])
    assert [decision["desired"] for decision in decisions] == [2]


def test_deleted_service_is_requeued_until_its_last_pod_is_gone():
    world = QuotaWorld()
    world.cap(1, "ns")
    first, second = world.serve("ns", 1), world.serve("ns", 1)
    world.round(first, 3)
    world.run(second, 3)
    world.remove(first)
    world.run(first)
    assert world.outcome == Outcome(again=30.0)
    world.end_pods()
    world.run(first)
    assert world.outcome == Outcome(gone=True)
    assert second in world.woken


def test_a_shrunk_quota_drains_and_a_grown_one_gives_back():
    world = QuotaWorld()
    world.cap(4, "ns")
    keys = [world.serve("ns", 2), world.serve("ns", 2)]
    for key in keys:
        world.run(key, 6)
    world.control()
    world.recap(3)
    deletions = [entry for entry in world.api.journal if entry[0] == "delete"]
    for key in keys * 2:
        world.run(key, 3)
    assert [world.replicas(key) for key in keys] == [2, 1]
    assert [entry for entry in world.api.journal if entry[0] == "delete"] == deletions  # lowered, never deleted
    assert world.condition(keys[1], "Stalled")["reason"] == "QuotaExceeded"
    world.recap(4)
    world.control()
    world.end_pods()
    for key in keys:
        world.run(key, 6)
    assert [world.replicas(key) for key in keys] == [2, 2]


def test_invalid_quota_lets_nothing_grow_and_takes_nothing_away():
    world = QuotaWorld()
    world.cap(9, "ns")
    first, second = world.serve("ns", 2), world.serve("ns", 0)
    world.round(first, 4)
    spec = world.api.objects[QUOTAS.kind, "", "team"]["spec"]
    readable = dict(spec)
    spec["devices"] = {"gpus": "many"}
    for asked in (1, 2):
        world.ask(second, asked)
        world.round(second, 2)
    world.ask(first, 3)
    world.round(first, 3)
    world.restart()
    for key in (first, second):
        world.round(key, 3)
    assert (world.replicas(first), world.replicas(second), world.total) == (2, 0, 2)
    line = world.condition(first, "Stalled")
    assert (line["reason"], line["message"]) == (
        "QuotaExceeded",
        f"2 of 3 replicas ready: TenantQuota team cannot be read, so its services do not grow; 2 {SLICE} slices are in use",
    )
    unhealthy = world.staying[0]
    world.break_device(unhealthy)
    world.round(first, 6)
    assert (unhealthy in world.staying, world.replicas(first), world.total) == (True, 2, 2)
    asyncio.run(world.status_writer.write())
    stalled = told(world)["conditions"][2]
    assert (stalled["status"], stalled["reason"]) == ("True", "InvalidSpec")
    assert stalled["message"].endswith(". Its namespaces keep the devices that they have and get no more until the spec is corrected.")
    spec.update(readable)
    world.round(second, 3)
    world.round(first, 3)
    assert (world.replicas(first), world.replicas(second)) == (3, 2)


@pytest.mark.parametrize("spec", [None, [], {"subjects": 3}, {"subjects": {"namespaces": "ns"}}, {"subjects": {"namespaces": [3]}}])
def test_quota_with_invalid_namespaces_limits_none_and_says_so(spec):
    world = QuotaWorld()
    world.cap(0, "ns")
    world.api.objects[QUOTAS.kind, "", "team"]["spec"] = spec
    key = world.serve("ns", 1)
    world.round(key, 3)
    asyncio.run(world.status_writer.write())
    assert world.replicas(key) == 1
    assert told(world)["conditions"][2]["message"].endswith("Its namespaces cannot be read either, so it limits none.")


def test_at_rest_nothing_is_written_after_any_number_of_restarts():
    world = QuotaWorld()
    world.cap(3, "ns")
    keys = [world.serve("ns", 2), world.serve("ns", 2)]
    for key in keys * 3:
        world.run(key, 4)
        world.control()
    asyncio.run(world.status_writer.write())
    written = len(world.api.journal)
    for _ in range(20):
        world.restart()
        for key in reversed(keys):
            world.run(key, 2)
        asyncio.run(world.status_writer.write())
    assert len(world.api.journal) == written


def test_new_process_grants_no_devices_that_are_in_use():
    world = QuotaWorld()
    world.cap(2, "ns", "other")
    first, second = world.serve("ns", 2), world.serve("other", 1)
    world.run(first, 6)
    world.restart()  # and the first thing it sees is the other one
    world.run(second, 6)
    assert (world.replicas(first), world.replicas(second)) == (2, 0)


class Counted(dict):
    """Labels that count how often they are read."""

    reads = 0

    def __getitem__(self, name):
        Counted.reads += 1
        return super().__getitem__(name)


@pytest.mark.deep
def test_a_new_process_reads_a_large_fleet_once_not_once_per_service():
    """2,000 services and 5,000 pods took 8 s of CPU, in which no Lease is renewed."""
    world, count = QuotaWorld(), 40
    world.cap(count, "ns")
    for key in [world.serve("ns", 1) for _ in range(count)]:
        world.run(key, 3)
    world.control()
    for body in (*world.api.of(DEPLOYMENTS), *world.api.of(PODS)):
        body["metadata"]["labels"] = Counted(body["metadata"]["labels"])
    world.restart()
    Counted.reads = 0
    asyncio.run(world.quotas.fill())
    assert len(world.api.of(PODS)) == count
    assert Counted.reads < 20 * count


@pytest.mark.parametrize("jump", [0, 300, -300])
def test_unanswered_write_is_charged_for_a_fixed_time_whatever_the_wall_clock(jump):
    world = QuotaWorld()
    world.cap(1, "ns")
    first, second = world.serve("ns", 1), world.serve("ns", 1)
    world.run(first)  # says that it is there
    world.api.refuse["Deployment"] = Unavailable("no answer in 30 s")
    with pytest.raises(Unavailable):
        world.run(first)
    world.api.refuse.clear()
    world.later += 40  # the first one's next try is later still
    world.jump = jump
    world.run(second, 4)
    assert world.quotas.booked(first, observed_of(world, first)) is False
    assert world.replicas(second) == 0
    world.ask(first, 0)
    world.run(first, 2)
    world.run(second, 3)
    assert world.replicas(second) == 0
    world.later += 26  # 66 s since, by a clock that nobody sets
    world.run(first)
    world.run(second, 2)
    assert (world.replicas(first), world.replicas(second)) == (0, 1)


def observed_of(world, key):
    return asyncio.run(observe(world.api, key))


def test_service_with_an_overdue_charge_is_requeued_and_others_get_the_room():
    """His write never happened, and his own next run is the resync's."""
    world = QuotaWorld()
    world.cap(1, "ns")
    first, second = world.serve("ns", 1), world.serve("ns", 1)
    world.run(first)  # says that it is there
    world.api.refuse["Deployment"] = Unavailable("500")
    with pytest.raises(Unavailable):
        world.run(first)
    world.api.refuse.clear()
    world.ask(first, 0)
    world.run(first, 2)
    world.run(second, 3)
    assert world.replicas(second) == 0
    for world.later, woken in ((64, []), (66, [first]), (68, [first])):
        asyncio.run(world.status_writer.write())
        assert [key for key in world.woken if key == first] == woken
    world.woken.clear()
    world.run(first)
    assert world.woken == [second]
    world.run(second, 3)
    assert (world.replicas(second), world.total) == (1, 1)


def late(*, answered):
    """An operator dies with the order for the last slice on the wire; the next one looks at the other service first."""
    world = QuotaWorld(LateApi())
    world.cap(1, "ns", "other")
    first, second = world.serve("ns", 1), world.serve("other", 1)
    world.run(first)  # says that it is there
    world.api.dies_ordering = True
    with pytest.raises(Crash):
        world.run(first)
    assert [(verb, resource.kind) for verb, resource, _ in world.api.wire] == [("create", "Deployment")]
    world.restart(crashed=not answered)
    world.run(second, 4)
    return world, first, second


def test_late_writes_of_a_dead_leader_exceed_no_cap():
    world, first, second = late(answered=False)
    assert world.replicas(second) == 0
    assert "TenantQuota team: scaling up is paused for a minute after a leader change" in world.condition(second)["message"]
    assert world.outcome.again == 2
    world.later += LATE_S - 1
    world.api.arrive()
    world.run(second, 2)
    world.later += 1
    world.round(second, 3)
    assert (world.replicas(first), world.replicas(second), world.total) == (1, 0, 1)
    assert "allows 1 1g.10gb slices, and 1 is in use" in world.condition(second)["message"]


def test_late_write_for_an_idle_service_is_counted():
    world = QuotaWorld(LateApi())
    world.cap(2, "ns", "other")
    first, second = world.serve("ns", 1), world.serve("other", 0)
    world.round(first, 3)
    world.ask(first, 2)
    world.ask(second, 1)
    world.api.dies_ordering = True
    with pytest.raises(Crash):
        world.run(first)
    world.restart(crashed=True)
    world.run(second, 3)
    assert world.replicas(second) == 0, "what is there was counted, and it is one"
    world.api.arrive()
    world.later += LATE_S
    world.run(second, 3)
    assert (world.replicas(first), world.replicas(second)) == (2, 0)


def test_lost_write_is_not_charged_after_a_minute():
    world, first, second = late(answered=False)
    world.api.wire.clear()
    world.later += LATE_S
    world.round(second, 3)
    assert (world.replicas(first), world.replicas(second)) == (0, 1)


def test_no_pause_after_a_leader_whose_writes_were_all_answered():
    world, _, second = late(answered=True)
    assert world.replicas(second) == 1


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
    world = QuotaWorld(api)
    world.cap(1, "ns", "other")
    keys = [world.serve("ns", 1), world.serve("other", 1)]
    most = [0]

    def watch(*_):
        most[0] = max(most[0], world.total)

    api.before_write = watch

    async def work():
        await asyncio.gather(*(worker(world, key) for key in keys))

    asyncio.run(work())
    watch()
    return most[0], sorted(world.replicas(key) for key in keys)


async def worker(world, key):
    for _ in range(5):
        await world.operator.reconcile(key)


@pytest.mark.deep
def test_of_two_that_race_for_the_last_slice_exactly_one_gets_it():
    assert {(most, tuple(got)) for most, got in map(race, range(30))} == {(1, (0, 1))}


@pytest.mark.deep
def test_of_two_that_race_for_the_last_slice_exactly_one_gets_it_hundreds_of_times():
    assert {(most, tuple(got)) for most, got in map(race, range(30, 30 + examples(200)))} == {(1, (0, 1))}


# The quota's own status, and the native one behind it


def told(world, name="team"):
    return world.api.objects[QUOTAS.kind, "", name]["status"]


def test_quota_reports_usage_once_a_minute_and_spec_changes_at_once():
    world = QuotaWorld()
    world.cap(2, "ns")
    key = world.serve("ns", 1)
    asyncio.run(world.status_writer.write())
    assert told(world)["usage"]["migSlices"] == [{"profile": SLICE, "count": 0}]
    assert {line["type"]: line["status"] for line in told(world)["conditions"]} == {
        "Ready": "True",
        "Reconciling": "False",
        "Stalled": "False",
    }
    world.run(key, 4)
    for turn in range(29):
        world.later += 2
        world.jump = (-300, 0, 300)[turn % 3]  # somebody sets the clock
        asyncio.run(world.status_writer.write())
    assert told(world)["usage"]["migSlices"][0]["count"] == 0
    world.later += 2
    asyncio.run(world.status_writer.write())
    assert told(world)["usage"]["migSlices"][0]["count"] == 1
    world.recap(0)
    asyncio.run(world.status_writer.write())
    assert (told(world)["observedGeneration"], told(world)["conditions"][1]["reason"]) == (2, "Draining")


def test_unenforced_fields_are_named_and_an_invalid_spec_is_stalled():
    world = QuotaWorld()
    world.cap(1, "ns")
    world.api.edit(QUOTAS, "", "team", lambda body: body["spec"].update(weight=3, maxConcurrency=4))
    asyncio.run(world.status_writer.write())
    ready = told(world)["conditions"][0]
    wanted = "subjects.apiKeysSecretRef must name a Secret of API keys in the gateways' namespace, and it names none"
    assert (ready["status"], ready["reason"]) == ("False", "NotEnforced")
    assert ready["message"] == f"not enforced: maxConcurrency, weight. {wanted}"
    world.api.edit(QUOTAS, "", "team", lambda body: body["spec"].update(weight=-3))
    asyncio.run(world.status_writer.write())
    assert told(world)["conditions"][2]["reason"] == "InvalidSpec"
    assert world.seen()[0].caps == {}


@pytest.mark.parametrize("counts", [(7, 1), (1, 7)])
def test_smaller_cap_of_two_spellings_applies_and_is_reported(counts):
    world = QuotaWorld()
    slices = [{"profile": profile, "count": count} for profile, count in zip(("1g.5gb+me", "1g.5gb.me"), counts, strict=True)]
    world.cap(0, "ns", migSlices=slices)
    assert world.seen()[0].caps == {"mig-1g.5gb.me": 1}
    asyncio.run(world.status_writer.write())
    assert told(world)["conditions"][0]["message"] == "in force; 1g.5gb+me and 1g.5gb.me are the same slices, so the smaller cap applies"


def test_native_quota_is_created_updated_and_deleted():
    world = QuotaWorld()
    body = world.cap(2, "ns", resourceQuota=True)
    asyncio.run(world.status_writer.write())
    (native,) = world.api.of(RESOURCE_QUOTAS)
    assert native["spec"]["hard"] == {"requests.nvidia.com/mig-1g.10gb": "2"}
    assert (native["metadata"]["namespace"], native["metadata"]["ownerReferences"][0]["uid"]) == ("ns", body["metadata"]["uid"])
    written = len(world.api.journal)
    world.later += 61
    asyncio.run(world.status_writer.write())
    assert len(world.api.journal) == written
    devices = {"migSlices": [{"profile": SLICE, "count": 3}], "gpus": 1, "resourceQuota": True}
    world.api.edit(QUOTAS, "", "team", lambda found: found["spec"].update(devices=devices))
    asyncio.run(world.status_writer.write())
    assert world.api.of(RESOURCE_QUOTAS)[0]["spec"]["hard"]["requests.nvidia.com/gpu"] == "1"
    world.recap(3)
    asyncio.run(world.status_writer.write())
    assert world.api.of(RESOURCE_QUOTAS) == []


def claiming(world, class_name):
    key = world.serve("ns", 1)
    dra = [{"dra": {"deviceClassName": class_name, "count": 1}}]
    world.api.edit(SERVICES, key.namespace, key.name, lambda body: body["spec"].update(accelerators=dra))


def native_of_gpus(world, *more):
    world.cap(2, "ns")
    devices = {"gpus": 4, "resourceQuota": True}
    world.api.edit(QUOTAS, "", "team", lambda found: found["spec"].update(devices=devices))
    asyncio.run(world.status_writer.write())
    return world.api.of(RESOURCE_QUOTAS)[0]


def by_class(*names):
    return {f"{name}.deviceclass.resource.k8s.io/devices": "4" for name in names}


def test_a_native_quota_on_gpus_limits_claims_too_by_every_class_that_is_used():
    world = QuotaWorld()
    claiming(world, "big.example.com")
    hard = {"requests.nvidia.com/gpu": "4"} | by_class("gpu.nvidia.com", "mig.nvidia.com", "big.example.com")
    assert native_of_gpus(world)["spec"]["hard"] == hard
    claiming(world, "x" * 240)
    world.later += 61
    asyncio.run(world.status_writer.write())
    assert world.api.of(RESOURCE_QUOTAS)[0]["spec"]["hard"] == hard, "no ResourceQuota could have this name"


def test_api_server_that_counts_no_claims_is_reported():
    world = QuotaWorld()
    native = native_of_gpus(world)
    hard = native["spec"]["hard"]

    def told_with(status):
        world.api.edit(RESOURCE_QUOTAS, "ns", "pagoda-team", lambda found: found.update(status=status))
        world.later += 61
        asyncio.run(world.status_writer.write())
        return told(world)["conditions"][0]["message"]

    assert told(world)["conditions"][0]["message"] == "in force"
    assert told_with({"hard": hard, "used": dict.fromkeys(hard, "0")}) == "in force"
    said = told_with({"hard": hard, "used": {"requests.nvidia.com/gpu": "0"}})
    assert said.startswith("in force; the ResourceQuota does not count claims of gpu.nvidia.com, mig.nvidia.com")
    assert told(world)["conditions"][2]["status"] == "False", "the TenantQuota itself holds"
    assert told_with({}) == "in force"


@pytest.mark.parametrize(("gpus", "limit"), [(0, "7"), (2, "9"), (None, None)])
def test_native_quota_allows_slices_that_are_requested_as_gpus(gpus, limit):
    world = QuotaWorld()
    devices = {} if gpus is None else {"gpus": gpus}
    world.cap(7, "ns", resourceQuota=True, **devices)
    world.single = singles(fleet(node("a", H100, cut(1, p1g_10gb=7), strategy="single"), node("b", H100, whole(8))))
    asyncio.run(world.status_writer.write())
    (native,) = world.api.of(RESOURCE_QUOTAS)
    hard = native["spec"]["hard"]
    assert (hard.get("requests.nvidia.com/gpu"), hard[f"requests.nvidia.com/mig-{SLICE}"]) == (limit, "7")
    said = f"allows {limit} of GPUs and {SLICE} slices together" if limit else f"does not limit {SLICE} slices of MIG strategy single"
    assert f"; the ResourceQuota {said}" in told(world)["conditions"][0]["message"]
    world.later += 61
    world.single = singles(fleet(node("b", H100, whole(8))))
    asyncio.run(world.status_writer.write())
    (native,) = world.api.of(RESOURCE_QUOTAS)
    assert native["spec"]["hard"].get("requests.nvidia.com/gpu") == (None if gpus is None else str(gpus))
    assert told(world)["conditions"][0]["message"] == "in force"


def test_resource_quota_of_another_owner_is_left_alone():
    world = QuotaWorld()
    world.cap(2, "ns", resourceQuota=True)
    world.api.put(RESOURCE_QUOTAS, {"metadata": {"name": "pagoda-team", "namespace": "ns"}, "spec": {"hard": {"pods": "1"}}})
    asyncio.run(world.status_writer.write())
    assert told(world)["conditions"][2]["reason"] == "ResourceQuotaRefused"
    assert world.api.of(RESOURCE_QUOTAS)[0]["spec"] == {"hard": {"pods": "1"}}


# An unhealthy replica under a full quota


def full(replicas, cap=None, **spec):
    """One service that has all that its tenant may have, and a rival who wants one."""
    world = QuotaWorld()
    world.cap(replicas if cap is None else cap, "ns")
    key = world.serve("ns", replicas, **spec)
    world.round(key, 3)
    rival = world.serve("ns", 1)
    world.round(rival, 2)
    return world, key, rival


@pytest.mark.parametrize("replicas", [1, 3])
def test_unhealthy_replica_stays_under_a_full_quota_and_the_condition_names_the_cap(replicas):
    world, key, rival = full(replicas)
    there = list(world.staying)
    world.break_device(world.staying[0])
    for _ in range(6):
        world.later += 60
        for turn in (key, rival):
            world.run(turn)
        world.control()
        assert (world.staying, world.total, world.replicas(rival)) == (there, replicas, 0)
    line = world.condition(key, "Degraded")
    verb = "is" if replicas == 1 else "are"
    assert line["reason"] == "ReplacementDelayed"
    assert f"TenantQuota team allows {replicas} {SLICE} slices, and {replicas} {verb} in use" in line["message"]
    assert world.condition(key, "Stalled")["status"] == "False", "the service has what it asks for"
    written = len(world.api.journal)
    world.run(key, 3)
    assert len(world.api.journal) == written


@pytest.mark.parametrize("crashed", [False, True])
def test_successor_is_made_when_the_quota_grows_and_charged_until_the_unhealthy_replica_is_gone(crashed):
    world, key, rival = full(2)
    unhealthy = world.staying[0]
    world.break_device(unhealthy)
    world.run(key, 2)
    world.recap(3)
    world.run(key, 2)
    assert (world.replicas(key), world.total) == (3, 3)
    world.restart(crashed=crashed)
    world.run(rival, 2)
    world.control()
    world.run(key, 6)
    world.control()
    world.run(rival, 3)
    assert (unhealthy in world.staying, world.replicas(key), world.total, world.replicas(rival)) == (False, 2, 3, 0), (
        "it ends, and holds its slice"
    )
    world.later += LATE_S * 2
    world.end_pods()
    world.run(key)
    world.run(rival, 3)
    assert (world.replicas(key), world.replicas(rival), world.total) == (2, 1, 3)


def test_two_services_get_a_successor_in_the_last_slice_one_after_the_other():
    world = QuotaWorld()
    world.cap(5, "ns")
    keys = [world.serve("ns", 2), world.serve("ns", 2)]
    for key in keys:
        world.round(key, 3)
    unhealthy = world.staying[::2]
    for pod in unhealthy:
        world.break_device(pod)
    for _ in range(8):
        for key in keys:
            world.run(key, 2)
            assert world.total <= 5
        world.control()
        world.end_pods()
    assert ([world.replicas(key) for key in keys], world.total) == ([2, 2], 4)
    assert not [pod for pod in unhealthy if pod in world.staying]


def test_shrunk_cap_removes_the_successor_and_no_wanted_replica():
    world, key, _ = full(2, cap=3)
    world.round(key, 2)
    world.recap(2)
    world.ask(Key("ns", "s2"), 0)
    world.round(Key("ns", "s2"), 3)
    world.recap(3)
    unhealthy = world.staying[0]
    world.break_device(unhealthy)
    world.run(key, 2)
    assert world.replicas(key) == 3
    world.recap(2)
    world.run(key, 4)
    world.control()
    assert (world.replicas(key), len(world.staying)) == (2, 2)
    assert "TenantQuota team allows 2" in world.condition(key, "Degraded")["message"]
    written = len(world.api.journal)
    world.run(key, 6)
    assert len(world.api.journal) == written


def test_no_successor_is_made_for_a_minute_after_a_killed_leader():
    world, key, _ = full(1, cap=3)
    world.break_device(world.staying[0])
    world.restart(crashed=True)
    world.run(key, 3)
    assert (world.replicas(key), "paused for a minute" in world.condition(key, "Degraded")["message"]) == (1, True)
    world.later += LATE_S
    world.run(key, 3)
    assert world.replicas(key) == 2


def test_a_successor_that_was_made_before_a_leader_was_killed_stays():
    world, key, _ = full(1, cap=3)
    world.break_device(world.staying[0])
    world.run(key, 3)
    world.restart(crashed=True)
    world.run(key, 3)
    assert world.replicas(key) == 2


@pytest.mark.parametrize("spec", [{"accelerators": []}, {"podTemplate": {"spec": {"hostNetwork": True}}}])
def test_invalid_spec_does_not_keep_an_unhealthy_replica(spec):
    world, key, rival = full(2)
    world.ask(rival, 0)
    world.round(rival, 2)
    world.recap(3)
    unhealthy = world.staying[0]
    world.break_device(unhealthy)
    world.api.edit(SERVICES, *key, lambda body: body["spec"].update(spec))
    for _ in range(6):
        world.run(key, 2)
        world.control()
        assert world.total <= 3
        world.end_pods()
    assert (world.replicas(key), world.total, unhealthy in world.staying) == (2, 2, False)


# Any order of events


class Tenants(RuleBasedStateMachine):
    """Three services in two namespaces under one quota; people, controllers, kubelets and a mortal operator act in any order."""

    @initialize(cap=st.integers(0, 5))
    def begin(self, cap):
        self.world = QuotaWorld(LateApi())
        self.quota = self.cap_on_wire = cap
        self.world.cap(cap, "ns", "other")
        self.keys = [self.world.serve(namespace, 0) for namespace in ("ns", "other", "ns")]
        self.gone = set()
        self.before = 0

    @rule(index=st.integers(0, 2), replicas=st.integers(0, 4))
    def ask(self, index, replicas):
        if self.keys[index] not in self.gone:
            self.world.ask(self.keys[index], replicas)

    @rule(index=st.integers(0, 2), times=st.integers(1, 4), dies=st.none() | st.just("ordering") | st.integers(0, 3))
    def reconcile(self, index, times, dies):
        self.world.api.crash_in = dies if isinstance(dies, int) else None
        self.world.api.dies_ordering = dies == "ordering"
        self.cap_on_wire = max(self.quota, self.cap_on_wire if self.world.api.wire else 0)
        try:
            self.world.run(self.keys[index], times)
        except Crash:
            self.world.restart(crashed=True)
        self.world.api.crash_in, self.world.api.dies_ordering = None, False

    @rule()
    def arrive(self):
        """What the last operator had on the wire happens after all; under a cap that shrank meanwhile it is as if it had been there."""
        self.world.api.arrive()
        self.world.collect()
        self.before = max(self.before, min(self.world.total, self.cap_on_wire))

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
            self.world.api.edit(SERVICES, *key, lambda body: body["spec"].update(model={"uri": f"pvc://models/{model}"}))

    @rule(jump=st.sampled_from([-300, 0, 300]))
    def set_the_clock(self, jump):
        self.world.jump = jump

    @rule(data=st.data())
    def make_unhealthy(self, data):
        """A device breaks: the operator replaces the replica, within the cap."""
        if pods := self.world.staying:
            self.world.break_device(data.draw(st.sampled_from(pods)))

    @rule(data=st.data())
    def somebody_deletes_a_pod(self, data):
        """Its controller makes another at once, beside it. Nobody can keep that within the cap: it excuses this one and no growth after."""
        if pods := self.world.staying:
            more = self.world.total
            self.world.delete_pod(data.draw(st.sampled_from(pods)))
            self.before += self.world.total - more

    @rule()
    def restart(self):
        self.world.restart()

    @rule()
    def control(self):
        self.world.control()

    @rule(most=st.integers(1, 4))
    def end(self, most):
        self.world.end_pods(most)

    @rule(seconds=st.sampled_from([1, 31, 70]))
    def wait(self, seconds):
        self.world.later += seconds
        if seconds >= LATE_S:
            self.world.api.wire.clear()

    @rule(cap=st.integers(0, 5))
    def recap(self, cap):
        self.quota = cap
        self.world.recap(cap)

    @rule(index=st.integers(0, 2))
    @precondition(lambda self: len(self.gone) < 2)
    def remove(self, index):
        if self.keys[index] not in self.gone:
            self.gone.add(self.keys[index])
            self.world.remove(self.keys[index])

    @invariant()
    def never_more_than_allowed(self):
        """Over the cap there may be only what was there when it shrank."""
        total = self.world.total
        assert total <= max(self.quota, self.before), (total, self.quota, self.before)
        self.before = total

    def teardown(self):
        """Left alone, all that the quota allows is used: nobody waits beside a free slice, nobody holds more than was asked."""
        if not hasattr(self, "world"):
            return
        world = self.world
        world.api.wire.clear()
        quiet = 0
        for _ in range(12):
            before = world.api.journal.copy(), len(world.staying), world.total
            world.later += 70
            for key in self.keys:
                world.run(key, 3)
            world.control()
            world.end_pods()
            quiet = quiet + 1 if before == (world.api.journal, len(world.staying), world.total) else 0
            if quiet == 3:
                break
        alive = [key for key in self.keys if key not in self.gone]
        asked = sum(world.api.objects["InferenceService", *key]["spec"]["replicas"] for key in alive)
        assert sum(world.replicas(key) for key in alive) == min(asked, self.quota) == world.total


class LongTenants(Tenants):
    """The same, longer."""


LongTenants.TestCase.settings = settings(max_examples=examples(16), stateful_step_count=30, deadline=None)
test_no_order_of_events_exceeds_a_cap = pytest.mark.deep(LongTenants.TestCase)
