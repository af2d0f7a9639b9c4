"""What a fake kubelet does about one pod: the status it writes, whether it lets go, when to look again. Pure: time is a parameter.

All memory is in the pod's own status (when its containers started, how often they died), so a fake kubelet that starts anew goes on.
Reasons, messages and conditions are those of kubelet 1.35: tests/e2e/devcluster/test_likeness.py holds the two against each other.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from pagoda_devcluster.fake.plays import READY, Object, PodContext, PodPlay

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


def decide(pod: Object, context: PodContext, now: datetime) -> Verdict:
    if context.node_down:
        return decide_lost(pod, now)
    if pod["metadata"].get("deletionTimestamp"):
        return decide_end(pod, context, now)
    if has_ended(pod):
        return Verdict()
    act = act_of(pod, context, now)
    wanted = status_of(pod, context, act, now)
    return Verdict(changed(pod, wanted), wake=act.wake)


def has_ended(pod: Object) -> bool:
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


def changed(pod: Object, wanted: Object) -> Object | None:
    """None where the pod's status says all of it already."""
    return None if subset(wanted, pod["status"]) else wanted


def subset(wanted: object, have: object) -> bool:
    """The server adds fields of its own, and leaves out empty text."""
    if isinstance(wanted, dict):
        found = have if isinstance(have, dict) else {}
        return all(subset(value, found.get(key, "")) for key, value in wanted.items())
    if isinstance(wanted, list):
        return isinstance(have, list) and len(have) == len(wanted) and all(map(subset, wanted, have))
    return wanted == have


def decide_lost(pod: Object, now: datetime) -> Verdict:
    """A node that is down does nothing, not even let go of a deleted pod. That its pods are not ready the node controller would write
    (without a reason, as here), but only of a node whose heartbeats it missed."""
    if not is_true(pod, "Ready"):
        return Verdict()
    lost = {"type": "Ready", "status": "False", "lastTransitionTime": write_time(now)}
    others = [entry for entry in pod["status"]["conditions"] if entry["type"] != "Ready"]
    return Verdict({"conditions": [*others, lost]})


def decide_end(pod: Object, context: PodContext, now: datetime) -> Verdict:
    """`stop_after` counts from the request and no longer than the grace the API server gave."""
    if PodPlay.STUCK_TERMINATING.value in context.plays:
        return Verdict()
    grace = pod["metadata"].get("deletionGracePeriodSeconds", 0)
    asked = read_time(pod["metadata"]["deletionTimestamp"]) - timedelta(seconds=grace)
    spent = (now - asked).total_seconds()
    if context.front is not None and spent < grace:
        # Drains: its readiness is still probed, and the pod goes when the front has ended.
        return Verdict(changed(pod, status_of(pod, context, running(pod, context, now), now)), wake=grace - spent)
    left = min(context.stop_after, grace) - spent
    # Whole seconds are all that a deletion is dated with.
    return Verdict(delete=True) if left <= 0 else Verdict(wake=left)


def act_of(pod: Object, context: PodContext, now: datetime) -> Act:
    if context.complaint:
        return waiting(pod, "CreateContainerError", context.complaint)
    if PodPlay.IMAGE_PULL_BACKOFF.value in context.plays:
        return waiting(pod, "ImagePullBackOff", 'Back-off pulling image "{image}": ErrImagePull: played')
    death = next((DEATHS[play] for play in sorted(context.plays & DEATHS.keys())), None)
    if death:
        return dying(pod, death, now)
    return running(pod, context, now)


def names(pod: Object) -> list[tuple[str, str]]:
    return [(container["name"], container.get("image", "")) for container in pod["spec"]["containers"]]


def previous(pod: Object, name: str) -> Object:
    found = pod.get("status", {}).get("containerStatuses", [])
    return next((entry for entry in found if entry["name"] == name), {"restartCount": 0, "state": {}, "lastState": {}})


def container(named: tuple[str, str], state: Object, before: Object, ready: bool = False, **changed: object) -> Object:
    fixed = {"name": named[0], "image": named[1], "imageID": "", "ready": ready, "started": "running" in state}
    return fixed | {"restartCount": before["restartCount"], "state": state, "lastState": before.get("lastState", {})} | changed


def waiting(pod: Object, reason: str, message: str) -> Act:
    def container_state(image: str) -> Object:
        return {"waiting": {"reason": reason, "message": message.replace("{image}", image)}}

    return Act("Pending", [container(named, container_state(named[1]), previous(pod, named[0])) for named in names(pod)])


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
        state = {"waiting": {"reason": "CrashLoopBackOff", "message": backoff_message(pod, named[0], before["restartCount"])}}
        containers.append(container(named, state, before))
        wakes.append(left)
    return Act("Running", containers, wake=min(wakes))


def ended(death: tuple[str, int], now: datetime) -> Object:
    at = write_time(now)
    return {"terminated": {"reason": death[0], "exitCode": death[1], "startedAt": at, "finishedAt": at}}


def backoff_message(pod: Object, name: str, restarts: int) -> str:
    meta, (minutes, seconds) = pod["metadata"], divmod(int(backoff(restarts)), 60)
    span = f"{minutes}m{seconds}s" if minutes else f"{seconds}s"
    return f"back-off {span} restarting failed container={name} pod={meta['name']}_{meta['namespace']}({meta['uid']})"


def backoff(restarts: int) -> float:
    return float(min(BACKOFF_SECONDS * 2 ** min(restarts - 1, 10), LONGEST_BACKOFF_SECONDS))


def backoff_left(before: Object, death: tuple[str, int], now: datetime) -> float:
    """0: it dies now, for the first time or again."""
    last = before.get("lastState", {}).get("terminated", {})
    if before["state"].get("waiting", {}).get("reason") != "CrashLoopBackOff" or last.get("reason") != death[0]:
        return 0.0
    return backoff(before["restartCount"]) - (now - read_time(last["finishedAt"])).total_seconds()


def running(pod: Object, context: PodContext, now: datetime) -> Act:
    started = min((started_at(previous(pod, name), now) for name, _ in names(pod)), default=now)
    age = (now - started).total_seconds()
    if context.complete_after is not None and pod["spec"].get("restartPolicy", "Always") != "Always" and age >= context.complete_after:
        done = ended(("Completed", 0), now)
        return Act("Succeeded", [container(named, done, previous(pod, named[0])) for named in names(pod)])
    never = PodPlay.NEVER_READY.value in context.plays
    ready = not never and (context.front == READY if context.serves else age >= context.ready_after)
    state = {"running": {"startedAt": write_time(started)}}
    containers = [container(named, state, previous(pod, named[0]), ready) for named in names(pod)]
    ends = [] if ready or never or context.serves else [context.ready_after - age]
    ends += [] if context.complete_after is None else [context.complete_after - age]
    return Act("Running", containers, ready, min((left for left in ends if left > 0), default=None))


def started_at(before: Object, now: datetime) -> datetime:
    return read_time(before["state"]["running"]["startedAt"]) if "running" in before["state"] else now


def status_of(pod: Object, context: PodContext, act: Act, now: datetime) -> Object:
    """Only what a kubelet writes; the scheduler's condition and others' stay. A sandbox, and with it an address, there always is."""
    generation = {"observedGeneration": pod["metadata"].get("generation", 1)}
    status: Object = generation | {
        "phase": act.phase,
        "startTime": pod.get("status", {}).get("startTime") or write_time(now),
        "hostIP": context.host_ip,
        "hostIPs": [{"ip": context.host_ip}],
        "podIP": context.ip,
        "podIPs": [{"ip": context.ip}],
        "conditions": conditions(pod, conditions_of(pod, act), now),
        "containerStatuses": act.containers,
    }
    if inits := pod["spec"].get("initContainers"):
        status["initContainerStatuses"] = [init_status(pod, one, now) for one in inits]
    return status


def init_status(pod: Object, one: Object, now: datetime) -> Object:
    """Kept once written. A sidecar runs; what runs once has run."""
    found = pod.get("status", {}).get("initContainerStatuses", [])
    before = next((entry for entry in found if entry["name"] == one["name"]), None)
    if before:
        return dict(before)
    sidecar, at = one.get("restartPolicy") == "Always", write_time(now)
    state = {"running": {"startedAt": at}} if sidecar else ended(("Completed", 0), now)
    return container((one["name"], one.get("image", "")), state, {"restartCount": 0}, True)


def is_true(pod: Object, kind: str) -> bool:
    return any(entry["type"] == kind and entry["status"] == "True" for entry in pod.get("status", {}).get("conditions", []))


def conditions_of(pod: Object, act: Act) -> list[Object]:
    """As a kubelet words them: the reason is the phase's when all has ended, else the containers', else the gates'."""
    over = {"Succeeded": "PodCompleted", "Failed": "PodFailed"}.get(act.phase)
    unready = " ".join(one["name"] for one in act.containers if not one["ready"])
    why: Object = {"reason": over} if over else {"reason": "ContainersNotReady", "message": f"containers with unready status: [{unready}]"}
    gates = [gate["conditionType"] for gate in pod["spec"].get("readinessGates", []) if not is_true(pod, gate["conditionType"])]
    missing = f'the status of pod readiness gate "{", ".join(gates)}" is not "True"'
    ready = met("Ready", act.ready and not gates, {"reason": "ReadinessGatesNotReady", "message": missing} if act.ready else why)
    initialized = met("Initialized", True, {}) | ({"reason": over} if act.phase == "Succeeded" else {})
    return [met("PodReadyToStartContainers", not over, {}), initialized, ready, met("ContainersReady", act.ready, why)]


def met(kind: str, yes: bool, why: Object) -> Object:
    return {"type": kind, "status": "True"} if yes else {"type": kind, "status": "False"} | why


def conditions(pod: Object, ours: list[Object], now: datetime) -> list[Object]:
    """A condition that did not change keeps its time."""
    found = {entry["type"]: entry for entry in pod.get("status", {}).get("conditions", [])}
    generation = {"observedGeneration": pod["metadata"].get("generation", 1)}
    made = []
    for one in ours:
        before = found.pop(one["type"], None)
        kept = before is not None and before["status"] == one["status"]
        made.append(one | generation | {"lastTransitionTime": before["lastTransitionTime"] if before and kept else write_time(now)})
    return [*found.values(), *made]


def read_time(text: str) -> datetime:
    return datetime.fromisoformat(text)


def write_time(moment: datetime) -> str:
    """To the second, as the API does: a time that came back rounded would look changed."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
