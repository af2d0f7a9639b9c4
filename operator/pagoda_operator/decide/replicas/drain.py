"""Brings one Deployment to fewer replicas without losing a request, or cancels that. Pure: time is a parameter; called by `replicas`.

A replica leaves in steps. Each begins only after the one before is seen, so that an operator that is killed anywhere goes on from there:
annotate → order its daemon to drain (gateways hear it from the daemon) → nothing in flight, or the deadline → the lowest deletion cost →
replicas - 1.
There is one deadline, written with the first step. The annotation is the truth: a replica without it serves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Final

from pagoda_contracts.names import ANNOTATION_DELETION_COST, ANNOTATION_DRAIN_DEADLINE, LOWEST_DELETION_COST

from pagoda_operator.api.pods import Answer, DaemonState, Order, Pod
from pagoda_operator.decide.render.writes import Annotate

_PHASES: Final = {"Pending": 0, "Unknown": 1, "Running": 2}
_SERVING: Final = (True, 2, True)
# Above every load that a replica can have: one without a report is not the idlest.
_UNREPORTED: Final = 1 << 32


class Removal(IntEnum):
    """The order in which equally ready replicas are removed: FIRST does not answer, FAULTY answers on a faulty device, and LAST is the last
    one that answers. A drain is cancelled in favour of one before DRAINING, not after it: an UNVERIFIED one may answer in a moment."""

    FIRST = 0
    FAULTY = 1
    DRAINING = 2
    UNVERIFIED = 3
    ANY = 4
    LAST = 5


@dataclass(frozen=True)
class DrainState:
    """One Deployment's pods, how many replicas its spec has, and how many there should be. `timeout_s`: how long a drain may take;
    `answers`: each daemon's answer to the last order, by uid; `in_flight`: requests that gateways report, and the `order`, by name;
    `sole`: adapters that no other replica has in memory, by uid."""

    pods: tuple[Pod, ...]
    replicas: int
    target: int
    timeout_s: float
    now: float
    answers: Mapping[str, Answer] = field(default_factory=dict)
    in_flight: Mapping[str, int] = field(default_factory=dict)
    order: Mapping[str, Removal] = field(default_factory=dict)
    sole: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Drain:
    """What to do now: the replicas to ask for, annotations to write, orders to give; and the names of the pods that leave."""

    replicas: int
    annotate: tuple[Annotate, ...] = ()
    orders: tuple[Order, ...] = ()
    leaving: tuple[str, ...] = ()


def drain(state: DrainState) -> Drain:
    """The next steps; none if there is nothing to do."""
    active = sorted((pod for pod in state.pods if pod.counts), key=lambda pod: (pod.created, pod.name), reverse=True)
    ranked = sorted(active, key=lambda pod: _preference(state, pod))
    surplus = max(0, len(active) - state.target)
    victims, staying = ranked[:surplus], ranked[surplus:]
    released = [pod for pod in victims if _released(state, pod)]
    sure = _surely_first(active, released)
    first = {ANNOTATION_DRAIN_DEADLINE: str(int((state.now + state.timeout_s) * 1000))}
    marked = (Annotate(pod, first) for pod in victims if pod.drain_deadline_ms is None and _readiness(pod) == _SERVING)
    last = {ANNOTATION_DELETION_COST: str(LOWEST_DELETION_COST)}
    priced = (Annotate(pod, last) for pod in released if pod not in sure and not _cheapest(pod))
    recalled = (pod for pod in staying if pod.drain_deadline_ms is not None and not _serves_again(state, pod))
    return Drain(
        replicas=_replicas(state, active, staying, len(sure)),
        annotate=(*_cancelled(state, staying), *marked, *priced),
        orders=(*(Order(pod.name, pod.uid, pod.address, None) for pod in recalled), *_drains(state, victims, released)),
        leaving=tuple(sorted(pod.name for pod in victims)),
    )


def answered(states: Iterable[DrainState], answers: Mapping[str, Answer]) -> tuple[Annotate, ...]:
    """What these answers to the last orders allow to write on pods. Nothing if a Deployment changes too: that needs another plan."""
    found = [(state.replicas, drain(replace(state, answers=answers))) for state in states]
    if any(step.replicas != replicas for replicas, step in found):
        return ()
    return tuple(write for _, step in found for write in step.annotate)


def _preference(state: DrainState, pod: Pod) -> tuple[tuple[bool, int, bool], int, int, int]:
    """The pod that the ReplicaSet would remove anyway goes first; then by the order of removal, by adapters that would have to be loaded
    elsewhere, by load, and the newest."""
    order = state.order.get(pod.name, Removal.ANY)
    if pod.drain_deadline_ms is not None:
        return _SERVING, min(Removal.DRAINING, order), -1, -1
    return _readiness(pod), order, state.sole.get(pod.uid, 0), state.in_flight.get(pod.name, _UNREPORTED)


def _readiness(pod: Pod) -> tuple[bool, int, bool]:
    """The ReplicaSet's own order before deletion cost counts: unassigned, Pending, not Ready."""
    return pod.assigned, _PHASES.get(pod.phase, 1), pod.ready


def _released(state: DrainState, pod: Pod) -> bool:
    """Whether it may be removed: it never served, or its drain is over, or only its deletion can drain it (SIGTERM)."""
    if pod.drain_deadline_ms is None:
        return _readiness(pod) < _SERVING
    if state.now * 1000 >= pod.drain_deadline_ms or not pod.address:
        return True
    answer = state.answers.get(pod.uid)
    if answer is None:
        return False
    if answer.state is DaemonState.SILENT:
        return not pod.ready or state.in_flight.get(pod.name) == 0
    return answer.drained or answer.state is DaemonState.REFUSED


def _rank(pod: Pod, *, soon: bool = False) -> tuple[bool, int, bool, int]:
    """The ReplicaSet's comparison, as far as it does not depend on its own memory; `soon`: after a drain has made the pod unready."""
    assigned, phase, ready = _readiness(pod)
    return assigned, phase, ready and not (soon and pod.drain_deadline_ms is not None), pod.deletion_cost


def _surely_first(active: list[Pod], released: list[Pod]) -> list[Pod]:
    """The released pods that the ReplicaSet removes before any other. Most are unready and would go first anyway; the cost decides if
    readiness changes before the ReplicaSet acts."""
    others = [_rank(pod, soon=True) for pod in active if pod not in released]
    return [pod for pod in released if not others or (_cheapest(pod) and _rank(pod) < min(others))]


def _cheapest(pod: Pod) -> bool:
    """Whether it has the cost that we write."""
    return pod.deletion_cost == LOWEST_DELETION_COST


def _replicas(state: DrainState, active: list[Pod], staying: list[Pod], sure: int) -> int:
    """What to ask for: fewer by the pods that may go, and more only after every drain that can be cancelled is."""
    if state.replicas > state.target:
        return min(state.replicas, max(state.target, len(active) - sure))
    if state.replicas < min(state.target, len(active)):
        return min(state.target, len(active))  # the ReplicaSet has not removed one yet that is wanted again
    return state.replicas if any(_returning(state, pod) for pod in staying) else state.target


def _returning(state: DrainState, pod: Pod) -> bool:
    """Whether it will serve again soon; one that cannot be reached is not waited for."""
    answer = state.answers.get(pod.uid)
    return pod.drain_deadline_ms is not None and not (
        answer and answer.state in (DaemonState.SILENT, DaemonState.ENDING, DaemonState.REFUSED)
    )


def _cancelled(state: DrainState, staying: list[Pod]) -> Iterator[Annotate]:
    """Takes our annotations off the pods that stay, but a deadline only after the daemon serves again."""
    for pod in staying:
        draining = pod.drain_deadline_ms is not None
        ours = [ANNOTATION_DRAIN_DEADLINE] * draining + [ANNOTATION_DELETION_COST] * _cheapest(pod)
        if ours and (not draining or _serves_again(state, pod)):
            yield Annotate(pod, dict.fromkeys(ours))


def _serves_again(state: DrainState, pod: Pod) -> bool:
    """Whether its daemon takes requests, or never received the order to drain; one that drains is not ready."""
    answer = state.answers.get(pod.uid)
    if not pod.address or answer is None:
        return not pod.address
    return answer.state is DaemonState.SERVING or (answer.state is DaemonState.REFUSED and pod.ready)


def _drains(state: DrainState, victims: list[Pod], released: list[Pod]) -> Iterator[Order]:
    """Repeated in each run: the answer says how many requests are left. An order gives the time that is left, since the daemon has another
    clock; never more than a drain may take, since a leader with a fast clock may have written the annotation."""
    for pod in victims:
        if pod.drain_deadline_ms is not None and pod not in released:
            left_ms = min(pod.drain_deadline_ms - state.now * 1000, state.timeout_s * 1000)
            yield Order(pod.name, pod.uid, pod.address, pod.drain_deadline_ms, max(1, int(left_ms)))
