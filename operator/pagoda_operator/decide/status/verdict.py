"""The state of a service in one reason and one sentence, whether it is Ready, and the fields of its spec that are set and change nothing.
Pure; called by `status`. A message has nothing that changes by itself (back-off times, restart counts): each change would be a write."""

from __future__ import annotations

import re
from typing import Final, Literal, NamedTuple

from pagoda_contracts.conditions import service as reasons
from pagoda_contracts.conditions.types import NO_DEADLINE, READY, RECONCILING, SERVING, STALLED, Reason
from pagoda_contracts.launch import HealthConfig
from pagoda_contracts.names import EXIT_PERMANENT, FETCHED_LINK, MODEL_MOUNT
from pagoda_contracts.resources.effect import CLAIM_SCHEME, fetched, idle_scaling, ignored_fields
from pagoda_contracts.resources.meta import Condition
from pagoda_contracts.resources.service import InferenceServiceSpec
from pagoda_contracts.units import parse_duration
from pagoda_placement.values import stamp, unix
from pagoda_sizing.host import LEAST_CONTEXT

from pagoda_operator.api.conditions import waiting
from pagoda_operator.api.pods import Pod
from pagoda_operator.api.state import DEPLOYMENTS, Observed
from pagoda_operator.decide.plan import Plan
from pagoda_operator.decide.render.fetch import claim
from pagoda_operator.decide.replicas.replica import Stage, clean, stage, unhealthy
from pagoda_operator.decide.replicas.replicas import refused

Kind = Literal["settled", "reconciling", "stalled"]
_FAILED: Final = (reasons.RESTARTING, reasons.CRASH_LOOPING)
_RETURNS: Final = "the service returns to the old revision"
_GOING_SINCE: Final = re.compile(r"(?:draining|removing) .*; waiting since (\S+);")
_LOAD: Final[str] = HealthConfig.model_fields["load_timeout"].default


class Verdict(NamedTuple):
    """The state of a service, in one reason and one sentence. `ready`: its current revision is rolled out and enough of its replicas are
    ready, or it is asleep after it has served."""

    kind: Kind
    reason: Reason
    message: str
    ready: bool = False


def verdict(observed: Observed, plan: Plan) -> Verdict:
    """The most important reason, and with it the fields of the spec that have no effect."""
    found = _limited(observed, plan, _verdict(observed, plan))
    spec = observed.spec
    return found._replace(message=f"{found.message}{_below_ceiling(plan, spec)}{_of_no_effect(spec)}") if spec else found


def _verdict(observed: Observed, plan: Plan) -> Verdict:
    if plan.problem is not None:
        return Verdict("stalled", plan.problem.reason, clean(plan.problem.message) + _serving(observed, plan))
    if (awaited := plan.undecided) is not None:
        then = f"at {stamp(awaited.until)} the replicas start without it" if awaited.until is not None else NO_DEADLINE
        message = clean(awaited.message) + _field_of(observed.spec, awaited.message) + waiting(awaited.since, then)
        alone = f"the model is not inspected, and only an entry on CPU starts without that: {clean(plan.denied)}"
        reason, said = (reasons.FORBIDDEN, alone) if plan.denied else (awaited.reason, message)
        return Verdict("reconciling", reason, said + _serving(observed, plan))
    if (found := _rollout(observed, plan)) is not None:
        return found
    pods = _current(observed, plan)
    ready, wanted = sum(pod.serves for pod in pods), observed.wanted
    rejected = _given_back(plan) or next((why for pod in pods if not pod.ready and (why := _rejection(pod)) is not None), None)
    if rejected is not None and ready == 0:
        why = _with_address(observed.spec, clean(rejected)) or "no reason given"
        return Verdict("stalled", reasons.MODEL_REJECTED, why + _serving(observed, plan))
    made = plan.current is not None and observed.find(DEPLOYMENTS, plan.current.name) is not None
    if made and ready >= wanted and not plan.denied:
        return _arrived(observed, plan, ready)
    at = _progress(observed, plan, pods)
    kind: Kind = "stalled" if at.reason is reasons.NO_NODES_CAME else "reconciling"
    what = clean(at.message) + _field_of(observed.spec, at.message) + waiting(at.since, _at_deadline(observed, plan, at))
    message = f"{ready} of {wanted} replicas ready: {what}{_serving(observed, plan)}"
    return Verdict(kind, at.reason, message, made and ready >= _least(observed, plan))


def _field_of(spec: InferenceServiceSpec | None, message: str) -> str:
    """For the end of a message: the field with the name of what the scheduler or the kubelet does not find."""
    if spec is None or "not found" not in message:
        return ""
    own = {claim(spec.model.uri): "model.uri"} if spec.model.uri.startswith(CLAIM_SCHEME) else {}
    cache = {spec.model.cache.pvc: "model.cache.pvc"} if spec.model.cache else {}
    others = {name: f"adapters.claims[{index}]" for index, name in enumerate(spec.adapters.claims if spec.adapters else ())}
    claims = {f'persistentvolumeclaim "{name}"': field for name, field in (others | cache | own).items()}
    secrets = {f'secret "{one.secret_ref.name}"': f"credentials[{index}].secretRef.name" for index, one in enumerate(spec.credentials)}
    return next((f" (spec.{field})" for what, field in (claims | secrets).items() if f"{what} not found" in message), "")


def _least(observed: Observed, plan: Plan) -> int:
    """How many replicas of the current revision must be ready: all while it replaces an older one, else those that scaling may not go
    below. In mode Manual a person asked for the number."""
    scaling = observed.spec.scaling if observed.spec else None
    if plan.retiring or scaling is None or scaling.mode == "Manual":
        return max(1, observed.wanted)
    return max(1, min(observed.wanted, scaling.min)) if scaling.mode == "Auto" else 1


def _was_ready(ready: Condition | None, stalled: Condition | None) -> bool:
    """That operator wrote False for what was lost, and Unknown for what never was; False also while Stalled."""
    lost = ready is not None and ready.status == "False" and (stalled is None or stalled.status != "True")
    return lost or (ready is not None and ready.status == "True")


def has_served(observed: Observed) -> bool:
    """Whether a replica takes requests or ever did, by the last status. An operator before the condition Serving wrote only Ready."""
    last = {one.type: one for one in observed.status.conditions}
    serving, ready = last.get(SERVING.name), last.get(READY.name)
    before = serving.reason != reasons.NOT_SERVED_YET.name if serving is not None else _was_ready(ready, last.get(STALLED.name))
    return before or any(pod.serves for pod in observed.pods)


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
    if observed.signals is not None and not observed.signals.wakes:
        share = "the new revision serves beside the old one; without a gateway, requests are neither counted nor divided"
    waits, began = f"; {plan.rollout.waits}" if plan.rollout.waits else "", unix(record.since) or 0.0
    then = f"at {stamp(began + plan.rollout.hold_s)} the next step begins" if plan.rollout.hold_s and not waits else NO_DEADLINE
    return Verdict("reconciling", reasons.CANARY, f"{ready} of {observed.wanted} replicas ready: {share}{waits}{waiting(began, then)}")


def _given_back(plan: Plan) -> str:
    name = plan.current.name if plan.current else ""
    again = f"its devices are given back; to try again, change the spec or delete Deployment {name}"
    return f"{plan.rejected}; {again}" if plan.rejected else ""


def _rejection(pod: Pod) -> str | None:
    """What the daemon, or the sidecar that fetches for it, calls permanent."""
    if pod.exit_code == EXIT_PERMANENT:
        return pod.exit_message
    return pod.fetching.exit_message if pod.fetching.permanent else None


def _with_address(spec: InferenceServiceSpec | None, text: str) -> str:
    """The daemon's words, with the address that the spec gives instead of a path in the container."""
    if spec is None:
        return text
    path, address = (FETCHED_LINK, spec.model.uri) if fetched(spec) else (MODEL_MOUNT, CLAIM_SCHEME + claim(spec.model.uri))
    return re.sub(rf"(?<![\w/.]){path}(?![\w.-])", lambda _: address, text)


def _arrived(observed: Observed, plan: Plan, ready: int) -> Verdict:
    wanted, well = observed.wanted, observed.wanted > 0 or has_served(observed)
    message = f"{ready} of {wanted} replicas ready" if wanted else "scaled to zero"
    if plan.rollout is not None and plan.rollout.waits:
        return Verdict("reconciling", reasons.ROLLING_OUT, f"{message}; {plan.rollout.waits}", well)
    if plan.retiring:
        said = f"draining {', '.join(plan.retiring)}{_going(observed, plan, reasons.ROLLING_OUT)}"
        return Verdict("reconciling", reasons.ROLLING_OUT, f"{message}; {said}", well)
    if plan.leaving:
        reason, said = _leaving(observed, plan)
        return Verdict("reconciling", reason, f"{message}; {said}", well)
    message += "" if well else ", and no replica has ever served"
    return Verdict("settled", reasons.AVAILABLE if wanted else reasons.SCALED_TO_ZERO, message, well)


def _leaving(observed: Observed, plan: Plan) -> tuple[Reason, str]:
    """The replicas that go. One that never served, or that answers no more, has nothing to drain."""
    serving = {pod.name for pod in observed.pods if pod.ready or pod.drain_deadline_ms is not None}
    bad = {one.pod.name for draining in (False, True) for one in unhealthy(observed, draining=draining)}
    parts = {
        "draining {}": [name for name in plan.leaving if name in serving - bad],
        "removing {}: unhealthy": [name for name in plan.leaving if name in bad],
        "removing {}: not needed before it served": [name for name in plan.leaving if name not in serving | bad],
    }
    said = "; ".join(what.format(", ".join(names)) for what, names in parts.items() if names)
    reason = reasons.ROLLING_OUT if plan.retiring else reasons.DRAINING if parts["draining {}"] else reasons.REMOVING
    return reason, said + _going(observed, plan, reason)


def _going(observed: Observed, plan: Plan, reason: Reason) -> str:
    """Since when replicas go for this reason, and when their requests are ended. No object has the first time: the last status keeps it."""
    last = next((one.message for one in observed.status.conditions if (one.type, one.reason) == (RECONCILING.name, reason.name)), "")
    since = _GOING_SINCE.search(last)
    until = max((pod.drain_deadline_ms or 0 for pod in observed.pods if pod.name in plan.leaving), default=0)
    then = f"at {stamp(until / 1000)} their requests are ended" if until and reason is not reasons.REMOVING else NO_DEADLINE
    return waiting((unix(since[1]) if since else None) or observed.now, then)


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


def _progress(observed: Observed, plan: Plan, pods: list[Pod]) -> Stage:
    """Why not yet: what blocks all replicas, else the least advanced one."""
    if plan.denied:
        return Stage(0, reasons.FORBIDDEN, plan.denied)
    return _blocked(observed, plan, pods) or _of_replicas(observed, plan, pods)


def _of_replicas(observed: Observed, plan: Plan, pods: list[Pod]) -> Stage:
    found = min((stage(observed, pod) for pod in pods if not pod.ready), key=lambda one: one.rank, default=None)
    if found and len(pods) >= observed.wanted:
        return found
    deployment = observed.find(DEPLOYMENTS, plan.current.name) if plan.current else None
    if deployment is not None and (failure := deployment.condition("ReplicaFailure")).get("status") == "True":
        until = next((lack.until for lack in refused(deployment)), None)
        return Stage(0, reasons.CREATING_PODS, failure.get("message", ""), unix(failure.get("lastTransitionTime")) or 0.0, until)
    if not found and plan.rollout is not None and plan.rollout.waits:
        return Stage(0, reasons.ROLLING_OUT, plan.rollout.waits)
    if not found and plan.leaving:
        return Stage(0, *_leaving(observed, plan))
    return found or Stage(0, reasons.CREATING_PODS, "pods are being created")


def _at_deadline(observed: Observed, plan: Plan, found: Stage) -> str:
    """What happens if a replica gets no further. Only a rollout gives up; else a wait may be as long as an image or a node takes."""
    if plan.rollout is not None and plan.rollout.gives_up and not plan.waiting:
        if found.reason in _FAILED:
            return f"after its second restart {_RETURNS}"
        until = found.until if found.until is not None else _patience(observed, plan)
        return f"at {stamp(round(until))} {_RETURNS}" if until is not None else NO_DEADLINE
    if found.reason is reasons.FETCHING_MODEL:  # the startup probe of the sidecar has a day (render/fetch.py)
        return "the kubelet restarts a fetch that takes longer than a day"
    if found.reason is reasons.LOADING_MODEL:
        load_s = parse_duration((observed.spec.engine.load_timeout if observed.spec else None) or _LOAD)
        return f"the kubelet restarts a load that stands still for {load_s:.0f} s"
    return NO_DEADLINE


def _patience(observed: Observed, plan: Plan) -> float | None:
    """When the Deployment controller gives up waiting for progress, in Unix seconds."""
    deployment = observed.find(DEPLOYMENTS, plan.current.name) if plan.current else None
    moved = unix(deployment.condition("Progressing").get("lastUpdateTime")) if deployment else None
    return moved + deployment.body["spec"]["progressDeadlineSeconds"] if deployment and moved is not None else None


def _blocked(observed: Observed, plan: Plan, pods: list[Pod]) -> Stage | None:
    """Another object must be deleted first, a trial must pass, or all devices are in use; a pod with a node has its own."""
    if plan.waiting:
        there = (*observed.children, *observed.strangers)
        begun = (child.meta.get("deletionTimestamp") for child in there if f"{child.resource.kind} {child.name}" == plan.waiting)
        return Stage(0, reasons.WAITING, f"waiting until {plan.waiting} is deleted", unix(next(begun, None)) or 0.0)
    if plan.rollout is not None and plan.rollout.tries and plan.rollout.waits:
        return Stage(0, reasons.ROLLING_OUT, plan.rollout.waits)
    if plan.placement is None or any(pod.scheduled for pod in pods):
        return None
    awaited = plan.placement.awaited(observed.node_deadline)
    return Stage(0, *awaited) if awaited is not None else None


def _below_ceiling(plan: Plan, spec: InferenceServiceSpec) -> str:
    """The end of a message, if the KV cache holds fewer requests of full length than are allowed to decode."""
    held, most = plan.placement.status.concurrency if plan.placement else None, spec.engine.max_concurrency
    if held is None or held >= most:
        return ""
    tokens = spec.engine.max_model_len or LEAST_CONTEXT
    return f"; a replica's KV cache holds {held} of maxConcurrency {most} requests at {tokens:,} tokens"


def _of_no_effect(spec: InferenceServiceSpec) -> str:
    """The end of a message. It depends on the spec alone, so that it changes only with the spec."""
    yet, idle = ignored_fields(spec), idle_scaling(spec.scaling) if spec.scaling else ()
    unused = f"; not acted on yet: {', '.join(yet)}" if yet else ""
    return f"{unused}; of no effect in mode {spec.scaling.mode}: {', '.join(idle)}" if idle and spec.scaling else unused
