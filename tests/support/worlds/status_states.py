"""Every state that a service's status can be in, made by the operator's own runs on a fake API server; by name, with kstatus' verdict."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

from pagoda_contracts.names import ANNOTATION_DEVICES, API_VERSION
from pagoda_operator.api.errors import ClusterError, Denied, Refused
from pagoda_operator.api.state import CONFIG_MAPS, CONTROLLER_REVISIONS, CORE_SERVICES, DEPLOYMENTS, PODS, PROFILES, QUOTAS, SERVICES
from pagoda_operator.decide.quota import parse_quota
from pagoda_operator.quota.keeper import Quotas
from support.judges.kstatus import Verdict
from support.kube.fake_api import Body, copied, crashed, fetching, running, service_body, waiting
from support.worlds.fake_daemons import FakeDaemons
from support.worlds.fleets import H100, fleet, gpu, mig, node, whole
from support.worlds.fleets import pod as holder
from support.worlds.placing import MIXED
from support.worlds.placing import world as inspected_world
from support.worlds.world import World

HUB = {"uri": "hf://acme/tiny"}
READY = running(ready=True)
UNSCHEDULABLE: Body = {"conditions": [{"type": "PodScheduled", "status": "False", "message": 'persistentvolumeclaim "models" not found'}]}


class State(NamedTuple):
    """How to get there, and what is to be read of it."""

    make: Callable[[], World]
    reason: str
    verdict: Verdict

    def body(self) -> Body:
        """The service as the API server then shows it."""
        found: Body = copied(_made(self.make))
        return found


@lru_cache
def _made(make: Callable[[], World]) -> Body:
    """A state is reached by many runs of the operator: once for all its readers."""
    return next(found for found in make().api.of(SERVICES) if found["metadata"]["name"] == "tiny")


def pods(*statuses: Body, **spec: Any) -> Callable[[], World]:
    def make() -> World:
        world = World(replicas=len(statuses), **spec)
        world.settle()
        for pod, status in zip(world.api.of(PODS), statuses, strict=True):
            pod["status"] = status
        world.settle()
        return world

    return make


def spec(**changes: Any) -> Callable[[], World]:
    def make() -> World:
        world = World(**changes)
        world.settle()
        return world

    return make


def then(make: Callable[[], World], change: Callable[[World], None]) -> Callable[[], World]:
    """A change after that, and what the operator says of it."""

    def changed() -> World:
        world = make()
        change(world)
        try:
            world.run()
        except ClusterError:
            return world
        world.settle()
        return world

    return changed


def refuse(kind: str, error: ClusterError) -> Callable[[], World]:
    def make() -> World:
        world = World()
        world.api.refuse[kind] = error
        return world

    return then(make, lambda world: world.run() and None)


def one_run() -> World:
    world = World()
    world.run()
    return world


def no_pods() -> World:
    world = one_run()
    world.run()
    world.run()
    return world


def predecessor() -> World:
    world = spec()()
    world.api.objects.pop(("InferenceService", "ns", "tiny"))
    world.api.put(SERVICES, service_body())
    world.run()
    world.run()
    return world


def stranger() -> World:
    world = World()
    world.api.put(CORE_SERVICES, {"metadata": {"name": "tiny", "namespace": "ns"}, "spec": {}})
    world.settle()
    return world


def namesake() -> World:
    world = World()
    older = world.api.put(SERVICES, service_body("tiny", "elsewhere"))
    older["metadata"]["creationTimestamp"] = "2025-01-01T00:00:00Z"
    world.settle()
    return world


def lose_pins(world: World) -> None:
    for kind in (CONTROLLER_REVISIONS.kind, CONFIG_MAPS.kind):
        for key in [key for key in world.api.objects if key[0] == kind]:
            del world.api.objects[key]


def drop_profile(world: World) -> None:
    del world.api.objects[("ServingProfile", "", "default")]
    world.edit(engine={"maxModelLen": 128})


def spoil_profile(world: World) -> None:
    world.api.edit(PROFILES, "", "default", lambda body: body["spec"].update(podTemplate={"spec": {"terminationGracePeriodSeconds": 1}}))
    world.edit(engine={"maxModelLen": 128})


def roll(world: World) -> None:
    """The new revision is up, the old one's Deployment not gone yet."""
    world.edit(engine={"maxModelLen": 128})
    for _ in range(6):
        world.run()
    world.api.control()
    for pod in world.api.of(PODS):
        pod["status"] = running(ready=True)
    world.api.control()


def still_retiring() -> World:
    world = pods(running(ready=True))()
    roll(world)
    world.run()
    world.run()
    assert len(world.api.of(DEPLOYMENTS)) == 2
    return world


def come_up(world: World, revision: str, status: Body) -> None:
    """The kubelets of that Deployment's pods."""
    for pod in world.api.of(PODS):
        if pod["metadata"]["ownerReferences"][0]["name"] == revision:
            pod["status"] = status


def canary() -> World:
    """Half of the requests go to the new revision, which has its replica."""
    return rolled(pods(READY, READY, rollout={"canary": {"steps": [{"weight": 50, "hold": "5m"}]}})(), READY)


def rolled_back() -> World:
    """The new revision was refused in the place of an old replica, which is back."""
    return rolled(pods(READY, READY, rollout={"strategy": "Replace"})(), crashed())


def on_trial(status: Body) -> Callable[[], World]:
    """The only replica serves until a trial has passed, whose pod is in that state."""

    def make() -> World:
        world = pods(READY, rollout={"strategy": "Replace"})()
        world.api.trial = lambda _: status
        return rolled(world, READY)

    return make


def rolled(world: World, status: Body) -> World:
    """Another revision, whose pods come up so; those of the old one are well."""
    (old,) = world.names(DEPLOYMENTS)
    world.edit(engine={"maxModelLen": 128})
    for _ in range(5):
        world.settle()
        for name in world.names(DEPLOYMENTS):
            come_up(world, name, READY if name == old else status)
    world.settle()
    return world


def over_quota() -> World:
    """Two replicas are asked for, and the tenant has devices for one, which serves."""
    world, cap = World(replicas=2), [{"profile": "1g.10gb", "count": 1}]
    template = {"metadata": {"annotations": {ANNOTATION_DEVICES: "mig-1g.10gb=1"}}}
    world.api.edit(PROFILES, "", "default", lambda body: body["spec"].update(podTemplate=template))
    capped = {"subjects": {"namespaces": ["ns"]}, "devices": {"migSlices": cap}}
    world.api.put(QUOTAS, {"apiVersion": API_VERSION, "kind": QUOTAS.kind, "metadata": {"name": "team"}, "spec": capped})
    world.quota = Quotas(world.api, lambda: map(parse_quota, world.api.of(QUOTAS)), lambda _: None, lambda: 0.0)
    world.restart()
    world.settle()
    world.make_ready()
    return world


def all_in_use() -> World:
    world = inspected_world(gpu("H100"), there=fleet(node("a", H100, whole(8)), pods=(holder("a", gpu=8),)))
    world.settle()
    return world


def inspecting() -> World:
    world = World(accelerators=[mig(least="1Gi")])
    world.fleet = fleet(MIXED)
    world.settle()
    return world


def draining() -> World:
    """Of two replicas one is to go and has a request yet."""
    world = pods(READY, READY)()
    world.daemons = daemons = FakeDaemons(world.api)
    world.restart()
    for pod in world.api.of(PODS):
        daemons.bring_up(pod)
        daemons.of(pod).in_flight = 1
    world.edit(replicas=1)
    world.settle()
    return world


STATES: dict[str, State] = {
    "the first word": State(one_run, "CreatingPods", "InProgress"),
    "no pod made yet": State(no_pods, "CreatingPods", "InProgress"),
    "no node yet": State(pods({}), "Scheduling", "InProgress"),
    "no node fits": State(pods(UNSCHEDULABLE), "Scheduling", "InProgress"),
    "on its node": State(pods(waiting("ContainerCreating")), "PullingImage", "InProgress"),
    "no such image": State(pods(waiting("ErrImagePull", "no such image")), "ImagePull", "InProgress"),
    "a container's fault": State(pods(waiting("CreateContainerConfigError", "no key")), "Container", "InProgress"),
    "loading": State(pods(running()), "LoadingModel", "InProgress"),
    "crashing": State(pods(crashed(code=1, message="boom")), "CrashLooping", "InProgress"),
    "killed for memory": State(pods(crashed(code=137, message="", reason="OOMKilled")), "CrashLooping", "InProgress"),
    "a model refused": State(pods(crashed()), "ModelRejected", "Failed"),
    "one of two": State(pods(READY, running()), "LoadingModel", "InProgress"),
    "one of two, the other refused": State(pods(READY, crashed()), "CrashLooping", "InProgress"),
    "serving": State(pods(READY), "Available", "Current"),
    "scaled to zero": State(spec(replicas=0), "ScaledToZero", "Current"),
    "a replica lost": State(then(pods(READY), lambda world: world.api.of(PODS)[0].update(status=running())), "LoadingModel", "InProgress"),
    "an old revision draining": State(still_retiring, "RollingOut", "InProgress"),
    "a predecessor's children": State(predecessor, "Waiting", "InProgress"),
    "not allowed": State(refuse("Deployment", Denied("403: exceeded quota")), "Forbidden", "InProgress"),
    "refused by the server": State(refuse("Deployment", Refused("422: spec.nodeSelektor")), "InvalidSpec", "Failed"),
    "an invalid object": State(spec(accelerators=[]), "InvalidSpec", "Failed"),
    "a spoilt profile": State(then(pods(READY), spoil_profile), "InvalidProfile", "Failed"),
    "no profile": State(spec(profileRef={"name": "nobody"}), "ProfileNotFound", "Failed"),
    "a profile lost under a change": State(then(pods(READY), drop_profile), "ProfileNotFound", "Failed"),
    "a forbidden overlay": State(spec(podTemplate={"spec": {"hostNetwork": True}}), "PodTemplateForbidden", "Failed"),
    "a name of another object": State(stranger, "NameConflict", "Failed"),
    "a served name of another service": State(namesake, "NameConflict", "Failed"),
    "a canary under way": State(canary, "Canary", "InProgress"),
    "a revision on trial": State(on_trial(waiting("ContainerCreating")), "RollingOut", "InProgress"),
    "a revision that its trial refused": State(on_trial(waiting("ImagePullBackOff", "daemon:2: not found")), "RolledBack", "Failed"),
    "turned back": State(rolled_back, "RolledBack", "Failed"),
    "more than its tenant may have": State(over_quota, "QuotaExceeded", "Failed"),
    "devices that no node has": State(spec(accelerators=[gpu("H100")]), "NoAccelerator", "Failed"),
    "devices in use": State(all_in_use, "WaitingForCapacity", "InProgress"),
    "a model of unknown size": State(inspecting, "InspectingModel", "InProgress"),
    "fetching": State(pods(fetching(), model=HUB), "FetchingModel", "InProgress"),
    "a fetch that failed and is repeated": State(pods(fetching(1, "NoRoom: /models"), model=HUB), "FetchingModel", "InProgress"),
    "an address that nothing fetches from": State(spec(model={"uri": "az://account/name"}), "UnsupportedUri", "Failed"),
    "a replica draining": State(draining, "Draining", "InProgress"),
    "a revision lost": State(then(pods(READY), lose_pins), "RevisionLost", "Failed"),
}
