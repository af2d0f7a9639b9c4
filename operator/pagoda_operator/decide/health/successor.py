"""Whether an unhealthy replica gets a successor: one replica more of its Deployment, at most one for each service. Pure; called by `plan`.

The Deployment says in an annotation that it has one more. The successor is its newest replica. When the successor is Ready and answers, the
target falls back, and the drain takes the unhealthy replica. A successor that is unhealthy itself stays, and no other one is started: a
person must look. Nothing is removed before a successor serves, and nothing at all while more than half of the replicas answer nobody: a
wrong answer sheet, a false alarm or a gateway that hears nobody is then likelier than so many broken devices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from pagoda_operator.api.pods import Pod
from pagoda_operator.api.signals import MISSING_S
from pagoda_operator.api.state import DEPLOYMENTS, Child, Observed
from pagoda_operator.decide.health.health import Health
from pagoda_operator.decide.replicas.replicas import pods_of
from pagoda_operator.decide.replicas.sickness import Sick, Sickness, doubt
from pagoda_operator.decide.replicas.sides import broken

# Room in a quota that another service leaves is no event of this one.
_LOOK_AGAIN_S: Final = 30.0
# Nor is it one that no gateway was found.
_HEARD_S: Final = 10.0
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


class Step(NamedTuple):
    """How many replicas a Deployment should have now; what is done about the unhealthy ones, or why nothing is."""

    replicas: int
    doing: str = ""
    held: str = ""


@dataclass(frozen=True)
class Case:
    """One Deployment with unhealthy replicas. `target`: how many it should have without a successor; `staying`: its replicas, the oldest
    first; `extra`: whether it was given one more; `full`: by which quota there is no room for that; `mass`: why nothing is removed."""

    target: int
    staying: tuple[Pod, ...]
    unhealthy: frozenset[str]
    starting: frozenset[str] = frozenset()
    serving: frozenset[str] = frozenset()
    extra: bool = False
    full: str = ""
    mass: str = ""


def step(case: Case) -> Step:
    """The whole rule."""
    if not case.target or not case.unhealthy:
        return Step(case.target)
    if case.extra and not case.full:
        return _replacing(case)
    if len(case.staying) > case.target:
        return Step(case.target, _DRAINING)  # there are to be fewer, and the unhealthy ones go first
    no_room = _NO_ROOM.format(case.full) if case.full else ""
    if why := case.mass or no_room or (_OTHERS if case.starting else ""):
        return Step(case.target, held=why)
    return Step(case.target + 1, _REPLACING)


def _replacing(case: Case) -> Step:
    """A successor was ordered: it is not made yet, or it is the newest replica."""
    kept = Step(case.target + 1, _REPLACING)
    if len(case.staying) <= case.target:
        return kept
    successor = case.staying[-1]
    if successor.name in case.unhealthy:
        return kept._replace(held=_FAILED.format(successor.name))
    if case.mass:
        return kept._replace(held=case.mass)
    if successor.unscheduled:
        return kept._replace(held=_NO_NODE.format(successor.name, successor.unscheduled))
    if successor.name in case.serving and not case.starting:
        return Step(case.target, _DRAINING)
    return kept


class Succession(NamedTuple):
    """The targets, with one replica more where a successor is wanted; and what is said about the unhealthy replicas."""

    targets: dict[str, int]
    health: Health


def succession(observed: Observed, health: Health, targets: Mapping[str, int]) -> Succession:
    """The step of the one Deployment that has a successor, or else of the surest unhealthy replica's."""
    home = _home(observed, health, targets)
    if home is None:
        return Succession(dict(targets), health)
    case = _case(observed, health, home, targets[home.name])
    found = step(case)
    told = replace(health, doing=found.doing or health.doing, held=found.held, again=_again(observed, case))
    return Succession({**targets, home.name: found.replicas}, told)


def _home(observed: Observed, health: Health, targets: Mapping[str, int]) -> Child | None:
    live = [child for child in observed.of(DEPLOYMENTS) if targets.get(child.name) and not child.deleting]
    if (given := next((child for child in observed.of(DEPLOYMENTS) if child.extra), None)) is not None:
        return given if given in live else None
    homes = (child for one in health.sick for child in live if one.pod in pods_of(observed, child))
    return next(homes, None)


def _case(observed: Observed, health: Health, home: Child, target: int) -> Case:
    unhealthy = frozenset(one.pod.name for one in health.sick)
    mine = [pod for pod in pods_of(observed, home) if pod.counts]
    # A successor counts with the other replicas of its Deployment alone; before there is one, any that starts may be enough.
    others = mine if home.extra else observed.pods
    return Case(
        target,
        # Two of one second: the healthy one is the successor.
        tuple(sorted(mine, key=lambda pod: (pod.created, pod.name not in unhealthy, pod.name))),
        unhealthy.intersection(pod.name for pod in mine),
        frozenset(pod.name for pod in others if pod.name not in unhealthy and _starts(observed, pod)),
        frozenset(pod.name for pod in mine if pod.serves and not doubt(observed, pod)),
        bool(home.extra),
        observed.full.get(home.name, ""),
        _mass(observed, health.sick, mine),
    )


def _starts(observed: Observed, pod: Pod) -> bool:
    """Whether it is on a node and will serve. A ReplicaSet that loses a replica takes such a one before any that is Ready."""
    return pod.counts and pod.assigned and not pod.ready and pod.drain_deadline_ms is None and not broken(observed, pod)


def _mass(observed: Observed, sick: tuple[Sick, ...], mine: list[Pod]) -> str:
    """A sentence where more than half of several Ready replicas, of this revision or of the service, answer nobody. If the device of one is
    called faulty too, there are two witnesses against it."""
    bad = {one.pod.name for one in sick if not one.answers and one.sickness is not Sickness.DEVICE_FAULT}
    ready = [pod for pod in observed.pods if pod.counts and pod.ready]
    revision = mine[0].revision if mine else ""
    for name, alike in ((f"revision {revision}", [pod for pod in ready if pod.revision == revision]), ("the service", ready)):
        count = sum(pod.name in bad for pod in alike)
        if len(alike) > 1 and 2 * count > len(alike):
            return _MASS.format(f"All {count}" if count == len(alike) else f"{count} of {len(alike)}", name)
    return ""


def _again(observed: Observed, case: Case) -> float | None:
    unheard = min(MISSING_S - observed.unheard_s, _HEARD_S)
    waits = [_LOOK_AGAIN_S] * bool(case.full) + [unheard] * (case.extra and unheard > 0)
    return min(waits, default=None)
