"""What the status says, by kstatus' rules."""

import copy

import pytest
from pagoda_contracts.names import ANNOTATION_DRAIN_DEADLINE
from pagoda_operator.api.state import DEPLOYMENTS, PODS, SERVICES
from support.harness.harness import Harness
from support.judges.kstatus import kstatus
from support.kube.fake_api import crashed, restarted, running, scheduled, waiting

UNSCHEDULABLE = {"conditions": [{"type": "PodScheduled", "status": "False", "message": 'persistentvolumeclaim "models" not found'}]}


def harness_with(*statuses, **spec):
    harness = Harness(replicas=len(statuses), **spec)
    harness.settle()
    for pod, status in zip(harness.api.of(PODS), statuses, strict=True):
        pod["status"] = copy.deepcopy(status)
    harness.settle()
    return harness


def states(harness):
    return {kind: line["status"] for kind, line in harness.conditions().items()}


@pytest.mark.parametrize(
    ("statuses", "reason", "says", "verdict"),
    [
        ([{}], "Scheduling", "has no node yet", "InProgress"),
        ([UNSCHEDULABLE], "Scheduling", 'persistentvolumeclaim "models" not found', "InProgress"),
        ([waiting("ContainerCreating")], "PullingImage", "pulls its image", "InProgress"),
        ([waiting("ErrImagePull", "no such image")], "ImagePull", "no such image", "InProgress"),
        ([waiting("CreateContainerConfigError", "no key")], "Container", "CreateContainerConfigError: no key", "InProgress"),
        ([running()], "LoadingModel", "loads the model", "InProgress"),
        ([restarted(code=1, message="boom")], "Restarting", "exit code 1: boom", "InProgress"),
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
    harness = harness_with(*statuses)
    ready = harness.conditions()["Ready"]
    assert (ready["reason"], kstatus(harness.api.of(SERVICES)[0])) == (reason, verdict)
    assert says in ready["message"]


def test_a_status_is_written_before_the_first_child():
    harness = Harness()
    harness.run()
    assert harness.api.journal == [("status", "InferenceService", "tiny")]
    assert states(harness) == {"Ready": "Unknown", "Reconciling": "True", "Stalled": "False"}
    assert kstatus(harness.api.of(SERVICES)[0]) == "InProgress"


def test_ready_is_unknown_on_the_way_and_false_once_lost():
    harness = harness_with(running())
    assert states(harness)["Ready"] == "Unknown"
    harness.make_ready()
    assert states(harness)["Ready"] == "True"
    harness.api.of(PODS)[0]["status"] = running()
    harness.settle()
    assert states(harness) == {"Ready": "False", "Reconciling": "True", "Stalled": "False"}


def test_a_transition_time_moves_only_when_its_status_flips():
    harness = harness_with(waiting("ContainerCreating"))

    def moved(**state):
        before = harness.conditions()
        harness.tick()
        harness.api.of(PODS)[0]["status"] = running(**state)
        harness.settle()
        after = harness.conditions()
        assert {kind for kind in after if after[kind]["reason"] != before[kind]["reason"]} == {"Ready", "Reconciling"}
        return {kind for kind in after if after[kind]["lastTransitionTime"] != before[kind]["lastTransitionTime"]}

    assert moved() == set(), "another reason for the same status"
    assert moved(ready=True) == {"Ready", "Reconciling"}


def test_a_pull_that_fails_in_turns_is_one_message():
    error = 'failed to pull and unpack image "a": not found'
    harness = harness_with(waiting("ErrImagePull", error))
    written = len(harness.api.journal)
    harness.api.of(PODS)[0]["status"] = waiting("ImagePullBackOff", f'Back-off pulling image "a": ErrImagePull: {error}')
    harness.settle()
    assert len(harness.api.journal) == written


def test_a_growing_back_off_writes_no_status():
    harness = harness_with(crashed(code=1))
    written = len(harness.api.journal)
    pod = harness.api.of(PODS)[0]["status"]["containerStatuses"][0]
    pod["state"]["waiting"]["message"] = "back-off 5m0s restarting failed container"
    pod["restartCount"] = 9
    harness.settle()
    assert len(harness.api.journal) == written


def test_a_deployment_that_may_make_no_pods_says_why():
    harness = Harness()
    harness.settle()
    (deployment,) = harness.api.of(DEPLOYMENTS)
    for pod in harness.api.of(PODS):
        del harness.api.objects[("Pod", "ns", pod["metadata"]["name"])]
    failure = {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota"}
    deployment["status"]["conditions"].append(failure)
    harness.run()
    assert "exceeded quota" in harness.conditions()["Ready"]["message"]


def test_numbers_count_replicas_that_stay():
    harness = harness_with(running(ready=True), running(), {"phase": "Failed", "conditions": scheduled(ready=False)})
    harness.api.of(PODS)[1]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    harness.run()
    status = harness.api.of(SERVICES)[0]["status"]
    # The ready one and the failed one's replacement.
    assert (status["replicas"], status["readyReplicas"], status["revisions"][0]["replicas"]) == (2, 1, 2)


def test_a_replica_that_is_drained_is_no_ready_one_of_its_revision_either():
    """It takes no more requests, though its kubelet still calls it Ready."""
    harness = harness_with(running(ready=True), running(ready=True))
    harness.api.of(PODS)[1]["metadata"]["annotations"][ANNOTATION_DRAIN_DEADLINE] = "4000000000000"
    harness.run()
    status = harness.api.of(SERVICES)[0]["status"]
    assert (status["readyReplicas"], [revision["readyReplicas"] for revision in status["revisions"]]) == (1, [1])
