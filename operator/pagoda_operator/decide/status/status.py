"""Says what is: `status(observed, plan, url, now)` renders the status by kstatus' rules. Pure; `reconcile` writes it where it differs.

Ready is True only while the current revision has its replicas. Reconciling carries why not yet, Stalled what only a person cures.
Messages hold nothing that changes by itself (back-off times, restart counts): each change would be a write.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple

from pagoda_contracts.conditions.service import (
    AVAILABLE,
    CANARY,
    CREATING_PODS,
    DRAINING,
    FORBIDDEN,
    MODEL_REJECTED,
    NOT_STALLED,
    QUOTA_EXCEEDED,
    ROLLED_BACK,
    ROLLING_OUT,
    SCALED_TO_ZERO,
    SETTLED,
    WAITING,
    WAITING_FOR_CAPACITY,
)
from pagoda_contracts.conditions.types import DEGRADED, READY, RECONCILING, STALLED, ConditionType, Reason
from pagoda_contracts.names import EXIT_PERMANENT
from pagoda_contracts.resources.meta import Condition
from pagoda_contracts.resources.service import InferenceServiceStatus, RevisionStatus
from pagoda_contracts.resources.status import ScalingDecision, ScalingStatus

from pagoda_operator.api.pods import Pod
from pagoda_operator.api.state import DEPLOYMENTS, Json, Observed
from pagoda_operator.decide.health.health import Health
from pagoda_operator.decide.plan import Plan, owner_of
from pagoda_operator.decide.replicas.stages import STAGES, clean
from pagoda_operator.decide.scale.autoscale import limited
from pagoda_operator.decide.status.expect import expected
from pagoda_operator.decide.status.ignored_fields import in_vain
from pagoda_operator.decide.status.name_conflict import held_names
from pagoda_operator.decide.status.outdated import outdated
from pagoda_operator.decide.status.status_health import health_condition

_MAX_REASON: Final = 512
_MAX_DECISIONS: Final = 5
_MAX_REVISIONS: Final = 16

State = Literal["True", "False", "Unknown"]


class Verdict(NamedTuple):
    """Where the service stands, in one reason and one sentence."""

    kind: Literal["settled", "serving", "reconciling", "stalled"]
    reason: Reason
    message: str


def status(observed: Observed, plan: Plan, url: str | None, now: str) -> dict[str, Any]:
    """The whole status on the wire; `now` stamps the conditions whose status flips."""
    pods = [pod for pod in observed.pods if pod.counts]
    owner = owner_of(observed)
    told = InferenceServiceStatus(
        observed_generation=observed.meta.generation,
        conditions=_conditions(observed, verdict(observed, plan), plan.health, now),
        replicas=len(pods),
        ready_replicas=sum(pod.serves for pod in pods),
        served_names=held_names(observed),
        selector=",".join(f"{name}={value}" for name, value in owner.selector.items()),
        url=url,
        ready_expected_at=expected(pods, observed.wanted, observed.starts),
        scaling=_scaling(observed, now),
        placement=plan.placement.status if plan.placement else None,
        rollout=plan.rollout.record if plan.rollout else observed.status.rollout,
        outdated=outdated(observed, plan),
        revisions=_revisions(pods, plan.rollout.weights if plan.rollout else {}),
    )
    return told.wire()


def _scaling(observed: Observed, now: str) -> ScalingStatus | None:
    """What scaling wants, and the last times that it wanted another number."""
    if observed.spec is None:
        return None
    if observed.scaling is None:
        return ScalingStatus(desired=observed.wanted)
    last, decision = observed.status.scaling or ScalingStatus(), observed.scaling
    reason, before = decision.reason, observed.spec.replicas if last.desired is None else last.desired
    if observed.wanted < decision.replicas:
        reason = limited(reason, decision.replicas, f"the quota allows {observed.wanted}")
    reason = clean(reason)[:_MAX_REASON]
    decisions = last.last_decisions
    if observed.wanted != before:
        new = ScalingDecision.model_validate({"time": now, "from": before, "desired": observed.wanted, "reason": reason})
        decisions = (*decisions, new)[-_MAX_DECISIONS:]
    return ScalingStatus(desired=observed.wanted, reason=reason, last_decisions=decisions)


def verdict(observed: Observed, plan: Plan) -> Verdict:
    """The one thing to say; what the spec asks for in vain is said with it."""
    told = _limited(observed, plan, _verdict(observed, plan))
    return told._replace(message=f"{told.message}{in_vain(observed.spec)}") if observed.spec else told


def _verdict(observed: Observed, plan: Plan) -> Verdict:
    if plan.held is not None:
        return Verdict("reconciling", plan.held.reason, clean(plan.held.message) + _serving(observed, plan))
    if plan.problem is not None:
        return Verdict("stalled", plan.problem.reason, clean(plan.problem.message) + _serving(observed, plan))
    if (told := _rollout(observed, plan)) is not None:
        return told
    pods = _current(observed, plan)
    ready, wanted = sum(pod.serves for pod in pods), observed.wanted
    rejected = next((why for pod in pods if not pod.ready and (why := _rejection(pod)) is not None), None)
    if rejected is not None and ready == 0:
        return Verdict("stalled", MODEL_REJECTED, (clean(rejected) or "no reason given") + _serving(observed, plan))
    if plan.current and observed.find(DEPLOYMENTS, plan.current.name) and ready >= wanted and not plan.denied:
        return _arrived(plan, ready, wanted)
    reason, message = _progress(observed, plan, pods)
    return Verdict("reconciling", reason, f"{ready} of {wanted} replicas ready: {clean(message)}" + _serving(observed, plan))


def _limited(observed: Observed, plan: Plan, told: Verdict) -> Verdict:
    """What quota keeps from the service. Only a person cures that where he asked for the number, or where nothing at all is left; what
    scaling asked for is served as far as it goes."""
    why = plan.over_quota or (observed.quota.why if observed.quota is not None and observed.limited else "")
    if not why or told.kind == "stalled":
        return told
    if observed.limited and observed.wanted < max(1, observed.asked) and (observed.scaling is None or observed.wanted == 0):
        ready = sum(pod.ready for pod in observed.pods if pod.counts)
        return Verdict("stalled", QUOTA_EXCEEDED, f"{ready} of {observed.asked} replicas ready: {why}")
    return told._replace(message=f"{told.message}; {why}")


def _rollout(observed: Observed, plan: Plan) -> Verdict | None:
    """A new revision that was turned back, or one that has its share of requests; None for whatever else it is at."""
    record = plan.rollout.record if plan.rollout is not None else None
    if plan.rollout is None or record is None:
        return None
    if record.phase == "RolledBack":
        return Verdict("stalled", ROLLED_BACK, clean(record.reason or "rolled back") + _serving(observed, plan))
    ready = sum(pod.serves for pod in observed.pods)
    if record.phase != "Progressing" or record.since is None or not plan.rollout.weights or ready < observed.wanted:
        return None
    share = f"the new revision gets {plan.rollout.weights.get(record.revision, 0)} % of the requests"
    waits = f"; {plan.rollout.waits}" if plan.rollout.waits else ""
    return Verdict("serving", CANARY, f"{observed.wanted} of {observed.wanted} replicas ready: {share}{waits}")


def _rejection(pod: Pod) -> str | None:
    """What the daemon, or the sidecar that fetches for it, calls incurable."""
    if pod.exit_code == EXIT_PERMANENT:
        return pod.exit_message
    return pod.fetching.exit_message if pod.fetching.permanent else None


def _arrived(plan: Plan, ready: int, wanted: int) -> Verdict:
    message = f"{ready} of {wanted} replicas ready" if wanted else "scaled to zero"
    if plan.rollout is not None and plan.rollout.waits:
        return Verdict("serving", ROLLING_OUT, f"{message}; {plan.rollout.waits}")
    if plan.retiring:
        return Verdict("serving", ROLLING_OUT, f"{message}; draining {', '.join(plan.retiring)}")
    if plan.leaving:
        return Verdict("serving", DRAINING, f"{message}; draining {', '.join(plan.leaving)}")
    return Verdict("settled", AVAILABLE if wanted else SCALED_TO_ZERO, message)


def _serving(observed: Observed, plan: Plan) -> str:
    """What older revisions still do, for the end of a message."""
    mine = {pod.name for pod in _current(observed, plan)}
    others = sum(pod.serves for pod in observed.pods if pod.name not in mine)
    told = f"{others} ready replicas of an older revision continue" if others > 1 else "1 ready replica of an older revision continues"
    return f"; {told} to serve" if others else ""


def _current(observed: Observed, plan: Plan) -> list[Pod]:
    if plan.current is None:
        return []
    mine = (plan.current.hash, plan.current.accelerator)
    return [pod for pod in observed.pods if pod.counts and (pod.revision, pod.accelerator) == mine]


def _progress(observed: Observed, plan: Plan, pods: list[Pod]) -> tuple[Reason, str]:
    """Why not yet: what holds all of it, else the least advanced replica speaks."""
    if plan.denied:
        return FORBIDDEN, plan.denied
    return _held_up(plan, pods) or _of_replicas(observed, plan, pods)


def _of_replicas(observed: Observed, plan: Plan, pods: list[Pod]) -> tuple[Reason, str]:
    wanted = observed.wanted
    waiting = [pod for pod in pods if not pod.ready]
    told = [(reason, message) for tell in STAGES for pod in waiting if (found := tell(pod)) for reason, message in [found]]
    if told and len(pods) >= wanted:
        return told[0]
    deployment = observed.find(DEPLOYMENTS, plan.current.name) if plan.current else None
    failure: Json = deployment.condition("ReplicaFailure") if deployment else {}
    if failure.get("status") == "True":
        return CREATING_PODS, failure.get("message", "")
    if not told and plan.rollout is not None and plan.rollout.waits:
        return ROLLING_OUT, plan.rollout.waits
    if not told and plan.leaving:
        return ROLLING_OUT if plan.retiring else DRAINING, f"draining {', '.join(plan.leaving)}"
    return told[0] if told else (CREATING_PODS, "pods are being created")


def _held_up(plan: Plan, pods: list[Pod]) -> tuple[Reason, str] | None:
    """Something must go first; devices would do and are all in use, but a pod that has a node after all has got its own."""
    if plan.waiting:
        return WAITING, f"waiting until {plan.waiting} is deleted"
    if plan.rollout is not None and plan.rollout.tries and plan.rollout.waits:
        return ROLLING_OUT, plan.rollout.waits
    awaited = plan.placement.status.waiting if plan.placement else None
    if awaited is None or any(pod.scheduled for pod in pods):
        return None
    return WAITING_FOR_CAPACITY, f"waiting for {awaited.accelerator} since {awaited.since}: {awaited.why}"


def _conditions(observed: Observed, told: Verdict, health: Health, now: str) -> tuple[Condition, ...]:
    last = {condition.type: condition for condition in observed.status.conditions}
    wanted: tuple[tuple[ConditionType, State], ...] = (
        (READY, _ready(observed, told, last.get(READY.name))),
        (RECONCILING, "True" if told.kind in ("serving", "reconciling") else "False"),
        (STALLED, "True" if told.kind == "stalled" else "False"),
    )
    lines = [_condition(observed, told, (kind, state), last.get(kind.name), now) for kind, state in wanted]
    return (*lines, *health_condition(observed, health, last.get(DEGRADED.name), now))


def _ready(observed: Observed, told: Verdict, last: Condition | None) -> State:
    """Unknown on the way to a generation's first readiness, False where it is lost or cannot come."""
    if told.kind in ("settled", "serving"):
        return "True"
    known = last is not None and last.observed_generation == observed.meta.generation and last.status != "Unknown"
    return "False" if told.kind == "stalled" or known else "Unknown"


def _condition(observed: Observed, told: Verdict, wanted: tuple[ConditionType, State], last: Condition | None, now: str) -> Condition:
    kind, state = wanted
    speaks = kind == READY or state == "True"
    return Condition(
        type=kind.name,
        status=state,
        reason=(told.reason if speaks else SETTLED if kind == RECONCILING else NOT_STALLED).name,
        message=told.message if speaks else "",
        observed_generation=observed.meta.generation,
        last_transition_time=last.last_transition_time if last is not None and last.status == state else now,
    )


def _revisions(pods: list[Pod], weights: Mapping[str, int]) -> tuple[RevisionStatus, ...]:
    """Those with replicas or with a share: a new one's share of nothing is told before its first replica is ready."""
    hashes = sorted({pod.revision for pod in pods} | set(weights))[:_MAX_REVISIONS]
    return tuple(
        RevisionStatus(
            hash=name,
            replicas=sum(pod.revision == name for pod in pods),
            ready_replicas=sum(pod.serves for pod in pods if pod.revision == name),
            weight=weights.get(name),
        )
        for name in hashes
    )
