"""The state of a revision: which replicas cannot start, which the pods show at once, and which answer. A slow start is not broken."""

import asyncio
import copy
import math
from dataclasses import replace
from datetime import timedelta

import pytest
from pagoda_contracts.names import LABEL_SERVICE
from pagoda_operator.api.pods import Pod, parse_pod
from pagoda_operator.api.signals import EndpointSignal, Seen, ServiceSignals
from pagoda_operator.api.state import DEPLOYMENTS, PODS, SERVICES
from pagoda_operator.decide.replicas.replicas import current_state
from pagoda_operator.watch.caches import Caches
from pagoda_operator.watch.observe import Ages
from support.harness.harness import KEY, Harness
from support.kube.fake_api import crashed, fetching, is_trial, running, waiting

MADE = "2026-01-01T00:00:00Z"


@pytest.fixture
def harness():
    made = Harness(rollout={"strategy": "Replace"})
    made.begin("settled", made.settle)
    return made


def state_of(harness, status, *, hours=0.0):
    """As the only pod of the service, made so long ago, is in that state; None: it was refused before it was made."""
    if harness.api.of(PODS):
        befall(harness, harness.api.of(PODS)[0], status)
    elif status is None:
        refuse(harness.api.of(DEPLOYMENTS)[0])
    harness.later = timedelta(hours=hours)
    observed = harness.observed()
    return current_state(observed, harness.plan().current)


def befall(harness, pod, status):
    """What becomes of a pod, as the watches would show it."""
    if status is None:
        del harness.api.objects[(PODS.kind, "ns", pod["metadata"]["name"])]
        refuse(next(body for body in harness.api.of(DEPLOYMENTS) if pod["metadata"]["name"].startswith(body["metadata"]["name"])))
        return
    pod["metadata"]["creationTimestamp"] = MADE
    pod["status"] = copy.deepcopy(status)


def refuse(deployment):
    failure = {
        "type": "ReplicaFailure",
        "status": "True",
        "reason": "FailedCreate",
        "message": "exceeded quota: native",
        "lastTransitionTime": MADE,
    }
    others = [one for one in deployment["status"].get("conditions", []) if one["type"] != "ReplicaFailure"]
    deployment["status"]["conditions"] = [*others, failure]


def unscheduled(message):
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message, "lastTransitionTime": MADE}
    return {"phase": "Pending", "conditions": [condition]}


def sandbox(status, reason="ContainerCreating"):
    """A pod on its node. Mounts come before the sandbox, images after it."""
    made = waiting(reason)
    return made | {"conditions": [*made["conditions"], {"type": "PodReadyToStartContainers", "status": status, "lastTransitionTime": MADE}]}


SLOW = {
    "pulls its image": sandbox("True"),
    "pulls its sidecar's image": sandbox("True", "PodInitializing"),
    "is on a node that does not report sandboxes": waiting("ContainerCreating"),
    "fetches its model": fetching(),
    "loads its model": running(),
    "waits for a node that an autoscaler makes": unscheduled("0/9 nodes are available: 9 Insufficient nvidia.com/gpu."),
    "waits for a device of a driver's": unscheduled("0/9 nodes are available: 9 cannot allocate all claims."),
    "has not been seen by the scheduler": {"phase": "Pending"},
    "was once not pulled": waiting("ErrImagePull", "connection reset"),
    "ended once": crashed(1),
}


@pytest.mark.parametrize("state", SLOW)
@pytest.mark.parametrize("hours", [0.0, 0.5, 20.0])
def test_a_start_that_takes_long_is_not_broken(state, hours, harness):
    found = state_of(harness, SLOW[state], hours=hours)
    assert (found.broken, found.why) == (0, "")


BAD = {
    "no such image": (waiting("ImagePullBackOff", "not found"), "not found"),
    "an image that is no name": (waiting("InvalidImageName", "couldn't parse"), "couldn't parse"),
    "a model that is refused": (crashed(), "unknown architecture"),
    "a daemon that ends again and again": (
        crashed(1) | {"containerStatuses": [crashed(1)["containerStatuses"][0] | {"restartCount": 2}]},
        "exit code 1",
    ),
    "a model that does not exist": (fetching(code=78, message="404"), "404"),
}


@pytest.mark.parametrize("state", BAD)
def test_a_replica_that_cannot_start_is_known_at_once(state, harness):
    status, why = BAD[state]
    found = state_of(harness, status)
    assert found.broken == 1
    assert why in found.why
    (deployment,) = harness.api.of(DEPLOYMENTS)
    assert all(one["reason"] != "ProgressDeadlineExceeded" for one in deployment["status"].get("conditions", []))


LATE = {
    "a key that is not there": (waiting("CreateContainerConfigError", 'secret "hub" not found'), 'secret "hub" not found'),
    "a Secret to mount that is not there": (sandbox("False"), "volumes are not mounted"),
    "a Secret to mount that is not there, before the sidecar": (sandbox("False", "PodInitializing"), "volumes are not mounted"),
    "a claim that is not there": (unscheduled('0/9 nodes are available: persistentvolumeclaim "modls" not found.'), '"modls" not found'),
    "a label that no node bears": (
        unscheduled("0/9 nodes are available: 9 node(s) didn't match Pod's node affinity/selector."),
        "affinity",
    ),
    "pods that are refused": (None, "exceeded quota: native"),
}


@pytest.mark.parametrize("state", LATE)
def test_what_is_missing_has_ten_minutes_to_appear(state, harness):
    status, why = LATE[state]
    found = state_of(harness, status, hours=0.1)
    assert (found.broken, found.why, found.again) == (0, "", 240.0)
    found = state_of(harness, status, hours=0.2)
    assert (found.broken, found.again) == (1, None)
    assert why in found.why


@pytest.mark.deep
@pytest.mark.parametrize("state", LATE)
@pytest.mark.parametrize("strategy", ["Replace", "Auto"])
def test_a_bad_revision_causes_no_long_outage(state, strategy):
    status, why = LATE[state]
    harness = Harness(rollout={"strategy": strategy})
    harness.settle()
    harness.make_ready()
    (old,) = harness.names(DEPLOYMENTS)
    harness.edit(engine={"maxConcurrency": 3})
    step(harness, old, status, rounds=8)
    again, phase = harness.run().again, rollout(harness)["phase"]
    assert (phase, again) == ("Progressing", 2.0 if "mount" in state else 600.0)
    harness.later = timedelta(seconds=600)
    step(harness, old, status, rounds=8)
    assert [pod["metadata"]["name"].startswith(old) for pod in harness.api.of(PODS) if pod["status"].get("phase") == "Running"] == [True]
    if strategy == "Replace":
        assert rollout(harness)["phase"] == "RolledBack"
        assert why in rollout(harness)["reason"]


def rollout(harness):
    return harness.api.of(SERVICES)[0]["status"]["rollout"]


def step(harness, old, status, *, rounds):
    """Runs and controllers in turn; what the old revision makes is ready, what the new one makes is in that state."""
    for _ in range(rounds):
        harness.run()
        harness.api.control()
        for pod in harness.api.of(PODS):
            if is_trial(pod):
                continue  # passes: what a replica alone can show is the matter here
            if pod["metadata"]["name"].startswith(old):
                pod["status"] = running(ready=True)
            else:
                befall(harness, pod, status)


def test_caches_keep_what_a_revision_is_judged_by():
    caches = Caches()
    body = {"metadata": {"name": "tiny-1", "namespace": "ns", "labels": {LABEL_SERVICE: "tiny"}, "resourceVersion": "1"}}
    body["status"] = sandbox("False")
    caches.event(PODS, body, gone=False)
    kept = asyncio.run(caches.get(PODS, "ns", "tiny-1"))
    assert parse_pod(kept).unmounted_since == parse_pod(body).unmounted_since == 1767225600.0
    deployment = {"metadata": body["metadata"], "status": {}}
    refuse(deployment)
    caches.event(DEPLOYMENTS, deployment, gone=False)
    assert asyncio.run(caches.get(DEPLOYMENTS, "ns", "tiny-1"))["status"] == deployment["status"]


@pytest.mark.parametrize("changed", [{"phase": "Running"}, {"phase": "Pending", "conditions": []}])
def test_a_sandbox_that_is_lost_later_is_no_missing_mount(changed):
    body = {"metadata": {"name": "tiny-1"}, "status": sandbox("False") | changed}
    assert parse_pod(body).unmounted_since is None


def test_the_deployment_controller_waits_as_long_as_a_fetch_may_take(harness):
    (deployment,) = harness.api.of(DEPLOYMENTS)
    assert deployment["spec"]["progressDeadlineSeconds"] == 24 * 3600
    deployment["status"]["conditions"] = [{"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}]
    assert state_of(harness, {"phase": "Pending"}).broken == 1


NO_LABEL = "0/9 nodes are available: 9 node(s) didn't match Pod's node affinity/selector."
SHORT = "0/9 nodes are available: 9 Insufficient nvidia.com/gpu."


def reported(message, at=None):
    """As the scheduler reports it: since the first time, and the API server notes when it was last written."""
    status = unscheduled(message)
    return status, [{"manager": "kube-scheduler", "operation": "Update", "subresource": "status", "time": at}] if at else []


def waits(harness, message, at=None):
    (pod,) = (pod for pod in harness.api.of(PODS) if pod["status"].get("phase") == "Pending")
    pod["metadata"]["creationTimestamp"] = MADE
    pod["status"], pod["metadata"]["managedFields"] = reported(message, at)
    harness.run()  # says so
    return harness.run().again, rollout(harness)["phase"]


@pytest.mark.parametrize("seen", [True, False])
def test_a_pod_that_waited_for_devices_and_then_lacks_something_else_has_ten_minutes_from_there(seen):
    harness = Harness(rollout={"strategy": "Replace"})
    harness.settle()
    harness.make_ready()
    (old,) = harness.names(DEPLOYMENTS)
    harness.edit(engine={"maxConcurrency": 3})
    step(harness, old, unscheduled(SHORT), rounds=8)
    harness.later = timedelta(hours=3)
    assert waits(harness, SHORT)[1] == "Progressing"
    harness.later += timedelta(seconds=1)
    if not seen:
        harness.restart()
    assert waits(harness, NO_LABEL, at="2026-01-01T03:00:01Z") == (600.0, "Progressing")
    harness.later += timedelta(seconds=599)
    assert waits(harness, NO_LABEL.replace("9", "8"), at="2026-01-01T03:09:00Z" if seen else "2026-01-01T03:00:01Z") == (1.0, "Progressing")
    harness.later += timedelta(seconds=1)
    assert waits(harness, NO_LABEL)[1] == "RolledBack"


@pytest.mark.parametrize("jump", [-3600.0, 0.0, 3600.0])
def test_waiting_times_are_right_if_the_clock_is_set(jump):
    passed = 0.0
    lacking = Ages(lambda: passed)
    pod = Pod("p", "r", "a", meta={"uid": "u"}, unschedulable=True, unscheduled=NO_LABEL, unscheduled_since=1_000_000.0)
    assert lacking.unschedulable(KEY, [pod], 1_000_100.0) == {"u": 1_000_000.0}
    passed = 50.0
    now = 1_000_150.0 + jump
    assert now - lacking.unschedulable(KEY, [pod], now)["u"] == 150.0


# For how long no gateway has reported the service, what one reports of its only replica, and why that replica is unverified.
WORDS = {
    "no gateway": (math.inf, None, ""),
    "no report for a minute": (61.0, None, ""),
    "a report without it": (59.0, None, "its state is not known yet"),
    "it answers": (0.0, EndpointSignal(Seen.FRESH), ""),
    "one hiccup": (0.0, EndpointSignal(Seen.SUSPECT), ""),
    "its step is overdue": (0.0, EndpointSignal(Seen.DEAD, reason="overdue"), "it does not answer as it should: overdue"),
    "one of two gateways has not admitted it": (0.0, EndpointSignal(Seen.FRESH, lacking=True), "not every gateway has admitted it yet"),
    "never heard": (0.0, EndpointSignal(Seen.UNHEARD), "it does not answer as it should: unheard"),
    "a wrong deep check": (0.0, EndpointSignal(Seen.FRESH, deep_failed=True), "the answer to its deep check is wrong or late"),
}


@pytest.mark.parametrize("case", WORDS)
def test_a_ready_replica_counts_unless_gateways_say_otherwise(case, harness):
    silent, signal, why = WORDS[case]
    (pod,) = harness.api.of(PODS)
    befall(harness, pod, running(ready=True))
    name = pod["metadata"]["name"]
    signals = ServiceSignals(fresh=True, endpoints={name: signal} if signal else {})
    found = current_state(replace(harness.observed(), signals=signals, unheard_s=silent), harness.plan().current)
    assert (found.up, found.ready) == (1, 0 if why else 1)
    assert found.unverified == (f"{name} is Ready, and {why}" if why else "")
    assert found.again == (5.0 if why else None)
