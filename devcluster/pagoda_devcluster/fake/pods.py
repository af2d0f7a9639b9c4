"""What a fake kubelet does about one pod: the status it writes, whether it lets go, when to look again. Pure: time is a parameter.

All memory is in the pod's own status (when its containers started, how often they died), so a fake kubelet that starts anew goes on.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from pagoda_devcluster.fake.plays import Object, PodPlay, Scene

BACKOFF_SECONDS, LONGEST_BACKOFF_SECONDS = 10, 300
DEATHS = {PodPlay.CRASH_LOOP.value: ("Error", 1), PodPlay.OOM_KILLED.value: ("OOMKilled", 137)}


@dataclass(frozen=True)
class Verdict:
    """`status` None: it is as it should be. `wake`: seconds until something changes by itself."""

    status: Object | None = None
    delete: bool = False
    wake: float | None = None


@dataclass(frozen=True)
class Act:
    """What all containers of a pod are in: a state, a phase, and when that ends."""

    phase: str
    containers: list[Object]
    ready: bool = False
    wake: float | None = None


def decide(pod: Object, scene: Scene, now: datetime) -> Verdict:
    if scene.node_down:
        return decide_lost(pod, now)
    if pod["metadata"].get("deletionTimestamp"):
        return decide_end(pod, scene, now)
    if pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
        return Verdict()
    act = act_of(pod, scene, now)
    wanted = status_of(pod, scene, act, now)
    same = all(pod["status"].get(key) == value for key, value in wanted.items())
    return Verdict(None if same else wanted, wake=act.wake)


def decide_lost(pod: Object, now: datetime) -> Verdict:
    """A node that is down does nothing, not even let go of a deleted pod. That its pods are not ready the node controller would write,
    but only of a node whose heartbeats it missed."""
    if not is_true(pod, "Ready"):
        return Verdict()
    lost = {"type": "Ready", "status": "False", "reason": "NodeNotReady", "lastTransitionTime": write_time(now)}
    others = [entry for entry in pod["status"]["conditions"] if entry["type"] != "Ready"]
    return Verdict({"conditions": [*others, lost]})


def decide_end(pod: Object, scene: Scene, now: datetime) -> Verdict:
    """`stop_after` counts from the request and no longer than the grace the API server gave."""
    if PodPlay.STUCK_TERMINATING.value in scene.plays:
        return Verdict()
    grace = pod["metadata"].get("deletionGracePeriodSeconds", 0)
    asked = read_time(pod["metadata"]["deletionTimestamp"]) - timedelta(seconds=grace)
    left = min(scene.stop_after, grace) - (now - asked).total_seconds()
    # Whole seconds are all that a deletion is dated with.
    return Verdict(delete=True) if left <= 0 else Verdict(wake=left)


def act_of(pod: Object, scene: Scene, now: datetime) -> Act:
    if scene.complaint:
        return waiting(pod, "CreateContainerError", scene.complaint)
    if PodPlay.IMAGE_PULL_BACKOFF.value in scene.plays:
        return waiting(pod, "ImagePullBackOff", "Back-off pulling image: played")
    death = next((DEATHS[play] for play in sorted(scene.plays & DEATHS.keys())), None)
    if death:
        return dying(pod, death, now)
    return running(pod, scene, now)


def names(pod: Object) -> list[tuple[str, str]]:
    return [(container["name"], container.get("image", "")) for container in pod["spec"]["containers"]]


def previous(pod: Object, name: str) -> Object:
    found = pod.get("status", {}).get("containerStatuses", [])
    return next((entry for entry in found if entry["name"] == name), {"restartCount": 0, "state": {}, "lastState": {}})


def container(named: tuple[str, str], state: Object, before: Object, ready: bool = False, **changed: object) -> Object:
    fixed = {"name": named[0], "image": named[1], "imageID": "", "ready": ready, "started": "running" in state}
    return fixed | {"restartCount": before["restartCount"], "state": state, "lastState": before.get("lastState", {})} | changed


def waiting(pod: Object, reason: str, message: str) -> Act:
    state = {"waiting": {"reason": reason, "message": message}}
    return Act("Pending", [container(named, state, previous(pod, named[0])) for named in names(pod)])


def dying(pod: Object, death: tuple[str, int], now: datetime) -> Act:
    """Dies, waits for the back-off to pass, starts and dies again; with restartPolicy Never it dies once."""
    if pod["spec"].get("restartPolicy") == "Never":
        return Act("Failed", [container(named, ended(death, now), previous(pod, named[0])) for named in names(pod)])
    containers, wakes = [], []
    for named in names(pod):
        before = previous(pod, named[0])
        left = backoff_left(before, death, now)
        if left <= 0:
            before = before | {"restartCount": before["restartCount"] + 1, "lastState": ended(death, now)}
            left = backoff(before["restartCount"])
        containers.append(container(named, {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off: played"}}, before))
        wakes.append(left)
    return Act("Running", containers, wake=min(wakes))


def ended(death: tuple[str, int], now: datetime) -> Object:
    at = write_time(now)
    return {"terminated": {"reason": death[0], "exitCode": death[1], "startedAt": at, "finishedAt": at}}


def backoff(restarts: int) -> float:
    return float(min(BACKOFF_SECONDS * 2 ** min(restarts - 1, 10), LONGEST_BACKOFF_SECONDS))


def backoff_left(before: Object, death: tuple[str, int], now: datetime) -> float:
    """0: it dies now, for the first time or again."""
    last = before.get("lastState", {}).get("terminated", {})
    if before["state"].get("waiting", {}).get("reason") != "CrashLoopBackOff" or last.get("reason") != death[0]:
        return 0.0
    return backoff(before["restartCount"]) - (now - read_time(last["finishedAt"])).total_seconds()


def running(pod: Object, scene: Scene, now: datetime) -> Act:
    started = min((started_at(previous(pod, name), now) for name, _ in names(pod)), default=now)
    age = (now - started).total_seconds()
    if scene.complete_after is not None and pod["spec"].get("restartPolicy", "Always") != "Always" and age >= scene.complete_after:
        done = ended(("Completed", 0), now)
        return Act("Succeeded", [container(named, done, previous(pod, named[0])) for named in names(pod)])
    never = PodPlay.NEVER_READY.value in scene.plays
    ready = not never and age >= scene.ready_after
    state = {"running": {"startedAt": write_time(started)}}
    containers = [container(named, state, previous(pod, named[0]), ready) for named in names(pod)]
    ends = [] if ready or never else [scene.ready_after - age]
    ends += [] if scene.complete_after is None else [scene.complete_after - age]
    return Act("Running", containers, ready, min((left for left in ends if left > 0), default=None))


def started_at(before: Object, now: datetime) -> datetime:
    return read_time(before["state"]["running"]["startedAt"]) if "running" in before["state"] else now


def status_of(pod: Object, scene: Scene, act: Act, now: datetime) -> Object:
    """Only what a kubelet writes; the scheduler's condition and others' stay."""
    initialized = act.phase != "Pending"
    gates = all(is_true(pod, gate["conditionType"]) for gate in pod["spec"].get("readinessGates", []))
    ours = {
        "PodReadyToStartContainers": initialized,
        "Initialized": initialized,
        "ContainersReady": act.ready,
        "Ready": act.ready and gates,
    }
    status: Object = {
        "phase": act.phase,
        "startTime": pod.get("status", {}).get("startTime") or write_time(now),
        "hostIP": scene.host_ip,
        "conditions": conditions(pod, ours, act, now),
        "containerStatuses": act.containers,
    }
    if initialized:
        status |= {"podIP": scene.ip, "podIPs": [{"ip": scene.ip}]}
    if inits := pod["spec"].get("initContainers"):
        status["initContainerStatuses"] = [init_status(pod, one, initialized, now) for one in inits]
    return status


def init_status(pod: Object, one: Object, done: bool, now: datetime) -> Object:
    """Kept once written. A sidecar runs; what runs once has run."""
    found = pod.get("status", {}).get("initContainerStatuses", [])
    before = next((entry for entry in found if entry["name"] == one["name"] and "waiting" not in entry["state"]), None)
    if before:
        return dict(before)
    sidecar, at = one.get("restartPolicy") == "Always", write_time(now)
    state: Object = {"waiting": {"reason": "PodInitializing"}}
    if done:
        state = {"running": {"startedAt": at}} if sidecar else ended(("Completed", 0), now)
    return container((one["name"], one.get("image", "")), state, {"restartCount": 0}, done)


def is_true(pod: Object, kind: str) -> bool:
    return any(entry["type"] == kind and entry["status"] == "True" for entry in pod.get("status", {}).get("conditions", []))


def conditions(pod: Object, ours: dict[str, bool], act: Act, now: datetime) -> list[Object]:
    """A condition that did not change keeps its time."""
    found = pod.get("status", {}).get("conditions", [])
    made = [condition(found, kind, met, act, now) for kind, met in ours.items()]
    return [entry for entry in found if entry["type"] not in ours] + made


def condition(found: list[Object], kind: str, met: bool, act: Act, now: datetime) -> Object:
    status = "True" if met else "False"
    before = next((entry for entry in found if entry["type"] == kind and entry["status"] == status), None)
    made: Object = {"type": kind, "status": status, "lastTransitionTime": before["lastTransitionTime"] if before else write_time(now)}
    if not met and kind in ("Ready", "ContainersReady"):
        made |= {"reason": "PodCompleted" if act.phase == "Succeeded" else "ContainersNotReady"}
    return made


def read_time(text: str) -> datetime:
    return datetime.fromisoformat(text)


def write_time(moment: datetime) -> str:
    """To the second, as the API does: a time that came back rounded would look changed."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
