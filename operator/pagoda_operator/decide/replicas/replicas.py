"""The replicas of each revision: what state they are in, and what each Deployment is asked for on its way to its target. Pure; called by
`plan`, and read by `rollout`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from pagoda_contracts.conditions.service import NOT_SERVED_YET
from pagoda_contracts.conditions.types import SERVING
from pagoda_contracts.launch import DaemonConfig
from pagoda_contracts.names import ANNOTATION_WITH_SUCCESSOR, EXIT_PERMANENT, LABEL_ACCELERATOR, LABEL_REVISION
from pagoda_contracts.units import parse_duration
from pagoda_placement.revision import Revision
from pagoda_placement.values import unix

from pagoda_operator.api.pods import Order, Pod
from pagoda_operator.api.signals import Seen
from pagoda_operator.api.state import CONTROLLER_REVISIONS, DEPLOYMENTS, Child, Observed
from pagoda_operator.decide.render.writes import Annotate
from pagoda_operator.decide.replicas.drain import DrainState, Removal, drain
from pagoda_operator.decide.replicas.replica import NOT_MADE_S, Missing, broken, clean, missing, unverified

# The scheduler tries again whenever something leaves a node. After this time an autoscaler may have added one, and waiting helps no more.
_STUCK_S: Final = 60.0
# No event comes when a process has no gateway to listen to.
_UNVERIFIED_S: Final = 5.0
_DEFAULT_TIMEOUT: str = DaemonConfig.model_fields["drain_timeout"].default


@dataclass(frozen=True)
class RevisionState:
    """The replicas of one revision. `up` ones are Ready and stay. Of those, `ready` ones also answer; `unverified` says why one may not.
    `broken` ones cannot start, for the reason `why`. `placed` ones have a node; `short` ones have none for lack of capacity, and are
    `stuck` after a minute. `proven`: it served once. `again`: seconds until something may differ although no event comes."""

    name: str
    hash: str
    replicas: int = 0
    pods: int = 0
    up: int = 0
    ready: int = 0
    unverified: str = ""
    placed: int = 0
    broken: int = 0
    short: int = 0
    stuck: bool = False
    why: str = ""
    proven: bool = False
    number: int = 0
    again: float | None = None

    @property
    def total(self) -> int:
        """Its replicas: what was asked for, or more if more still serve."""
        return max(self.replicas, self.up)

    @property
    def occupied(self) -> int:
        """The places it takes: a pod that is not Ready has one as well."""
        return max(self.replicas, self.pods)


def current_state(observed: Observed, current: Revision) -> RevisionState:
    """The revision that the spec asks for, whether it has a Deployment or not."""
    live = observed.find(DEPLOYMENTS, current.name)
    return _state(observed, live) if live is not None else RevisionState(current.name, current.hash)


def old_states(observed: Observed, current: Revision) -> tuple[RevisionState, ...]:
    """All other revisions whose Deployments are not being deleted."""
    return tuple(_state(observed, child) for child in observed.of(DEPLOYMENTS) if child.name != current.name and not child.deleting)


def _state(observed: Observed, deployment: Child) -> RevisionState:
    pods = [pod for pod in pods_of(observed, deployment) if pod.counts]
    lacks = [lack for pod in pods if not pod.ready for lack in missing(observed, pod)]
    failed = [why for pod in pods if (why := broken(observed, pod))]
    denied = refused(deployment)
    late = deployment.rejected or _late(deployment) or next((lack.why for lack in denied if lack.until <= observed.now), "")
    kept = observed.find(CONTROLLER_REVISIONS, deployment.name)
    uncertain = {pod.name: unverified(observed, pod) for pod in pods if pod.serves}
    timers = [left for lack in (*lacks, *denied) if (left := lack.until - observed.now) > 0] + [_UNVERIFIED_S] * any(uncertain.values())
    short = [pod for pod in pods if pod.short][deployment.extra :]
    asked = deployment.ordered if deployment.extra else len(pods)  # no rollout decides by a successor
    return RevisionState(
        name=deployment.name,
        hash=str(deployment.body["spec"]["template"]["metadata"]["labels"].get(LABEL_REVISION, "")),
        replicas=deployment.ordered,
        pods=min(len(pods), asked),
        up=min(len(uncertain), asked),
        ready=min(sum(not why for why in uncertain.values()), asked),
        unverified=next((f"{name} is Ready, and {why}" for name, why in uncertain.items() if why), ""),
        placed=min(sum(pod.assigned for pod in pods), asked),
        broken=max(len(failed), 1 if late else 0),
        short=len(short),
        stuck=any(observed.now - (pod.unscheduled_since or observed.now) >= _STUCK_S for pod in short),
        why=failed[0] if failed else late,
        proven=_proven(deployment) and not deployment.rejected,
        number=int(kept.body["revision"]) if kept else 0,
        again=min(timers, default=None),
    )


def rejection(observed: Observed, deployment: Child) -> str:
    """Why its daemons refuse the model for good; empty if one does not, because the fault may be its node's. Empty also if one ever served:
    then the model's files may be repaired."""
    pods = [pod for pod in pods_of(observed, deployment) if pod.counts]
    if any(pod.ready for pod in pods):
        return ""
    if deployment.rejected or (_proven(deployment) and not _never_served(observed)):
        return deployment.rejected
    tried = [pod for pod in pods if pod.assigned]
    if not tried or any(pod.exit_code != EXIT_PERMANENT for pod in tried):
        return ""
    return clean(tried[0].exit_message) or "no reason given"


def _never_served(observed: Observed) -> bool:
    """The Deployment controller calls a Deployment complete also if it was made without replicas."""
    return any((one.type, one.reason) == (SERVING.name, NOT_SERVED_YET.name) for one in observed.status.conditions)


def refused(deployment: Child) -> tuple[Missing, ...]:
    """Pods that the API server refuses (a quota, PodSecurity, a webhook) show only in this condition."""
    failure = deployment.condition("ReplicaFailure")
    since = unix(failure.get("lastTransitionTime"))
    if failure.get("status") != "True" or failure.get("reason") != "FailedCreate" or since is None or not deployment.replicas:
        return ()
    return (Missing(since + NOT_MADE_S, f"{deployment.name}: {failure.get('message', 'its pods are refused')}"),)


def _late(deployment: Child) -> str:
    """The Deployment controller's own patience: a day without a replica that is made or becomes Ready."""
    condition = deployment.condition("Progressing")
    late = condition.get("reason") == "ProgressDeadlineExceeded" and deployment.replicas > 0
    return f"{deployment.name}: {condition.get('message', 'no progress')}" if late else ""


def _proven(deployment: Child) -> bool:
    """Available now, or complete once: a node's hiccup must not count as a bad revision."""
    available = deployment.body.get("status", {}).get("availableReplicas", 0) > 0
    return bool(available or deployment.condition("Progressing").get("reason") == "NewReplicaSetAvailable")


@dataclass(frozen=True)
class Steps:
    """The next steps of all Deployments: replicas to ask for by name, annotations, orders, and the names of the pods that drain."""

    replicas: Mapping[str, int]
    annotate: tuple[Annotate, ...]
    orders: tuple[Order, ...]
    leaving: tuple[str, ...]
    # By Deployment of which one replica is the successor of an unhealthy one (health.py): the annotation that goes with its number.
    notes: Mapping[str, Mapping[str, str]]
    drains: tuple[DrainState, ...]


def steps(observed: Observed, targets: Mapping[str, int], succeeded: Mapping[str, int], order: Mapping[str, Removal]) -> Steps:
    """What each live Deployment is asked for on its way to its target; one that does not exist yet is made with its target. `succeeded`:
    the targets with a successor of an unhealthy replica; `order`: in which order pods are removed, by name."""
    live = [child for child in observed.of(DEPLOYMENTS) if child.name in targets]
    states = {child.name: _drain_state(observed, child, succeeded[child.name], order) for child in live}
    drains = {name: drain(state) for name, state in states.items()}
    replicas = {**succeeded, **{name: one.replicas for name, one in drains.items()}}
    extra = frozenset(child.name for child in live if _has_extra(child, targets[child.name], succeeded[child.name], replicas[child.name]))
    return Steps(
        replicas=replicas,
        annotate=(*(write for one in drains.values() for write in one.annotate), *_stale(live, replicas, extra)),
        orders=tuple(order for one in drains.values() for order in one.orders),
        leaving=tuple(name for one in drains.values() for name in one.leaving),
        notes={name: {ANNOTATION_WITH_SUCCESSOR: str(replicas[name])} for name in extra},
        drains=tuple(states.values()),
    )


def _has_extra(live: Child, target: int, succeeded: int, now: int) -> bool:
    """Whether a successor is part of the number that is asked for now: until the unhealthy replica, or the successor, has drained."""
    return now > target and (succeeded > target or (live.extra > 0 and now == live.replicas))


def _stale(live: list[Child], replicas: Mapping[str, int], extra: frozenset[str]) -> Iterator[Annotate]:
    """The annotation goes in the write that changes the number of replicas, or here if the Deployment has no other write."""
    for child in live:
        written = ANNOTATION_WITH_SUCCESSOR in child.meta.get("annotations", {})
        if written and child.name not in extra and replicas[child.name] == child.replicas:
            yield Annotate(child, {ANNOTATION_WITH_SUCCESSOR: None})


def pods_of(observed: Observed, deployment: Child) -> tuple[Pod, ...]:
    """A Deployment's pods, with those that are being deleted."""
    labels: Mapping[str, str] = deployment.body["spec"]["template"]["metadata"]["labels"]
    mine = (labels.get(LABEL_REVISION), labels.get(LABEL_ACCELERATOR))
    return tuple(pod for pod in observed.pods if (pod.revision, pod.accelerator) == mine)


def _drain_state(observed: Observed, deployment: Child, target: int, order: Mapping[str, Removal]) -> DrainState:
    endpoints = observed.signals.endpoints if observed.signals is not None else {}
    kept = observed.find(CONTROLLER_REVISIONS, deployment.name)
    config = kept.body["data"]["daemonConfig"] if kept else {}
    return DrainState(
        pods=pods_of(observed, deployment),
        replicas=deployment.replicas,
        target=target,
        # What the pods' daemons and their grace period were rendered with.
        timeout_s=parse_duration(config.get("drainTimeout", _DEFAULT_TIMEOUT)),
        now=observed.now,
        answers=observed.answers,
        in_flight={name: signal.in_flight for name, signal in endpoints.items() if signal.verdict is Seen.FRESH},
        order=order,
        sole=observed.sole_adapters,
    )
