"""What is registered with Kopf, and what an event does to mirrors and queue."""

from itertools import islice
from types import SimpleNamespace

import kopf
import pytest
from pagoda_contracts.names import LABEL_SERVICE
from pagoda_operator.api.state import CHILD_RESOURCES, NODES, PODS, PROFILES, QUOTAS, RESOURCE_SLICES, SERVICES, Key
from pagoda_operator.serve.handlers import EndlessJitter, Intake, Sink, configure, register
from pagoda_operator.watch.claims import Claims
from pagoda_operator.watch.door import Door
from pagoda_operator.watch.mirror import Mirror
from pagoda_operator.watch.world import World
from pagoda_operator.watch.world_parsers import PARSERS


class Woken(list):
    def __init__(self):
        super().__init__()
        self.urgent = []

    def add(self, key, *, urgent=False):
        self.append(key)
        self.urgent += [key] * urgent


class Harness:
    """Events thrown at the registered handlers as Kopf would."""

    def __init__(self, *present):
        self.woken = Woken()
        self.door = Door(self.woken)
        self.world = World(PARSERS, lambda: 0.0)
        self.registry = kopf.OperatorRegistry()
        self.mirror = Mirror(lambda: 0.0)
        sink = Sink(self.door, self.world, self.mirror, Intake(), Claims(self.woken.add), frozenset(present))
        register(self.registry, sink, "https://none", lambda: None)
        self.handlers = self.registry._watching._handlers

    async def throw(self, resource, body, kind="MODIFIED"):
        """What this event wakes."""
        self.woken.clear()
        found = [handler for handler in self.handlers if handler.selector.any_name == resource.plural]
        assert found, f"{resource.plural} is not watched"
        body = {"apiVersion": resource.api_version, "kind": resource.kind, **body}
        wrapped, meta = kopf.Body(body), body["metadata"]
        for handler in found:
            await handler.fn(
                namespace=meta.get("namespace"),
                name=meta["name"],
                labels=wrapped.metadata.labels,
                spec=wrapped.spec,
                body=wrapped,
                event={"type": kind, "object": body},
            )
        return sorted(set(self.woken))


def node(heartbeat="1", **status):
    conditions = [{"type": "Ready", "status": "True", "lastHeartbeatTime": heartbeat}]
    meta = {"name": "n1", "resourceVersion": heartbeat, "labels": {"gpu": "h100"}}
    return {"metadata": meta, "spec": {}, "status": {"allocatable": {"cpu": "4"}, "conditions": conditions, **status}}


def pod(name="p", phase="Running", requests=None, **labels):
    resources = {"requests": requests or {"cpu": "1"}}
    spec = {"nodeName": "n1", "containers": [{"name": "c", "resources": resources}]}
    return {"metadata": {"name": name, "namespace": "ns", "labels": labels}, "spec": spec, "status": {"phase": phase}}


@pytest.fixture
def harness():
    return Harness(RESOURCE_SLICES)


async def test_a_heartbeat_of_a_node_wakes_nobody_and_its_new_room_does(harness):
    waiting = Key("ns", "waits")
    harness.door.waits(waiting, waiting=True)
    assert await harness.throw(NODES, node()) == [waiting]
    for beat in range(2, 20):
        assert await harness.throw(NODES, node(str(beat))) == []
    assert await harness.throw(NODES, node("20", allocatable={"cpu": "8"})) == [waiting]
    assert await harness.throw(NODES, node("21"), "DELETED") == [waiting]


async def test_a_replica_wakes_its_service_and_its_node_then_does_too(harness):
    service = Key("ns", "tiny")
    await harness.throw(NODES, node())
    assert await harness.throw(PODS, pod(**{LABEL_SERVICE: "tiny"})) == [service]
    assert await harness.throw(NODES, node(unschedulable=True, allocatable={})) == [service]
    assert await harness.throw(PODS, pod(**{LABEL_SERVICE: "tiny"}), "DELETED") == [service]
    assert await harness.throw(NODES, node()) == []


async def test_a_replica_that_a_run_has_read_before_its_event_came_still_stands_on_its_node(harness):
    service, replica = Key("ns", "tiny"), pod(**{LABEL_SERVICE: "tiny"})
    replica["metadata"]["resourceVersion"] = "7"
    await harness.throw(NODES, node())
    harness.mirror.learn_all(PODS, service, [replica])
    assert await harness.throw(PODS, replica) == []
    assert await harness.throw(NODES, node("2", allocatable={})) == [service]


async def test_a_replica_whose_label_is_taken_off_is_gone_to_its_service(harness):
    service = Key("ns", "tiny")
    await harness.throw(PODS, pod(**{LABEL_SERVICE: "tiny"}))
    assert await harness.throw(PODS, pod()) == [service]
    assert (harness.mirror.versions(PODS), await harness.throw(NODES, node())) == ({}, [])


async def test_a_changed_profile_wakes_all_who_use_it_though_one_of_them_has_read_it_already(harness):
    users = [Key("ns", "a"), Key("ns", "b")]
    for key in users:
        harness.door.service(key, "fast", gone=False)
    changed = {"metadata": {"name": "fast", "resourceVersion": "8"}, "spec": {}}

    class Api:
        async def get(self, *_):
            return changed

    await harness.mirror.learning(Api()).get(PROFILES, "", "fast")
    harness.mirror.wrote(PROFILES, "patch", changed)
    assert await harness.throw(PROFILES, changed) == [Key("", "fast"), *users]
    assert await harness.throw(PROFILES, changed) == []


async def test_of_foreign_pods_only_those_that_hold_devices_are_kept_and_wake_who_waits(harness):
    waiting = Key("ns", "waits")
    harness.door.waits(waiting, waiting=True)
    assert await harness.throw(PODS, pod("web")) == []
    assert harness.world.all(PODS) == ()
    holder = pod("holder", requests={"nvidia.com/gpu": "1"})
    assert await harness.throw(PODS, holder) == [waiting]
    assert await harness.throw(PODS, holder) == []
    assert await harness.throw(PODS, pod("holder", "Succeeded", {"nvidia.com/gpu": "1"})) == [waiting]
    assert harness.world.all(PODS) == ()


async def test_a_quota_wakes_the_services_of_its_namespaces_once_per_change(harness):
    inside, outside = Key("ns", "in"), Key("elsewhere", "out")
    for key in (inside, outside):
        harness.door.service(key, "default", gone=False)
    quota = {"metadata": {"name": "q"}, "spec": {"subjects": {"namespaces": ["ns"]}}}
    assert await harness.throw(QUOTAS, quota) == [inside]
    assert await harness.throw(QUOTAS, quota | {"status": {"usage": 1}}) == []
    assert await harness.throw(QUOTAS, quota | {"spec": {"subjects": {"namespaces": ["elsewhere"]}}}) == [outside, inside]


async def test_a_service_that_gives_a_name_up_wakes_the_next_who_claims_it(harness):
    def service(name, *names):
        meta = {"name": name, "namespace": "ns", "uid": name, "creationTimestamp": "2026-01-01T00:00:00Z"}
        return {"metadata": meta, "spec": {"model": {"servedNames": list(names)}}}

    await harness.throw(SERVICES, service("a", "llama"))
    assert await harness.throw(SERVICES, service("b", "llama")) == [Key("ns", "a"), Key("ns", "b")]
    assert await harness.throw(SERVICES, service("b", "llama")) == []
    assert await harness.throw(SERVICES, service("a", "llama"), "DELETED") == [Key("ns", "a"), Key("ns", "b")]


async def test_slices_are_watched_only_where_the_cluster_has_them(harness):
    waiting = Key("ns", "waits")
    harness.door.waits(waiting, waiting=True)
    piece = {"metadata": {"name": "s"}, "spec": {"devices": [{"name": "gpu-0"}]}}
    assert await harness.throw(RESOURCE_SLICES, piece) == [waiting]
    with pytest.raises(AssertionError, match="not watched"):
        await Harness().throw(RESOURCE_SLICES, piece)


def test_the_settings_keep_kopf_from_writing_and_from_giving_up():
    settings = kopf.OperatorSettings()
    configure(settings)
    assert (settings.peering.standalone, settings.posting.enabled, settings.queueing.worker_limit) == (True, False, None)
    assert (settings.watching.inactivity_timeout, settings.watching.server_timeout, settings.watching.client_timeout) == (70, 300, 330)
    assert (settings.execution.default_backoff, settings.execution.max_workers) == (5, 8)
    assert settings.queueing.error_delays == (1, 2, 5, 10, 30, 60)
    assert settings.process.ultimate_exiting_timeout == 25
    assert (settings.watching.connect_timeout, settings.watching.chunk_size) == (10, 100)
    assert (settings.networking.request_timeout, settings.networking.connect_timeout) == (30, 5)
    assert (settings.queueing.idle_timeout, settings.scanning.disabled) == (0.5, False)
    # Only what bears a service's label of the kinds of children; pods and our own kinds whole.
    labelled = {(resource.api_version.rpartition("/")[0], resource.plural): LABEL_SERVICE for resource in CHILD_RESOURCES}
    assert {(kind.group, kind.any_name): label for kind, label in settings.watching.label_selectors.items()} == labelled


def test_a_watch_is_tried_again_without_end_and_not_by_all_at_once():
    """Kopf's own delays end after 54 s of HTTP 5xx, and with them the process."""
    settings = kopf.OperatorSettings()
    configure(settings)
    assert isinstance(settings.networking.error_backoffs, EndlessJitter)
    steps = (0.5, 1, 2, 5, 10, 15)
    first, second = (list(islice(settings.networking.error_backoffs, 500)) for _ in range(2))
    wanted = [*steps, *([steps[-1]] * (500 - len(steps)))]
    assert all(0.8 * step <= delay <= 1.2 * step for step, delay in zip(wanted, first, strict=True))
    assert first != second, "two operators, two series"


def test_no_object_is_copied_to_be_compared_with_what_was_stored():
    settings, body, patch = kopf.OperatorSettings(), kopf.Body(pod(app="x")), kopf.Patch()
    configure(settings)
    storage = settings.persistence.diffbase_storage
    storage.store(body=body, patch=patch, essence=storage.build(body=body))
    assert (storage.build(body=body), storage.fetch(body=body), patch) == ({}, None, {})


class Loop:
    """A loop's clock that only sleeping moves; an event comes at each step of it."""

    def __init__(self, intake, until):
        self.now, self.intake, self.until = 0.0, intake, until

    def time(self):
        return self.now

    async def sleep(self, seconds):
        step = min(seconds, 0.1)
        self.now += step
        if self.now <= self.until:
            self.intake.touch(PODS)


@pytest.mark.parametrize(("until", "waits"), [(0.0, 0.3), (0.5, 0.8), (1000.0, 2.0)])
async def test_the_first_lists_are_waited_for_and_a_cluster_that_is_never_silent_is_not(monkeypatch, until, waits):
    intake = Intake()
    loop = Loop(intake, until)
    monkeypatch.setattr("pagoda_operator.serve.handlers.asyncio", SimpleNamespace(get_running_loop=lambda: loop, sleep=loop.sleep))
    intake.touch(PODS)
    await intake.quiet(0.3, 2.0)
    assert loop.now == pytest.approx(waits, abs=0.11)


async def test_an_edit_without_an_answer_is_urgent_and_what_only_reports_is_not(harness):
    def service(generation, told, **status):
        meta = {"name": "s", "namespace": "ns", "uid": "u", "generation": generation, "resourceVersion": str(10 * generation + told)}
        return {"metadata": meta, "spec": {}, "status": {"observedGeneration": told, **status}}

    for body, kind, urgent in (
        (service(1, 1), "ADDED", False),
        (service(2, 1), "MODIFIED", True),
        (service(2, 2), "MODIFIED", False),
        (service(3, 2), "DELETED", False),
    ):
        harness.woken.urgent.clear()
        assert await harness.throw(SERVICES, body, kind) == [Key("ns", "s")]
        assert bool(harness.woken.urgent) == urgent, body
