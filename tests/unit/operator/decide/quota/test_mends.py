"""A service goes on whole under quotas that hinder it: while a sick replica hangs, and while nobody can read what is allowed."""

from types import MappingProxyType

import pytest
from pagoda_contracts.names import ANNOTATION_DEVICES, ANNOTATION_DRAIN_DEADLINE, ANNOTATION_RESERVED
from pagoda_operator.api.holdings import Holding
from pagoda_operator.api.state import DEPLOYMENTS, PODS, PROFILES, QUOTAS, SERVICES, Key
from pagoda_operator.decide.quota.caps import Quota
from pagoda_operator.decide.quota.ledger import Age, Ledger
from support.worlds.quota import QuotaWorld


def hanging(cap, replicas, sick=1):
    """A sick replica was told to go before its successor, and its node is dead: it stays, on its way out."""
    world = QuotaWorld()
    world.cap(cap, "ns")
    key = world.serve("ns", replicas)
    world.round(key, 4)
    for pod in world.staying[-sick:]:
        world.break_device(pod)
    turns(world, key, 6)
    assert (world.replicas(key), len(world.staying), world.total) == (replicas - 1, replicas - 1, replicas)
    return world, key


def turns(world, key, times, seconds=0.0):
    """Everybody has had a turn, but what ends does not."""
    for _ in range(times):
        world.later += seconds
        world.run(key, 2)
        world.control()


def words(world):
    return [body["metadata"]["annotations"].get(ANNOTATION_RESERVED) for body in world.api.of(DEPLOYMENTS)]


@pytest.mark.parametrize("cap", [4, None])
def test_a_service_is_whole_again_where_a_sick_replica_hangs_and_there_is_room_beside_it(cap):
    world, key = hanging(3, 3)
    if cap is None:
        del world.api.objects[QUOTAS.kind, "", "team"]
    else:
        world.recap(cap)
    turns(world, key, 3)
    assert (world.replicas(key), len(world.staying), world.total, words(world)) == (3, 3, 4, [None])


def test_the_last_one_that_serves_on_a_faulty_device_serves_on_under_a_full_quota_and_goes_once_there_is_room():
    world = QuotaWorld()
    world.cap(1, "ns")
    key = world.serve("ns", 1)
    world.round(key, 4)
    (sick,) = world.staying
    world.break_device(sick)
    for _ in range(10):
        turns(world, key, 2, seconds=60)
        assert (world.replicas(key), len(world.staying), world.total) == (1, 1, 1)
    told = world.condition(key, "Degraded")
    assert (told["reason"], world.outcome.again) == ("ReplacementHeld", 30)
    assert "when the quota allows an extra replica" in told["message"]
    world.recap(2)
    seen = []
    for _ in range(6):
        world.run(key, 2)
        seen.append(len(world.staying))
        world.control()
        world.end_pods()
        assert world.total <= 2
    assert (max(seen), seen[-1], world.replicas(key)) == (2, 1, 1)
    assert world.staying[0]["metadata"]["name"] != sick["metadata"]["name"]


def test_a_sick_replica_that_hangs_keeps_its_service_lowered_while_there_is_no_room_beside_it():
    world, key = hanging(3, 3)
    turns(world, key, 30, seconds=60)
    assert (world.replicas(key), world.total, words(world)) == (2, 3, ["3"])


def test_the_next_sick_replica_is_replaced_though_the_last_one_hangs_where_there_is_room():
    world, key = hanging(3, 3, sick=2)
    names = {pod["metadata"]["name"] for pod in world.staying}
    world.recap(4)
    for _ in range(20):
        turns(world, key, 1, seconds=30)
        assert world.total <= 4
    assert len(names & {pod["metadata"]["name"] for pod in world.staying}) == 1, "the second one is on its way out too"
    assert (world.replicas(key), words(world)) == (2, ["3"]), "and there is no room beside both"
    world.recap(5)
    turns(world, key, 3)
    assert (world.replicas(key), len(world.staying), world.total, words(world)) == (3, 3, 5, [None])


# Nobody can read what is allowed


def spoil(world):
    world.api.objects[QUOTAS.kind, "", "team"]["spec"]["devices"] = {"gpus": "many"}


def rolling(strategy, cap=9, profile=MappingProxyType({})):
    """Three replicas; their quota has become unreadable, and then the spec was edited, and what their `profile` says."""
    world = QuotaWorld()
    world.cap(cap, "ns")
    key = world.serve("ns", 3, rollout={"strategy": strategy})
    world.round(key, 4)
    old = {pod["metadata"]["name"] for pod in world.staying}
    spoil(world)
    world.api.edit(PROFILES, "", "default", lambda body: body["spec"].update(profile))
    world.api.edit(SERVICES, *key, lambda body: body["spec"].update(engine={"maxConcurrency": 3}))
    return world, key, old


@pytest.mark.parametrize("crashed", [False, True])
@pytest.mark.parametrize("strategy", ["Replace", "Auto"])
def test_a_rollout_one_after_the_other_goes_on_under_a_quota_that_nobody_can_read_and_takes_no_more_than_one_away(strategy, crashed):
    world, key, old = rolling(strategy)
    for turn in range(30):
        if turn == 1:
            world.restart(crashed=crashed)
        world.round(key)
        world.later += 5
        assert (len(world.staying) >= 2, world.total <= 3) == (True, True)
    assert (world.replicas(key), len(world.staying)) == (3, 3)
    assert not old & {pod["metadata"]["name"] for pod in world.staying}


def test_a_surge_waits_with_the_old_revision_whole_under_a_quota_that_nobody_can_read():
    world, key, old = rolling("Surge")
    for _ in range(20):
        world.round(key)
        world.later += 5
        assert world.total <= 3
    assert {pod["metadata"]["name"] for pod in world.staying} == old


GPUS = {"metadata": {"annotations": {ANNOTATION_DEVICES: "gpu=1"}}}


@pytest.mark.deep
@pytest.mark.parametrize("crashed", [False, True])
@pytest.mark.parametrize("strategy", ["Replace", "Auto", "Surge"])
def test_a_move_to_devices_that_nobody_held_waits_with_all_that_serves_until_the_quota_can_be_read(strategy, crashed):
    world, key, old = rolling(strategy, 3, {"podTemplate": GPUS})
    for turn in range(12):
        if turn == 3:
            world.restart(crashed=crashed)
        world.round(key)
        world.later += 20
        assert {pod["metadata"]["name"] for pod in world.staying} == old
    assert "cannot be read" in world.condition(key)["message"]
    world.ask(key, 2)
    world.round(key, 4)
    assert {pod["metadata"]["name"] for pod in world.staying} < old
    assert world.replicas(key) == 2
    world.ask(key, 3)
    world.cap(3, "ns", gpus=3)
    world.round(key, 20)
    assert len(world.staying) == 3
    assert not old & {pod["metadata"]["name"] for pod in world.staying}


WORD = "mig-1g.10gb"
A, B = Key("ns", "a"), Key("other", "b")
UNREADABLE = Quota("team", frozenset({"ns", "other"}), invalid="devices: many")


def holding(target, leaving=0):
    return Holding("d", {WORD: 1}, target, leaving)


def granted(ledger, key, held, quota=UNREADABLE):
    grant = ledger.offer(key, (held,), "d", {WORD: 1}, [quota])
    return grant and (grant.replicas, grant.room)


def ledger_of(**held):
    ledger = Ledger()
    for key, found in zip((A, B), held.values(), strict=False):
        ledger.settle(key, [found], Age("2026-01-01", key.name), 0)
    return ledger


def test_what_was_held_when_a_quota_became_unreadable_stays_its_cap_until_it_can_be_read():
    ledger = ledger_of(a=holding(3), b=holding(1))
    ledger.freeze([UNREADABLE])
    ledger.settle(A, [holding(2, 1)], Age("2026-01-01", "a"), 0)
    ledger.settle(A, [holding(2)], Age("2026-01-01", "a"), 0)
    ledger.freeze([UNREADABLE])
    assert granted(ledger, A, holding(2)) == (3, 3)
    assert ledger.admit(A, [holding(4)], [UNREADABLE], 0).startswith("TenantQuota team cannot be read")
    assert ledger.admit(A, [holding(3)], [UNREADABLE], 0) == ""
    ledger.freeze([Quota("team", UNREADABLE.namespaces, caps={WORD: 9})])
    ledger.settle(A, [holding(1)], Age("2026-01-01", "a"), 100)
    ledger.freeze([UNREADABLE])
    assert granted(ledger, A, holding(1)) == (1, 1), "it was readable in between: what is held now counts"


def test_an_unreadable_quota_that_names_more_namespaces_now_takes_nothing_away_there():
    ledger = ledger_of(a=holding(3), b=holding(2))
    ledger.freeze([Quota("team", frozenset({"ns"}), invalid="devices: many")])
    ledger.freeze([UNREADABLE])
    assert (granted(ledger, A, holding(3)), granted(ledger, B, holding(2))) == ((3, 3), (2, 2))


def test_a_process_that_has_counted_nothing_yet_remembers_nothing():
    world, key, _ = rolling("Replace")
    world.restart(crashed=True)
    world.later += 61
    world.round(key, 20)
    assert len(world.staying) == 3


def load(world, pod):
    """It is on a node and loads."""
    world.api.edit(PODS, "ns", pod["metadata"]["name"], lambda body: body.update(spec={"nodeName": "n"}, status={"phase": "Pending"}))


def test_under_a_full_quota_a_sick_replica_waits_for_those_that_load():
    """To have fewer would take them first."""
    world = QuotaWorld()
    world.cap(3, "ns")
    key = world.serve("ns", 3)
    world.round(key, 4)
    sick, *starting = world.staying
    for pod in starting[1:]:
        load(world, pod)
    world.break_device(sick)
    names = [pod["metadata"]["name"] for pod in world.staying]
    for _ in range(5):
        world.later += 60
        world.run(key, 2)
        assert ([pod["metadata"]["name"] for pod in world.staying], world.replicas(key)) == (names, 3)
    told = world.condition(key, "Degraded")
    assert (told["reason"], "when the starting replicas are Ready" in told["message"]) == ("ReplacementHeld", True)
    world.control()  # they serve
    world.round(key, 6)
    left = [pod["metadata"]["name"] for pod in world.staying]
    assert (len(left), set(left) & set(names)) == (3, set(names[1:]))


def test_under_a_full_quota_a_sick_replica_does_not_wait_for_one_without_a_node():
    world = QuotaWorld()
    world.cap(3, "ns")
    key = world.serve("ns", 3)
    world.round(key, 4)
    sick, _, pending = world.staying
    world.api.edit(PODS, "ns", pending["metadata"]["name"], lambda body: body.update(status={}))
    world.break_device(sick)
    world.run(key, 3)
    assert world.replicas(key) == 1
    world.round(key, 6)
    assert (len(world.staying), sick["metadata"]["name"] in {pod["metadata"]["name"] for pod in world.staying}) == (3, False)


def test_an_edit_while_the_last_one_is_relieved_drains_it_for_no_lack_of_room():
    """The one beside it goes again: what it holds is no reason to replace instead of to surge."""
    world = QuotaWorld()
    world.cap(2, "ns")
    key = world.serve("ns", 1, rollout={"strategy": "Auto"})
    world.round(key, 4)
    world.break_device(world.staying[0])
    while world.replicas(key) < 2:
        world.run(key, 1)
    world.api.edit(SERVICES, *key, lambda body: body["spec"].update(engine={"maxConcurrency": 3}))
    world.run(key, 4)
    rollout = world.api.of(SERVICES)[0]["status"].get("rollout") or {}
    assert rollout.get("strategy") != "Replace"
    assert not [pod for pod in world.api.of(PODS) if ANNOTATION_DRAIN_DEADLINE in pod["metadata"].get("annotations", {})]
