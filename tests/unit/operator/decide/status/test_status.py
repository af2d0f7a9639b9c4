"""What the status says, by kstatus' rules."""

import copy

import pytest
from pagoda_contracts.names import ANNOTATION_DRAIN_DEADLINE
from pagoda_operator.api.state import DEPLOYMENTS, PODS, SERVICES
from support.judges.kstatus import kstatus
from support.kube.fake_api import crashed, running, scheduled, waiting
from support.worlds.world import World

UNSCHEDULABLE = {"conditions": [{"type": "PodScheduled", "status": "False", "message": 'persistentvolumeclaim "models" not found'}]}


def world_with(*statuses, **spec):
    world = World(replicas=len(statuses), **spec)
    world.settle()
    for pod, status in zip(world.api.of(PODS), statuses, strict=True):
        pod["status"] = copy.deepcopy(status)
    world.settle()
    return world


def states(world):
    return {kind: line["status"] for kind, line in world.conditions().items()}


@pytest.mark.parametrize(
    ("statuses", "reason", "says", "verdict"),
    [
        ([{}], "Scheduling", "has no node yet", "InProgress"),
        ([UNSCHEDULABLE], "Scheduling", 'persistentvolumeclaim "models" not found', "InProgress"),
        ([waiting("ContainerCreating")], "PullingImage", "pulls its image", "InProgress"),
        ([waiting("ErrImagePull", "no such image")], "ImagePull", "no such image", "InProgress"),
        ([waiting("CreateContainerConfigError", "no key")], "Container", "CreateContainerConfigError: no key", "InProgress"),
        ([running()], "LoadingModel", "loads the model", "InProgress"),
        ([crashed(code=1, message="boom")], "CrashLooping", "exit code 1: boom", "InProgress"),
        ([crashed(code=137, message="", reason="OOMKilled")], "CrashLooping", "exit code 137: OOMKilled", "InProgress"),
        ([crashed(message="bad\n tensor\x1b[31m ")], "ModelRejected", "bad tensor [31m", "Failed"),
        ([running(ready=True), running()], "LoadingModel", "1 of 2 replicas ready", "InProgress"),
        ([running(ready=True), crashed()], "CrashLooping", "exit code 78", "InProgress"),
        ([crashed(code=1), UNSCHEDULABLE], "CrashLooping", "exit code 1", "InProgress"),
        ([running(ready=True)], "Available", "1 of 1 replicas ready", "Current"),
    ],
)
def test_each_stage_has_its_reason(statuses, reason, says, verdict):
    world = world_with(*statuses)
    ready = world.conditions()["Ready"]
    assert (ready["reason"], kstatus(world.api.of(SERVICES)[0])) == (reason, verdict)
    assert says in ready["message"]


def test_a_status_is_written_before_the_first_child():
    world = World()
    world.run()
    assert world.api.journal == [("status", "InferenceService", "tiny")]
    assert states(world) == {"Ready": "Unknown", "Reconciling": "True", "Stalled": "False"}
    assert kstatus(world.api.of(SERVICES)[0]) == "InProgress"


def test_ready_is_unknown_on_the_way_and_false_once_lost():
    world = world_with(running())
    assert states(world)["Ready"] == "Unknown"
    world.make_ready()
    assert states(world)["Ready"] == "True"
    world.api.of(PODS)[0]["status"] = running()
    world.settle()
    assert states(world) == {"Ready": "False", "Reconciling": "True", "Stalled": "False"}


def test_a_transition_time_moves_only_when_its_status_flips():
    world = world_with(waiting("ContainerCreating"))

    def moved(**state):
        before = world.conditions()
        world.tick()
        world.api.of(PODS)[0]["status"] = running(**state)
        world.settle()
        after = world.conditions()
        assert {kind for kind in after if after[kind]["reason"] != before[kind]["reason"]} == {"Ready", "Reconciling"}
        return {kind for kind in after if after[kind]["lastTransitionTime"] != before[kind]["lastTransitionTime"]}

    assert moved() == set(), "another reason for the same status"
    assert moved(ready=True) == {"Ready", "Reconciling"}


def test_a_pull_that_fails_in_turns_is_one_message():
    error = 'failed to pull and unpack image "a": not found'
    world = world_with(waiting("ErrImagePull", error))
    written = len(world.api.journal)
    world.api.of(PODS)[0]["status"] = waiting("ImagePullBackOff", f'Back-off pulling image "a": ErrImagePull: {error}')
    world.settle()
    assert len(world.api.journal) == written


def test_a_growing_back_off_writes_no_status():
    world = world_with(crashed(code=1))
    written = len(world.api.journal)
    pod = world.api.of(PODS)[0]["status"]["containerStatuses"][0]
    pod["state"]["waiting"]["message"] = "back-off 5m0s restarting failed container"
    pod["restartCount"] = 9
    world.settle()
    assert len(world.api.journal) == written


def test_a_deployment_that_may_make_no_pods_says_why():
    world = World()
    world.settle()
    (deployment,) = world.api.of(DEPLOYMENTS)
    for pod in world.api.of(PODS):
        del world.api.objects[("Pod", "ns", pod["metadata"]["name"])]
    failure = {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota"}
    deployment["status"]["conditions"].append(failure)
    world.run()
    assert "exceeded quota" in world.conditions()["Ready"]["message"]


def test_numbers_count_replicas_that_stay():
    world = world_with(running(ready=True), running(), {"phase": "Failed", "conditions": scheduled(ready=False)})
    world.api.of(PODS)[1]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    world.run()
    status = world.api.of(SERVICES)[0]["status"]
    # The ready one and the failed one's replacement.
    assert (status["replicas"], status["readyReplicas"], status["revisions"][0]["replicas"]) == (2, 1, 2)


def test_a_replica_that_is_drained_is_no_ready_one_of_its_revision_either():
    """It takes no more requests, though its kubelet still calls it Ready."""
    world = world_with(running(ready=True), running(ready=True))
    world.api.of(PODS)[1]["metadata"]["annotations"][ANNOTATION_DRAIN_DEADLINE] = "4000000000000"
    world.run()
    status = world.api.of(SERVICES)[0]["status"]
    assert (status["readyReplicas"], [revision["readyReplicas"] for revision in status["revisions"]]) == (1, [1])
