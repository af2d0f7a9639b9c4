"""How long a start took, by phase, from what the API server and the kubelet say of the pod."""

import copy
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pagoda_contracts.resources.meta import ObjectMeta
from pagoda_operator.api.errors import Unavailable
from pagoda_operator.api.pods import Pod, parse_pod
from pagoda_operator.api.signals import EndpointSignal, Seen, ServiceSignals
from pagoda_operator.api.starts import Phases, Steps, phases
from pagoda_operator.api.state import PODS, SERVICES, Observed
from pagoda_operator.decide.status.status import last_start
from support.harness.harness import Harness
from support.kube.fake_api import restarted, running

DAY = "2026-01-01T00:"
# As a kubelet reports a pod with a sidecar: a node after 2 s, the sidecar's image until 12 s, the fetch until 52 s, the daemon's image
# until 60 s, and Ready after 75 s.
STARTED = {
    "phase": "Running",
    "conditions": [
        {"type": "PodReadyToStartContainers", "status": "True", "lastTransitionTime": f"{DAY}00:04Z"},
        {"type": "Initialized", "status": "True", "lastTransitionTime": f"{DAY}00:52Z"},
        {"type": "Ready", "status": "True", "lastTransitionTime": f"{DAY}01:15Z"},
        {"type": "ContainersReady", "status": "True", "lastTransitionTime": f"{DAY}01:15Z"},
        {"type": "PodScheduled", "status": "True", "lastTransitionTime": f"{DAY}00:02Z"},
    ],
    "initContainerStatuses": [
        {"name": "fetch", "restartCount": 0, "started": True, "ready": True, "state": {"running": {"startedAt": f"{DAY}00:12Z"}}}
    ],
    "containerStatuses": [
        {"name": "daemon", "restartCount": 0, "started": True, "ready": True, "state": {"running": {"startedAt": f"{DAY}01:00Z"}}}
    ],
}
TIMES = st.one_of(st.just(0.0), st.floats(0, 2e9), st.floats(999_990, 1_000_100))


def started(**changes):
    return copy.deepcopy(STARTED) | changes


def parsed(status, name="tiny-1", created=f"{DAY}00:00Z"):
    return parse_pod({"metadata": {"name": name, "uid": name, "creationTimestamp": created}, "status": status})


@given(created=TIMES, steps=st.builds(Steps, TIMES, TIMES, TIMES, TIMES, TIMES), ready=TIMES, warm_s=st.floats(0, 1e6))
@example(created=1_000_000.0, steps=Steps(), ready=1_000_075.0, warm_s=0.0)
@example(created=1_000_000.0, steps=Steps(1_000_090.0, 5.0), ready=1_000_075.0, warm_s=90.0)
def test_phases_are_never_negative_and_add_up_to_the_time_from_creation_to_ready(created, steps, ready, warm_s):
    found = phases(created, steps, ready, warm_s)
    assert min(found) >= 0
    assert sum(found) == max(0, int(ready) - int(created))


def test_each_phase_is_read_from_the_pod():
    assert parsed(STARTED).start() == Phases(scheduled=2, image=10 + 8, fetch=40, load=15)
    assert parsed(STARTED).start(warm_s=3.6) == Phases(scheduled=2, image=10 + 8, fetch=40, load=11, warm=4)
    alone = started(initContainerStatuses=[])
    assert parsed(alone).start() == Phases(scheduled=2, image=58, load=15), "Initialized is no fetch if there is no sidecar"


def test_a_start_with_a_restart_and_one_that_is_not_over_have_no_length():
    assert parsed(restarted(code=1)).start() is None
    again = started()
    again["containerStatuses"][0] |= {"restartCount": 1}
    assert (parsed(again).start(), parsed(running()).start()) == (None, None)


def test_a_replica_that_was_ready_before_is_not_starting():
    lost = started()
    lost["conditions"][2] |= {"status": "False"}
    assert (parsed(running()).starting, parsed(STARTED).starting, parsed(lost).starting) == (True, False, False)


def last(*pods, before=None, unseen=(), **heard):
    raw = {} if before is None else {"lastStart": before.wire()}
    signals = ServiceSignals(endpoints={name: EndpointSignal(Seen.FRESH, warm_s=seconds) for name, seconds in heard.items()})
    seen = frozenset(pod.uid for pod in pods if pod.name not in unseen)
    return last_start(Observed(ObjectMeta(name="tiny"), raw, pods=pods, signals=signals, seen_starting=seen))


def test_the_newest_replica_s_start_is_kept_whatever_becomes_of_it():
    older, newer = parsed(STARTED, "a"), parsed(STARTED, "b", f"{DAY}00:01Z")
    first = last(older, Pod("c", "r", "cpu"), a=4.0)
    seconds = {"scheduledSeconds": 2, "imageSeconds": 18, "fetchSeconds": 40, "loadSeconds": 11, "warmSeconds": 4}
    assert first.wire() == seconds | {"pod": "a", "createdAt": f"{DAY}00:00Z", "readyAt": f"{DAY}01:15Z"}
    late = started()
    late["conditions"][2] |= {"lastTransitionTime": f"{DAY}59:00Z"}
    assert last(parsed(late, "a"), before=first) == first, "it was not ready for a while"
    second = last(older, newer, before=first)
    assert (second.pod, second.scheduled_seconds, second.warm_seconds) == ("b", 1, 0)
    assert last(older, before=second) == last(before=second) == second


def test_of_a_replica_that_was_ready_before_this_process_nothing_is_written():
    pods = parsed(STARTED, "a"), parsed(STARTED, "b", f"{DAY}00:01Z")
    assert last(*pods, unseen=("a", "b")) is None
    assert last(*pods, unseen=("b",)).pod == "a"
    harness = Harness()
    harness.settle()
    harness.api.report(harness.api.of(PODS)[0], started())
    harness.restart()
    harness.settle()
    assert "lastStart" not in harness.api.of(SERVICES)[0]["status"]


def test_a_start_is_told_once_though_the_run_that_saw_its_end_fails():
    told = []

    class Counting(Harness):
        def dependencies(self):
            return replace(
                super().dependencies(), started=lambda seen: told.extend(pod for pod in seen.pods if pod.uid in seen.seen_starting)
            )

    harness = Counting()
    harness.settle()
    told.clear()
    harness.api.report(harness.api.of(PODS)[0], started())
    harness.edit(replicas=2)
    harness.api.refuse["Deployment"] = Unavailable("500")
    for _ in range(2):
        with pytest.raises(Unavailable):
            harness.run()
    assert ("lastStart" in harness.api.of(SERVICES)[0]["status"], told) == (False, [])
    harness.api.refuse.clear()
    harness.settle()
    assert harness.api.of(SERVICES)[0]["status"]["lastStart"]["loadSeconds"] == 15
    assert [pod.ready for pod in told if pod.ready] == [True]


def test_the_status_has_it_in_the_write_that_says_that_the_replica_is_ready():
    harness = Harness()
    harness.settle()
    harness.api.report(harness.api.of(PODS)[0], started())
    written = len(harness.api.journal)
    harness.settle()
    status = harness.api.of(SERVICES)[0]["status"]
    assert (status["readyReplicas"], status["lastStart"]["loadSeconds"]) == (1, 15)
    assert harness.api.journal[written:] == [("status", "InferenceService", "tiny")]
