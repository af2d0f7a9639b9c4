"""Every state that a service's status can be in, made by the operator's own runs on a fake API server; by name, with kstatus' verdict."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import lru_cache
from typing import Any, NamedTuple

from pagoda_contracts.name_owners import read_reserved
from pagoda_contracts.names import ANNOTATION_DEVICES, API_VERSION
from pagoda_operator.api.caps import parse_quota
from pagoda_operator.api.errors import ClusterError, Denied, Refused
from pagoda_operator.api.state import (
    CONFIG_MAPS,
    CONTROLLER_REVISIONS,
    CORE_SERVICES,
    DEPLOYMENTS,
    EVENTS,
    PODS,
    PROFILES,
    QUOTAS,
    SERVICES,
)
from pagoda_operator.quota.keeper import Quotas
from support.harness.fake_daemons import FakeDaemons
from support.harness.harness import Harness
from support.harness.inventories import H100, gpu, inventory, mig, node, whole
from support.harness.inventories import pod as holder
from support.harness.placing import MIXED, SMALL_CONFIG, inspected
from support.harness.placing import harness as inspected_harness
from support.judges.kstatus import Verdict
from support.kube.fake_api import (
    Body,
    copied,
    crashed,
    fetching,
    mount_failure,
    restarted,
    running,
    service_body,
    unmounted,
    waiting,
)

HUB = {"uri": "hf://acme/tiny"}
NO_SECRET = 'MountVolume.SetUp failed for volume "credential-0" : secret "hf-token" not found'
READY = running(ready=True)
# Its node went silent, or its daemon is stuck: it loaded from 0:01 on, and is not Ready since 0:05.
LOST: Body = {
    "phase": "Running",
    "conditions": [{"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T00:05:00Z"}],
    "containerStatuses": [{"name": "daemon", "restartCount": 0, "state": {"running": {"startedAt": "2026-01-01T00:01:00Z"}}}],
}
UNSCHEDULABLE: Body = {"conditions": [{"type": "PodScheduled", "status": "False", "message": 'persistentvolumeclaim "models" not found'}]}


class State(NamedTuple):
    """How to get there, and what is to be read of it."""

    make: Callable[[], Harness]
    reason: str
    verdict: Verdict

    def body(self) -> Body:
        """The service as the API server then shows it."""
        found: Body = copied(_made(self.make))
        return found


@lru_cache
def _made(make: Callable[[], Harness]) -> Body:
    """A state is reached by many runs of the operator: once for all its readers."""
    return next(found for found in make().api.of(SERVICES) if found["metadata"]["name"] == "tiny")


def pods(*statuses: Body, **spec: Any) -> Callable[[], Harness]:
    def make() -> Harness:
        harness = Harness(replicas=len(statuses), **spec)
        harness.begin(f"{len(statuses)} {spec}", lambda: ("model" in spec and inspected(harness, SMALL_CONFIG), harness.settle()))
        for pod, status in zip(harness.api.of(PODS), statuses, strict=True):
            pod["status"] = status
        harness.settle()
        return harness

    return make


def spec(**changes: Any) -> Callable[[], Harness]:
    def make() -> Harness:
        harness = Harness(**changes)
        harness.settle()
        return harness

    return make


def then(make: Callable[[], Harness], change: Callable[[Harness], None]) -> Callable[[], Harness]:
    """A change after that, and what the operator says of it."""

    def changed() -> Harness:
        harness = make()
        change(harness)
        try:
            harness.run()
        except ClusterError:
            return harness
        harness.settle()
        return harness

    return changed


def no_secret() -> Harness:
    """The kubelet finds no Secret of the name that the service gives."""
    harness = Harness(model=HUB | {"credential": "hub"}, credentials=[{"name": "hub", "secretRef": {"name": "hf-token"}}])
    inspected(harness, SMALL_CONFIG)
    harness.settle()
    (pod,) = harness.api.of(PODS)
    pod["status"] = unmounted("2026-01-01T00:00:00Z")
    harness.api.put(EVENTS, mount_failure(pod, NO_SECRET, "2026-01-01T00:00:01.000000Z"))
    harness.later += timedelta(seconds=3)
    harness.settle()
    return harness


def refuse(kind: str, error: ClusterError) -> Callable[[], Harness]:
    def make() -> Harness:
        harness = Harness()
        harness.api.refuse[kind] = error
        return harness

    return then(make, lambda harness: harness.run() and None)


def awaits_nodes() -> Harness:
    harness = inspected_harness(gpu("H100"))
    harness.settle()
    return harness


def no_nodes() -> Harness:
    harness = awaits_nodes()
    harness.later += timedelta(hours=1)
    harness.settle()
    return harness


def one_run() -> Harness:
    harness = Harness()
    harness.run()
    return harness


def no_pods() -> Harness:
    harness = one_run()
    harness.run()
    harness.run()
    return harness


def predecessor() -> Harness:
    harness = spec()()
    harness.api.objects.pop(("InferenceService", "ns", "tiny"))
    harness.api.put(SERVICES, service_body())
    harness.run()
    harness.run()
    return harness


def stranger() -> Harness:
    harness = Harness()
    harness.api.put(CORE_SERVICES, {"metadata": {"name": "tiny", "namespace": "ns"}, "spec": {}})
    harness.settle()
    return harness


def namesake() -> Harness:
    harness = Harness()
    older = harness.api.put(SERVICES, service_body("tiny", "elsewhere"))
    older["metadata"]["creationTimestamp"] = "2025-01-01T00:00:00Z"
    harness.settle()
    return harness


def reserved() -> Harness:
    harness = Harness()
    harness.name_owners.reserved = read_reserved('{"tiny": ["elsewhere"]}')
    harness.settle()
    return harness


def lose_pins(harness: Harness) -> None:
    for kind in (CONTROLLER_REVISIONS.kind, CONFIG_MAPS.kind):
        for key in [key for key in harness.api.objects if key[0] == kind]:
            del harness.api.objects[key]


def sleep(harness: Harness) -> None:
    harness.edit(replicas=0)
    harness.settle()


def drop_profile(harness: Harness) -> None:
    del harness.api.objects[("ServingProfile", "", "default")]
    harness.edit(engine={"maxModelLen": 128})


def spoil_profile(harness: Harness) -> None:
    harness.api.edit(PROFILES, "", "default", lambda body: body["spec"].update(podTemplate={"spec": {"terminationGracePeriodSeconds": 1}}))
    harness.edit(engine={"maxModelLen": 128})


def roll(harness: Harness) -> None:
    """The new revision is up, the old one's Deployment not gone yet."""
    harness.edit(engine={"maxModelLen": 128})
    for _ in range(6):
        harness.run()
    harness.api.control()
    for pod in harness.api.of(PODS):
        pod["status"] = running(ready=True)
    harness.api.control()


def still_retiring() -> Harness:
    harness = pods(running(ready=True))()
    roll(harness)
    harness.run()
    harness.run()
    assert len(harness.api.of(DEPLOYMENTS)) == 2
    return harness


def come_up(harness: Harness, revision: str, status: Body) -> None:
    """The kubelets of that Deployment's pods."""
    for pod in harness.api.of(PODS):
        if pod["metadata"]["ownerReferences"][0]["name"] == revision:
            pod["status"] = status


def canary() -> Harness:
    """Half of the requests go to the new revision, which has its replica."""
    return rolled(pods(READY, READY, rollout={"canary": {"steps": [{"weight": 50, "hold": "5m"}]}})(), READY)


def rolled_back() -> Harness:
    """The new revision was refused in the place of an old replica, which is back."""
    return rolled(pods(READY, READY, rollout={"strategy": "Replace"})(), crashed())


def on_trial(status: Body) -> Callable[[], Harness]:
    """The only replica serves until a trial has passed, whose pod is in that state."""

    def make() -> Harness:
        harness = pods(READY, rollout={"strategy": "Replace"})()
        harness.api.trial = lambda _: status
        return rolled(harness, READY)

    return make


def rolled(harness: Harness, status: Body) -> Harness:
    """Another revision, whose pods come up so; those of the old one are well."""
    (old,) = harness.names(DEPLOYMENTS)
    harness.edit(engine={"maxModelLen": 128})
    for _ in range(5):
        harness.settle()
        for name in harness.names(DEPLOYMENTS):
            come_up(harness, name, READY if name == old else status)
    harness.settle()
    return harness


def over_quota() -> Harness:
    """Two replicas are asked for, and the tenant has devices for one, which serves."""
    harness, cap = Harness(replicas=2), [{"profile": "1g.10gb", "count": 1}]
    template = {"metadata": {"annotations": {ANNOTATION_DEVICES: "mig-1g.10gb=1"}}}
    harness.api.edit(PROFILES, "", "default", lambda body: body["spec"].update(podTemplate=template))
    capped = {"subjects": {"namespaces": ["ns"]}, "devices": {"migSlices": cap}}
    harness.api.put(QUOTAS, {"apiVersion": API_VERSION, "kind": QUOTAS.kind, "metadata": {"name": "team"}, "spec": capped})
    harness.quota = Quotas(harness.api, lambda: map(parse_quota, harness.api.of(QUOTAS)), lambda _: None, lambda: 0.0)
    harness.restart()
    harness.settle()
    harness.make_ready()
    return harness


def all_in_use() -> Harness:
    harness = inspected_harness(gpu("H100"), there=inventory(node("a", H100, whole(8)), pods=(holder("a", gpu=8),)))
    harness.settle()
    return harness


def inspecting() -> Harness:
    harness = Harness(accelerators=[mig(least="1Gi")])
    harness.inventory = inventory(MIXED)
    harness.settle()
    return harness


def cancelled() -> Harness:
    """Of two replicas one loads yet, and is not needed any more."""
    harness = pods(READY, running())()
    harness.edit(replicas=1)
    harness.run()
    return harness


def draining() -> Harness:
    """Of two replicas one is to go and has a request yet."""
    harness = pods(READY, READY)()
    harness.daemons = daemons = FakeDaemons(harness.api)
    harness.restart()
    for pod in harness.api.of(PODS):
        daemons.bring_up(pod)
        daemons.of(pod).in_flight = 1
    harness.edit(replicas=1)
    harness.settle()
    return harness


STATES: dict[str, State] = {
    "the first word": State(one_run, "CreatingPods", "InProgress"),
    "no pod made yet": State(no_pods, "CreatingPods", "InProgress"),
    "no node yet": State(pods({}), "Scheduling", "InProgress"),
    "no node fits": State(pods(UNSCHEDULABLE), "Scheduling", "InProgress"),
    "on its node": State(pods(waiting("ContainerCreating")), "PullingImage", "InProgress"),
    "no such image": State(pods(waiting("ErrImagePull", "no such image")), "ImagePull", "InProgress"),
    "a container's fault": State(pods(waiting("CreateContainerConfigError", "no key")), "Container", "InProgress"),
    "a Secret that does not exist": State(no_secret, "FailedMount", "InProgress"),
    "loading": State(pods(running()), "LoadingModel", "InProgress"),
    "ended once": State(pods(restarted(code=1, message="boom")), "Restarting", "InProgress"),
    "crashing": State(pods(crashed(code=1, message="boom")), "CrashLooping", "InProgress"),
    "killed for memory": State(pods(crashed(code=137, message="", reason="OOMKilled")), "CrashLooping", "InProgress"),
    "a model refused": State(pods(crashed()), "ModelRejected", "Failed"),
    "one of two": State(pods(READY, running()), "LoadingModel", "InProgress"),
    "one of two, the other refused": State(pods(READY, crashed()), "CrashLooping", "InProgress"),
    "serving": State(pods(READY), "Available", "Current"),
    "scaled to zero": State(then(pods(READY), sleep), "ScaledToZero", "Current"),
    "asleep, and it never served": State(spec(replicas=0), "ScaledToZero", "InProgress"),
    "a replica lost": State(then(pods(READY), lambda harness: harness.api.of(PODS)[0].update(status=LOST)), "NotReady", "InProgress"),
    "an old revision draining": State(still_retiring, "RollingOut", "InProgress"),
    "a predecessor's children": State(predecessor, "Waiting", "InProgress"),
    "not allowed": State(refuse("Deployment", Denied("403: exceeded quota")), "Forbidden", "InProgress"),
    "refused by the server": State(refuse("Deployment", Refused("422: spec.nodeSelektor")), "InvalidSpec", "Failed"),
    "an invalid object": State(spec(accelerators=[]), "InvalidSpec", "Failed"),
    "a spoilt profile": State(then(pods(READY), spoil_profile), "InvalidProfile", "Failed"),
    "no profile": State(spec(profileRef={"name": "nobody"}), "ProfileNotFound", "Failed"),
    "a profile lost under a change": State(then(pods(READY), drop_profile), "ProfileNotFound", "Failed"),
    "a forbidden overlay": State(spec(podTemplate={"spec": {"hostNetwork": True}}), "PodTemplateForbidden", "Failed"),
    "a name of another object": State(stranger, "ObjectExists", "Failed"),
    "a served name of another service": State(namesake, "NameConflict", "Failed"),
    "a served name that is reserved": State(reserved, "NameReserved", "Failed"),
    "a canary under way": State(canary, "Canary", "InProgress"),
    "a revision on trial": State(on_trial(waiting("ContainerCreating")), "RollingOut", "InProgress"),
    "a revision that its trial refused": State(on_trial(waiting("ImagePullBackOff", "daemon:2: not found")), "RolledBack", "Failed"),
    "turned back": State(rolled_back, "RolledBack", "Failed"),
    "more than its tenant may have": State(over_quota, "QuotaExceeded", "Failed"),
    "devices that nothing knows": State(spec(accelerators=[gpu("H1000")]), "NoAccelerator", "Failed"),
    "devices that no node has yet": State(awaits_nodes, "WaitingForNodes", "InProgress"),
    "devices that no node had for an hour": State(no_nodes, "NoNodesCame", "Failed"),
    "devices in use": State(all_in_use, "WaitingForCapacity", "InProgress"),
    "a model of unknown size": State(inspecting, "InspectingModel", "InProgress"),
    "fetching": State(pods(fetching(), model=HUB), "FetchingModel", "InProgress"),
    "a fetch that failed and is repeated": State(pods(fetching(1, "NoRoom: /models"), model=HUB), "FetchingModel", "InProgress"),
    "a replica draining": State(draining, "Draining", "InProgress"),
    "a replica that is not needed before it served": State(cancelled, "Removing", "InProgress"),
    "a revision lost": State(then(pods(READY), lose_pins), "RevisionLost", "Failed"),
}
