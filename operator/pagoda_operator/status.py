"""Says what is: `status(observed, plan, url, now)` renders the status by kstatus' rules. Pure; `reconcile` writes it where it differs.

Ready is True only while the current revision has its replicas. Reconciling carries why not yet, Stalled what only a person cures.
Messages hold nothing that changes by itself (back-off times, restart counts): each change would be a write.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, Literal, NamedTuple

from pagoda_contracts.names import EXIT_PERMANENT
from pagoda_contracts.resources.meta import Condition
from pagoda_contracts.resources.service import InferenceServiceStatus, RevisionStatus

from pagoda_operator.plan import Plan, owner_of
from pagoda_operator.state import DEPLOYMENTS, Json, Observed, Pod
from pagoda_operator.unheeded import unheeded

READY: Final = "Ready"
RECONCILING: Final = "Reconciling"
STALLED: Final = "Stalled"
MODEL_REJECTED: Final = "ModelRejected"

_MAX_MESSAGE: Final = 1000
_MAX_REVISIONS: Final = 16
_BACK_OFF: Final = re.compile(r'^(Back-off pulling image "[^"]*": )?(\w*ImagePull\w*: )?')
_IMAGE_REASONS: Final = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"})

State = Literal["True", "False", "Unknown"]


class Verdict(NamedTuple):
    """Where the service stands, in one reason and one sentence."""

    kind: Literal["settled", "serving", "reconciling", "stalled"]
    reason: str
    message: str


def status(observed: Observed, plan: Plan, url: str | None, now: str) -> dict[str, Any]:
    """The whole status on the wire; `now` stamps the conditions whose status flips."""
    pods = [pod for pod in observed.pods if pod.counts]
    owner = owner_of(observed)
    told = InferenceServiceStatus(
        observed_generation=observed.meta.generation,
        conditions=_conditions(observed, verdict(observed, plan), now),
        replicas=len(pods),
        ready_replicas=sum(pod.ready for pod in pods),
        selector=",".join(f"{name}={value}" for name, value in owner.selector.items()),
        url=url,
        placement=plan.placement.status if plan.placement else None,
        revisions=_revisions(pods),
    )
    return told.wire()


def verdict(observed: Observed, plan: Plan) -> Verdict:
    """The one thing to say; what the spec asks for in vain is said with it."""
    told = _verdict(observed, plan)
    ignored = unheeded(observed.spec) if observed.spec else ()
    return told._replace(message=f"{told.message}; not acted on yet: {', '.join(ignored)}") if ignored else told


def _verdict(observed: Observed, plan: Plan) -> Verdict:
    if plan.problem is not None:
        return Verdict("stalled", plan.problem.reason, clean(plan.problem.message) + _serving(observed, plan))
    pods = _current(observed, plan)
    ready, wanted = sum(pod.ready for pod in pods), observed.spec.replicas if observed.spec else 0
    rejected = next((pod for pod in pods if pod.exit_code == EXIT_PERMANENT and not pod.ready), None)
    if rejected is not None and ready == 0:
        return Verdict("stalled", MODEL_REJECTED, (clean(rejected.exit_message) or "no reason given") + _serving(observed, plan))
    if plan.current and observed.find(DEPLOYMENTS, plan.current.name) and ready >= wanted and not plan.denied:
        return _arrived(plan, ready, wanted)
    reason, message = _progress(observed, plan, pods)
    return Verdict("reconciling", reason, f"{ready} of {wanted} replicas ready: {clean(message)}" + _serving(observed, plan))


def clean(text: str) -> str:
    """A foreign text as one printable line."""
    printable = "".join(char if char.isprintable() else " " for char in text)
    return " ".join(printable.split())[:_MAX_MESSAGE]


def _arrived(plan: Plan, ready: int, wanted: int) -> Verdict:
    message = f"{ready} of {wanted} replicas ready" if wanted else "scaled to zero"
    if plan.retiring:
        return Verdict("serving", "RollingOut", f"{message}; draining {', '.join(plan.retiring)}")
    return Verdict("settled", "Available" if wanted else "ScaledToZero", message)


def _serving(observed: Observed, plan: Plan) -> str:
    """What older revisions still do, for the end of a message."""
    mine = {pod.name for pod in _current(observed, plan)}
    others = sum(pod.ready for pod in observed.pods if pod.counts and pod.name not in mine)
    return f"; {others} ready of an older revision keep serving" if others else ""


def _current(observed: Observed, plan: Plan) -> list[Pod]:
    if plan.current is None:
        return []
    mine = (plan.current.hash, plan.current.accelerator)
    return [pod for pod in observed.pods if pod.counts and (pod.revision, pod.accelerator) == mine]


def _progress(observed: Observed, plan: Plan, pods: list[Pod]) -> tuple[str, str]:
    """Why not yet: the least advanced replica speaks."""
    if plan.denied:
        return "Forbidden", plan.denied
    if plan.waiting:
        return "Waiting", f"waiting until {plan.waiting} is gone"
    wanted = observed.spec.replicas if observed.spec else 0
    waiting = [pod for pod in pods if not pod.ready]
    told = [(reason, message) for tell in _STAGES for pod in waiting if (found := tell(pod)) for reason, message in [found]]
    if told and len(pods) >= wanted:
        return told[0]
    deployment = observed.find(DEPLOYMENTS, plan.current.name) if plan.current else None
    failure: Json = deployment.condition("ReplicaFailure") if deployment else {}
    if failure.get("status") == "True":
        return "CreatingPods", failure.get("message", "")
    return told[0] if told else ("CreatingPods", "pods are being created")


def _crashing(pod: Pod) -> tuple[str, str] | None:
    if pod.exit_code is None or (pod.running and pod.restarts == 0):
        return None
    why = clean(pod.exit_message) or pod.exit_reason or "no reason given"
    return "CrashLooping", f"{pod.name} ended with exit code {pod.exit_code}: {why}"


def _unscheduled(pod: Pod) -> tuple[str, str] | None:
    return ("Scheduling", f"{pod.name}: {pod.unscheduled}") if pod.unscheduled else None


def _image(pod: Pod) -> tuple[str, str] | None:
    if pod.waiting not in _IMAGE_REASONS:
        return None
    # ErrImagePull and ImagePullBackOff alternate with each try: the common part of their messages stays the same.
    return "ImagePull", f"{pod.name}: {_BACK_OFF.sub('', pod.waiting_message) or pod.waiting}"


def _container(pod: Pod) -> tuple[str, str] | None:
    if not pod.waiting or pod.waiting in ("ContainerCreating", "PodInitializing", "CrashLoopBackOff"):
        return None
    return "Container", f"{pod.name}: {pod.waiting}: {pod.waiting_message}"


def _starting(pod: Pod) -> tuple[str, str] | None:
    if pod.running:
        return None
    if not pod.scheduled:
        return "Scheduling", f"{pod.name} has no node yet"
    return "PullingImage", f"{pod.name} pulls its image and mounts its volumes"


def _loading(pod: Pod) -> tuple[str, str] | None:
    return "LoadingModel", f"{pod.name} loads the model"


# Bad news first, then the least advanced.
_STAGES: Final[tuple[Callable[[Pod], tuple[str, str] | None], ...]] = (_crashing, _unscheduled, _image, _container, _starting, _loading)


def _conditions(observed: Observed, told: Verdict, now: str) -> tuple[Condition, ...]:
    last = {condition.type: condition for condition in observed.status.conditions}
    wanted: tuple[tuple[str, State], ...] = (
        (READY, _ready(observed, told, last.get(READY))),
        (RECONCILING, "True" if told.kind in ("serving", "reconciling") else "False"),
        (STALLED, "True" if told.kind == "stalled" else "False"),
    )
    return tuple(_condition(observed, told, (kind, state), last.get(kind), now) for kind, state in wanted)


def _ready(observed: Observed, told: Verdict, last: Condition | None) -> State:
    """Unknown on the way to a generation's first readiness, False where it is lost or cannot come."""
    if told.kind in ("settled", "serving"):
        return "True"
    known = last is not None and last.observed_generation == observed.meta.generation and last.status != "Unknown"
    return "False" if told.kind == "stalled" or known else "Unknown"


def _condition(observed: Observed, told: Verdict, wanted: tuple[str, State], last: Condition | None, now: str) -> Condition:
    kind, state = wanted
    speaks = kind == READY or state == "True"
    return Condition(
        type=kind,
        status=state,
        reason=told.reason if speaks else ("Settled" if kind == RECONCILING else "NotStalled"),
        message=told.message if speaks else "",
        observed_generation=observed.meta.generation,
        last_transition_time=last.last_transition_time if last is not None and last.status == state else now,
    )


def _revisions(pods: list[Pod]) -> tuple[RevisionStatus, ...]:
    hashes = sorted({pod.revision for pod in pods})[:_MAX_REVISIONS]
    return tuple(
        RevisionStatus(
            hash=name,
            replicas=sum(pod.revision == name for pod in pods),
            ready_replicas=sum(pod.ready for pod in pods if pod.revision == name),
        )
        for name in hashes
    )
