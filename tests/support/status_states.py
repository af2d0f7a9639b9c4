"""Every state that a service's status can be in, made by the operator's own runs on a fake API server; by name, with kstatus' verdict."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from fake_api import Body, crashed, running, service_body, waiting
from kstatus import Verdict
from operator_world import World
from pagoda_operator.errors import ClusterError, Denied, Refused
from pagoda_operator.state import CONFIG_MAPS, CONTROLLER_REVISIONS, CORE_SERVICES, DEPLOYMENTS, PODS, PROFILES, SERVICES

UNSCHEDULABLE: Body = {"conditions": [{"type": "PodScheduled", "status": "False", "message": 'persistentvolumeclaim "models" not found'}]}


class State(NamedTuple):
    """How to get there, and what is to be read of it."""

    make: Callable[[], World]
    reason: str
    verdict: Verdict

    def body(self) -> Body:
        """The service as the API server then shows it."""
        return next(found for found in self.make().api.of(SERVICES) if found["metadata"]["name"] == "tiny")


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


READY = running(ready=True)
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
    "a revision lost": State(then(pods(READY), lose_pins), "RevisionLost", "Failed"),
}
