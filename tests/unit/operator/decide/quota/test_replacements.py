"""A service keeps its replicas while its quota is invalid, and while an unhealthy replica has its successor."""

from types import MappingProxyType

import pytest
from pagoda_contracts.names import ANNOTATION_DEVICES, ANNOTATION_DRAIN_DEADLINE
from pagoda_operator.api.caps import Quota
from pagoda_operator.api.state import PODS, PROFILES, QUOTAS, SERVICES, Key
from pagoda_operator.decide.quota import Age, Ledger
from pagoda_placement.charges import Holding
from support.harness.quota import QuotaHarness

# An invalid quota


def spoil(harness):
    harness.api.objects[QUOTAS.kind, "", "team"]["spec"]["devices"] = {"gpus": "many"}


def rolling(strategy, cap=9, profile=MappingProxyType({})):
    """Three replicas; their quota has become unreadable, and then the spec was edited, and what their `profile` says."""
    harness = QuotaHarness()
    harness.cap(cap, "ns")
    key = harness.serve("ns", 3, rollout={"strategy": strategy})
    harness.round(key, 4)
    old = {pod["metadata"]["name"] for pod in harness.staying}
    spoil(harness)
    harness.api.edit(PROFILES, "", "default", lambda body: body["spec"].update(profile))
    harness.api.edit(SERVICES, *key, lambda body: body["spec"].update(engine={"maxConcurrency": 3}))
    return harness, key, old


@pytest.mark.parametrize("crashed", [False, True])
@pytest.mark.parametrize("strategy", ["Replace", "Auto"])
def test_rollout_continues_one_by_one_under_an_invalid_quota(strategy, crashed):
    harness, key, old = rolling(strategy)
    for turn in range(30):
        if turn == 1:
            harness.restart(crashed=crashed)
        harness.round(key)
        harness.later += 5
        assert (len(harness.staying) >= 2, harness.total <= 3) == (True, True)
    assert (harness.replicas(key), len(harness.staying)) == (3, 3)
    assert not old & {pod["metadata"]["name"] for pod in harness.staying}


def test_surge_waits_with_the_whole_old_revision_under_an_invalid_quota():
    harness, key, old = rolling("Surge")
    for _ in range(20):
        harness.round(key)
        harness.later += 5
        assert harness.total <= 3
    assert {pod["metadata"]["name"] for pod in harness.staying} == old


GPUS = {"metadata": {"annotations": {ANNOTATION_DEVICES: "gpu=1"}}}


@pytest.mark.deep
@pytest.mark.parametrize("crashed", [False, True])
@pytest.mark.parametrize("strategy", ["Replace", "Auto", "Surge"])
def test_move_to_other_devices_waits_until_the_quota_can_be_read(strategy, crashed):
    harness, key, old = rolling(strategy, 3, {"podTemplate": GPUS})
    for turn in range(12):
        if turn == 3:
            harness.restart(crashed=crashed)
        harness.round(key)
        harness.later += 20
        assert {pod["metadata"]["name"] for pod in harness.staying} == old
    assert "cannot be read" in harness.condition(key)["message"]
    harness.ask(key, 2)
    harness.round(key, 4)
    assert {pod["metadata"]["name"] for pod in harness.staying} < old
    assert harness.replicas(key) == 2
    harness.ask(key, 3)
    harness.cap(3, "ns", gpus=3)
    harness.round(key, 20)
    assert len(harness.staying) == 3
    assert not old & {pod["metadata"]["name"] for pod in harness.staying}


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


def test_usage_when_a_quota_became_invalid_stays_its_cap():
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


def test_invalid_quota_with_more_namespaces_takes_nothing_away_there():
    ledger = ledger_of(a=holding(3), b=holding(2))
    ledger.freeze([Quota("team", frozenset({"ns"}), invalid="devices: many")])
    ledger.freeze([UNREADABLE])
    assert (granted(ledger, A, holding(3)), granted(ledger, B, holding(2))) == ((3, 3), (2, 2))


def test_new_process_continues_a_rollout_under_an_invalid_quota():
    harness, key, _ = rolling("Replace")
    harness.restart(crashed=True)
    harness.later += 61
    harness.round(key, 20)
    assert len(harness.staying) == 3


def test_edit_while_a_replica_has_a_successor_does_not_drain_it():
    """The one beside it goes again: what it holds is no reason to replace instead of to surge."""
    harness = QuotaHarness()
    harness.cap(2, "ns")
    key = harness.serve("ns", 1, rollout={"strategy": "Auto"})
    harness.round(key, 4)
    harness.break_device(harness.staying[0])
    while harness.replicas(key) < 2:
        harness.run(key, 1)
    harness.api.edit(SERVICES, *key, lambda body: body["spec"].update(engine={"maxConcurrency": 3}))
    harness.run(key, 4)
    rollout = harness.api.of(SERVICES)[0]["status"].get("rollout") or {}
    assert rollout.get("strategy") != "Replace"
    assert not [pod for pod in harness.api.of(PODS) if ANNOTATION_DRAIN_DEADLINE in pod["metadata"].get("annotations", {})]
