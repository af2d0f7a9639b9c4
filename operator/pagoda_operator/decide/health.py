"""Which replicas are unhealthy, in which order replicas are removed, and whether an unhealthy one gets a successor. Pure; called by `plan`.

A successor is one replica more of its Deployment, which says so in an annotation: the newest, and at most one for each service. When it is
Ready and answers, the target falls back, and the drain takes the unhealthy replica. An unhealthy successor stays, and no other one is
started: a person must look. Nothing is removed while more than half of the replicas do not answer: a wrong expected answer, a false alarm
or a gateway without network is then likelier than so many broken devices.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from pagoda_contracts.conditions.health import DEVICE_FAULT

from pagoda_operator.api.pods import Pod
from pagoda_operator.api.signals import MISSING_S
from pagoda_operator.api.state import DEPLOYMENTS, Child, Observed
from pagoda_operator.decide.replicas.drain import Removal
from pagoda_operator.decide.replicas.replica import Unhealthy, broken, unhealthy, unverified
from pagoda_operator.decide.replicas.replicas import pods_of

# No event of this service comes when another one leaves room in a quota.
_FULL_AGAIN_S: Final = 30.0
# Nor does one when a process has no gateway to listen to.
_UNHEARD_AGAIN_S: Final = 10.0
_REPLACING: Final = "A successor is starting. The operator drains the unhealthy replica when the successor is Ready."
_DRAINING: Final = "The operator drains an unhealthy replica."
_OTHERS: Final = "Other replicas are starting. A successor follows when they are Ready."
_NO_ROOM: Final = "A successor has no room: {}. It starts when there is room."
_NO_NODE: Final = "The successor {} has no node: {}"
_FAILED: Final = (
    "The successor {} is unhealthy as well, and the operator starts no other one. "
    "Check the model and the devices. To try again, delete that pod."
)
_MASS: Final = "{} ready replicas of {} are unhealthy at the same time. Automatic replacement is paused; check the model and the devices."


@dataclass(frozen=True, slots=True)
class Health:
    """All unhealthy replicas, the surest first; the order in which replicas are removed, by name. `doing`: what is done about the
    unhealthy ones; `paused`: why nothing is; `again`: in how many seconds that may differ."""

    unhealthy: tuple[Unhealthy, ...] = ()
    order: Mapping[str, Removal] = field(default_factory=dict)
    doing: str = "The operator replaces unhealthy replicas one at a time."
    paused: str = ""
    again: float | None = None


def judge(observed: Observed) -> Health:
    """Which replicas are unhealthy, and which are removed first and last."""
    found = unhealthy(observed)
    ill = {one.pod.name for one in found}
    uncertain = {pod.name for pod in observed.pods if pod.serves and unverified(observed, pod)}
    order = dict.fromkeys(uncertain, Removal.UNVERIFIED)
    order |= {one.pod.name: Removal.FAULTY if one.answers else Removal.FIRST for one in (*found, *unhealthy(observed, draining=True))}
    if not any(pod.serves and pod.name not in ill | uncertain for pod in observed.pods):
        order |= {one.pod.name: Removal.LAST for one in _in_use(found)}
    return Health(found, order)


def _in_use(found: Iterable[Unhealthy]) -> list[Unhealthy]:
    """Those that gateways use if no replica is healthy."""
    return [one for one in found if one.answers] or [one for one in found if one.wrong]


class Step(NamedTuple):
    """How many replicas a Deployment should have now; what is done about the unhealthy ones, or why nothing is."""

    replicas: int
    doing: str = ""
    paused: str = ""


@dataclass(frozen=True)
class Case:
    """One Deployment with unhealthy replicas. `target`: how many it should have without a successor; `staying`: its replicas, the oldest
    first; `extra`: whether it was given one more; `full`: by which quota there is no room for that; `mass`: why nothing is removed;
    `unsure`: a Ready replica may be unhealthy, which is not certain yet, as after a restart of this process."""

    target: int
    staying: tuple[Pod, ...]
    unhealthy: frozenset[str]
    starting: frozenset[str] = frozenset()
    serving: frozenset[str] = frozenset()
    extra: bool = False
    full: str = ""
    mass: str = ""
    unsure: bool = False


def step(case: Case) -> Step:
    """The whole rule."""
    if not case.target or not case.unhealthy:
        return Step(case.target + (case.extra and case.unsure and case.target > 0))
    if case.extra and not case.full:
        return _replacing(case)
    if len(case.staying) > case.target:
        return Step(case.target, _DRAINING)  # there are to be fewer, and the unhealthy ones go first
    no_room = _NO_ROOM.format(case.full) if case.full else ""
    if why := case.mass or no_room or (_OTHERS if case.starting else ""):
        return Step(case.target, paused=why)
    return Step(case.target + 1, _REPLACING)


def _replacing(case: Case) -> Step:
    """A successor was ordered: it is not made yet, or it is the newest replica."""
    waiting = Step(case.target + 1, _REPLACING)
    if len(case.staying) <= case.target:
        return waiting
    successor = case.staying[-1]
    if successor.name in case.unhealthy:
        return waiting._replace(paused=_FAILED.format(successor.name))
    if case.mass:
        return waiting._replace(paused=case.mass)
    if successor.unscheduled:
        return waiting._replace(paused=_NO_NODE.format(successor.name, successor.unscheduled))
    if successor.name in case.serving and not case.starting:
        return Step(case.target, _DRAINING)
    return waiting


def succession(observed: Observed, health: Health, targets: Mapping[str, int]) -> tuple[dict[str, int], Health]:
    """The targets, with one replica more if a successor is wanted, and what is said about the unhealthy replicas. That is decided for the
    one Deployment that has a successor, or else for the one with the surest unhealthy replica."""
    home = _home(observed, health, targets)
    if home is None:
        return dict(targets), health
    case = _case(observed, health, home, targets[home.name])
    found = step(case)
    decided = replace(health, doing=found.doing or health.doing, paused=found.paused, again=_again(observed, case))
    return {**targets, home.name: found.replicas}, decided


def _home(observed: Observed, health: Health, targets: Mapping[str, int]) -> Child | None:
    live = [child for child in observed.of(DEPLOYMENTS) if targets.get(child.name) and not child.deleting]
    if (given := next((child for child in observed.of(DEPLOYMENTS) if child.extra), None)) is not None:
        return given if given in live else None
    return next((child for one in health.unhealthy for child in live if one.pod in pods_of(observed, child)), None)


def _case(observed: Observed, health: Health, home: Child, target: int) -> Case:
    ill = frozenset(one.pod.name for one in health.unhealthy)
    mine = [pod for pod in pods_of(observed, home) if pod.counts]
    # A successor counts with the other replicas of its Deployment alone; before there is one, any that starts may be enough.
    others = mine if home.extra else observed.pods
    return Case(
        target,
        # Two of one second: the healthy one is the successor.
        tuple(sorted(mine, key=lambda pod: (pod.created, pod.name not in ill, pod.name))),
        ill.intersection(pod.name for pod in mine),
        frozenset(pod.name for pod in others if pod.name not in ill and _starts(observed, pod)),
        frozenset(pod.name for pod in mine if pod.serves and not unverified(observed, pod)),
        bool(home.extra),
        observed.full.get(home.name, ""),
        _mass(observed, health, mine),
        any(pod.serves and unverified(observed, pod) for pod in mine),
    )


def _starts(observed: Observed, pod: Pod) -> bool:
    """Whether it is on a node and will serve. A ReplicaSet that loses a replica takes such a one before any that is Ready."""
    return pod.counts and pod.assigned and not pod.ready and pod.drain_deadline_ms is None and not broken(observed, pod)


def _mass(observed: Observed, health: Health, mine: list[Pod]) -> str:
    """A sentence if more than half of several Ready replicas, of this revision or of the service, do not answer. A replica whose device is
    reported as faulty too does not count: two sources agree on it."""
    bad = {one.pod.name for one in health.unhealthy if one.reason is not DEVICE_FAULT}
    ready = [pod for pod in observed.pods if pod.counts and pod.ready]
    revision = mine[0].revision if mine else ""
    for name, alike in ((f"revision {revision}", [pod for pod in ready if pod.revision == revision]), ("the service", ready)):
        count = sum(pod.name in bad for pod in alike)
        if len(alike) > 1 and 2 * count > len(alike):
            return _MASS.format(f"All {count}" if count == len(alike) else f"{count} of {len(alike)}", name)
    return ""


def _again(observed: Observed, case: Case) -> float | None:
    unheard = min(MISSING_S - observed.unheard_s, _UNHEARD_AGAIN_S)
    waits = [_FULL_AGAIN_S] * bool(case.full) + [unheard] * (case.extra and unheard > 0)
    return min(waits, default=None)
