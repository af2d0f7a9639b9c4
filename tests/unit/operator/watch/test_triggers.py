"""Which services a change in the caches wakes."""

import pytest
from pagoda_contracts.names import LABEL_SERVICE
from pagoda_operator.api.state import (
    ADAPTERS,
    DEPLOYMENTS,
    DISRUPTION_BUDGETS,
    NAMESPACES,
    NODES,
    PODS,
    PROFILES,
    QUOTAS,
    RESOURCE_SLICES,
    SERVICES,
    Key,
)
from pagoda_operator.watch.caches import Caches
from pagoda_operator.watch.triggers import Triggers


class Woken(list):
    def __init__(self):
        super().__init__()
        self.urgent = []

    def add(self, key, *, urgent=False):
        self.append(key)
        self.urgent += [key] * urgent


class Harness:
    """Events thrown at the caches as watches would."""

    def __init__(self):
        self.woken = Woken()
        self.triggers = Triggers(self.woken)
        self.caches = Caches(self.triggers.changed)

    def throw(self, resource, body, *, gone=False):
        """What this event wakes."""
        self.woken.clear()
        self.caches.event(resource, body, gone=gone)
        return sorted(set(self.woken))


def node(heartbeat="1", **status):
    conditions = [{"type": "Ready", "status": "True", "lastHeartbeatTime": heartbeat}]
    meta = {"name": "n1", "resourceVersion": heartbeat, "labels": {"gpu": "h100"}}
    return {"metadata": meta, "spec": {}, "status": {"allocatable": {"cpu": "4"}, "conditions": conditions, **status}}


def pod(name="p", phase="Running", requests=None, **labels):
    resources = {"requests": requests or {"cpu": "1"}}
    spec = {"nodeName": "n1", "containers": [{"name": "c", "resources": resources}]}
    return {"metadata": {"name": name, "namespace": "ns", "labels": labels}, "spec": spec, "status": {"phase": phase}}


def service(name, profile="default", namespace="ns", **more):
    meta = {"name": name, "namespace": namespace, "uid": name, "creationTimestamp": "2026-01-01T00:00:00Z"}
    return {"metadata": meta, "spec": {"profileRef": {"name": profile}, **more}}


@pytest.fixture
def harness():
    return Harness()


def test_a_nodes_capacity_wakes_waiting_services_and_its_heartbeat_does_not(harness):
    waiting = Key("ns", "waits")
    harness.triggers.waits(waiting, waiting=True)
    assert harness.throw(NODES, node()) == [waiting]
    for beat in range(2, 20):
        assert harness.throw(NODES, node(str(beat))) == []
    assert harness.throw(NODES, node("20", allocatable={"cpu": "8"})) == [waiting]
    assert harness.throw(NODES, node("21"), gone=True) == [waiting]
    harness.triggers.waits(waiting, waiting=False)
    assert harness.throw(NODES, node("22")) == []


def test_a_replica_and_then_its_node_wake_the_service(harness):
    owner = Key("ns", "tiny")
    harness.throw(NODES, node())
    assert harness.throw(PODS, pod(**{LABEL_SERVICE: "tiny"})) == [owner]
    assert harness.throw(NODES, node("2", unschedulable=True, allocatable={})) == [owner]
    assert harness.throw(PODS, pod(**{LABEL_SERVICE: "tiny"}), gone=True) == [owner]
    assert harness.throw(NODES, node("3")) == []


def test_a_replica_that_loses_its_label_wakes_its_former_service(harness):
    owner = Key("ns", "tiny")
    harness.throw(NODES, node())
    harness.throw(PODS, pod(**{LABEL_SERVICE: "tiny"}))
    assert harness.throw(PODS, pod()) == [owner]
    assert harness.throw(NODES, node("2", allocatable={})) == []


def test_a_changed_profile_wakes_each_of_its_services_once(harness):
    users = [Key("ns", "a"), Key("ns", "b")]
    for key in users:
        harness.throw(SERVICES, service(key.name, "fast"))
    harness.throw(SERVICES, service("c"))
    changed = {"metadata": {"name": "fast", "resourceVersion": "8"}, "spec": {}}
    assert harness.throw(PROFILES, changed) == [Key("", "fast"), *users]
    assert harness.throw(PROFILES, changed) == []
    told = {"metadata": {"name": "fast", "resourceVersion": "9"}, "spec": {}, "status": {"services": 2}}
    assert harness.throw(PROFILES, told) == [], "the operator's own status"
    assert harness.triggers.users_of_profiles() == {"fast": 2, "default": 1}
    harness.throw(SERVICES, service("a", "fast"), gone=True)
    assert harness.throw(PROFILES, told, gone=True) == [Key("", "fast"), users[1]]


def test_foreign_pods_wake_waiting_services_only_if_they_use_devices(harness):
    waiting = Key("ns", "waits")
    harness.triggers.waits(waiting, waiting=True)
    assert harness.throw(PODS, pod("web")) == []
    holder = pod("holder", requests={"nvidia.com/gpu": "1"})
    assert harness.throw(PODS, holder) == [waiting]
    assert harness.throw(PODS, holder) == []
    assert harness.throw(PODS, pod("holder", "Succeeded", {"nvidia.com/gpu": "1"})) == [waiting]
    assert harness.caches.all(PODS) == ()


def test_a_quota_wakes_the_services_of_its_namespaces_once_per_change(harness):
    inside, outside = Key("ns", "in"), Key("elsewhere", "out")
    for key in (inside, outside):
        harness.throw(SERVICES, service(key.name, namespace=key.namespace))
    quota = {"metadata": {"name": "q"}, "spec": {"subjects": {"namespaces": ["ns"]}}}
    assert harness.throw(QUOTAS, quota) == [inside]
    assert harness.throw(QUOTAS, quota | {"status": {"usage": 1}}) == []
    assert harness.caches.all(QUOTAS)[0].status == {"usage": 1}  # what is written back is written at what was said last
    assert harness.throw(QUOTAS, quota | {"spec": {"subjects": {"namespaces": ["elsewhere"]}}}) == [outside, inside]


def test_a_released_name_wakes_its_other_claimer(harness):
    def named(name):
        return service(name, model={"servedNames": ["llama"]})

    harness.throw(SERVICES, named("a"))
    assert harness.throw(SERVICES, named("b")) == [Key("ns", "a"), Key("ns", "b")]
    assert harness.throw(SERVICES, named("b")) == []
    assert harness.throw(SERVICES, named("a"), gone=True) == [Key("ns", "a"), Key("ns", "b")]


def test_slices_wake_waiting_services_and_adapters_their_own(harness):
    waiting = Key("ns", "waits")
    harness.triggers.waits(waiting, waiting=True)
    assert harness.throw(RESOURCE_SLICES, {"metadata": {"name": "s"}, "spec": {"devices": [{"name": "gpu-0"}]}}) == [waiting]
    adapter = {"metadata": {"name": "l", "namespace": "ns", "generation": 1}, "spec": {"serviceRef": {"name": "tiny"}}}
    assert harness.throw(ADAPTERS, adapter) == [Key("ns", "tiny")]
    assert harness.throw(ADAPTERS, adapter | {"spec": {}}) == [Key("ns", "tiny")]
    # The labels of an adapter's namespace may decide whether its service accepts it.
    assert harness.throw(NAMESPACES, {"metadata": {"name": "ns", "labels": {"team": "blue"}}}) == [Key("ns", "tiny")]
    assert harness.throw(NAMESPACES, {"metadata": {"name": "other"}}) == []


def test_a_childs_status_wakes_only_if_it_is_decisive(harness):
    meta = {"name": "tiny", "namespace": "ns", "labels": {LABEL_SERVICE: "tiny"}}
    for resource, wakes in ((DEPLOYMENTS, True), (DISRUPTION_BUDGETS, False)):
        assert harness.throw(resource, {"metadata": meta, "spec": {}, "status": {}}) == [Key("ns", "tiny")]
        assert bool(harness.throw(resource, {"metadata": meta, "spec": {}, "status": {"observed": 1}})) == wakes


def test_an_edit_is_urgent_until_it_is_reported(harness):
    def edited(generation, reported, **status):
        meta = {"name": "s", "namespace": "ns", "uid": "u", "generation": generation, "resourceVersion": str(10 * generation + reported)}
        return {"metadata": meta, "spec": {}, "status": {"observedGeneration": reported, **status}}

    for body, gone, urgent in (
        (edited(1, 1), False, False),
        (edited(2, 1), False, True),
        (edited(2, 2), False, False),
        (edited(3, 2), True, False),
    ):
        harness.woken.urgent.clear()
        assert harness.throw(SERVICES, body, gone=gone) == [Key("ns", "s")]
        assert bool(harness.woken.urgent) == urgent, body


def test_an_unreadable_object_does_not_stop_others(harness):
    waiting = Key("ns", "waits")
    harness.triggers.waits(waiting, waiting=True)
    assert harness.throw(NODES, {"metadata": {"name": "odd", "resourceVersion": "3"}, "status": {"allocatable": 7}}) == []
    assert harness.throw(NODES, node("4")) == [waiting]
