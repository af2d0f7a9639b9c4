"""The two sides of a rollout, counted from what is observed: per Deployment how many replicas are asked for, serve, or cannot. Pure; `plan`
makes them for `rollout`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from pagoda_contracts.names import EXIT_PERMANENT, LABEL_REVISION

from pagoda_operator.api.pods import Pod
from pagoda_operator.api.state import CONTROLLER_REVISIONS, DEPLOYMENTS, Child, Observed
from pagoda_operator.decide.render.children import Revision
from pagoda_operator.decide.replicas.replicas import pods_of
from pagoda_operator.decide.replicas.sickness import doubt
from pagoda_operator.inventory.values import unix

# The scheduler tries again whenever something leaves a node; what is still without one after this is not helped by the next second,
# and somebody may have added a node by then.
STUCK_S: Final = 60.0
# What a pull comes to once it failed and was put off; ErrImagePull alone may be a registry's hiccup.
_NO_IMAGE: Final = frozenset({"ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"})
# A daemon that ended twice ends a third time.
_CRASHES: Final = 2
# What a replica cannot be made for may appear yet (a Secret, a claim, a label of a node, room in a quota): so long it is waited for. The
# Deployment controller's day is for what moves.
_NOT_MADE: Final = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
_NOT_MADE_S: Final = 600.0


# That no gateway was found is no event.
_DOUBT_S: Final = 5.0


class _Lack(NamedTuple):
    """Something is missing that may appear yet: since when, in Unix seconds, and a sentence."""

    since: float
    why: str

    def left(self, now: float) -> float:
        """Seconds that it is still waited for."""
        return self.since + _NOT_MADE_S - now


@dataclass(frozen=True)
class Side:
    """One revision's Deployment. `up` replicas are Ready and stay; of those `ready` ones also answer, as far as anybody tells, and `doubt`
    says of one that does not, why; `broken` ones cannot come up, `why` in a sentence; `placed` ones have a node; `short` ones have none for
    lack of capacity, `stuck` where for long. `again`: in how many seconds something may be otherwise though no event comes."""

    name: str
    hash: str
    replicas: int = 0
    pods: int = 0
    up: int = 0
    ready: int = 0
    doubt: str = ""
    placed: int = 0
    broken: int = 0
    short: int = 0
    stuck: bool = False
    why: str = ""
    proven: bool = False
    number: int = 0
    again: float | None = None

    @property
    def held(self) -> int:
        """What it has to give: somebody else may have asked for less than serve."""
        return max(self.replicas, self.up)


def current_side(observed: Observed, current: Revision) -> Side:
    """The revision that the spec asks for, whether anything of it exists or not."""
    live = observed.find(DEPLOYMENTS, current.name)
    return _side(observed, live) if live is not None else Side(current.name, current.hash)


def old_sides(observed: Observed, current: Revision) -> tuple[Side, ...]:
    """All others that are not on their way out."""
    return tuple(_side(observed, child) for child in observed.of(DEPLOYMENTS) if child.name != current.name and not child.deleting)


def _side(observed: Observed, deployment: Child) -> Side:
    pods = [pod for pod in pods_of(observed, deployment) if pod.counts]
    lacks = [lack for pod in pods if not pod.ready for lack in _lacks(observed, pod)]
    lost = {pod.name: why for pod in pods if (why := broken(observed, pod))}
    refused = _refused(deployment)
    late = _late(deployment) or next((lack.why for lack in refused if lack.left(observed.now) <= 0), "")
    kept = observed.find(CONTROLLER_REVISIONS, deployment.name)
    doubts = {pod.name: doubt(observed, pod) for pod in pods if pod.serves}
    timers = [left for lack in (*lacks, *refused) if (left := lack.left(observed.now)) > 0] + [_DOUBT_S] * any(doubts.values())
    short = [pod for pod in pods if pod.short][deployment.extra :]
    asked = deployment.ordered if deployment.extra else len(pods)  # no rollout decides by a successor
    return Side(
        name=deployment.name,
        hash=str(deployment.body["spec"]["template"]["metadata"]["labels"].get(LABEL_REVISION, "")),
        replicas=deployment.ordered,
        pods=min(len(pods), asked),
        up=min(len(doubts), asked),
        ready=min(sum(not told for told in doubts.values()), asked),
        doubt=next((f"{name} is Ready, and {told}" for name, told in doubts.items() if told), ""),
        placed=min(sum(pod.assigned for pod in pods), asked),
        broken=max(len(lost), 1 if late else 0),
        short=len(short),
        stuck=any(observed.now - (pod.unscheduled_since or observed.now) >= STUCK_S for pod in short),
        why=next(iter(lost.values()), late),
        proven=_proven(deployment),
        number=int(kept.body["revision"]) if kept else 0,
        again=min(timers, default=None),
    )


def broken(observed: Observed, pod: Pod) -> str:
    """Why it cannot come up; empty while it still may, however long that takes."""
    if pod.ready:
        return ""
    if pod.exit_code == EXIT_PERMANENT or (pod.exit_code is not None and pod.restarts >= _CRASHES):
        return f"{pod.name} ended with exit code {pod.exit_code}: {pod.exit_message or pod.exit_reason or 'no reason given'}"
    if pod.fetching.permanent:
        return f"{pod.name} cannot fetch the model: {pod.fetching.exit_message or 'no reason given'}"
    if pod.waiting in _NO_IMAGE:
        return _waits(pod)
    return next((lack.why for lack in _lacks(observed, pod) if lack.left(observed.now) <= 0), "")


def patience(observed: Observed, pod: Pod) -> float | None:
    """In how many seconds it counts as one that cannot come up though no event comes."""
    waits = [left for lack in _lacks(observed, pod) if (left := lack.left(observed.now)) > 0]
    return min(waits, default=None)


def _waits(pod: Pod) -> str:
    return f"{pod.name}: {pod.waiting_message or pod.waiting}"


def _lacks(observed: Observed, pod: Pod) -> Iterator[_Lack]:
    """What it cannot be made for. An image on its way is none, nor is a node that brings what is short."""
    if pod.waiting in _NOT_MADE:
        yield _Lack(pod.created, _waits(pod))
    if pod.unschedulable and not pod.assigned and not pod.short:
        since = observed.unschedulable.get(pod.uid, pod.unscheduled_since or pod.created)
        yield _Lack(since, f"{pod.name} has no node: {pod.unscheduled}")
    if pod.unmounted_since is not None and pod.assigned:
        yield _Lack(pod.unmounted_since, f"{pod.name}: its volumes are not mounted or it has no network; its Events say what is missing")


def _refused(deployment: Child) -> tuple[_Lack, ...]:
    """Pods that the API server lets nobody make (a quota, PodSecurity, a webhook) leave their trace here alone."""
    told = deployment.condition("ReplicaFailure")
    since = unix(told.get("lastTransitionTime"))
    if told.get("status") != "True" or told.get("reason") != "FailedCreate" or since is None or not deployment.replicas:
        return ()
    return (_Lack(since, f"{deployment.name}: {told.get('message', 'its pods are refused')}"),)


def _late(deployment: Child) -> str:
    """The Deployment controller's own patience (a day without a replica that comes or becomes ready)."""
    condition = deployment.condition("Progressing")
    late = condition.get("reason") == "ProgressDeadlineExceeded" and deployment.replicas > 0
    return f"{deployment.name}: {condition.get('message', 'no progress')}" if late else ""


def _proven(deployment: Child) -> bool:
    """Available now, or complete once: a node's hiccup must not count as a bad revision."""
    available = deployment.body.get("status", {}).get("availableReplicas", 0) > 0
    return bool(available or deployment.condition("Progressing").get("reason") == "NewReplicaSetAvailable")
