"""A fake kubelet writes what the real one writes: the same pods fall ill on the kubelet node, and their statuses are compared."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pagoda_devcluster.fake import plays, pods

pytestmark = pytest.mark.cluster

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ABSENT = "127.0.0.1:1/absent:1"
RESTARTS = {"restartPolicy": "Always"}
LITTLE = {"memory": "32Mi"}


def shape(status: dict[str, Any]) -> dict[str, Any]:
    """What a controller or a person reads; not addresses, times, digests and whose error text it was."""
    conditions = {one["type"]: (one["status"], one.get("reason"), one.get("message")) for one in status["conditions"]}
    reported = [state_shape(one) for one in status["containerStatuses"]]
    fields = sorted(status.keys() - {"qosClass"})
    return {"phase": status["phase"], "conditions": conditions, "containers": reported, "fields": fields}


def state_shape(one: dict[str, Any]) -> dict[str, Any]:
    """A crash loop is between two deaths for most of the time; just after one, the state says what then the last state says."""
    (state, detail), last = next(iter(one["state"].items())), one["lastState"].get("terminated", {})
    said = [state, death(detail), detail.get("exitCode"), detail.get("message", "").partition(":")[0]]
    if state == "waiting" and detail["reason"] == "CrashLoopBackOff":
        said[-1] = said[-1].partition(" pod=")[0]
    return {"said": said, "last": [death(last), last.get("exitCode")], "ready": one["ready"], "started": one["started"]}


def death(detail: dict[str, Any]) -> str | None:
    """A kubelet says Error of a kill for memory if containerd heard of it after the container's end. Nothing else here ends with 137."""
    return "OOMKilled" if (detail.get("reason"), detail.get("exitCode")) == ("Error", 137) else detail.get("reason")


def played(pod: dict[str, Any], restarts: int, **annotations: str) -> dict[str, Any]:
    """The status that the fake kubelet would have given the same pod once it had restarted as often."""
    known = {f"{plays.PREFIX}/{key.replace('_', '-')}": value for key, value in annotations.items()}
    twin: dict[str, Any] = {"metadata": pod["metadata"] | {"annotations": known}, "spec": pod["spec"]}
    twin["status"] = {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "True"}]}
    context, moment = plays.pod_context(twin, {"metadata": {}}, 0.0, ("10.0.0.2", "10.0.0.1")), NOW
    while True:
        verdict = pods.decide(twin, context, moment)
        twin["status"] |= verdict.status or {}
        if verdict.wake is None or twin["status"]["containerStatuses"][0]["restartCount"] >= restarts:
            found: dict[str, Any] = twin["status"]
            return found
        moment += timedelta(seconds=verdict.wake)


@pytest.mark.parametrize(
    ("arguments", "extra", "until", "annotations"),
    [
        (["wait"], {}, "state.running", {}),
        (["wait"], RESTARTS | {"image": ABSENT}, "state.waiting.reason=ImagePullBackOff", {"play": "image-pull-backoff"}),
        (["read", "/absent"], RESTARTS, "state.waiting.reason=CrashLoopBackOff", {"play": "crash-loop"}),
        (["eat"], RESTARTS | {"limits": LITTLE}, "state.waiting.reason=CrashLoopBackOff", {"play": "oom-killed"}),
        (["eat"], {"limits": LITTLE}, "state.terminated", {"play": "oom-killed"}),
        (["read", "/absent"], {}, "state.terminated", {"play": "crash-loop"}),
        (["write", "/dev/null"], {}, "state.terminated", {"complete_after": "0"}),
    ],
    ids=["running", "no-image", "crash-loop", "oom-killed-again", "oom-killed-once", "failed", "completed"],
)
def test_the_fake_kubelet_says_of_a_pod_what_the_real_one_says(namespace, arguments, extra, until, annotations):
    namespace.pod("real", *arguments, **extra)
    # As the wait saw it: a container that backs off runs again ten seconds later.
    seen = namespace.kubectl("wait", "pod/real", f"--for=jsonpath={jsonpath(until)}", "--timeout=300s", "-o", "json")
    if "terminated" in until:
        seen = namespace.kubectl("wait", "pod/real", "--for=jsonpath={.status.conditions[0].status}=False", "--timeout=300s", "-o", "json")
    real = json.loads(seen)
    assert shape(played(real, real["status"]["containerStatuses"][0]["restartCount"], **annotations)) == shape(real["status"])


def jsonpath(until: str) -> str:
    path, equal, value = until.partition("=")
    return f"{{.status.containerStatuses[0].{path}}}{equal}{value}"
