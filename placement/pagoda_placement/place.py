"""Which alternative of `accelerators[]` a service runs on, and why not the ones before it: `place(question)`. Pure.

Entries are tried in order. An entry that can never be used is passed over, with a reason for each class of devices. An entry whose devices
are all in use is waited for, as long as its `fallbackAfter` says. A service that runs stays until its alternatives are edited.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from pagoda_contracts.conditions.service import MODEL_REJECTED
from pagoda_contracts.resources.effect import fetched, not_built
from pagoda_contracts.resources.placement import Accelerator
from pagoda_contracts.resources.service import InferenceServiceSpec
from pagoda_contracts.resources.status import PlacementStatus
from pagoda_sizing.replica import Requirement

from pagoda_placement.options import Candidate, Demand, Option, absent, merged, options
from pagoda_placement.question import Current, Question, pinned
from pagoda_placement.result import Placement, Resolved, Undecided
from pagoda_placement.revision import entry_digest, identify
from pagoda_placement.status import MAX_DEVICE, chosen_status, rejections, waiting_status, warnings, with_verdicts
from pagoda_placement.values import digest, unix

# If a node joined within this time, a person or a node autoscaler may add more. Most autoscaled pools shrink at night.
GROWS_S: Final = 86_400.0


def alternatives(spec: InferenceServiceSpec) -> str:
    """Names the list of alternatives by its content; an edited list is decided again."""
    return digest([entry_digest(entry) for entry in spec.accelerators])


def place(question: Question) -> Placement:
    """The entry to run on, or why there is none, or what must be known first."""
    warned = tuple(warnings(question.inventory, question.spec.accelerators, question.now))
    current = _current(question)
    if current is not None and (current.running or question.wanted == 0):
        return _stay(question, current, warned)
    if question.model.unserved:
        why = Undecided(MODEL_REJECTED, f"no daemon serves this model: {question.model.unserved}", stalled=True)
        return Placement(None, PlacementStatus(warnings=warned), undecided=why)
    found = with_verdicts(question, candidates(question, current), current)
    if current is not None and _has_room(found, current):
        placed = _stay(question, current, warned)
    else:
        placed = _as_pinned(question, _decide(question, found, warned, current))
    if (unknown := _must_know(question, found, placed)) is not None:
        # A wait goes on, and entries that were given up stay so.
        waiting = question.kept.waiting if question.kept else None
        status = PlacementStatus(waiting=waiting, rejected=placed.status.rejected, warnings=warned)
        return Placement(None, status, undecided=unknown, again_at=unknown.until)
    return placed


def _must_know(question: Question, found: tuple[Candidate, ...], placed: Placement) -> Undecided | None:
    """What is waited for until the model's shape is known; None if the choice needs no shape. An entry on CPU waits only for a new revision
    whose model is fetched, while no other one runs, which would not be scaled meanwhile, and not for ever: the daemon itself refuses what
    it cannot serve."""
    unknown, entry = question.model.unknown, placed.entry
    if question.model.shape is not None or unknown is None:
        return None
    if _asks_for_shape(found, placed):
        return unknown._replace(until=None)
    reads = entry is not None and entry.cpu is not None and fetched(question.spec)
    runs = any(run.running for run in question.runs)
    if not reads or entry is None or runs or (unknown.until is not None and question.now >= unknown.until):
        return None
    name = identify(question.name, question.spec, entry, placed.resolved.identity).name
    return None if name in question.made else unknown


def _asks_for_shape(candidates: tuple[Candidate, ...], placed: Placement) -> bool:
    """Whether there are devices that the model's size decides on, up to the entry that is taken. Devices that no node offers yet are
    none, unless it is that entry's."""
    last = next((one.position for one in candidates if one.entry is placed.entry), len(candidates))
    asked = [option for one in candidates if one.position <= last for option in one.options if option.seen or one.entry is placed.entry]
    return any(option.kind and option.ever for option in asked)


def _as_pinned(question: Question, placed: Placement) -> Placement:
    """With the devices of the pinned rendering, which does not change when nodes are added."""
    if placed.entry is None:
        return placed
    name = identify(question.name, question.spec, placed.entry, placed.resolved.identity).name
    pin = next((run.pin for run in question.runs if run.name == name and run.pin is not None), None)
    return placed if pin is None else placed._replace(resolved=pin.resolved)


def spare(question: Question, resolved: Resolved, entry: Accelerator) -> int | None:
    """How many more replicas fit beside all that run now, the service's own included: what a surge may take. None on CPU, and if none would
    fit without the service's own either (nodes are cordoned, or offer nothing now): removing a replica would not help."""
    if entry.cpu is not None:
        return None
    question = pinned(question, _current(question))
    beside = _free(question, resolved, entry, "")
    return beside if beside or _free(question, resolved, entry, question.terms.service_uid) else None


def _free(question: Question, resolved: Resolved, entry: Accelerator, mine: str) -> int:
    """Places for the same devices; what pods of the service with the uid `mine` have counts as free."""
    demand = Demand(question.inventory, question.terms._replace(service_uid=mine))
    same = (option for option in merged(one for one in options(entry, demand) if one.ever) if option.identity == resolved.identity)
    return next((option.free for option in same), 0)


def more(question: Question) -> int | None:
    """How many more replicas of the current revision would find a place now.

    None if that is unknown: on CPU, without a revision yet, if no node offers such devices now, or if the node pool grows. Then nodes are
    added because pods wait, and as many as pods wait.
    """
    if (current := _current(question)) is None:
        return None
    question, entry = pinned(question, current), question.spec.accelerators[current.position]
    if entry.cpu is not None:
        return None
    found = options(entry, Demand(question.inventory, question.terms._replace(service_uid="")))
    same = [one for one in found if one.ever and one.kind and one.identity == current.resolved.identity]
    mine = [one for one in same if not current.resolved.labels or (one.kind and one.kind.label in current.resolved.labels)]
    joined = [room.node.joined for one in mine if one.kind for room in one.kind.rooms if not room.node.gone]
    if not joined or question.now - max(joined) < GROWS_S:
        return None
    return sum(one.free for one in mine)


def candidates(question: Question, current: Current | None = None) -> tuple[Candidate, ...]:
    """What each entry could run on, up to the first entry on CPU that is waited for without end. The entry of `current` has a template
    that stays as it is."""
    required = Requirement.of(question.model.shape, question.spec) if question.model.shape else None
    demand = Demand(question.inventory, question.terms, required, question.model.unknowable)
    kept = replace(demand, terms=pinned(question, current).terms)
    found: list[Candidate] = []
    for index, entry in enumerate(question.spec.accelerators):
        here = current is not None and current.position == index
        asked = replace(kept, required=None) if here else demand  # its revision was judged when it was made
        refused = None if here else not_built(question.spec.engine, entry)
        possible = () if refused else options(entry, asked)
        found.append(Candidate(index, entry, possible, refused.message if refused else "" if possible else absent(entry, asked)))
        if entry.cpu is not None and found[-1].able and found[-1].wait is None:
            break
    return tuple(found)


def _current(question: Question) -> Current | None:
    """The newest revision that matches the spec."""
    now = alternatives(question.spec)
    for run in sorted(question.runs, key=lambda run: (run.number, run.running), reverse=True):
        if run.pin is not None and run.pin.alternatives != now:
            continue
        resolved = run.pin.resolved if run.pin else Resolved()
        for index, entry in enumerate(question.spec.accelerators):
            if identify(question.name, question.spec, entry, resolved.identity).name == run.name:
                return Current(index, resolved, run.running, run.refused, run.tolerations)
    return None


def _has_room(candidates: tuple[Candidate, ...], current: Current) -> bool:
    able = (option for one in candidates if one.position == current.position for option in one.able)
    return any(option.free and option.identity == current.resolved.identity for option in able)


def _stay(question: Question, current: Current, warned: tuple[str, ...]) -> Placement:
    """The status keeps the reasons of the time of the decision: nodes change often, and each change would be a status write."""
    entry, resolved = question.spec.accelerators[current.position], current.resolved
    name = Candidate(current.position, entry, (), "").name
    kept = question.kept if question.kept and question.kept.chosen == name else PlacementStatus()
    status = kept.model_copy(update={"chosen": name, "device": resolved.device[:MAX_DEVICE] or None, "waiting": None, "warnings": warned})
    return Placement(entry, status, resolved)


def _decide(question: Question, candidates: tuple[Candidate, ...], warned: tuple[str, ...], current: Current | None) -> Placement:
    able = _worth_waiting([one for one in candidates if one.able])
    if not able:
        return Placement(None, PlacementStatus(rejected=rejections(candidates, None), warnings=warned))
    refused = current if current is not None and current.refused else None
    patience, since = _patience(question, able, refused)
    for one in able[: patience + 1]:
        if (option := _best(one.able, question.wanted)) is not None:
            status = chosen_status(candidates, one, option, warned)
            return Placement(one.entry, status, option.resolved)
    awaited = able[patience]
    mine = refused.resolved.identity if refused and refused.position == awaited.position else None
    option = next((one for one in awaited.able if one.identity == mine), awaited.able[0])
    status = chosen_status(candidates, awaited, option, warned).model_copy(update={"waiting": waiting_status(awaited, since)})
    ends = since + awaited.wait if awaited.wait is not None and patience + 1 < len(able) else None
    placed = Placement(awaited.entry, status, option.resolved, again_at=ends)
    return placed if awaited.seen else _without_nodes(question, placed, since)


def _worth_waiting(able: list[Candidate]) -> list[Candidate]:
    """Without entries that no node offers yet and that have no `fallbackAfter`, if a later one has devices: such
    nodes may never come, and the wait would have no end."""
    last = max((place for place, one in enumerate(able) if one.seen), default=-1)
    return [one for place, one in enumerate(able) if one.seen or one.wait is not None or place > last]


def _without_nodes(question: Question, placed: Placement, since: float) -> Placement:
    """For devices that no node offers yet. At the profile's `nodeDeadline` the wait needs a person, unless another entry is next."""
    deadline = since + question.node_deadline
    overdue = placed.again_at is None and question.now >= deadline
    again_at = placed.again_at if placed.again_at is not None else None if overdue else deadline
    return placed._replace(again_at=again_at, nodes="Missing" if overdue else "Expected")


def _best(able: tuple[Option, ...], wanted: int) -> Option | None:
    """The smallest class with room for all replicas, else the smallest with room for one."""
    roomy = (option for option in able if option.free >= max(1, wanted))
    return next(roomy, None) or next((option for option in able if option.free), None)


def _patience(question: Question, able: list[Candidate], refused: Current | None) -> tuple[int, float]:
    """How far down the list the wait has come, and since when (Unix seconds) the service waits for the entry there.

    The status remembers it, so that a restart does not begin again. An edited entry is another entry.
    """
    position, since = _placed_before(question, able), float(int(question.now))
    position = next((n for n, one in enumerate(able) if refused and one.position == refused.position), position)
    waited = question.kept.waiting if question.kept else None
    if waited is not None:
        same = (n for n, one in enumerate(able) if (one.name, entry_digest(one.entry)) == (waited.accelerator, waited.entry))
        found = next(same, None)
        began = unix(waited.since)  # None if it was not written by an operator: the wait begins now
        position, since = (found, min(since, since if began is None else began)) if found is not None else (position, since)
    while position + 1 < len(able) and (wait := able[position].wait) is not None and question.now >= since + wait:
        if _best(able[position].able, question.wanted) is not None:
            break
        position, since = position + 1, since + wait
    return position, since


def _placed_before(question: Question, able: list[Candidate]) -> int:
    """Where an older revision of the same list runs: entries before it are not waited for again."""
    now = alternatives(question.spec)
    running = {run.accelerator for run in question.runs if run.running and run.pin is not None and run.pin.alternatives == now}
    possible = ((n, entry_digest(one.entry, option.identity)) for n, one in enumerate(able) for option in one.able)
    return max((n for n, accelerator in possible if accelerator in running), default=0)
