"""The status of a service by kstatus' rules: `status(observed, plan, url, now)`. Pure; `reconcile` writes it if it differs.

Ready is True while the current revision is rolled out with enough replicas (`verdict`), Serving while any replica takes requests.
Reconciling says what is under way, Stalled what a person must do. Degraded says which replicas are unhealthy; a service that never had one
has no Degraded, and kstatus does not read it. It stays until a gateway reports that the replica is well, since a new process does not know
how long a verdict has lasted. Nothing in a status changes by itself: each change would be a write.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from pagoda_contracts.conditions.health import DEVICE_FAULT, REPLACEMENT_DELAYED, WELL
from pagoda_contracts.conditions.service import NO_REPLICA, NOT_SERVED_YET, TAKES_REQUESTS
from pagoda_contracts.conditions.types import DEGRADED, READY, SERVING
from pagoda_contracts.resources.meta import Condition
from pagoda_contracts.resources.service import InferenceServiceStatus, RevisionStatus
from pagoda_contracts.resources.status import ScalingDecision, ScalingStatus, StartStatus
from pagoda_placement.values import stamp, unix

from pagoda_operator.api.conditions import Conditions, State
from pagoda_operator.api.errors import SpecProblem
from pagoda_operator.api.pods import Pod
from pagoda_operator.api.signals import MISSING_S
from pagoda_operator.api.state import CONTROLLER_REVISIONS, DEPLOYMENTS, Observed
from pagoda_operator.decide.children import CLAIM, Where, render
from pagoda_operator.decide.health import Health
from pagoda_operator.decide.plan import Plan, owner_of
from pagoda_operator.decide.render.children import Manifest
from pagoda_operator.decide.render.overlay import lost, written
from pagoda_operator.decide.replicas.replica import clean, reported_fault
from pagoda_operator.decide.scale.autoscale import limited
from pagoda_operator.decide.status.verdict import Verdict, has_served, verdict

_MAX_REASON: Final = 512
_MAX_DECISIONS: Final = 5
_MAX_REVISIONS: Final = 16
_MAX_FAULTY: Final = 512
_MAX_OUTDATED: Final = 512
_MAX_NAMED: Final = 5
_MAX_MESSAGE: Final = 1000


def status(observed: Observed, plan: Plan, url: str | None, now: str) -> dict[str, Any]:
    """The whole status on the wire; `now` stamps the conditions whose status flips."""
    pods = [pod for pod in observed.pods if pod.counts]
    wanted = InferenceServiceStatus(
        observed_generation=observed.meta.generation,
        conditions=_conditions(observed, verdict(observed, plan), plan.health, now),
        replicas=len(pods),
        ready_replicas=sum(pod.serves for pod in pods),
        served_names=_served_names(observed),
        adapter_names=observed.adapter_names or None,
        selector=",".join(f"{name}={value}" for name, value in owner_of(observed).selector.items()),
        url=url,
        faulty_replicas=tuple(sorted(pod.name for pod in pods if reported_fault(observed, pod)))[:_MAX_FAULTY] or None,
        ready_expected_at=expected(pods, observed.wanted, observed.starts, observed.now),
        last_start=last_start(observed),
        scaling=_scaling(observed, now),
        placement=plan.placement.status if plan.placement else None,
        rollout=plan.rollout.record if plan.rollout else observed.status.rollout,
        outdated=outdated(observed, plan),
        revisions=_revisions(pods, plan.rollout.weights if plan.rollout else {}),
    )
    return wanted.wire()


def _conditions(observed: Observed, found: Verdict, health: Health, now: str) -> tuple[Condition, ...]:
    conditions = Conditions.after(observed.status.conditions, observed.meta.generation, now)
    ready = _ready(found, conditions.known(READY))
    said, stalled = (found.reason.name, found.message), found.kind == "stalled"
    three = conditions.three(ready, said, reconciling=found.kind == "reconciling", stalled=stalled)
    return (*three, _serving(observed, conditions), *_degraded(observed, health, conditions))


def _ready(found: Verdict, known: Condition | None) -> State:
    """Unknown on the way to a generation's first readiness; False if it is lost or needs a person."""
    if found.ready:
        return "True"
    return "False" if found.kind == "stalled" or known is not None else "Unknown"


def _serving(observed: Observed, conditions: Conditions) -> Condition:
    """Whether any replica takes requests. Its message has no numbers: each change would be a write."""
    if any(pod.serves for pod in observed.pods):
        return conditions.one(SERVING, "True", TAKES_REQUESTS.name, _unrouted(observed))
    return conditions.one(SERVING, "False", (NO_REPLICA if has_served(observed) else NOT_SERVED_YET).name, "")


def _unrouted(observed: Observed) -> str:
    """Said of replicas that have been Ready for a minute, if all gateways report, and none has had any of them for a minute."""
    signals = observed.signals
    if signals is None or not signals.fresh or not signals.wakes or signals.endpoints or not MISSING_S <= observed.unheard_s < math.inf:
        return ""
    if not any(pod.serves and pod.ready_since is not None and observed.now - pod.ready_since >= MISSING_S for pod in observed.pods):
        return ""
    name = observed.meta.name
    return f"gateways have none of its replicas and hold its requests; look at Service {name} and its EndpointSlices"


def down(status: Mapping[str, Any]) -> bool:
    """Whether a service has served before, and by its status neither serves, nor sleeps, nor starts in the time that a start takes."""
    lines = {line["type"]: line for line in status["conditions"]}
    waits = lines[SERVING.name]["reason"] == NO_REPLICA.name and lines[READY.name]["status"] != "True"
    return bool(waits and not status.get("readyExpectedAt"))


def _degraded(observed: Observed, health: Health, conditions: Conditions) -> tuple[Condition, ...]:
    """Which replicas are unhealthy and what is done about it; no condition if there never was one."""
    before = conditions.last.get(DEGRADED.name)
    if health.unhealthy:
        reason = REPLACEMENT_DELAYED if health.paused else health.unhealthy[0].reason
        return (conditions.one(DEGRADED, "True", reason.name, _message(health)[:_MAX_MESSAGE]),)
    if before is None:
        return ()
    if before.status == "False":
        return (conditions.one(DEGRADED, "False", WELL.name, before.message),)
    if _still(observed, before):
        return (conditions.one(DEGRADED, "True", before.reason, before.message),)
    last = f"The last fault was {before.reason}, from {before.last_transition_time} on: {before.message}"
    return (conditions.one(DEGRADED, "False", WELL.name, last[:_MAX_MESSAGE]),)


def _still(observed: Observed, last: Condition) -> bool:
    """Whether a replica that gateways reported, and the message names, is still Ready and not reported to be well since."""
    if last.status != "True" or last.reason == DEVICE_FAULT.name:
        return False
    named = {part.partition(": ")[0] for part in last.message.split("; ")}
    there = [pod for pod in observed.pods if pod.name in named and pod.serves]
    heard = observed.signals.endpoints if observed.signals is not None else {}
    return any(pod.name not in heard or heard[pod.name].bad for pod in there)


def _message(health: Health) -> str:
    named = "; ".join(f"{one.pod.name}: {one.why}" for one in health.unhealthy[:_MAX_NAMED])
    more = len(health.unhealthy) - _MAX_NAMED
    return named + (f"; and {more} more" if more > 0 else "") + f". {health.paused or health.doing}"


def _served_names(observed: Observed) -> tuple[str, ...]:
    """Which of its names a service has; those of the last status if its spec cannot be read."""
    if observed.spec is None:
        return observed.status.served_names
    taken = {found.name for found in observed.taken}
    return tuple(name for name in observed.spec.model.served_names or (observed.meta.name,) if name not in taken)


def _scaling(observed: Observed, now: str) -> ScalingStatus | None:
    """What scaling wants, and the last times at which it changed its mind."""
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


def _revisions(pods: list[Pod], weights: Mapping[str, int]) -> tuple[RevisionStatus, ...]:
    """Revisions with replicas or with a share: a new one's share is shown before its first replica is Ready."""
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


def expected(
    pods: Sequence[Pod], wanted: int, remembered: Mapping[str, Sequence[float]] = MappingProxyType({}), now: float = 0.0
) -> str | None:
    """When the last of the starting replicas should serve, by how long others on the same accelerator took, or else by `remembered` starts
    in seconds. None if no replica is starting, if nothing is known of such a start, or if the time has passed.

    A countdown would be a write each second.
    """
    under_way = [pod for pod in pods if not pod.ready and pod.exit_code is None and pod.created]
    if not under_way or sum(pod.ready for pod in pods) >= wanted:
        return None
    moments = [pod.created + took for pod in under_way if (took := _start_took(pods, pod, remembered)) is not None]
    if len(moments) < len(under_way):
        return None
    return stamp(max(moments)) if max(moments) > now else None


def _start_took(pods: Iterable[Pod], like: Pod, remembered: Mapping[str, Sequence[float]]) -> float | None:
    """Seconds from creation to readiness, of replicas on the same accelerator that started without a restart."""
    peers = [pod for pod in pods if pod.accelerator == like.accelerator and pod.restarts == 0]
    took = [pod.ready_since - pod.created for pod in peers if pod.ready_since is not None and pod.created]
    known = took or remembered.get(like.accelerator, ())
    return statistics.median(known) if known else None


def last_start(observed: Observed) -> StartStatus | None:
    """How long the newest replica that started took; as before if none is newer. So it is written once, whatever becomes of the replica.
    One that was Ready before this process saw it may have lost that since: its times would count an outage as its load."""
    before, seen = observed.status.last_start, [pod for pod in observed.pods if pod.counts and pod.uid in observed.seen_starting]
    started = [(pod, took) for pod in seen if (took := observed.start_of(pod)) is not None]
    if not started:
        return before
    pod, took = max(started, key=lambda one: (one[0].created, one[0].name))
    if before is not None and (int(pod.created), pod.name) <= (unix(before.created_at) or 0.0, before.pod):
        return before
    seconds = {f"{phase}_seconds": count for phase, count in took._asdict().items()}
    return StartStatus(pod=pod.name, created_at=stamp(pod.created), ready_at=stamp(pod.ready_since or 0.0), **seconds)


def outdated(observed: Observed, plan: Plan) -> str | None:
    """What would be rendered differently now: the first path of each part; as in the last status if nothing can be rendered now. A
    rendering is pinned when it runs (children.py), so nothing rolls such replicas."""
    if plan.current is None or plan.placement is None or plan.placement.entry is None:
        return observed.status.outdated
    kept = observed.find(CONTROLLER_REVISIONS, plan.current.name)
    if kept is None or observed.find(DEPLOYMENTS, plan.current.name) is None:
        return None
    try:
        fresh = render(observed, owner_of(observed), plan.current, Where(plan.placement.entry, plan.placement.resolved))
    except SpecProblem:
        return observed.status.outdated
    return ", ".join(_differences(kept.body["data"], fresh))[:_MAX_OUTDATED] or None


def _differences(kept: Manifest, fresh: Manifest) -> Iterator[str]:
    for part in ("podTemplate", "daemonConfig", CLAIM):
        before, now = kept.get(part, {}), fresh.get(part, {})
        if before == now:  # nearly always: path by path it was a tenth of all CPU that changes cost
            continue
        path = found if (found := lost(now, before)) is not None else lost(before, now)
        if path is not None:
            yield written((part, *path))
