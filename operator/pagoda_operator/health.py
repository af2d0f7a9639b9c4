"""Which sick replica is replaced now, and beside which one another is made first. Pure; called by `plan`, said by `status`.

Who is sick (sickness.py) is deleted here, and its Deployment makes another. Where quotas have no room for both at a time it goes first
(swap.py). Those that answer on a device called faulty while nobody sound serves are kept: not replaced, and drained after all others. One
replica is made beside them first (relief), from the record until it serves, and then one goes as the one too many; nobody who loads
is thrown away for it. Where quotas have no room for one more they serve on. Where the one more is sick too (on a faulty device, say) there
is one less again, and no third one until somebody sound has served: that is in the status too.

One service loses one replica in two minutes. The replacement is written into the status before the pod is deleted, so that an operator that
dies in between, or a stale one, never makes it two. Where all replicas of a revision are sick at once nothing is replaced: a wrong answer
sheet, a false alarm or a gateway that hears nobody is then likelier than so many broken devices, and gateways send requests on. Where one
of them is on a device called faulty, one more replica costs nobody anything and ends that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final

from pagoda_contracts.names import ANNOTATION_DEVICE_FAULT
from pagoda_contracts.resources.status import HealthStatus, Replacement

from pagoda_operator.drain import Turn
from pagoda_operator.pods import Pod
from pagoda_operator.replicas import pods_of
from pagoda_operator.sickness import OURS, Sick, fault_of, sick_of, sound
from pagoda_operator.sides import broken
from pagoda_operator.signals_view import MISSING_S
from pagoda_operator.state import DEPLOYMENTS, PODS, Child, Observed
from pagoda_operator.writes import Annotate, Delete

REPLACE_EVERY_S: Final = 120.0
# Room in a quota that another service leaves is no event of this one.
_LOOK_AGAIN_S: Final = 30.0
_LAST: Final = "nobody else serves, and quota has no room for a replica beside it: it serves until there is"
_NO_BETTER: Final = "nobody else serves, and the successor that was made beside it was sick too: no third one is made"
_NO_ROOM: Final = "quota has no room for one replica more: the next is replaced when the last one is gone"
_RELIEVED: Final = "nobody else serves: it does until the replica does that is made beside it"
_COMING: Final = "it goes when the replica serves that was made beside it"


@dataclass(frozen=True, slots=True)
class Health:
    """All sick replicas; the write that replaces one; what is to be kept in the status; `doing`: what is done; `held`: why nothing is;
    `again`: in how many seconds something may be, where that is known."""

    sick: tuple[Sick, ...] = ()
    writes: tuple[Annotate | Delete, ...] = ()
    record: HealthStatus | None = None
    doing: str = "it is replaced"
    held: str = ""
    again: float | None = None
    # Who makes way before its successor is made, because quotas have no room for both, or because that one serves already.
    swapped: str = ""
    # The Deployment that gets one replica more first, or keeps it.
    relieved: str = ""
    # Who goes first and who last where there are to be fewer, by name.
    turns: Mapping[str, Turn] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Case:
    """What is decided by: the sick, those of them that are kept because nobody sound serves, the one that is being replaced, for how many
    seconds that has been so."""

    sick: tuple[Sick, ...]
    kept: tuple[Sick, ...]
    under_way: Sick | None
    since: float


def judge(observed: Observed) -> Health:
    """Who is sick, who is marked for gateways, who is replaced."""
    sick, record = sick_of(observed), observed.status.health
    well = sound(observed, sick)
    if record is not None and record.successor_sick and (well or not sick):
        record = record.model_copy(update={"successor_sick": None})
    kept = () if well else tuple(one for one in sick if one.serves and _deployment(observed, one.pod) is not None)
    health = _replacing(observed, Health(sick, record=record), kept) if sick else Health(record=record)
    if kept and observed.unheard_s < MISSING_S and not health.again:
        health = replace(health, again=MISSING_S - observed.unheard_s)
    turns = {one.pod.name: Turn.LAST if one in kept else Turn.FIRST for one in sick}
    return replace(health, writes=(*_marks(observed), *health.writes), turns=turns)


def _marks(observed: Observed) -> Iterable[Annotate]:
    """A node's fault on its pods, and off them when it is over. What others wrote there is theirs."""
    for pod in observed.pods:
        fault = observed.faults.get(pod.node, "") if pod.devices and pod.counts else ""
        if fault and not pod.device_fault:
            yield Annotate(pod, {ANNOTATION_DEVICE_FAULT: OURS + fault})
        elif not fault and pod.counts and pod.device_fault.startswith(OURS):
            yield Annotate(pod, {ANNOTATION_DEVICE_FAULT: None})


def relief(observed: Observed, health: Health, targets: Mapping[str, int], current: str) -> dict[str, int]:
    """The targets, with one replica beside those that are sick: no more than one, and none for what is to end. Whether it may be made is
    for quotas to say of that Deployment (`cramped`, the ledger's `admit`); here only a cap that shrank takes it away again."""
    target = targets.get(health.relieved, 0)
    live = observed.find(DEPLOYMENTS, health.relieved)
    ordered = live.replicas if live is not None else 0
    wanted = bool(target) and (_ill(observed, health.sick, health.relieved) >= target or ordered > target)
    capped = observed.quota is not None and health.relieved == current and target >= observed.quota.room
    return {**targets, health.relieved: target + 1} if wanted and not capped else dict(targets)


def _replacing(observed: Observed, found: Health, kept: tuple[Sick, ...]) -> Health:
    """Two steps, one per run: the record of a replacement, then, once it is in the status, the deletion."""
    record, sick = found.record, found.sick
    last = record.last_replacement if record else None
    under_way = next((one for one in sick if last and one.pod.uid == last.uid), None)
    case = _Case(sick, kept, under_way, observed.age(last.time) if last else REPLACE_EVERY_S)
    if any(child.reserved for child in observed.of(DEPLOYMENTS)):
        return replace(found, held="" if under_way else _NO_ROOM)
    if kept:
        return _kept(observed, found, case)
    mine = _extra(observed, under_way)
    if mine is not None and under_way is not None:
        coming = replace(found, relieved=mine.name, doing=_COMING)
        if _loads(observed, mine, sick):
            return coming
        if case.since >= REPLACE_EVERY_S:
            # Another one serves by now. Its going counts from here, and until that is written nobody goes in its place.
            return replace(coming, record=_recorded(record, under_way, observed.now))
    return _by_turns(observed, found, case)


def _kept(observed: Observed, found: Health, case: _Case) -> Health:
    """Nobody sound serves, and `case.kept` do all the same: one is made beside them, once."""
    lone = case.under_way if case.under_way is not None and case.under_way in case.kept else case.kept[0]
    mine = _deployment(observed, lone.pod)
    if mine is None:
        return _by_turns(observed, found, case)
    relieved = replace(found, relieved=mine.name, doing=_RELIEVED)
    # A faulty one that drains is none that comes: it would be turned back and drained again for ever.
    going = sum(pod.counts and pod.drain_deadline_ms is not None and bool(fault_of(observed, pod)) for pod in pods_of(observed, mine))
    if mine.replicas - going > _ill(observed, case.sick, mine.name):
        return relieved
    tried = found.record is not None and found.record.successor_sick is not None
    more = _more(observed, mine)
    if more and (tried or case.under_way is not None):
        given_up = replace(relieved, record=_given_up(found.record, lone, observed.now))
        return _one_less(observed, found, case) if tried else given_up
    if tried or mine.name in observed.cramped:
        return _alone(observed, found, case, tried=tried)
    if more or (lone is not case.under_way and case.since < REPLACE_EVERY_S):
        # Where there are more though none was recorded, a person or scaling wants fewer.
        return _by_turns(observed, found, case)
    # The record first: a successor that nobody knows of as one would be followed by another.
    return relieved if lone is case.under_way else replace(relieved, relieved="", record=_recorded(found.record, lone, observed.now))


def _alone(observed: Observed, found: Health, case: _Case, *, tried: bool) -> Health:
    """None is made beside them; who answers nobody is replaced as ever."""
    others = _by_turns(observed, found, case)
    if others.writes or others.swapped or others.record != found.record:
        return others
    return replace(others, held=_NO_BETTER if tried else _LAST, again=others.again if tried else _LOOK_AGAIN_S)


def _one_less(observed: Observed, found: Health, case: _Case) -> Health:
    """All are sick, the one too many as well: who answers nobody goes, else the one that was recorded, and never the last that answers."""
    lost = [one for one in case.sick if one not in case.kept and _extra(observed, one) is not None]
    spare = [one for one in case.kept if _extra(observed, one) is not None] if len(case.kept) > 1 else []
    goes = next(iter([*lost, *(one for one in spare if one is case.under_way), *reversed(spare)]), None)
    return replace(found, swapped=goes.pod.name if goes else "", held=_NO_BETTER)


def _by_turns(observed: Observed, found: Health, case: _Case) -> Health:
    """One after the other, none where all are sick at once, and none that is kept."""
    spared, held = _all_at_once(observed, case.sick)
    left = [one for one in case.sick if one not in spared and one not in case.kept]
    last = found.record.last_replacement if found.record else None
    if case.under_way is not None and case.under_way in left and case.since < REPLACE_EVERY_S:
        return _replaced(observed, found, case.under_way.pod)
    if case.since < REPLACE_EVERY_S and (left or case.kept):
        held = f"one replica in {REPLACE_EVERY_S:.0f} s is replaced, the last one was {last.pod if last else ''}"
        return replace(found, held=held, again=REPLACE_EVERY_S - case.since)
    return replace(found, record=_recorded(found.record, left[0], observed.now)) if left else replace(found, held=held)


def _replaced(observed: Observed, health: Health, pod: Pod) -> Health:
    """Deleted, so that another is made at once beside it. Where that would be one too many for a quota it goes first, and where another one
    was made before, without a successor."""
    mine = _deployment(observed, pod)
    if mine is not None and (mine.name in observed.cramped or _more(observed, mine)):
        return replace(health, swapped=pod.name)
    return replace(health, writes=(Delete(PODS, Child(PODS, {"metadata": pod.meta})),))


def _loads(observed: Observed, deployment: Child, sick: Iterable[Sick]) -> bool:
    """Whether one of its replicas is on a node and will serve: the ReplicaSet takes that one before any that is Ready."""
    ill = {one.pod.name for one in sick}
    pods = [pod for pod in pods_of(observed, deployment) if pod.counts and pod.name not in ill]
    return any(pod.assigned and not pod.ready and not broken(observed, pod) for pod in pods)


def _ill(observed: Observed, sick: Iterable[Sick], deployment: str) -> int:
    found = (_deployment(observed, one.pod) for one in sick)
    return sum(mine is not None and mine.name == deployment for mine in found)


def _extra(observed: Observed, one: Sick | None) -> Child | None:
    """Its Deployment, where that has more than are asked for."""
    mine = _deployment(observed, one.pod) if one is not None else None
    return mine if mine is not None and _more(observed, mine) else None


def _more(observed: Observed, deployment: Child) -> bool:
    """Whether it has more replicas than are asked for, or is still to lose one."""
    there = sum(pod.counts for pod in pods_of(observed, deployment))
    return 0 < observed.wanted < max(deployment.replicas, there)


def _deployment(observed: Observed, pod: Pod) -> Child | None:
    """Whose replica it is; None where nobody's."""
    return next((child for child in observed.of(DEPLOYMENTS) if pod in pods_of(observed, child)), None)


def _all_at_once(observed: Observed, sick: tuple[Sick, ...]) -> tuple[tuple[Sick, ...], str]:
    """Those that are spared because all of several Ready replicas, of a revision or of the service, are sick; a sentence that says so."""
    ill, spared, told = {one.pod.name for one in sick}, set(), ""
    ready = [pod for pod in observed.pods if pod.counts and pod.ready]
    groups = {f"revision {revision}": [p for p in ready if p.revision == revision] for revision in sorted({p.revision for p in ready})}
    for name, alike in (groups | {"the service": ready}).items():
        if len(alike) > 1 and ill.issuperset(pod.name for pod in alike):
            spared |= {pod.name for pod in alike}
            told = f"all {len(alike)} ready replicas of {name} are sick at once; none is replaced before somebody has looked"
    return tuple(one for one in sick if one.pod.name in spared), told


def _recorded(record: HealthStatus | None, sick: Sick, now: float) -> HealthStatus:
    time = datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    found = Replacement(pod=sick.pod.name, uid=sick.pod.uid, time=time, why=f"{sick.sickness}: {sick.why}")
    return (record or HealthStatus()).model_copy(update={"last_replacement": found})


def _given_up(record: HealthStatus | None, lone: Sick, now: float) -> HealthStatus:
    kept = record if record is not None and record.last_replacement is not None else _recorded(record, lone, now)
    return kept.model_copy(update={"successor_sick": True})
