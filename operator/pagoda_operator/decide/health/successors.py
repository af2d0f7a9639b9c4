"""Who is sick of a Deployment, and who comes in their place. Pure; asked by `health` and `relief`."""

from __future__ import annotations

from collections.abc import Iterable

from pagoda_operator.api.pods import Pod
from pagoda_operator.api.state import DEPLOYMENTS, Child, Observed
from pagoda_operator.decide.replicas.drain import removal_class
from pagoda_operator.decide.replicas.replicas import pods_of
from pagoda_operator.decide.replicas.sickness import Sick
from pagoda_operator.decide.replicas.sides import broken


def deployment_of(observed: Observed, pod: Pod) -> Child | None:
    """Whose replica it is; None where nobody's."""
    return next((child for child in observed.of(DEPLOYMENTS) if pod in pods_of(observed, child)), None)


def ill(observed: Observed, deployment: Child, sick: Iterable[Sick]) -> int:
    """How many of its replicas are sick; those on their way out are not counted."""
    mine = {pod.name for pod in pods_of(observed, deployment)}
    return sum(one.pod.name in mine for one in sick)


def more(observed: Observed, deployment: Child) -> bool:
    """Whether it has more replicas than are asked for, or is still to lose one."""
    there = sum(pod.counts for pod in pods_of(observed, deployment))
    return bool(deployment.extra) or 0 < observed.wanted < max(deployment.replicas, there)


def loading(observed: Observed, deployment: Child, sick: Iterable[Sick]) -> tuple[Pod, ...]:
    """Those of its replicas that are on a node and will serve: the ReplicaSet takes them before any that is Ready."""
    return tuple(pod for pod in _sound(observed, deployment, sick) if pod.assigned and not pod.ready)


def before(observed: Observed, deployment: Child, pod: Pod, sick: Iterable[Sick]) -> bool:
    """Whether somebody loads whom the ReplicaSet would take before this one."""
    return any(removal_class(other) < removal_class(pod) for other in loading(observed, deployment, sick))


def comes(observed: Observed, deployment: Child, sick: Iterable[Sick]) -> bool:
    """Whether a replica of it that nothing bad is said of is there, or yet to be made; a faulty one that drains is none."""
    there = sum(pod.counts for pod in pods_of(observed, deployment))
    return there < deployment.replicas or bool(_sound(observed, deployment, sick))


def comes_elsewhere(observed: Observed, deployment: Child, sick: Iterable[Sick]) -> bool:
    """Whether one that has a node comes to another Deployment of the service."""
    others = (child for child in observed.of(DEPLOYMENTS) if child.name != deployment.name and not child.deleting)
    return any(pod.assigned for child in others for pod in _sound(observed, child, sick))


def _sound(observed: Observed, deployment: Child, sick: Iterable[Sick]) -> list[Pod]:
    names = {one.pod.name for one in sick}
    staying = (pod for pod in pods_of(observed, deployment) if pod.counts and pod.drain_deadline_ms is None)
    return [pod for pod in staying if pod.name not in names and not broken(observed, pod)]
