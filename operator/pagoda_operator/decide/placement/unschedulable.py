"""Entries for which the scheduler finds no node have no room for a replica, whatever is counted as free: its verdict goes first.

Pure; called by `place`. The scheduler knows what is not counted here: memory and cores of nodes, zones of volumes, affinity of pods.
Only who may take other devices is moved by it; anybody else waits where it is, with the scheduler's words as the reason. An entry on CPU
has no room where nodes lack something: nothing of what is free of them is counted here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from pagoda_operator.decide.placement.options import Candidate, Option
from pagoda_operator.decide.placement.question import Current, Question
from pagoda_operator.decide.render.children import entry_digest
from pagoda_operator.inventory.fit import too_small

_SAID: Final = "the scheduler finds no node: "
# Of what more or larger nodes would cure; a volume or a pod that is missing is none of these.
_LACKING: Final = ("Insufficient", "Too many pods", "no nodes available")


def with_scheduler_verdicts(question: Question, candidates: tuple[Candidate, ...], current: Current | None) -> tuple[Candidate, ...]:
    """With what the scheduler says of the devices that the service is on, and said of those before them, which the status remembers:
    gone back to, they would be waited for in turns for ever."""
    if current is None or current.position >= len(candidates):
        return candidates
    kept = question.kept.rejected if question.kept else ()
    said = [(one.accelerator, one.why) for one in kept if given_up(one.why)]
    before = tuple(_remembered(one, [why for name, why in said if name == one.name], current) for one in candidates)
    here = before[current.position]
    if why := _refused(question, candidates, before, current):
        here = here._replace(options=_without_room(here.options, current, why))
    return tuple(here if one.position == current.position else one for one in before)


def _refused(question: Question, candidates: tuple[Candidate, ...], before: tuple[Candidate, ...], current: Current) -> str:
    """Why there is no room where the service is, as far as anything follows from it. A service that waits on CPU does so until it has a
    node, whatever the scheduler says meanwhile or does not say for a moment: a wait that begins anew may never end."""
    here, waited = before[current.position], _waited_for(question, before[current.position])
    if current.refused and (waited or before != candidates or _may_move(before, here, current)):
        return _why(question, here, current)
    return waited


def _waited_for(question: Question, here: Candidate) -> str:
    kept = question.kept.waiting if question.kept else None
    if here.entry.cpu is None or kept is None or (kept.accelerator, kept.entry) != (here.name, entry_digest(here.entry)):
        return ""
    return (kept.why or "").removeprefix(_SAID)


def given_up(why: str) -> bool:
    """Whether the scheduler had no node: nothing else remembers that."""
    return _SAID in why


def _may_move(candidates: tuple[Candidate, ...], here: Candidate, current: Current) -> bool:
    """To another entry in a while, or to another class of the same one that has room; or it waits for room on CPU."""
    if here.entry.cpu is not None and any(words in current.refused for words in _LACKING):
        return True
    later = here.wait is not None and any(one.able for one in candidates[current.position + 1 :])
    return later or any(option.free and option.resolved.identity != current.resolved.identity for option in here.able)


def _remembered(one: Candidate, said: Sequence[str], current: Current) -> Candidate:
    """No room in what was given up, whatever is free by now: devices that are in use for a moment are no reason to go back to them."""
    if one.position > current.position or not said:
        return one
    mine = current.resolved.identity if one.position == current.position else None
    return one._replace(options=tuple(_forgone(option, said) if option.resolved.identity != mine else option for option in one.options))


def _forgone(option: Option, said: Sequence[str]) -> Option:
    why = next((why for why in said if why.startswith(_mark(option))), "")
    return replace(option, free=0, why=why) if option.ever and why else option


def _why(question: Question, here: Candidate, current: Current) -> str:
    """The scheduler tells what is in use from what never was there in no way."""
    small = too_small(question.sizes, here.entry.cpu) if here.entry.cpu is not None else ""
    return f"{small}; {current.refused}" if small else current.refused


def _without_room(options: Sequence[Option], current: Current, why: str) -> tuple[Option, ...]:
    """None of the current devices free now, where any were; who had no room keeps the reason for that. Other classes are not refused."""
    mine = [option for option in options if option.ever and option.resolved.identity == current.resolved.identity]
    if not any(option.free for option in mine):
        return tuple(options)
    return tuple(replace(one, free=0, why=_mark(one) + why) if one in mine else one for one in options)


def _mark(option: Option) -> str:
    return f"{option.kind.name}: {_SAID}" if option.kind else _SAID
