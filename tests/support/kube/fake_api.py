"""An API server in memory for unit tests of the operator: preconditions, generations, garbage collection, a Deployment controller.

It judges no schema and no permission: what the real one does is shown by tests/controlplane.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import itertools
import marshal
import operator
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

from pagoda_contracts.names import (
    ANNOTATION_DELETION_COST,
    API_VERSION,
    COMPONENT_TRIAL,
    CONTAINER_DAEMON,
    CONTAINER_FETCH,
    EXIT_PERMANENT,
    LABEL_COMPONENT,
)
from pagoda_operator.api.errors import Conflict, OperatorError
from pagoda_operator.api.state import DEPLOYMENTS, EVENTS, PODS, PROFILES, SERVICES, Json, Listed, Resource
from pagoda_operator.decide.render.overlay import by_others, merge
from support.kube import managed_fields

Body = dict[str, Any]
ENDED = ("Failed", "Succeeded")
T = TypeVar("T")
_loop = cache(asyncio.new_event_loop)


def copied(value: Any) -> Any:
    """A deep copy. Bodies are plain JSON, nearly always: marshal copies that ten times as fast as `copy.deepcopy`."""
    try:
        return marshal.loads(marshal.dumps(value))  # noqa: S302 - read back in the line in which it was written
    except ValueError:
        return copy.deepcopy(value)


def finish(work: Coroutine[Any, Any, T]) -> T:
    """What it returns, as asyncio.run does it, but on one loop for all: a world plays thousands of runs, and to make and close a loop for
    each takes a good part of their time."""
    loop = _loop()
    try:
        return loop.run_until_complete(work)
    finally:
        left = asyncio.all_tasks(loop)  # of a run that died
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))


class Crash(BaseException):
    """The operator dies here."""


class FakeApi:
    """The verbs that `reconcile.Cluster` asks for, a journal of the writes, and what the cluster does by itself."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str, str], Body] = {}
        self.journal: list[tuple[str, str, str]] = []
        # Writes of Events, apart: a test of children and status counts those alone.
        self.reported: list[tuple[str, str, str]] = []
        self.before_write: Callable[[str, str, str], None] = lambda *_: None
        self.refuse: dict[str, OperatorError] = {}
        # Hears of each write that was answered, as Hooks.wrote does.
        self.wrote: Callable[[Resource, str, Body], None] = lambda *_: None
        # The kind of each read, in order.
        self.kinds_read: list[str] = []
        self.crash_in: int | None = None
        # Whether removed pods stay, terminating, until the test takes them away; told of each removal.
        self.graceful = False
        self.removed: Callable[[Body], None] = lambda _: None
        # What a kubelet makes of a new trial's pod.
        self.trial: Callable[[Body], Body] = lambda _: passed()
        self._numbers = itertools.count(1)
        # Labels and annotations that each object's last apply or create had, by uid and manager.
        self._applied: dict[tuple[str, str], dict[str, set[str]]] = {}

    def kept(self) -> bytes:
        """All that it holds, for `become` of another one."""
        return marshal.dumps((self.objects, self.journal, self.reported, self.kinds_read, self._applied, next(self._numbers)))

    def become(self, kept: bytes) -> None:
        """What another one was when it was kept."""
        self.objects, self.journal, self.reported, self.kinds_read, self._applied, number = marshal.loads(kept)  # noqa: S302 - our own
        self._numbers = itertools.count(number)

    # Reads

    @property
    def reads(self) -> int:
        return len(self.kinds_read)

    async def get(self, resource: Resource, namespace: str, name: str) -> Json | None:
        self.kinds_read.append(resource.kind)
        return copied(self.objects.get((resource.kind, namespace, name)))

    async def list(self, resource: Resource, namespace: str, selector: str) -> list[Json]:
        self.kinds_read.append(resource.kind)
        matches = _matcher(selector)
        found = [body for (kind, where, _), body in self.objects.items() if kind == resource.kind and namespace in ("", where)]
        return copied([body for body in found if matches(body["metadata"].get("labels", {}))])

    async def listed(self, resource: Resource, namespace: str, *, label: str = "", name: str = "") -> Listed:
        version = str(next(self._numbers))  # as large as any that an object has
        found = await self.list(resource, namespace, label)
        return Listed([body for body in found if name in ("", body["metadata"]["name"])], version)

    async def pod_events(self, namespace: str, pod: str) -> list[Json]:
        return [body for body in await self.list(EVENTS, namespace, "") if body.get("regarding", {}).get("name") == pod]

    # Writes

    async def create(self, resource: Resource, manifest: Json, manager: str) -> None:
        with_end = self._write("create", resource, manifest["metadata"]["name"])
        next(with_end)
        if self._key(resource, manifest["metadata"]) in self.objects:
            raise Conflict("exists")
        stored = self.put(resource, manifest)
        self._owns(stored, manifest, manager)
        next(with_end, None)
        self.wrote(resource, "create", copied(stored))

    async def apply(self, resource: Resource, manifest: Json, manager: str) -> None:
        with_end = self._write("apply", resource, manifest["metadata"]["name"])
        next(with_end)
        live = self.objects.get(self._key(resource, manifest["metadata"]))
        if live is None and "uid" not in manifest["metadata"]:
            self._owns(self.put(resource, manifest), manifest, manager)
        else:
            self._update(self._at_version(live, manifest["metadata"]), manifest, manager)
        next(with_end, None)
        self.wrote(resource, "patch", copied(self.objects[self._key(resource, manifest["metadata"])]))

    async def apply_status(self, resource: Resource, manifest: Json, _manager: str) -> None:
        with_end = self._write("status", resource, manifest["metadata"]["name"])
        next(with_end)
        live = self._at_version(self.objects.get(self._key(resource, manifest["metadata"])), manifest["metadata"])
        live["status"] = copied(manifest["status"])
        self._touch(live)
        next(with_end, None)
        self.wrote(resource, "patch", copied(live))

    async def annotate(self, resource: Resource, meta: Json, annotations: Mapping[str, str | None], _manager: str) -> Json:
        with_end = self._write("annotate", resource, meta["name"])
        next(with_end)
        live = self._at_version(self.objects.get(self._key(resource, meta)), meta)
        merged = {**live["metadata"].get("annotations", {}), **annotations}
        live["metadata"]["annotations"] = {name: value for name, value in merged.items() if value is not None}
        self._touch(live)
        next(with_end, None)
        self.wrote(resource, "patch", copied(live))
        return copied(live)

    async def patch(self, resource: Resource, meta: Json, patch: Sequence[Json], _manager: str) -> None:
        with_end = self._write("patch", resource, meta["name"])
        next(with_end)
        live = self._at_version(self.objects.get(self._key(resource, meta)), meta)
        before = copied(live.get("spec"))
        for change in patch:
            _, *path, last = change["path"].split("/")
            functools.reduce(operator.getitem, path, live)[last] = copied(change["value"])
        if resource == DEPLOYMENTS:
            _default(live)
        live["metadata"]["generation"] += before != live.get("spec")
        self._touch(live)
        next(with_end, None)
        self.wrote(resource, "patch", copied(live))

    async def delete(self, resource: Resource, meta: Json) -> None:
        with_end = self._write("delete", resource, meta["name"])
        next(with_end)
        live = self._at_version(self.objects.get(self._key(resource, meta)), meta)
        if self.graceful and resource == PODS:
            live["metadata"].setdefault("deletionTimestamp", "2026-01-01T00:00:00Z")
            self._touch(live)
        else:
            del self.objects[self._key(resource, meta)]
        next(with_end, None)
        self.wrote(resource, "delete", copied(live))

    def _write(self, verb: str, resource: Resource, name: str) -> Iterator[None]:
        """Before the write: hooks, refusals, a crash; after it: the journal, and a crash that loses the answer."""
        self.before_write(verb, resource.kind, name)
        if resource.kind in self.refuse and verb != "status":
            raise self.refuse[resource.kind]
        self._maybe_crash()
        yield
        (self.reported if resource == EVENTS else self.journal).append((verb, resource.kind, name))
        self._maybe_crash()

    def _maybe_crash(self) -> None:
        if self.crash_in is not None:
            self.crash_in -= 1
            if self.crash_in < 0:
                self.crash_in = None
                raise Crash

    # The cluster

    def put(self, resource: Resource, body: Json) -> Body:
        """Store a new object as the server would."""
        stored: Body = copied(dict(body)) | {"apiVersion": resource.api_version, "kind": resource.kind}
        number = next(self._numbers)
        stored["metadata"] |= {"uid": f"uid-{number}", "resourceVersion": str(number), "generation": 1}
        stored["metadata"].setdefault("creationTimestamp", "2026-01-01T00:00:00Z")
        if resource == DEPLOYMENTS:
            _default(stored)
        self.objects[self._key(resource, stored["metadata"])] = stored
        return stored

    def edit(self, resource: Resource, namespace: str, name: str, change: Callable[[Body], None], manager: str = "") -> None:
        """A person's change of an object's spec; with a `manager`, it is noted whose it is."""
        live = self.objects[(resource.kind, namespace, name)]
        before = copied(live.get("spec"))
        change(live)
        if manager:
            live["metadata"].setdefault("managedFields", []).append(managed_fields.entry(manager, before, live["spec"]))
        live["metadata"]["generation"] += before != live.get("spec")
        self._touch(live)

    def report(self, pod: Body, status: Body) -> None:
        """What a kubelet says of its pod, which is another version then."""
        if pod.get("status") != status:
            pod["status"] = status
            self._touch(pod)

    def versions(self) -> dict[tuple[str, str, str], str]:
        """The version of each object: whatever is written changes it."""
        return {key: body["metadata"]["resourceVersion"] for key, body in self.objects.items()}

    def of(self, resource: Resource) -> list[Body]:
        return [body for (kind, _, _), body in self.objects.items() if kind == resource.kind]

    def collect_garbage(self) -> None:
        """Owner references are followed until nothing changes."""
        while orphans := [key for key, body in self.objects.items() if self._orphan(body)]:
            for key in orphans:
                del self.objects[key]

    def control(self) -> None:
        """One round of the Deployment controller: pods to match, status written."""
        for deployment in self.of(DEPLOYMENTS):
            mine = [pod for pod in self.of(PODS) if pod["metadata"]["ownerReferences"][0]["uid"] == deployment["metadata"]["uid"]]
            wanted = deployment["spec"]["replicas"]
            mine = [pod for pod in mine if "deletionTimestamp" not in pod["metadata"] and pod["status"].get("phase") not in ENDED]
            for pod in sorted(mine, key=removal_rank)[: max(0, len(mine) - wanted)]:
                self.remove(pod)
                mine.remove(pod)
            mine += [self.put(PODS, new_pod(deployment, next(self._numbers))) for _ in range(wanted - len(mine))]
            self._report(deployment, mine)
        for pod in self.of(PODS):
            if is_trial(pod) and "status" not in pod:
                self.report(pod, self.trial(pod))
        self.collect_garbage()

    def remove(self, pod: Body) -> None:
        """What the ReplicaSet does to one too many."""
        if self.graceful:
            pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
            self._touch(pod)
        else:
            del self.objects[self._key(PODS, pod["metadata"])]
        self.removed(pod)

    def _report(self, deployment: Body, pods: list[Body]) -> None:
        available = sum(map(is_ready, pods))
        done = available >= deployment["spec"]["replicas"] or _progress(deployment) == "NewReplicaSetAvailable"
        reason = "NewReplicaSetAvailable" if done else "ReplicaSetUpdated"
        status = {
            "observedGeneration": deployment["metadata"]["generation"],
            "replicas": len(pods),
            "availableReplicas": available,
            "conditions": [{"type": "Progressing", "status": "True", "reason": reason}],
        }
        if deployment.get("status") != status:
            deployment["status"] = status
            self._touch(deployment)

    def _update(self, live: Body, manifest: Json, manager: str) -> None:
        """Server-side apply: what its manager applied before and does not repeat goes; what others set stays."""
        before = copied(live)
        live |= copied({part: value for part, value in manifest.items() if part != "metadata"})
        if by_others(live["metadata"]):
            live["spec"] = merge(before["spec"], live["spec"])
        for field, gone in self._owns(live, manifest, manager).items():
            kept = {name: value for name, value in live["metadata"].get(field, {}).items() if name not in gone}
            live["metadata"][field] = {**kept, **manifest["metadata"].get(field, {})}
        live["metadata"]["ownerReferences"] = copied(manifest["metadata"].get("ownerReferences", []))
        if live["kind"] == DEPLOYMENTS.kind:
            _default(live)
        live["metadata"]["generation"] += before.get("spec") != live.get("spec")
        if before != live:
            self._touch(live)

    def _owns(self, live: Body, manifest: Json, manager: str) -> dict[str, set[str]]:
        """Notes what the manager says now; returns what it said last and does not say any more."""
        now = {field: set(manifest["metadata"].get(field, {})) for field in ("labels", "annotations")}
        before = self._applied.get((live["metadata"]["uid"], manager), {})
        self._applied[live["metadata"]["uid"], manager] = now
        return {field: before.get(field, set()) - names for field, names in now.items()}

    def _orphan(self, body: Body) -> bool:
        owners = body["metadata"].get("ownerReferences", [])
        alive = {other["metadata"]["uid"] for other in self.objects.values()}
        return bool(owners) and not any(owner["uid"] in alive for owner in owners)

    def _at_version(self, live: Body | None, meta: Json) -> Body:
        if live is None or any(meta[name] != live["metadata"][name] for name in ("uid", "resourceVersion") if name in meta):
            raise Conflict("not this version")
        return live

    def _touch(self, live: Body) -> None:
        live["metadata"]["resourceVersion"] = str(next(self._numbers))

    def _key(self, resource: Resource, meta: Json) -> tuple[str, str, str]:
        return resource.kind, meta.get("namespace", ""), meta["name"]


def _matcher(selector: str) -> Callable[[Mapping[str, str]], bool]:
    """Several of `label`, `!label` and `label=value`, nothing, or `label in (a,b)`."""
    label, among, values = selector.removesuffix(")").partition(" in (")
    if among:
        return lambda labels: labels.get(label) in values.split(",")
    terms = [term.partition("=") for term in selector.split(",") if term]
    return lambda labels: all(_holds(labels, *term) for term in terms)


def _holds(labels: Mapping[str, str], name: str, equals: str, value: str) -> bool:
    if name.startswith("!"):
        return name[1:] not in labels
    return name in labels and (not equals or labels[name] == value)


_POD_DEFAULTS: Body = {
    "restartPolicy": "Always",
    "dnsPolicy": "ClusterFirst",
    "schedulerName": "default-scheduler",
    "terminationGracePeriodSeconds": 30,
    "securityContext": {},
}
_CONTAINER_DEFAULTS: Body = {
    "imagePullPolicy": "IfNotPresent",
    "terminationMessagePath": "/dev/termination-log",
    "terminationMessagePolicy": "File",
    "resources": {},
}
_PROBE_DEFAULTS: Body = {"timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3}


def _default(deployment: Body) -> None:
    """What the server fills in, so that a comparison that minds it would never settle."""
    spec, pod = deployment["spec"], deployment["spec"]["template"]["spec"]
    for field, value in (("progressDeadlineSeconds", 600), ("revisionHistoryLimit", 10)):
        spec.setdefault(field, value)
    deployment["metadata"].setdefault("annotations", {})["deployment.kubernetes.io/revision"] = "1"
    for field, value in _POD_DEFAULTS.items():
        pod.setdefault(field, copied(value))
    for container in [*pod.get("initContainers", ()), *pod["containers"]]:
        for field, value in _CONTAINER_DEFAULTS.items():
            container.setdefault(field, copied(value))
        for port in container.get("ports", ()):
            port.setdefault("protocol", "TCP")
        for probe in (container[name] for name in ("startupProbe", "livenessProbe", "readinessProbe") if name in container):
            for field, value in _PROBE_DEFAULTS.items():
                probe.setdefault(field, value)


def removal_rank(pod: Body) -> tuple[bool, int, bool, int, int]:
    """The ReplicaSet controller's order, its own memory (ready times, restarts) left out: the newest last resort."""
    conditions = {found["type"]: found["status"] == "True" for found in pod["status"].get("conditions", [])}
    phase = {"Pending": 0, "Unknown": 1, "Running": 2}[pod["status"].get("phase", "Pending")]
    cost = int(pod["metadata"].get("annotations", {}).get(ANNOTATION_DELETION_COST, "0"))
    return conditions.get("PodScheduled", False), phase, is_ready(pod), cost, -int(pod["metadata"]["uid"].removeprefix("uid-"))


def _progress(deployment: Body) -> str:
    conditions = deployment.get("status", {}).get("conditions", [])
    return conditions[0]["reason"] if conditions else ""


def new_pod(deployment: Body, number: int) -> Body:
    meta = deployment["metadata"]
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": meta["name"], "uid": meta["uid"], "controller": True}
    reported = copied({field: deployment["spec"]["template"]["metadata"].get(field, {}) for field in ("labels", "annotations")})
    name = f"{meta['name']}-{number}"
    spec = copied(deployment["spec"]["template"]["spec"])
    # Each one is younger than all before it, though no clock moves here.
    since = {"creationTimestamp": f"2026-01-01T00:00:00.{number:06}Z"}
    return {
        "metadata": {"name": name, "namespace": meta["namespace"], "ownerReferences": [owner], **since, **reported},
        "spec": spec,
        "status": {},
    }


def is_trial(pod: Body) -> bool:
    return bool(pod["metadata"].get("labels", {}).get(LABEL_COMPONENT) == COMPONENT_TRIAL)


def is_ready(pod: Body) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", []))


def scheduled(ready: bool) -> list[Body]:
    return [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "True" if ready else "False"}]


def running(ready: bool = False) -> Body:
    """A pod's status with its daemon up."""
    container = {"name": CONTAINER_DAEMON, "state": {"running": {}}, "restartCount": 0}
    return {"phase": "Running", "conditions": scheduled(ready), "containerStatuses": [container]}


def crashed(code: int = EXIT_PERMANENT, message: str = "config.json: unknown architecture", reason: str = "Error") -> Body:
    """A pod's status between two tries of a daemon that ended."""
    ended = {"terminated": {"exitCode": code, "message": message, "reason": reason}}
    back_off = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s restarting failed container"}}
    container = {"name": CONTAINER_DAEMON, "state": back_off, "lastState": ended, "restartCount": 1}
    return {"phase": "Running", "conditions": scheduled(False), "containerStatuses": [container]}


def restarted(**ended: Any) -> Body:
    """A pod's status after the daemon ended once and was started again."""
    container = crashed(**ended)["containerStatuses"][0] | {"state": {"running": {}}}
    return running() | {"containerStatuses": [container]}


def passed() -> Body:
    """Of a trial's pod: model and image are there."""
    done = {"terminated": {"exitCode": 0, "reason": "Completed"}}
    both = [{"name": name, "state": done, "restartCount": 0} for name in (CONTAINER_FETCH, CONTAINER_DAEMON)]
    return {"phase": "Succeeded", "conditions": scheduled(False), "initContainerStatuses": both[:1], "containerStatuses": both[1:]}


def fetching(code: int | None = None, message: str = "", started: bool = False) -> Body:
    """A pod's status while its sidecar fetches the model, or between two tries of it."""
    state: Body = {"running": {}} if code is None else {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}
    sidecar: Body = {"name": CONTAINER_FETCH, "state": state, "started": started, "restartCount": int(code is not None)}
    if code is not None:
        sidecar["lastState"] = {"terminated": {"exitCode": code, "message": message, "reason": "Error"}}
    daemon = {"name": CONTAINER_DAEMON, "state": {"waiting": {"reason": "PodInitializing"}}, "restartCount": 0}
    return {"phase": "Pending", "conditions": scheduled(False), "initContainerStatuses": [sidecar], "containerStatuses": [daemon]}


def waiting(reason: str, message: str = "") -> Body:
    container = {"name": CONTAINER_DAEMON, "state": {"waiting": {"reason": reason, "message": message}}, "restartCount": 0}
    return {"phase": "Pending", "conditions": scheduled(False), "containerStatuses": [container]}


def unmounted(since: str) -> Body:
    """A pod's status on its node, before its volumes are mounted."""
    status = waiting("ContainerCreating")
    status["conditions"].append({"type": "PodReadyToStartContainers", "status": "False", "lastTransitionTime": since})
    return status


def mount_failure(pod: Body, note: str, at: str, number: int = 1) -> Body:
    """The kubelet's Event about a volume, as events.k8s.io shows it."""
    meta = pod["metadata"]
    regarding = {"kind": "Pod", "namespace": meta["namespace"], "name": meta["name"], "uid": meta["uid"]}
    said = {"type": "Warning", "reason": "FailedMount", "note": note, "regarding": regarding, "action": "Mount", "eventTime": at}
    names = {"name": f"{meta['name']}.{number}", "namespace": meta["namespace"], "creationTimestamp": at}
    kind = {"apiVersion": EVENTS.api_version, "kind": EVENTS.kind}
    return kind | {"metadata": names, "reportingController": "kubelet", "reportingInstance": "node-1"} | said


def service_body(name: str = "tiny", namespace: str = "ns", **spec: Any) -> Body:
    base: Body = {"replicas": 1, "model": {"uri": "pvc://models/tiny"}, "accelerators": [{"cpu": {"cores": "250m", "memory": "1Gi"}}]}
    return {"apiVersion": API_VERSION, "kind": SERVICES.kind, "metadata": {"name": name, "namespace": namespace}, "spec": base | spec}


def profile_body(name: str = "default", **spec: Any) -> Body:
    base: Body = {"images": {"daemon": "localhost/daemon:1", "fetch": "localhost/fetch:1"}}
    return {"apiVersion": API_VERSION, "kind": PROFILES.kind, "metadata": {"name": name}, "spec": base | spec}
