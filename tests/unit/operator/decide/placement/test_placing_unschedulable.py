"""Replicas whom the scheduler finds no node though devices are free: memory, volumes of another zone, affinity. Then the pod counts."""

from datetime import timedelta

import pytest
from pagoda_operator.api.state import DEPLOYMENTS, PODS
from support.harness.fake_scheduler import NO_ROOM as WORDS
from support.harness.fake_scheduler import refuse, refuse_once
from support.harness.inventories import A100_40, A100_80, CPU, H100, H200, cut, gpu, inventory, mig, node, pod, whole
from support.harness.placing import bind, harness, placement

EMPTY_NODES = node("a", H100, whole(8)), node("b", H200, whole(8))
EMPTY = inventory(*EMPTY_NODES)


@pytest.fixture
def made():
    it = harness(gpu("H100", fallbackAfter="1m"), gpu("H200", fallbackAfter="5m"), CPU, there=EMPTY)
    it.settle()
    refuse(it)
    return it


def test_unscheduled_service_waits_for_fallback_after_and_then_takes_the_next_entry(made):
    assert (placement(made)["chosen"], placement(made)["waiting"]["accelerator"]) == ("gpu[0]", "gpu[0]")
    assert made.reason() == "WaitingForCapacity"
    assert WORDS in made.conditions()["Reconciling"]["message"]
    assert made.run().again == 60
    made.api.journal.clear()
    made.later += timedelta(seconds=59)
    made.restart()
    made.run()
    assert made.api.journal == []
    made.later += timedelta(seconds=1)
    made.settle()
    assert (placement(made)["chosen"], "waiting" in placement(made)) == ("gpu[1]", False)
    assert placement(made)["rejected"][0]["accelerator"] == "gpu[0]"
    assert WORDS in placement(made)["rejected"][0]["why"]
    bind(made)
    made.tick()
    made.settle()
    assert (placement(made)["chosen"], made.reason(), len(made.api.of(DEPLOYMENTS))) == ("gpu[1]", "Available", 1)


def test_given_up_entry_is_not_tried_again_while_the_next_is_unscheduled(made):
    made.later += timedelta(minutes=1)
    made.settle()
    refuse(made, words="0/2 nodes are available: 2 Insufficient memory.")
    assert (placement(made)["chosen"], placement(made)["waiting"]["accelerator"]) == ("gpu[1]", "gpu[1]")
    made.later += timedelta(minutes=4)
    made.api.journal.clear()
    made.restart()
    made.settle()
    assert made.api.journal == []
    made.later += timedelta(minutes=1)
    made.settle()
    assert placement(made)["chosen"] == "cpu[2]"
    assert [one["accelerator"] for one in placement(made)["rejected"]] == ["gpu[0]", "gpu[1]"]
    bind(made)
    assert (placement(made)["chosen"], made.reason()) == ("cpu[2]", "Available")


def test_service_scheduled_in_time_stays(made):
    made.later += timedelta(seconds=59)
    bind(made)
    made.later += timedelta(hours=1)
    made.settle()
    assert (placement(made)["chosen"], "waiting" in placement(made), made.reason()) == ("gpu[0]", False, "Available")


def test_without_another_entry_the_scheduler_s_message_is_the_reason():
    made = harness(gpu("H100", fallbackAfter="1m"), there=EMPTY)
    made.settle()
    refuse(made)
    assert (placement(made)["chosen"], "waiting" in placement(made), made.reason()) == ("gpu[0]", False, "Scheduling")


def test_pod_with_a_scheduling_gate_was_not_refused():
    made = harness(gpu("H100", fallbackAfter="1m"), CPU, there=EMPTY)
    made.settle()
    refuse(made, reason="SchedulingGated", words="Scheduling is blocked due to non-empty scheduling gates")
    made.later += timedelta(hours=1)
    made.settle()
    assert (placement(made)["chosen"], "waiting" in placement(made)) == ("gpu[0]", False)


ONE = node("a", H100, whole(1)), node("b", H200, whole(8))


def lose(made):
    """The replica goes with its node; its Deployment makes another one."""
    for key in [key for key in made.api.objects if key[0] == PODS.kind]:
        del made.api.objects[key]
    made.api.control()


@pytest.mark.deep
@pytest.mark.parametrize("words", [WORDS, ""])
@pytest.mark.parametrize("others", [(), (pod("a", gpu=1),)])
def test_service_that_ran_falls_back_once_and_does_not_alternate(words, others):
    made = harness(gpu("H100", fallbackAfter="1m"), gpu("H200", fallbackAfter="5m"), there=inventory(*ONE))
    made.settle()
    bind(made)
    lose(made)
    made.inventory = inventory(*ONE, pods=others)
    reported = ["gpu[0]"]
    for _ in range(20):
        made.later += timedelta(seconds=20)
        for _ in range(4):
            if words:
                refuse_once(made, words)
            made.run()
            made.api.control()
            reported += [placement(made)["chosen"]] * (placement(made)["chosen"] != reported[-1])
    moved = bool(words or others)
    assert reported == ["gpu[0]", "gpu[1]"][: 1 + moved]
    bind(made)
    assert (made.reason(), len(made.api.of(DEPLOYMENTS)), placement(made)["chosen"]) == ("Available", 1, reported[-1])


TIGHT = "0/2 nodes are available: 1 Insufficient nvidia.com/gpu, 1 node(s) didn't match Pod's node affinity/selector."
CLAIMED = "0/2 nodes are available: 1 cannot allocate all claims, 1 node(s) didn't match Pod's node affinity/selector."


@pytest.fixture
def draining():
    """The only replica is on its way out, on the only H100; its successor finds no node."""
    it = harness(gpu("H100", fallbackAfter="1m"), gpu("H200", fallbackAfter="5m"), there=inventory(*ONE))
    it.settle()
    bind(it)
    uid = it.observed().meta.uid
    it.inventory = inventory(*ONE, pods=(pod("a", "mine", uid, gpu=1),))
    (old,) = it.api.of(PODS)
    old["spec"] = {"nodeName": "a"}
    old["metadata"]["deletionTimestamp"] = "2026-01-01T00:10:00Z"
    it.settle()
    return it, old, uid


@pytest.mark.parametrize("words", [TIGHT, CLAIMED])
def test_replica_waiting_for_its_terminating_predecessor_moves_no_service(draining, words):
    made, old, _ = draining
    refuse(made, words=words)
    for _ in range(9):
        made.tick()
        made.settle()
    assert (placement(made)["chosen"], "waiting" in placement(made)) == ("gpu[0]", False)
    del made.api.objects[(PODS.kind, "ns", old["metadata"]["name"])]
    made.inventory = inventory(*ONE)
    bind(made)
    assert (made.reason(), placement(made)["chosen"]) == ("Available", "gpu[0]")


@pytest.mark.parametrize("hindrance", [{"ready": False}, {"cordoned": True}])
def test_a_predecessor_that_ends_on_a_node_that_takes_no_pods_makes_no_room(draining, hindrance):
    made, _, uid = draining
    others = node("c", H100, whole(8))
    made.inventory = inventory(node("a", H100, whole(1), **hindrance), ONE[1], others, pods=(pod("a", "mine", uid, gpu=1),))
    refuse(made, words="0/3 nodes are available: 1 Insufficient memory, 2 node(s) didn't match Pod's node affinity/selector.")
    made.tick()
    made.settle()
    assert placement(made)["chosen"] == "gpu[1]"


def test_shortage_that_the_terminating_pod_cannot_resolve_moves_the_service(draining):
    made, _, _ = draining
    refuse(made)
    made.tick()
    made.settle()
    assert placement(made)["chosen"] == "gpu[1]"


def test_given_up_entry_stays_given_up_when_its_devices_become_free(made):
    made.later += timedelta(minutes=1)
    made.settle()
    refuse(made)
    made.inventory = inventory(node("a", H100, whole(8)), node("b", H200, whole(8)), pods=(pod("a", gpu=8),))
    made.settle()
    assert WORDS in placement(made)["rejected"][0]["why"]
    made.later += timedelta(minutes=1)
    made.inventory = EMPTY
    made.settle()
    assert (placement(made)["chosen"], placement(made)["waiting"]["accelerator"]) == ("gpu[1]", "gpu[1]")


SLICED = [node(product.product.lower(), product, *(cut(1, **{size: 1}) for size in sizes)) for product, sizes in (
    (A100_40, ("p1g_5gb", "p2g_10gb", "p3g_20gb", "p7g_40gb")),
    (A100_80, ("p1g_10gb", "p1g_20gb", "p2g_20gb", "p3g_40gb")),
    (H100, ("p1g_10gb", "p1g_20gb", "p2g_20gb", "p3g_40gb")),
    (H200, ("p1g_18gb", "p1g_35gb", "p3g_71gb", "p7g_141gb")),
)]  # fmt: skip


def test_scheduler_verdicts_are_kept_if_reasons_exceed_the_status():
    entries = mig(least="200Gi"), mig(least="201Gi"), gpu("H100", fallbackAfter="1m"), gpu("H200", fallbackAfter="5m")
    made = harness(*entries, there=inventory(*SLICED, *EMPTY_NODES))
    made.settle()
    refuse(made)
    made.tick()
    made.settle()
    refuse(made)
    made.tick()
    made.settle()
    reported = placement(made)["rejected"]
    assert (len(reported), reported[-1], WORDS in reported[-2]["why"]) == (
        32,
        {"accelerator": "others", "why": "2 more reasons are left out"},
        True,
    )
    assert (placement(made)["chosen"], placement(made)["waiting"]["accelerator"]) == ("gpu[3]", "gpu[3]")


@pytest.mark.parametrize("more", [{}, {"fallbackAfter": "1m"}])
def test_another_class_of_the_same_entry_is_tried_where_one_is_refused(more):
    made = harness(mig(least="1Gi", **more), CPU, there=(node("a", H100, cut(2, p2g_20gb=1, p1g_10gb=2)),))
    made.settle()
    assert placement(made)["device"] == "mig-1g.10gb, 9.8 GiB"
    refuse(made)
    assert (placement(made)["chosen"], placement(made)["device"]) == ("mig[0]", "mig-2g.20gb, 19.6 GiB")
    assert placement(made)["rejected"] == [{"accelerator": "mig[0]", "why": f"mig-1g.10gb: the scheduler finds no node: {WORDS}"}]
    refuse(made)
    assert (placement(made)["device"], placement(made)["waiting"]["accelerator"]) == ("mig-2g.20gb, 19.6 GiB", "mig[0]")
    made.later += timedelta(minutes=1)
    made.settle()
    assert placement(made)["chosen"] == ("cpu[1]" if more else "mig[0]")
