"""What the status says, by kstatus' rules."""

import copy
import math
from dataclasses import replace
from datetime import timedelta

import pytest
from pagoda_contracts.names import ANNOTATION_DRAIN_DEADLINE
from pagoda_operator.api.errors import Denied
from pagoda_operator.api.signals import EndpointSignal, Seen, ServiceSignals
from pagoda_operator.api.state import DEPLOYMENTS, EVENTS, PODS, SERVICES
from pagoda_operator.decide.plan import plan
from pagoda_operator.decide.status.status import status as status_of
from pagoda_operator.watch.observe import faults
from pagoda_placement.values import stamp
from support.harness.harness import Harness
from support.harness.placing import SMALL_CONFIG, inspected
from support.harness.status_states import LOST, NO_SECRET, STATES, cancelled, come_up, draining, no_secret, still_retiring
from support.judges.kstatus import kstatus
from support.kube.fake_api import crashed, fetching, mount_failure, restarted, running, scheduled, unmounted, waiting

UNSCHEDULABLE = {"conditions": [{"type": "PodScheduled", "status": "False", "message": 'persistentvolumeclaim "models" not found'}]}


def harness_with(*statuses, **spec):
    harness = Harness(replicas=len(statuses), **spec)
    harness.begin(f"{len(statuses)} {spec}", lambda: ("model" in spec and inspected(harness, SMALL_CONFIG), harness.settle()))
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
        ([UNSCHEDULABLE], "Scheduling", 'persistentvolumeclaim "models" not found (spec.model.uri)', "InProgress"),
        ([waiting("ContainerCreating")], "PullingImage", "pulls its image", "InProgress"),
        ([waiting("ErrImagePull", "no such image")], "ImagePull", "no such image", "InProgress"),
        ([waiting("CreateContainerConfigError", "no key")], "Container", "CreateContainerConfigError: no key", "InProgress"),
        ([running()], "LoadingModel", "loads the model", "InProgress"),
        ([restarted(code=1, message="boom")], "Restarting", "exit code 1: boom", "InProgress"),
        ([crashed(code=1, message="boom")], "CrashLooping", "exit code 1: boom", "InProgress"),
        ([crashed(code=137, message="", reason="OOMKilled")], "CrashLooping", "exit code 137: OOMKilled", "InProgress"),
        ([crashed(message="bad\n tensor\x1b[31m ")], "ModelRejected", "bad tensor [31m", "Failed"),
        ([crashed(message="/models/tiny/config.json: no")], "ModelRejected", "pvc://models/tiny/config.json: no", "Failed"),
        ([crashed(message="/a/models/b, /models2/c")], "ModelRejected", "/a/models/b, /models2/c", "Failed"),
        ([running(ready=True), running()], "LoadingModel", "1 of 2 replicas ready", "InProgress"),
        ([LOST], "NotReady", "is not ready any more", "InProgress"),
        ([running(), LOST], "NotReady", "is not ready any more", "InProgress"),
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
    assert states(harness) == {"Ready": "Unknown", "Reconciling": "True", "Stalled": "False", "Serving": "False"}
    assert kstatus(harness.api.of(SERVICES)[0]) == "InProgress"


def test_ready_is_unknown_on_the_way_and_false_once_lost():
    harness = harness_with(running())
    assert states(harness)["Ready"] == "Unknown"
    harness.make_ready()
    assert states(harness)["Ready"] == "True"
    harness.api.of(PODS)[0]["status"] = running()
    harness.settle()
    assert states(harness) == {"Ready": "False", "Reconciling": "True", "Stalled": "False", "Serving": "False"}


def test_a_transition_time_moves_only_when_its_status_flips():
    harness = harness_with(waiting("ContainerCreating"))

    def moved(**state):
        before = harness.conditions()
        harness.tick()
        harness.api.of(PODS)[0]["status"] = running(**state)
        harness.settle()
        after = harness.conditions()
        assert {kind for kind in after if after[kind]["reason"] != before[kind]["reason"]} - {"Serving"} == {"Ready", "Reconciling"}
        return {kind for kind in after if after[kind]["lastTransitionTime"] != before[kind]["lastTransitionTime"]}

    assert moved() == set(), "another reason for the same status"
    assert moved(ready=True) == {"Ready", "Reconciling", "Serving"}


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
    failure = {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota", "lastTransitionTime": "2026-01-01T00:00:02Z"}
    deployment["status"]["conditions"].append(failure)
    harness.run()
    wait = "waiting since 2026-01-01T00:00:02Z; this wait has no deadline"
    assert harness.conditions()["Ready"]["message"] == f"0 of 1 replicas ready: exceeded quota; {wait}"


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


def crowd(mode, ready, least=1):
    """A service of three replicas that somebody else than a person asked for, of which so many are ready."""
    scaling = {"mode": mode} | ({"min": least, "max": 4} if mode == "Auto" else {})
    return harness_with(*[running(ready=number < ready) for number in range(3)], scaling=scaling)


@pytest.mark.parametrize(
    ("mode", "least", "ready", "state"),
    [
        ("Manual", 1, 2, "Unknown"),
        ("Manual", 1, 3, "True"),
        ("External", 1, 0, "Unknown"),
        ("External", 1, 1, "True"),
        ("Auto", 0, 0, "Unknown"),
        ("Auto", 0, 1, "True"),
        ("Auto", 2, 1, "Unknown"),
        ("Auto", 2, 2, "True"),
        ("Auto", 4, 3, "True"),
    ],
)
def test_ready_needs_the_replicas_that_scaling_may_not_go_below_and_in_manual_mode_all(mode, least, ready, state):
    found = states(crowd(mode, ready, least))
    assert (found["Ready"], found["Serving"]) == (state, "True" if ready else "False")
    assert (found["Reconciling"] == "True") == (ready < 3)


def test_a_new_revision_is_ready_with_all_replicas_and_an_old_one_serves_until_then():
    harness = crowd("Auto", 3)
    (old,) = harness.names(DEPLOYMENTS)
    harness.edit(engine={"maxModelLen": 128})
    for _ in range(5):
        harness.settle()
        assert (states(harness)["Ready"], states(harness)["Serving"]) == ("Unknown", "True")
        new = [pod for pod in harness.api.of(PODS) if pod["metadata"]["ownerReferences"][0]["name"] != old]
        harness.api.report(new[0], running(ready=True))
    harness.make_ready()
    harness.settle()
    assert (states(harness)["Ready"], states(harness)["Serving"]) == ("True", "True")


def test_a_service_that_lost_its_last_replica_serves_no_more_and_one_that_sleeps_stays_ready():
    harness = harness_with(running(ready=True))
    harness.api.report(harness.api.of(PODS)[0], running())
    harness.settle()
    assert (states(harness)["Ready"], harness.conditions()["Serving"]["reason"], harness.operator.down()) == ("False", "NoReplica", 1)
    harness.make_ready()
    assert harness.operator.down() == 0
    harness.edit(replicas=0)
    harness.settle()
    assert (states(harness)["Ready"], harness.reason(), harness.conditions()["Serving"]["reason"]) == ("True", "ScaledToZero", "NoReplica")
    assert harness.operator.down() == 0


def test_a_service_that_never_served_is_not_ready_while_it_is_asleep():
    harness = harness_with(running())
    harness.edit(replicas=0)
    harness.settle()
    assert (states(harness)["Ready"], harness.reason()) == ("Unknown", "ScaledToZero")
    assert harness.conditions()["Serving"]["reason"] == "NotServedYet"
    assert harness.conditions()["Ready"]["message"] == "scaled to zero, and no replica has ever served"
    written = len(harness.api.journal)
    harness.settle()
    assert (len(harness.api.journal), harness.operator.down()) == (written, 0)


@pytest.mark.parametrize(("ready", "state"), [("True", "True"), ("False", "True"), ("Unknown", "Unknown")])
def test_a_service_that_slept_before_the_condition_serving_came_counts_as_served_if_it_was_ready(ready, state):
    harness = harness_with(running())
    harness.edit(replicas=0)
    harness.settle()
    conditions = harness.api.of(SERVICES)[0]["status"]["conditions"]
    conditions[:] = [line | ({"status": ready} if line["type"] == "Ready" else {}) for line in conditions if line["type"] != "Serving"]
    harness.settle()
    assert states(harness)["Ready"] == state


def test_a_secret_that_cannot_be_mounted_is_named_with_its_field_in_one_write():
    harness = no_secret()
    (pod,) = harness.api.of(PODS)
    named = f"{pod['metadata']['name']}: volume 'credential-0': secret \"hf-token\" not found (spec.credentials[0].secretRef.name)"
    wait = "waiting since 2026-01-01T00:00:00Z; this wait has no deadline"
    assert harness.conditions()["Ready"]["message"] == f"0 of 1 replicas ready: {named}; {wait}"
    written = len(harness.api.journal)
    harness.api.put(EVENTS, mount_failure(pod, NO_SECRET, "2026-01-01T00:01:00.000000Z", 2))
    stale = copy.deepcopy(pod)
    stale["metadata"]["uid"] = "another"
    harness.api.put(EVENTS, mount_failure(stale, NO_SECRET.replace("hf-token", "old"), "2026-01-01T00:00:00.000000Z", 3))
    assert harness.run().again == 2.0
    harness.later += timedelta(minutes=5)
    assert harness.run().again == 30.0
    assert len(harness.api.journal) == written
    pod["status"] = running()
    assert (harness.settle(), harness.reason()) == (None, "LoadingModel")


def told(volume, words, first, last, number):
    """One of the kubelet's Events, by the seconds of its first and last time."""
    pod = {"metadata": {"name": "p", "namespace": "ns", "uid": "u"}}
    made = mount_failure(pod, f'MountVolume.SetUp failed for volume "{volume}" : {words}', "2026-01-01T00:00:00Z", number)
    times = {"deprecatedFirstTimestamp": stamp(first), "deprecatedLastTimestamp": stamp(last)}
    return made | {"eventTime": None} | times


HUB, KEY = 'secret "hub1" not found', "references non-existent secret key: token"


@pytest.mark.parametrize(
    ("events", "says"),
    [
        ([("a", HUB, 1, 1), ("a", HUB, 9, 9)], [f"volume 'a': {HUB}"]),
        # The Secret is there now, and lacks a key.
        ([("a", HUB, 1, 5), ("a", KEY, 6, 6)], [f"volume 'a': {KEY}"]),
        ([("a", HUB, 1, 9), ("a", KEY, 6, 6)], [f"volume 'a': {HUB}"]),
        # A name in quotes is told exactly, a number of the try is not.
        ([("a", HUB, 1, 1), ("a", HUB.replace("1", "2"), 2, 2)], ["volume 'a': secret \"hub2\" not found"]),
        (
            [("a", "run-r1.scope: exit status 32", 1, 1), ("a", "run-r2f.scope: exit status 32", 60, 60)],
            ["volume 'a': run-r1.scope: exit status 32"],
        ),
        # The kubelet tries both, one after the other.
        ([("a", HUB, 1, 60), ("b", KEY, 2, 30)], [f"volume 'b': {KEY}", f"volume 'a': {HUB}"]),
        ([("a", HUB, 1, 60), ("b", KEY, 2, 90)], [f"volume 'b': {KEY}", f"volume 'a': {HUB}"]),
        # The first is mounted since.
        ([("a", HUB, 1, 60), ("b", KEY, 61, 61)], [f"volume 'b': {KEY}"]),
        ([(name, HUB, at, 9) for at, name in enumerate("abcd")], [f"volume '{name}': {HUB}" for name in "dcb"]),
    ],
)
def test_the_kubelets_latest_words_about_each_volume_count_and_change_only_with_what_they_say(events, says):
    told_so = [told(*event, number) for number, event in enumerate(events)]
    assert faults(told_so, "u") == faults(reversed(told_so), "u") == "; ".join(says)
    assert faults(told_so, "another") == ""


def test_later_words_about_a_volume_are_one_write():
    harness = no_secret()
    (pod,) = harness.api.of(PODS)
    written = len(harness.api.journal)
    for number, second in ((2, 30), (3, 40)):
        said = f'MountVolume.SetUp failed for volume "credential-0" : {KEY}'
        harness.api.put(EVENTS, mount_failure(pod, said, f"2026-01-01T00:00:{second}.000000Z", number))
        harness.settle()
        assert f"volume 'credential-0': {KEY}; waiting" in harness.conditions()["Ready"]["message"]
        assert len(harness.api.journal) == written + 1


AT = "2026-01-01T00:0{}:00Z"
NO_NODE = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available: no label."}


def since(status, minute, container=""):
    """The status with the time at which the pod came there: it got a node, or that container began."""
    found = copy.deepcopy(status)
    for one in found["conditions"]:
        if one["type"] == "PodScheduled":
            one["lastTransitionTime"] = AT.format(1 if container else minute)
    for one in [*found.get("initContainerStatuses", ()), *found.get("containerStatuses", ())]:
        if one["name"] == container and "running" in one["state"]:
            one["state"]["running"]["startedAt"] = AT.format(minute)
    return found


@pytest.mark.parametrize(
    ("status", "reason", "minute", "then"),
    [
        ({}, "Scheduling", 0, "this wait has no deadline"),
        (since({"conditions": [NO_NODE]}, 2), "Scheduling", 2, "this wait has no deadline"),
        (since(waiting("ContainerCreating"), 2), "PullingImage", 2, "this wait has no deadline"),
        (since(waiting("ErrImagePull", "no"), 2), "ImagePull", 2, "this wait has no deadline"),
        (since(fetching(), 3, "fetch"), "FetchingModel", 3, "the kubelet restarts a fetch that takes longer than a day"),
        (since(fetching(1, "NoRoom"), 3, "fetch"), "FetchingModel", 1, "the kubelet restarts a fetch that takes longer than a day"),
        (since(running(), 4, "daemon"), "LoadingModel", 4, "the kubelet restarts a load that stands still for 300 s"),
        (LOST, "NotReady", 5, "this wait has no deadline"),
        (since(restarted(code=1), 4, "daemon"), "Restarting", 1, "this wait has no deadline"),
    ],
)
def test_a_wait_for_a_replica_says_since_when_and_what_ends_it_and_time_changes_nothing(status, reason, minute, then):
    harness = harness_with(status, model={"uri": "hf://acme/tiny"})
    assert harness.reason() == reason
    assert harness.conditions()["Ready"]["message"].endswith(f"; waiting since {AT.format(minute)}; {then}")
    written = len(harness.api.journal)
    for _ in range(3):
        harness.later += timedelta(hours=3)
        harness.settle()
    assert len(harness.api.journal) == written


def test_a_load_that_stands_still_is_restarted_after_the_time_that_the_service_sets():
    harness = harness_with(since(running(), 4, "daemon"), engine={"loadTimeout": "45m"})
    assert harness.conditions()["Ready"]["message"].endswith("; the kubelet restarts a load that stands still for 2700 s")


@pytest.mark.parametrize(
    ("status", "then"),
    [
        (since({"conditions": [NO_NODE]}, 0), "at 2026-01-01T00:10:00Z the service returns to the old revision"),
        (since(running(), 2, "daemon"), "at 2026-01-02T00:01:00Z the service returns to the old revision"),
        (restarted(code=1), "after its second restart the service returns to the old revision"),
    ],
)
def test_a_new_revision_in_the_place_of_the_old_one_says_when_that_comes_back(status, then):
    harness = harness_with(running(ready=True), running(ready=True), rollout={"strategy": "Replace"})
    (old,) = harness.names(DEPLOYMENTS)
    harness.edit(engine={"maxModelLen": 128})
    for _ in range(3):
        harness.settle()
        (new,) = (body for body in harness.api.of(DEPLOYMENTS) if body["metadata"]["name"] != old)
        new["status"]["conditions"][0]["lastUpdateTime"] = AT.format(1)
        come_up(harness, new["metadata"]["name"], status)
    harness.run()
    assert f"; {then}; 1 ready replica of an older revision continues to serve" in harness.conditions()["Ready"]["message"]


@pytest.mark.parametrize(
    ("state", "then"),
    [
        ("a model of unknown size", "; waiting since 2026-01-01T00:00:00Z; this wait has no deadline"),
        ("a canary under way", "; waiting since 2026-01-01T00:00:00Z; at 2026-01-01T00:05:00Z the next step begins"),
        (
            "a revision on trial",
            "; waiting since 2026-01-01T00:00:00Z; at 2026-01-02T00:00:00Z the service returns to the old revision; 1 r",
        ),
        ("a replica draining", "; waiting since 2026-01-01T00:00:00Z; at 2026-01-01T00:00:30Z their requests are ended"),
        ("a replica that is not needed before it served", "; waiting since 2026-01-01T00:00:00Z; this wait has no deadline"),
        ("an old revision draining", "; waiting since 2026-01-01T00:00:00Z; at 2026-01-01T00:00:30Z their requests are ended"),
    ],
)
def test_a_wait_for_something_else_says_since_when_or_until_when(state, then):
    assert then in loudest(STATES[state].body())


@pytest.mark.parametrize("make", [draining, cancelled, still_retiring])
def test_what_goes_keeps_the_time_since_when(make):
    harness = make()
    before = loudest(harness.api.of(SERVICES)[0])
    assert "; waiting since 2026-01-01T00:00:00Z; " in before
    for _ in range(3):
        harness.later += timedelta(seconds=2)
        harness.run()
        assert loudest(harness.api.of(SERVICES)[0]) == before


def test_an_object_that_is_being_deleted_is_waited_for_since_then():
    harness = harness_with(running())
    harness.api.of(DEPLOYMENTS)[0]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:07Z"
    harness.run()
    assert "is deleted; waiting since 2026-01-01T00:00:07Z; this wait has no deadline" in loudest(harness.api.of(SERVICES)[0])


def test_a_wait_for_devices_without_a_deadline_says_so():
    (message,) = {line["message"] for line in STATES["devices in use"].body()["status"]["conditions"] if line["status"] == "True"}
    assert message.startswith("0 of 1 replicas ready: waiting for gpu[0] since 2026-01-01T00:00:00Z: ")
    assert message.endswith("; this wait has no deadline")


def test_what_goes_is_drained_only_if_it_serves():
    said = {name: loudest(STATES[name].body()) for name in ("a replica draining", "a replica that is not needed before it served")}
    assert [words.split()[4:6] for words in said.values()] == [["ready;", "draining"], ["ready;", "removing"]]
    assert ": not needed before it served; waiting since" in said["a replica that is not needed before it served"]


def loudest(body):
    return next(line["message"] for line in body["status"]["conditions"] if line["type"] == "Reconciling")


def test_events_are_read_only_of_a_pod_that_waits_for_its_volumes_and_only_after_a_while():
    harness = harness_with(waiting("ContainerCreating"))
    (pod,) = harness.api.of(PODS)
    for status, seconds, looks in ((waiting("ContainerCreating"), 9, 0), (unmounted("2026-01-01T00:00:09Z"), 1, 0), (None, 1, 1)):
        pod["status"] = status or pod["status"]
        harness.later += timedelta(seconds=seconds)
        harness.api.kinds_read.clear()
        harness.run()
        assert harness.api.kinds_read.count("Event") == looks


def test_an_operator_that_may_not_read_events_goes_on_without_them():
    harness = no_secret()
    harness.api.pod_events = refused
    harness.settle()
    assert harness.reason() == "PullingImage"


async def refused(namespace, pod):
    raise Denied(f"events of {namespace}/{pod}")


HEARD = ServiceSignals(fresh=True)


@pytest.mark.parametrize(
    ("signals", "unheard_s", "age_s", "said"),
    [
        (HEARD, 60.0, 60, "gateways have none of its replicas and hold its requests; look at Service tiny and its EndpointSlices"),
        (HEARD, 59.0, 60, ""),
        (HEARD, 3600.0, 59, ""),
        (HEARD, math.inf, 60, ""),
        (replace(HEARD, fresh=False), 60.0, 60, ""),
        (replace(HEARD, wakes=False), 60.0, 60, ""),
        (replace(HEARD, endpoints={"a": EndpointSignal(Seen.DEAD)}), 60.0, 60, ""),
        (None, 60.0, 60, ""),
    ],
)
def test_replicas_that_no_gateway_has_are_said_in_serving(signals, unheard_s, age_s, said):
    """Its Service was deleted, say, or nobody makes EndpointSlices of it."""
    observed = harness_with(running(ready=True)).observed()
    (pod,) = observed.pods
    pods = (replace(pod, ready_since=observed.now - age_s),)
    observed = replace(observed, pods=pods, signals=signals, unheard_s=unheard_s)
    (line,) = [one for one in status_of(observed, plan(observed), None, AT.format(9))["conditions"] if one["type"] == "Serving"]
    assert (line["status"], line["reason"], line.get("message", "")) == ("True", "TakesRequests", said)
