"""Brings one Deployment to fewer replicas without losing a request, or turns that back. Pure: time is a parameter; called by `plan`.

The steps of a replica's way out, each begun only where the one before is seen, so that an operator killed anywhere goes on from there:
annotate (gateways stop routing) → tell its daemon to drain → nothing in flight, or the deadline → the lowest deletion cost → replicas - 1.
There is one deadline, written with the first step. The annotation is the truth: who has none serves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from pagoda_contracts.names import ANNOTATION_DELETION_COST, ANNOTATION_DRAIN_DEADLINE, LOWEST_DELETION_COST

from pagoda_operator.api.pods import Answer, DaemonState, Order, Pod
from pagoda_operator.decide.render.writes import Annotate

_PHASES: Final = {"Pending": 0, "Unknown": 1, "Running": 2}
# Above every load that a replica can have: one that nobody heard of is not the idlest.
_UNHEARD: Final = 1 << 32


class Turn(IntEnum):
    """Whose turn it is among those that are as ready: who answers nobody goes first, then who answers on a device called faulty; the last
    that answers goes last. In their place one that is on its way out is turned back, unless it is as sick; not in the place of one of whom
    something bad is said for a moment, or nothing yet."""

    FIRST = 0
    FAULTY = 1
    LEAVING = 2
    DOUBTED = 3
    ANY = 4
    LAST = 5


@dataclass(frozen=True)
class Crew:
    """One Deployment's replicas, and how many there should be. `replicas` is what its spec says now; `timeout_s` how long a drain may
    take; `in_flight` what gateways heard, by pod name; `turns` who goes before others that are as ready."""

    pods: tuple[Pod, ...]
    replicas: int
    target: int
    timeout_s: float
    now: float
    answers: Mapping[str, Answer] = field(default_factory=dict)
    in_flight: Mapping[str, int] = field(default_factory=dict)
    turns: Mapping[str, Turn] = field(default_factory=dict)

    def answer(self, pod: Pod) -> Answer | None:
        """The pod's own to the last order."""
        return self.answers.get(pod.uid)

    @property
    def active(self) -> list[Pod]:
        """Those that stay, as far as the cluster goes."""
        return [pod for pod in self.pods if pod.counts]


@dataclass(frozen=True)
class Drain:
    """What to do now: annotations to write, orders to give, replicas to ask for; who is on the way out, and when to look again."""

    replicas: int
    annotate: tuple[Annotate, ...] = ()
    orders: tuple[Order, ...] = ()
    leaving: tuple[str, ...] = ()


def drain(crew: Crew) -> Drain:
    """The next steps; with nothing to do, none."""
    active = sorted(crew.active, key=lambda pod: (pod.created, pod.name), reverse=True)
    ranked = sorted(active, key=lambda pod: _preference(crew, pod))
    surplus = max(0, len(active) - crew.target)
    victims, staying = ranked[:surplus], ranked[surplus:]
    released = [pod for pod in victims if _released(crew, pod)]
    sure = _surely_first(active, released)
    return Drain(
        replicas=_replicas(crew, active, staying, len(sure)),
        annotate=(*_turned_back(crew, staying), *_marked(crew, victims), *_priced(released, sure)),
        orders=(*_recalled(crew, staying), *_told(crew, victims, released)),
        leaving=tuple(sorted(pod.name for pod in victims)),
    )


def _preference(crew: Crew, pod: Pod) -> tuple[int, int, int]:
    """Who goes first: whom the ReplicaSet would take anyway, then whose turn it is, who is on the way, who does the least, the newest."""
    if pod.drain_deadline_ms is not None:
        return _SERVING, min(Turn.LEAVING, crew.turns.get(pod.name, Turn.ANY)), -1
    return removal_class(pod), crew.turns.get(pod.name, Turn.ANY), crew.in_flight.get(pod.name, _UNHEARD)


_SERVING: Final = 3


def removal_class(pod: Pod) -> int:
    """The ReplicaSet's own order before deletion cost counts: unassigned, Pending, NotReady."""
    if not pod.assigned:
        return 0
    if pod.phase != "Running":
        return 1
    return _SERVING if pod.ready else 2


def _released(crew: Crew, pod: Pod) -> bool:
    """Whether it may be removed: it never served, or its drain is over, or it can only be drained by its own deletion (SIGTERM)."""
    if pod.drain_deadline_ms is None:
        return removal_class(pod) < _SERVING
    answer = crew.answer(pod)
    if crew.now * 1000 >= pod.drain_deadline_ms or not pod.address:
        return True
    if answer is None:
        return False
    if answer.state is DaemonState.SILENT:
        return not pod.ready or crew.in_flight.get(pod.name) == 0
    return answer.drained or answer.state is DaemonState.REFUSED


def _rank(pod: Pod, *, soon: bool = False) -> tuple[bool, int, bool, int]:
    """The ReplicaSet's comparison, as far as it does not depend on its own memory; `soon`: as when a drain has made it unready."""
    ready = pod.ready and not (soon and pod.drain_deadline_ms is not None)
    return pod.assigned, _PHASES.get(pod.phase, 1), ready, pod.deletion_cost


def _surely_first(active: list[Pod], released: list[Pod]) -> list[Pod]:
    """Those of the released that the ReplicaSet takes before anybody else. Their cost is part of it though they are mostly unready and
    would go first anyway: it decides where readiness changes before the ReplicaSet looks."""
    chosen = {pod.name for pod in released}
    first_other = min((_rank(pod, soon=True) for pod in active if pod.name not in chosen), default=None)
    if first_other is None:
        return released
    return [pod for pod in released if cheapest(pod) and _rank(pod) < first_other]


def cheapest(pod: Pod) -> bool:
    """Whether we have priced it so that it goes first."""
    return pod.deletion_cost == LOWEST_DELETION_COST


def _replicas(crew: Crew, active: list[Pod], staying: list[Pod], sure: int) -> int:
    """What to ask for: down by those who may go, up only once nobody is left to be turned back."""
    if crew.replicas > crew.target:
        return min(crew.replicas, max(crew.target, len(active) - sure))
    if crew.replicas < min(crew.target, len(active)):
        return min(crew.target, len(active))  # the ReplicaSet is still to remove one that is wanted again
    return crew.replicas if any(_returning(crew, pod) for pod in staying) else crew.target


def _returning(crew: Crew, pod: Pod) -> bool:
    """Whether it is about to serve again; one that cannot be reached is not waited for."""
    answer = crew.answer(pod)
    return pod.drain_deadline_ms is not None and not (
        answer and answer.state in (DaemonState.SILENT, DaemonState.ENDING, DaemonState.REFUSED)
    )


def _turned_back(crew: Crew, staying: list[Pod]) -> Iterator[Annotate]:
    """After the daemon serves again; a cost of ours goes from everybody who stays."""
    for pod in staying:
        removed = dict.fromkeys(_ours(pod))
        if pod.drain_deadline_ms is not None and not _serves_again(crew, pod):
            continue
        if removed:
            yield Annotate(pod, removed)


def _serves_again(crew: Crew, pod: Pod) -> bool:
    """Whether its daemon takes requests, or never heard of the drain; one that drains is not ready."""
    answer = crew.answer(pod)
    if not pod.address or answer is None:
        return not pod.address
    return answer.state is DaemonState.SERVING or (answer.state is DaemonState.REFUSED and pod.ready)


def _ours(pod: Pod) -> Iterator[str]:
    if pod.drain_deadline_ms is not None:
        yield ANNOTATION_DRAIN_DEADLINE
    if cheapest(pod):
        yield ANNOTATION_DELETION_COST


def _marked(crew: Crew, victims: list[Pod]) -> Iterator[Annotate]:
    """The first step, with the one deadline."""
    deadline = str(int((crew.now + crew.timeout_s) * 1000))
    for pod in victims:
        if pod.drain_deadline_ms is None and removal_class(pod) == _SERVING:
            yield Annotate(pod, {ANNOTATION_DRAIN_DEADLINE: deadline})


def _priced(released: list[Pod], sure: list[Pod]) -> Iterator[Annotate]:
    """The last step before the ReplicaSet's."""
    for pod in released:
        if pod not in sure and not cheapest(pod):
            yield Annotate(pod, {ANNOTATION_DELETION_COST: str(LOWEST_DELETION_COST)})


def _told(crew: Crew, victims: list[Pod], released: list[Pod]) -> Iterator[Order]:
    """Again each time: orders may be repeated, and the answer says how many requests are left. The daemon's clock is another one, so it is
    told how long, never longer than a drain may take: a predecessor with a clock far ahead wrote the annotation."""
    for pod in victims:
        if pod.drain_deadline_ms is not None and pod not in released:
            left_ms = min(pod.drain_deadline_ms - crew.now * 1000, crew.timeout_s * 1000)
            yield Order(pod.name, pod.uid, pod.address, pod.drain_deadline_ms, max(1, int(left_ms)))


def _recalled(crew: Crew, staying: list[Pod]) -> Iterator[Order]:
    for pod in staying:
        if pod.drain_deadline_ms is not None and not _serves_again(crew, pod):
            yield Order(pod.name, pod.uid, pod.address, None)
