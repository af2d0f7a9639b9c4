"""What a fake kubelet decides about a pod and a node: times pass, plays begin and end, and nothing is written twice."""

import asyncio
import copy
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pagoda_devcluster.binaries import recipe
from pagoda_devcluster.cluster.spec import MOST_FAKES, ClusterSpec, Nodes
from pagoda_devcluster.fake import kubelet, nodes, plays, pods
from pagoda_devcluster.gpus import layout

NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)
LAYOUT = layout.read(recipe.of_checkout().folder / "layouts" / "h100-mixed.yaml")
SPEC = ClusterSpec("dev", 2, Nodes.FAKE, Path("/c"), Path("/b"), fakes=3, layout="x")
NODES = nodes.fake_nodes(SPEC, LAYOUT)
NODE: dict[str, Any] = {"metadata": {"name": "n"}}


def new_pod(policy: str = "Always", **annotations: str) -> dict[str, Any]:
    return {
        "metadata": {
            "namespace": "d",
            "name": "p",
            "uid": "u",
            "annotations": {f"{plays.PREFIX}/{key.replace('_', '-')}": value for key, value in annotations.items()},
        },
        "spec": {"nodeName": "n", "restartPolicy": policy, "containers": [{"name": "main", "image": "i"}]},
        "status": {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "True"}]},
    }


def after(pod: dict[str, Any], seconds: float, node: dict[str, Any] = NODE) -> pods.Verdict:
    """The decision at that second, written into the pod as the API server would."""
    verdict = pods.decide(pod, plays.pod_context(pod, node, 5.0, ("10.1.0.2", "10.1.0.1")), NOW + timedelta(seconds=seconds))
    if verdict.status:
        pod["status"] |= copy.deepcopy(verdict.status)
    return verdict


def shown(pod: dict[str, Any]) -> tuple[str, str, int, bool]:
    """Phase, reason, restarts and readiness, as `kubectl get` shows them."""
    (one,) = pod["status"]["containerStatuses"]
    (state,) = one["state"].items()
    return pod["status"]["phase"], state[1].get("reason", state[0]), one["restartCount"], pods.is_true(pod, "Ready")


def test_a_pod_runs_at_once_and_is_ready_after_its_time():
    pod = new_pod()
    assert after(pod, 0).wake == 5.0
    assert shown(pod) == ("Running", "running", 0, False)
    assert pod["status"]["podIP"] == "10.1.0.2"
    assert after(pod, 4).wake == 1.0
    assert not pods.is_true(pod, "Ready")
    assert after(pod, 5).wake is None
    assert shown(pod) == ("Running", "running", 0, True)
    assert pods.is_true(pod, "PodScheduled")


@given(st.lists(st.floats(0, 100), max_size=8))
def test_looking_again_at_the_same_moment_writes_nothing(moments):
    pod = new_pod()
    for moment in sorted(moments):
        after(pod, moment)
        assert after(pod, moment).status is None


def test_a_pod_says_itself_when_it_is_ready():
    pod = new_pod(ready_after="0")
    after(pod, 0)
    assert shown(pod) == ("Running", "running", 0, True)


def test_a_readiness_gate_that_is_not_met_keeps_the_pod_unready():
    pod = new_pod(ready_after="0")
    pod["spec"]["readinessGates"] = [{"conditionType": "example.com/gate"}]
    after(pod, 0)
    assert (pods.is_true(pod, "ContainersReady"), pods.is_true(pod, "Ready")) == (True, False)
    pod["status"]["conditions"].append({"type": "example.com/gate", "status": "True"})
    after(pod, 1)
    assert pods.is_true(pod, "Ready")


@pytest.mark.parametrize(
    ("play", "expected"),
    [
        ("image-pull-backoff", ("Pending", "ImagePullBackOff", 0, False)),
        ("crash-loop", ("Running", "CrashLoopBackOff", 1, False)),
        ("oom-killed", ("Running", "CrashLoopBackOff", 1, False)),
        ("never-ready", ("Running", "running", 0, False)),
    ],
)
def test_a_play_begins_and_ends_with_its_annotation(play, expected):
    pod = new_pod(play=play)
    after(pod, 0)
    after(pod, 9)
    assert shown(pod) == expected
    pod["metadata"]["annotations"] = {}
    after(pod, 9.5)
    after(pod, 30)
    assert shown(pod) == ("Running", "running", expected[2], True)


def test_a_play_may_come_over_a_pod_that_was_ready():
    pod = new_pod()
    after(pod, 0)
    after(pod, 6)
    pod["metadata"]["annotations"] = {plays.PLAY: "oom-killed"}
    after(pod, 7)
    assert shown(pod) == ("Running", "CrashLoopBackOff", 1, False)
    assert pod["status"]["containerStatuses"][0]["lastState"]["terminated"] | {"startedAt": "", "finishedAt": ""} == {
        "reason": "OOMKilled",
        "exitCode": 137,
        "startedAt": "",
        "finishedAt": "",
    }


def test_a_crash_loop_dies_again_each_time_its_back_off_has_passed():
    pod = new_pod(play="crash-loop")
    moment, waits = 0.0, []
    for _ in range(8):
        wake = after(pod, moment).wake
        assert wake is not None
        waits.append(wake)
        moment += wake
    assert waits == [10, 20, 40, 80, 160, 300, 300, 300]
    assert shown(pod)[2] == 8


def test_what_never_restarts_fails_once_and_stays_failed():
    pod = new_pod("Never", play="oom-killed")
    after(pod, 0)
    assert shown(pod) == ("Failed", "OOMKilled", 0, False)
    assert after(pod, 100) == pods.Verdict()


def test_a_job_completes_after_its_time_and_a_service_never_does():
    job, service = new_pod("Never", complete_after="3"), new_pod(complete_after="3")
    for pod in (job, service):
        assert after(pod, 0).wake == 3
        after(pod, 3)
    assert (shown(job)[:2], shown(service)[:2]) == (("Succeeded", "Completed"), ("Running", "running"))


def test_a_program_that_is_only_asked_for_its_version_ends():
    asked, daemon = new_pod("OnFailure", ready_after="3"), new_pod("OnFailure", ready_after="3")
    asked["spec"]["containers"] = [{"name": "daemon", "image": "i", "args": ["--config", "f", "--version"]}]
    for pod in (asked, daemon):
        after(pod, 0)
        after(pod, 3)
    assert (shown(asked)[:2], shown(daemon)[:2]) == (("Succeeded", "Completed"), ("Running", "running"))


@pytest.mark.parametrize(
    ("annotations", "complaint"),
    [
        ({"play": "explode"}, "unknown play explode: it must be one of image-pull-backoff, crash-loop"),
        ({"ready_after": "soon"}, "must be a number of seconds, got 'soon'"),
        ({"ready_after": "-1"}, "must be a number of seconds, got '-1'"),
        ({"stop_after": "nan"}, "must be a number of seconds, got 'nan'"),
    ],
)
def test_an_unknown_value_is_shown_on_the_pod(annotations, complaint):
    pod = new_pod(**annotations)
    after(pod, 0)
    assert complaint in pod["status"]["containerStatuses"][0]["state"]["waiting"]["message"]


def deleted(pod: dict[str, Any], grace: int) -> dict[str, Any]:
    pod["metadata"] |= {"deletionTimestamp": pods.write_time(NOW + timedelta(seconds=grace)), "deletionGracePeriodSeconds": grace}
    return pod


def test_a_deleted_pod_goes_when_it_is_done_and_at_the_latest_with_its_grace():
    assert after(deleted(new_pod(), 30), 0).delete
    slow = deleted(new_pod(stop_after="10"), 30)
    assert after(slow, 4) == pods.Verdict(wake=6)
    assert after(slow, 10).delete
    assert after(deleted(new_pod(stop_after="99"), 30), 30).delete


def test_a_pod_that_is_stuck_stays_until_the_play_ends():
    pod = deleted(new_pod(play="stuck-terminating"), 1)
    assert after(pod, 1000) == pods.Verdict()
    pod["metadata"]["annotations"] = {}
    assert after(pod, 1000).delete


def test_a_node_that_is_down_neither_reports_nor_lets_go():
    down = {"metadata": {"name": "n", "annotations": {plays.PLAY: "not-ready"}}}
    assert after(new_pod(), 5, down) == pods.Verdict()
    assert after(deleted(new_pod(), 1), 5, down) == pods.Verdict()


def test_pods_of_a_node_that_went_down_are_not_ready_and_are_again_when_it_is_back():
    down = {"metadata": {"name": "n", "annotations": {plays.PLAY: "not-ready"}}}
    pod = new_pod(ready_after="0")
    after(pod, 0)
    after(pod, 1, down)
    assert shown(pod) == ("Running", "running", 0, False)
    assert after(pod, 2, down) == pods.Verdict()
    after(pod, 3)
    assert shown(pod) == ("Running", "running", 0, True)


def test_a_node_can_have_all_its_pods_play():
    node = {"metadata": {"name": "n", "annotations": {plays.PLAY_PODS: "oom-killed"}}}
    pod = new_pod()
    after(pod, 0, node)
    assert shown(pod)[1] == "CrashLoopBackOff"


def test_init_containers_have_run_and_sidecars_run():
    pod = new_pod()
    pod["spec"]["initContainers"] = [{"name": "once"}, {"name": "side", "restartPolicy": "Always"}]
    after(pod, 0)
    once, side = pod["status"]["initContainerStatuses"]
    assert (once["state"]["terminated"]["reason"], "running" in side["state"]) == ("Completed", True)
    before = copy.deepcopy(pod["status"]["initContainerStatuses"])
    after(pod, 9)
    assert pod["status"]["initContainerStatuses"] == before


def test_times_are_drawn_within_the_span_and_again_the_same():
    times = []
    for number in range(200):
        pod = new_pod()
        pod["metadata"]["name"] = f"p{number}"
        times.append(plays.drawn(1, pod, (2.0, 4.0)))
        assert plays.drawn(1, pod, (2.0, 4.0)) == times[-1] != plays.drawn(2, pod, (2.0, 4.0))
    assert 2.0 <= min(times) < 2.2
    assert 3.8 < max(times) <= 4.0


def found(play: str = "") -> dict[str, Any]:
    return {"metadata": {"name": "n", "annotations": {plays.PLAY: play}}, "status": {}}


def test_fake_nodes_take_the_layouts_classes_in_turn_and_addresses_of_their_own():
    assert [node.played.name for node in NODES] == ["h100-mixed", "h100-whole", "cpu"]
    assert [node.address for node in NODES] == ["10.146.0.1", "10.146.1.1", "10.146.2.1"]
    assert nodes.node_object(NODES[0])["metadata"]["labels"]["nvidia.com/mig-3g.40gb.count"] == "2"
    assert nodes.node_object(NODES[2])["metadata"]["labels"][nodes.CLASS_LABEL] == "cpu"


def test_a_node_that_lost_its_devices_keeps_its_capacity():
    status = nodes.node_status(NODES[0], found("no-devices"), "v1", NOW)
    assert (status["capacity"]["nvidia.com/mig-3g.40gb"], status["allocatable"]["nvidia.com/mig-3g.40gb"]) == ("2", "0")
    assert status["allocatable"]["cpu"] == "192"
    healthy = nodes.node_status(NODES[0], found(), "v1", NOW)
    assert healthy["allocatable"]["nvidia.com/gpu"] == "2"


def test_a_node_is_written_only_when_it_changed():
    node = found()
    node["status"] = nodes.status_change(NODES[0], node, "v1", NOW)
    assert nodes.status_change(NODES[0], node, "v1", NOW + timedelta(hours=1)) is None
    node["metadata"]["annotations"][plays.PLAY] = "not-ready"
    changed = nodes.status_change(NODES[0], node, "v1", NOW + timedelta(hours=1))
    assert changed
    ready = next(entry for entry in changed["conditions"] if entry["type"] == "Ready")
    assert (ready["status"], ready["lastTransitionTime"]) == ("Unknown", "2026-01-01T13:00:00Z")


def test_an_unknown_play_of_a_node_is_its_conditions_message():
    status = nodes.node_status(NODES[0], found("explode"), "v1", NOW)
    assert "unknown play explode: it must be one of not-ready, no-devices" in status["conditions"][-1]["message"]


def test_addresses_are_not_shared_and_are_given_again_when_free():
    held, node = kubelet.Addresses(), NODES[1]
    assert [held.of(node, ("d", name), "") for name in ("a", "b", "a")] == ["10.146.1.2", "10.146.1.3", "10.146.1.2"]
    assert held.of(node, ("d", "known"), "10.146.1.9") == "10.146.1.9"
    held.free(("d", "a"))
    assert held.of(node, ("d", "c"), "") == "10.146.1.2"


def test_of_a_thousand_nodes_each_has_addresses_of_its_own_for_all_the_pods_that_it_takes():
    many = nodes.fake_nodes(replace(SPEC, fakes=MOST_FAKES), LAYOUT)
    assert {node.pods for node in many} == {61}
    assert len({node.address for node in many}) == 1000
    last = [ip_address(node.pod_address(node.pods - 1)) for node in many]
    assert all(ip_address(after.address) > end for after, end in zip(many[1:], last, strict=False))
    assert last[-1] in SPEC.net.pod_cidr
    assert kubelet.Addresses().of(many[999], ("d", "known"), many[999].pod_address(7)) == many[999].pod_address(7)
    assert many[999].number_of(many[0].pod_address(7)) is None


class Api:
    """Takes every write, calls back, and answers with the object as it then is."""

    def __init__(self, on_write: Callable[[dict[str, Any]], object]) -> None:
        self._on_write = on_write

    async def merge(self, _: str, body: dict[str, Any]) -> dict[str, Any]:
        self._on_write(body)
        return {"metadata": {"resourceVersion": "2"} | body["metadata"], "status": body["status"]}


async def test_a_pod_that_went_while_its_status_was_written_does_not_come_back():
    pod, key = new_pod(), ("d", "p")
    pod["metadata"]["resourceVersion"] = "1"
    pod["spec"]["nodeName"] = NODES[0].name
    kubelets = kubelet.FakeKubelets(Api(lambda _: kubelets._forget({key})), NODES, LAYOUT, "v1")
    kubelets._pods[key] = pod
    await kubelets._tend_pod(key)
    assert kubelets._pods == {}


async def test_pods_that_have_ended_use_up_no_addresses():
    """A node takes as many more as have ended: only those that run count against its place for pods."""
    written: list[str] = []

    kubelets = kubelet.FakeKubelets(Api(lambda body: written.append(body["status"]["podIP"])), NODES, LAYOUT, "v1")
    for number in range(300):
        job, key = new_pod("Never"), ("d", f"job-{number}")
        job["metadata"] |= {"name": key[1], "resourceVersion": "1"}
        job["spec"]["nodeName"] = NODES[0].name
        kubelets._pods[key] = job
        await kubelets._tend_pod(key)
        kubelets._pods[key] = job | {"status": job["status"] | {"phase": "Succeeded", "podIP": written[-1]}}
        await kubelets._tend_pod(key)
    assert len(written) == 300
    assert max(ip_address(one) for one in written) <= ip_address(NODES[0].pod_address(252))


async def test_a_key_is_never_with_two_workers_and_none_is_lost():
    queue = kubelet.Queue()
    queue.touch(("", "n"))
    queue.touch(("", "n"))
    key = await queue.take()
    queue.touch(key)
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(queue.take(), 0.01)
    queue.done(key, None)
    assert await asyncio.wait_for(queue.take(), 60) == key
    queue.done(key, 0.0)
    assert await asyncio.wait_for(queue.take(), 60) == key


def test_a_platform_s_nodes_have_its_labels_and_taints_and_a_pool_without_nodes_has_none():
    gke = layout.read(recipe.of_checkout().folder / "layouts/platforms/gke-zero.yaml")
    made = [nodes.node_object(node) for node in nodes.fake_nodes(replace(SPEC, fakes=3), gke)]
    assert {body["metadata"]["labels"][nodes.CLASS_LABEL] for body in made} == {"cpu"}
    gpu = nodes.node_object(replace(NODES[0], played=gke.classes[1]))
    assert gpu["spec"]["taints"] == [{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}]
    assert not [name for name in gpu["metadata"]["labels"] if name.startswith("nvidia.com/")]


def test_devices_of_other_vendors_are_offered_by_their_count():
    amd = layout.read(recipe.of_checkout().folder / "layouts/platforms/amd.yaml")
    node = replace(NODES[0], played=amd.classes[0])
    assert nodes.node_status(node, nodes.node_object(node), "v1", NOW)["allocatable"]["amd.com/gpu"] == "8"
