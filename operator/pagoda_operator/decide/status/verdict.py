"""The state of a service in one reason and one sentence, with the fields of its spec that are set and change nothing. Pure; called by
`status`. A message has nothing that changes by itself (back-off times, restart counts): each change would be a write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple

from pagoda_contracts.conditions import service as reasons
from pagoda_contracts.conditions.types import Reason
from pagoda_contracts.names import EXIT_PERMANENT
from pagoda_contracts.resources.scaling import ScalingSpec
from pagoda_contracts.resources.service import InferenceServiceSpec

from pagoda_operator.api.pods import Pod
from pagoda_operator.api.state import DEPLOYMENTS, Json, Observed
from pagoda_operator.decide.plan import Plan
from pagoda_operator.decide.render.fetch import fetched, has_revisions, has_sidecar
from pagoda_operator.decide.replicas.replica import clean, stage

_NOT_YET: Final = ("engine.kvCache.memoryFraction", "engine.kvCache.dtype", "engine.kvCache.cpuOffload", "routing.overflow.service")
# Fields of `scaling` that a mode does not use: in Manual a person decides, in External another autoscaler does.
_IDLE: Final[Mapping[str, tuple[str, ...]]] = {
    "Manual": ("min", "max", "targets", "idleAfter", "behavior", "schedules", "predictive"),
    "External": ("min", "max", "targets", "behavior", "schedules", "predictive"),
}

Kind = Literal["settled", "serving", "reconciling", "stalled"]
_WAITS: Final[Mapping[str, Reason]] = {
    "": reasons.WAITING_FOR_CAPACITY,
    "Expected": reasons.WAITING_FOR_NODES,
    "Missing": reasons.NO_NODES_CAME,
}


class Verdict(NamedTuple):
    """The state of a service, in one reason and one sentence."""

    kind: Kind
    reason: Reason
    message: str


def verdict(observed: Observed, plan: Plan) -> Verdict:
    """The most important reason, and with it the fields of the spec that have no effect."""
    found = _limited(observed, plan, _verdict(observed, plan))
    return found._replace(message=f"{found.message}{_of_no_effect(observed.spec)}") if observed.spec else found


def _verdict(observed: Observed, plan: Plan) -> Verdict:
    if plan.undecided is not None:
        return Verdict("reconciling", plan.undecided.reason, clean(plan.undecided.message) + _serving(observed, plan))
    if plan.problem is not None:
        return Verdict("stalled", plan.problem.reason, clean(plan.problem.message) + _serving(observed, plan))
    if (found := _rollout(observed, plan)) is not None:
        return found
    pods = _current(observed, plan)
    ready, wanted = sum(pod.serves for pod in pods), observed.wanted
    rejected = next((why for pod in pods if not pod.ready and (why := _rejection(pod)) is not None), None)
    if rejected is not None and ready == 0:
        return Verdict("stalled", reasons.MODEL_REJECTED, (clean(rejected) or "no reason given") + _serving(observed, plan))
    if plan.current and observed.find(DEPLOYMENTS, plan.current.name) and ready >= wanted and not plan.denied:
        return _arrived(plan, ready, wanted)
    reason, message = _progress(observed, plan, pods)
    kind: Kind = "stalled" if reason is reasons.NO_NODES_CAME else "reconciling"
    return Verdict(kind, reason, f"{ready} of {wanted} replicas ready: {clean(message)}" + _serving(observed, plan))


def _limited(observed: Observed, plan: Plan, found: Verdict) -> Verdict:
    """With what the quota refuses. That needs a person if a person asked for the number, or if no replica is left; what scaling asked for
    is reduced to what the quota allows."""
    why = plan.over_quota or (observed.quota.why if observed.quota is not None and observed.limited else "")
    if not why or found.kind == "stalled":
        return found
    if observed.limited and observed.wanted < max(1, observed.asked) and (observed.scaling is None or observed.wanted == 0):
        ready = sum(pod.ready for pod in observed.pods if pod.counts)
        return Verdict("stalled", reasons.QUOTA_EXCEEDED, f"{ready} of {observed.asked} replicas ready: {why}")
    return found._replace(message=f"{found.message}; {why}")


def _rollout(observed: Observed, plan: Plan) -> Verdict | None:
    """A new revision that was rolled back, or one that has its share of requests; None for any other state."""
    record = plan.rollout.record if plan.rollout is not None else None
    if plan.rollout is None or record is None:
        return None
    if record.phase == "RolledBack":
        return Verdict("stalled", reasons.ROLLED_BACK, clean(record.reason or "rolled back") + _serving(observed, plan))
    ready = sum(pod.serves for pod in observed.pods)
    if record.phase != "Progressing" or record.since is None or not plan.rollout.weights or ready < observed.wanted:
        return None
    share = f"the new revision gets {plan.rollout.weights.get(record.revision, 0)} % of the requests"
    waits = f"; {plan.rollout.waits}" if plan.rollout.waits else ""
    return Verdict("serving", reasons.CANARY, f"{observed.wanted} of {observed.wanted} replicas ready: {share}{waits}")


def _rejection(pod: Pod) -> str | None:
    """What the daemon, or the sidecar that fetches for it, calls permanent."""
    if pod.exit_code == EXIT_PERMANENT:
        return pod.exit_message
    return pod.fetching.exit_message if pod.fetching.permanent else None


def _arrived(plan: Plan, ready: int, wanted: int) -> Verdict:
    message = f"{ready} of {wanted} replicas ready" if wanted else "scaled to zero"
    if plan.rollout is not None and plan.rollout.waits:
        return Verdict("serving", reasons.ROLLING_OUT, f"{message}; {plan.rollout.waits}")
    if going := plan.retiring or plan.leaving:
        reason = reasons.ROLLING_OUT if plan.retiring else reasons.DRAINING
        return Verdict("serving", reason, f"{message}; draining {', '.join(going)}")
    return Verdict("settled", reasons.AVAILABLE if wanted else reasons.SCALED_TO_ZERO, message)


def _serving(observed: Observed, plan: Plan) -> str:
    """What older revisions still serve, for the end of a message."""
    mine = {pod.name for pod in _current(observed, plan)}
    others = sum(pod.serves for pod in observed.pods if pod.name not in mine)
    named = f"{others} ready replicas of an older revision continue" if others > 1 else "1 ready replica of an older revision continues"
    return f"; {named} to serve" if others else ""


def _current(observed: Observed, plan: Plan) -> list[Pod]:
    if plan.current is None:
        return []
    mine = (plan.current.hash, plan.current.accelerator)
    return [pod for pod in observed.pods if pod.counts and (pod.revision, pod.accelerator) == mine]


def _progress(observed: Observed, plan: Plan, pods: list[Pod]) -> tuple[Reason, str]:
    """Why not yet: what blocks all replicas, else the least advanced one."""
    if plan.denied:
        return reasons.FORBIDDEN, plan.denied
    return _blocked(plan, pods) or _of_replicas(observed, plan, pods)


def _of_replicas(observed: Observed, plan: Plan, pods: list[Pod]) -> tuple[Reason, str]:
    found = min((stage(pod) for pod in pods if not pod.ready), key=lambda one: one.rank, default=None)
    if found and len(pods) >= observed.wanted:
        return found.reason, found.message
    deployment = observed.find(DEPLOYMENTS, plan.current.name) if plan.current else None
    failure: Json = deployment.condition("ReplicaFailure") if deployment else {}
    if failure.get("status") == "True":
        return reasons.CREATING_PODS, failure.get("message", "")
    if not found and plan.rollout is not None and plan.rollout.waits:
        return reasons.ROLLING_OUT, plan.rollout.waits
    if not found and plan.leaving:
        return reasons.ROLLING_OUT if plan.retiring else reasons.DRAINING, f"draining {', '.join(plan.leaving)}"
    return (found.reason, found.message) if found else (reasons.CREATING_PODS, "pods are being created")


def _blocked(plan: Plan, pods: list[Pod]) -> tuple[Reason, str] | None:
    """Another object must be deleted first, a trial must pass, or all devices are in use; a pod with a node has its own."""
    if plan.waiting:
        return reasons.WAITING, f"waiting until {plan.waiting} is deleted"
    if plan.rollout is not None and plan.rollout.tries and plan.rollout.waits:
        return reasons.ROLLING_OUT, plan.rollout.waits
    awaited = plan.placement.status.waiting if plan.placement else None
    if awaited is None or any(pod.scheduled for pod in pods):
        return None
    return _WAITS[plan.placement.nodes if plan.placement else ""], f"waiting for {awaited.accelerator} since {awaited.since}: {awaited.why}"


def ignored_fields(spec: InferenceServiceSpec) -> tuple[str, ...]:
    """Names of fields that are set and change nothing."""
    words = spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    ranks = ("accelerators.gpu.count",) if any(entry.gpu and entry.gpu.count > 1 for entry in spec.accelerators) else ()
    # A claim's files need no credential, and only some sources have revisions.
    fetch = () if fetched(spec) else ("model.credential", "model.digest", *(() if has_sidecar(spec) else ("credentials",)))
    idle = (*_NOT_YET, *fetch, *(() if has_revisions(spec.model) else ("model.revision",)))
    # Entries on CPU say themselves what a replica requests.
    host = ("resources",) if words.get("resources") and all(entry.cpu for entry in spec.accelerators) else ()
    return (*(field for field in idle if _at(words, field)), *ranks, *host)


def idle_scaling(scaling: ScalingSpec) -> tuple[str, ...]:
    """Fields of `scaling` that are set and change nothing in its mode. In External `idleAfter` works, and needs `min: 0`."""
    words = scaling.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    needed = ("min",) if scaling.mode == "External" and scaling.idle_after is not None else ()
    idle = (word for word in _IDLE.get(scaling.mode, ()) if word not in needed)
    # A block that has only defaults changes nothing.
    return tuple(f"scaling.{word}" for word in idle if words.get(word) not in (None, {}))


def _at(words: Mapping[str, Any], field: str) -> bool:
    """Whether a field is set, named with dots."""
    head, _, rest = field.partition(".")
    return head in words and (not rest or _at(words[head], rest))


def _of_no_effect(spec: InferenceServiceSpec) -> str:
    """The end of a message. It depends on the spec alone, so that it changes only with the spec."""
    yet, idle = ignored_fields(spec), idle_scaling(spec.scaling) if spec.scaling else ()
    unused = f"; not acted on yet: {', '.join(yet)}" if yet else ""
    return f"{unused}; of no effect in mode {spec.scaling.mode}: {', '.join(idle)}" if idle and spec.scaling else unused
