"""A replica: its pod as status, rollout and scaling need it, the orders to its daemon, and the answers. Pure.

`decide/replicas/drain` decides orders, and `talk/daemons` sends them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

from pagoda_contracts.names import (
    ANNOTATION_DELETION_COST,
    ANNOTATION_DEVICE_FAULT,
    ANNOTATION_DRAIN_DEADLINE,
    CONTAINER_DAEMON,
    LABEL_ACCELERATOR,
    LABEL_REVISION,
)
from pagoda_placement.values import Json, unix

from pagoda_operator.api.starts import (
    Fetching,
    Phases,
    Steps,
    condition_of,
    container_of,
    containers_of,
    ended_of,
    parse_fetching,
    parse_steps,
    phases,
)

# The scheduler's words if devices exist and all are in use: for requests, and for ResourceClaims.
_SHORT_OF: Final = ("Insufficient", "cannot allocate all claims")
_SCHEDULER: Final = "kube-scheduler"
# The container waits for others, which says less than any other reason.
_MERELY_LATER: Final = ("PodInitializing", "ContainerCreating")
# For so long the last answer of a draining daemon counts although it is silent: an order times out after 2 s, and a busy machine stops a
# process for five. One late answer removed a replica with its requests under way, and nothing could turn that back.
_LATE_S: Final = 10.0


@dataclass(frozen=True)
class Pod:
    """A replica, as far as status and rollout need it."""

    name: str
    revision: str
    accelerator: str
    ready: bool = False
    deleting: bool = False
    finished: bool = False
    unscheduled: str = ""
    scheduled: bool = False
    waiting: str = ""
    waiting_message: str = ""
    running: bool = False
    restarts: int = 0
    exit_code: int | None = None
    exit_reason: str = ""
    exit_message: str = ""
    fetching: Fetching = field(default_factory=Fetching)
    steps: Steps = field(default_factory=Steps)
    # Unix seconds: when it was made, and since when it is ready (None while it is not).
    created: float = 0.0
    ready_since: float | None = None
    # What an order to this pod needs, and how the ReplicaSet ranks it.
    meta: Json = field(default_factory=dict)
    address: str = ""
    # Its node, whether it uses devices there, and why they are faulty.
    node: str = ""
    devices: bool = False
    device_fault: str = ""
    phase: str = "Pending"
    assigned: bool = False
    drain_deadline_ms: int | None = None
    deletion_cost: int = 0
    unscheduled_since: float | None = None
    # When the scheduler last wrote why it has no node, by the pod's managedFields.
    unscheduled_reported: float | None = None
    # Since when it has a node and no sandbox, before anything of it ran: volumes are mounted before the sandbox, images pulled after it.
    unmounted_since: float | None = None
    # The scheduler tried and found no node, which a gate is not.
    unschedulable: bool = False
    # Why it is being evicted or preempted, in Kubernetes' words, and since when.
    evicted: str = ""
    evicted_at: float | None = None

    @property
    def uid(self) -> str:
        """The UID, which tells it from other pods of its name."""
        return str(self.meta.get("uid", ""))

    @property
    def waits_since(self) -> float:
        """When it came to the step of its start where it is, in Unix seconds."""
        return max(self.created, self.unscheduled_since or 0.0, *self.steps)

    @property
    def starting(self) -> bool:
        """Whether it is on its first way to Ready."""
        return not self.ready and self.restarts == 0 and not self.lapsed

    @property
    def lapsed(self) -> bool:
        """Whether it was Ready before: it lost that after its daemon began."""
        return 0 < self.steps.loading < self.steps.unready

    def start(self, warm_s: float = 0.0) -> Phases | None:
        """How long its start took; None if it is not Ready, or if a restart hides when its start ended."""
        known = self.ready and self.restarts == 0 and self.created and self.ready_since is not None
        return phases(self.created, self.steps, self.ready_since or 0.0, warm_s) if known else None

    @property
    def short(self) -> bool:
        """Whether it waits for devices that another replica would free. A missing volume or label is no such reason."""
        return not self.assigned and any(words in self.unscheduled for words in _SHORT_OF)

    @property
    def serves(self) -> bool:
        """Whether it takes requests and goes on doing so."""
        return self.ready and self.counts and self.drain_deadline_ms is None

    @property
    def counts(self) -> bool:
        """Whether it is a replica that stays."""
        return not self.deleting and not self.finished


def starting_of(pods: Iterable[Pod], before: frozenset[str] = frozenset()) -> frozenset[str]:
    """Returns the uids of the pods that are starting, and of those among `before` that are Ready now."""
    return frozenset(pod.uid for pod in pods if pod.starting or (pod.ready and pod.uid in before))


def parse_pod(body: Json) -> Pod:
    """A pod of the service."""
    meta, status = body["metadata"], body.get("status", {})
    labels = meta.get("labels", {})
    scheduled, readiness = condition_of(body, "PodScheduled"), condition_of(body, "Ready")
    lacking = scheduled if scheduled.get("status") == "False" else {}
    disruption = found if (found := condition_of(body, "DisruptionTarget")).get("status") == "True" else {}
    return Pod(
        name=meta["name"],
        revision=labels.get(LABEL_REVISION, ""),
        accelerator=labels.get(LABEL_ACCELERATOR, ""),
        ready=readiness.get("status") == "True" and "deletionTimestamp" not in meta,
        deleting="deletionTimestamp" in meta,
        finished=status.get("phase") in ("Failed", "Succeeded"),
        scheduled=scheduled.get("status") == "True",
        fetching=parse_fetching(status),
        steps=parse_steps(body),
        unscheduled=lacking.get("message", ""),
        created=unix(meta.get("creationTimestamp")) or 0.0,
        ready_since=unix(readiness.get("lastTransitionTime")) if readiness.get("status") == "True" else None,
        unscheduled_since=unix(lacking.get("lastTransitionTime")),
        unscheduled_reported=_unscheduled_reported(meta) if lacking else None,
        unmounted_since=_unmounted_since(body, status),
        unschedulable=lacking.get("reason") == "Unschedulable",
        evicted=": ".join(disruption[word] for word in ("reason", "message") if disruption.get(word)),
        evicted_at=unix(disruption.get("lastTransitionTime")),
        meta=meta,
        node=body.get("spec", {}).get("nodeName", ""),
        devices=_devices(body.get("spec", {})),
        device_fault=meta.get("annotations", {}).get(ANNOTATION_DEVICE_FAULT, ""),
        address=status.get("podIP", ""),
        phase=status.get("phase", "Pending"),
        assigned=bool(body.get("spec", {}).get("nodeName")) or scheduled.get("status") == "True",
        **_orders_on(meta.get("annotations", {})),
        **_container(status),
    )


def _orders_on(annotations: Mapping[str, str]) -> dict[str, Any]:
    """The drain and the deletion cost on a pod. A text that is no number is not ours: a drain that is over, no cost."""
    deadline = annotations.get(ANNOTATION_DRAIN_DEADLINE)
    return {
        "drain_deadline_ms": _number(deadline) if deadline is not None else None,
        "deletion_cost": _number(annotations.get(ANNOTATION_DELETION_COST, "0")),
    }


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        return 0


def by_scheduler(meta: Json) -> list[Json]:
    """Returns the scheduler's entries of a pod's managedFields. The scheduler writes a pod's status only if it finds no node."""
    entries = [entry for entry in meta.get("managedFields") or () if entry.get("manager") == _SCHEDULER]
    return [{name: entry[name] for name in ("manager", "time") if name in entry} for entry in entries]


def _unscheduled_reported(meta: Json) -> float | None:
    times = [unix(entry.get("time")) for entry in by_scheduler(meta)]
    return max((time for time in times if time is not None), default=None)


def _unmounted_since(body: Json, status: Json) -> float | None:
    """In phase Pending nothing has run yet. A sandbox that is lost later, with its node, is made again."""
    sandbox = condition_of(body, "PodReadyToStartContainers")
    return unix(sandbox.get("lastTransitionTime")) if sandbox.get("status") == "False" and status.get("phase") == "Pending" else None


def _devices(spec: Json) -> bool:
    """Whether it requests a vendor's resource, or claims one."""
    requests = [container.get("resources", {}).get("requests", {}) for container in spec.get("containers", [])]
    return bool(spec.get("resourceClaims")) or any("/" in name for found in requests for name in found)


def _container(status: Json) -> dict[str, Any]:
    """Returns the state of the daemon's container; if another one blocks the pod, why that one waits."""
    daemon = container_of(status, CONTAINER_DAEMON)
    others = [container for container in containers_of(status) if container["name"] != CONTAINER_DAEMON]
    states: list[Json] = [container.get("state", {}) for container in [daemon, *others] if container]
    waits: list[Json] = [state["waiting"] for state in states if "waiting" in state]
    waiting: Json = next((wait for wait in waits if wait.get("reason") not in _MERELY_LATER), waits[0] if waits else {})
    ended = ended_of(daemon)
    return {
        "waiting": waiting.get("reason", ""),
        "waiting_message": waiting.get("message", ""),
        "running": "running" in daemon.get("state", {}),
        "restarts": daemon.get("restartCount", 0),
        "exit_code": ended.get("exitCode"),
        "exit_reason": ended.get("reason", ""),
        "exit_message": ended.get("message", ""),
    }


@dataclass(frozen=True, slots=True)
class Order:
    """Drain for `left_ms` more, which is until `deadline_ms` (Unix milliseconds) by our clock; or serve again, if that is None."""

    pod: str
    uid: str
    address: str
    deadline_ms: int | None
    left_ms: int = 0


class DaemonState(StrEnum):
    """The state of a daemon after an order. SERVING and DRAINING are its own words. ENDING follows a SIGTERM and cannot be turned back.
    REFUSED accepts no orders from us (it does not check callers, or did not accept the token). SILENT did not answer."""

    SERVING = "serving"
    DRAINING = "draining"
    ENDING = "ending"
    REFUSED = "refused"
    SILENT = "silent"


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to the last order; `at`: when it came, in Unix seconds."""

    state: DaemonState
    in_flight: int = 0
    at: float = field(default=0.0, compare=False)

    @property
    def drained(self) -> bool:
        """Whether nothing runs there and nothing will: a draining daemon refuses before admission."""
        return self.state in (DaemonState.DRAINING, DaemonState.ENDING) and self.in_flight == 0

    def after(self, before: Answer | None, now: float) -> Answer:
        """Returns what is known after this answer."""
        late = self.state is DaemonState.SILENT and before is not None and abs(now - before.at) < _LATE_S
        return before if late and before is not None and before.state is DaemonState.DRAINING else replace(self, at=now)

    def is_news(self, before: Answer) -> bool:
        """Whether a decision may depend on the difference. None depends on how many requests are left."""
        return (self.state, self.drained) != (before.state, before.drained)
