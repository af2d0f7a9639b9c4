"""Which sick replica is replaced now, and beside which one another is made first. Pure; called by `plan`, said by `status`.

Who is sick (sickness.py) is deleted here, and its Deployment makes another. Where quotas have no room for both at a time it goes first
(swap.py). Those that answer on a device called faulty while nobody sound serves are kept: not replaced, and drained after all others. One
replica is made beside them (relief.py) where nobody comes anyway, and then one of them goes as the one too many; nobody who loads is thrown
away for it. Where quotas have no room for one more they serve on. Where the one more is sick too (on a faulty device, say) there is one
less again, and the next is tried after a pause that grows. What relief did stands on the Deployment itself.

One service loses one replica in two minutes. The replacement is written into the status before the pod is deleted, so that an operator that
dies in between, or a stale one, never makes it two. Where all replicas of a revision answer nobody at once nothing is replaced: a wrong
answer sheet, a false alarm or a gateway that hears nobody is then likelier than so many broken devices, and gateways send requests on. One
of them that answers on a device called faulty shows that gateways hear and the sheet is right.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from pagoda_contracts.names import ANNOTATION_DEVICE_FAULT
from pagoda_contracts.resources.status import HealthStatus, Replacement

from pagoda_operator.api.pods import Pod
from pagoda_operator.api.signals import MISSING_S
from pagoda_operator.api.state import DEPLOYMENTS, PODS, Child, Observed
from pagoda_operator.decide.health.successors import before, comes, comes_elsewhere, deployment_of, ill, more
from pagoda_operator.decide.render.writes import Annotate, Delete
from pagoda_operator.decide.replicas.drain import Turn
from pagoda_operator.decide.replicas.sickness import OURS, Sick, Sickness, doubt, leaving, sick_of, sound
from pagoda_operator.inventory.values import stamp

REPLACE_EVERY_S: Final = 120.0
# Room in a quota that another service leaves is no event of this one.
_LOOK_AGAIN_S: Final = 30.0
# Nor is it one that no gateway was found.
_HEARD_S: Final = 10.0
_LAST: Final = (
    "Kept in service because it is the only replica that answers. A replacement will start when the quota allows an extra replica."
)
_NO_BETTER: Final = (
    "Kept in service because it is the only replica that answers. The replacement was unhealthy as well; the next attempt waits."
)
_NO_ROOM: Final = (
    "Replacement delayed: the quota allows no extra replica. The next replica will be replaced when the previous one has ended."
)
_STARTING: Final = (
    "Replacement delayed: the quota allows no extra replica. The replica will be replaced when the starting replicas are Ready."
)
_RELIEVED: Final = "Kept in service because it is the only replica that answers. A replacement is starting."
_COMING: Final = "The replica will be removed when its replacement is Ready."


@dataclass(frozen=True, slots=True)
class Health:
    """All sick replicas; the write that replaces one; what is to be kept in the status; `doing`: what is done; `held`: why nothing is;
    `again`: in how many seconds something may be, where that is known."""

    sick: tuple[Sick, ...] = ()
    writes: tuple[Annotate | Delete, ...] = ()
    record: HealthStatus | None = None
    doing: str = "The operator replaces unhealthy replicas one at a time."
    held: str = ""
    again: float | None = None
    # Who makes way before its successor is made, because quotas have no room for both, or because that one serves already.
    swapped: str = ""
    # Whether those that serve do so on devices called faulty; the Deployment that is to have one replica more beside them; the one whose
    # one more is sick too and goes.
    kept: bool = False
    relieved: str = ""
    given_up: str = ""
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
    if record is not None and record.successor_sick:  # an older operator's word; now it stands on the Deployment
        record = record.model_copy(update={"successor_sick": None})
    well = sound(observed, sick)
    kept = () if well else tuple(one for one in sick if one.answers and deployment_of(observed, one.pod) is not None)
    health = _replacing(observed, Health(sick, record=record, kept=bool(kept)), kept) if sick else Health(record=record)
    turns = {pod.name: Turn.DOUBTED for pod in observed.pods if pod.serves and doubt(observed, pod)}
    turns |= {one.pod.name: Turn.FAULTY if one.answers else Turn.FIRST for one in (*sick, *leaving(observed))}
    turns |= {one.pod.name: Turn.LAST for one in kept}
    return replace(health, writes=(*_marks(observed), *health.writes), turns=turns)


def _marks(observed: Observed) -> Iterable[Annotate]:
    """A node's fault on its pods, and off them when it is over. What others wrote there is theirs."""
    for pod in observed.pods:
        fault = observed.faults.get(pod.node, "") if pod.devices and pod.counts else ""
        if fault and not pod.device_fault:
            yield Annotate(pod, {ANNOTATION_DEVICE_FAULT: OURS + fault})
        elif not fault and pod.counts and pod.device_fault.startswith(OURS):
            yield Annotate(pod, {ANNOTATION_DEVICE_FAULT: None})


def _replacing(observed: Observed, found: Health, kept: tuple[Sick, ...]) -> Health:
    """Two steps, one per run: the record of a replacement, then, once it is in the status, the deletion."""
    last = found.record.last_replacement if found.record else None
    under_way = next((one for one in found.sick if last and one.pod.uid == last.uid), None)
    case = _Case(found.sick, kept, under_way, observed.age(last.time) if last else REPLACE_EVERY_S)
    extra = next((child for child in observed.of(DEPLOYMENTS) if child.extra and ill(observed, child, found.sick)), None)
    found = replace(found, relieved=extra.name if extra is not None else "")
    if any(child.reserved for child in observed.of(DEPLOYMENTS)):
        return replace(found, held="" if under_way else _NO_ROOM)
    others = _by_turns(observed, found, case)
    acts = bool(others.writes or others.swapped) or others.record != found.record
    return _kept(observed, others, case) if kept and not acts else others


def _kept(observed: Observed, found: Health, case: _Case) -> Health:
    """Nobody sound serves, and `case.kept` do all the same: one comes, or is made beside them."""
    unheard = min(MISSING_S - observed.unheard_s, _HEARD_S)
    waits = replace(found, doing=_RELIEVED, held="", again=_soonest(found.again, unheard if unheard > 0 else None))
    extra = observed.find(DEPLOYMENTS, found.relieved)
    home = extra or deployment_of(observed, case.kept[0].pod)
    if home is None or comes_elsewhere(observed, home, case.sick):
        return waits
    if comes(observed, home, case.sick):
        return replace(waits, relieved=home.name)
    if extra is not None:
        return replace(found, relieved="", given_up=extra.name, held=_NO_BETTER)
    if home.name in observed.cramped:
        return replace(found, held=_LAST, again=_soonest(found.again, _LOOK_AGAIN_S))
    pause = home.relieved.pause_s - observed.age(home.relieved.at)
    if pause > 0:
        return replace(found, held=_NO_BETTER, again=_soonest(found.again, pause))
    return replace(waits, relieved=home.name)


def _soonest(*times: float | None) -> float | None:
    return min((time for time in times if time is not None), default=None)


def _by_turns(observed: Observed, found: Health, case: _Case) -> Health:
    """One after the other, none where all are sick at once, none that is kept, and none before somebody who would go along."""
    spared, held = _all_at_once(observed, case.sick)
    left = [one for one in case.sick if one not in spared and one not in case.kept]
    ready = [one for one in left if not _waits(observed, one, case)]
    if case.under_way is not None and case.under_way in ready and case.since < REPLACE_EVERY_S:
        return _replaced(observed, found, case.under_way.pod)
    if left and not ready:
        return _waiting(found, _waits(observed, left[0], case))
    last = found.record.last_replacement if found.record else None
    if case.since < REPLACE_EVERY_S and left:
        held = f"The operator replaces at most one replica in {REPLACE_EVERY_S:.0f} s. The last one was {last.pod if last else ''}."
        return replace(found, held=held, again=REPLACE_EVERY_S - case.since)
    return replace(found, record=_recorded(found.record, ready[0], observed.now)) if ready else replace(found, held=held)


def _waiting(found: Health, why: str) -> Health:
    return replace(found, doing=why) if why == _COMING else replace(found, held=why)


def _waits(observed: Observed, one: Sick, case: _Case) -> str:
    """Why it cannot go yet: to have fewer would throw away who loads. Beside those that are kept its own successor may load as well."""
    mine = deployment_of(observed, one.pod)
    if mine is None or not before(observed, mine, one.pod, case.sick):
        return ""
    if mine.name in observed.cramped:
        return _STARTING
    return _COMING if more(observed, mine) and not case.kept else ""


def _replaced(observed: Observed, health: Health, pod: Pod) -> Health:
    """Deleted, so that another is made at once beside it. Where that would be one too many for a quota it goes first, and where another one
    was made before, without a successor."""
    mine = deployment_of(observed, pod)
    if mine is not None and more(observed, mine) and not before(observed, mine, pod, health.sick):
        # While nobody sound serves, the successor that was made is as little worth.
        return replace(health, swapped=pod.name, relieved="", given_up=mine.name if health.kept else "")
    if mine is not None and mine.name in observed.cramped:
        return replace(health, swapped=pod.name)
    return replace(health, writes=(Delete(PODS, Child(PODS, {"metadata": pod.meta})),))


def _all_at_once(observed: Observed, sick: tuple[Sick, ...]) -> tuple[tuple[Sick, ...], str]:
    """Those that are spared because all of several Ready replicas, of a revision or of the service, answer nobody; a sentence that says
    so. Of whom the device is called faulty too there are two witnesses."""
    bad = {one.pod.name for one in sick if not one.answers and one.sickness is not Sickness.DEVICE_FAULT}
    spared: set[str] = set()
    told = ""
    ready = [pod for pod in observed.pods if pod.counts and pod.ready]
    groups = {f"revision {revision}": [p for p in ready if p.revision == revision] for revision in sorted({p.revision for p in ready})}
    for name, alike in (groups | {"the service": ready}).items():
        if len(alike) > 1 and bad.issuperset(pod.name for pod in alike):
            spared |= {pod.name for pod in alike}
            told = (
                f"All {len(alike)} ready replicas of {name} are unhealthy at the same time. "
                "Automatic replacement is paused; check the model and the devices."
            )
    return tuple(one for one in sick if one.pod.name in spared), told


def _recorded(record: HealthStatus | None, sick: Sick, now: float) -> HealthStatus:
    found = Replacement(pod=sick.pod.name, uid=sick.pod.uid, time=stamp(now), why=f"{sick.sickness.value.name}: {sick.why}")
    return (record or HealthStatus()).model_copy(update={"last_replacement": found})
