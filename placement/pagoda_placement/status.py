"""What the status says of a placement: the choice, why not the entries before it, and devices that cannot be used. Pure; called by `place`.

The status also remembers the scheduler's verdicts. An entry for which the scheduler found no node has no room, whatever is counted as free:
the scheduler knows what is not counted here, such as memory and cores of nodes, zones of volumes and affinity of pods. A verdict moves a
service only if it may take other devices; otherwise it waits, and the scheduler's message is the reason.

No text changes with time alone, because each change is a status write. Every service that asks for devices has the warnings.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from pagoda_contracts.names import LABEL_GPU_PRODUCT, MIG_INVALID
from pagoda_contracts.resources.placement import Accelerator
from pagoda_contracts.resources.status import PlacementStatus, RejectedAccelerator, WaitingAccelerator
from pagoda_sizing.platforms import matches

from pagoda_placement.fit import too_small
from pagoda_placement.inventory import Inventory
from pagoda_placement.nodes import MIG_AT_WORK, MIG_FAILED, Node
from pagoda_placement.options import Candidate, Option
from pagoda_placement.question import Current, Question
from pagoda_placement.revision import entry_digest
from pagoda_placement.values import of_product, stamp

_MAX_REJECTED: Final = 32
_MAX_WHY: Final = 1000
MAX_DEVICE: Final = 250
# In seconds. Repartitioning takes a minute or two, with a reboot up to ten; a known fault leaves it pending without end.
_PENDING_TOO_LONG: Final = 15 * 60.0
_MAX_WARNINGS: Final = 8
_VERDICT: Final = "the scheduler finds no node: "
# Shortages that more or larger nodes would cure; a missing volume or pod is none of these.
_SHORTAGES: Final = ("Insufficient", "Too many pods", "no nodes available")


def chosen_status(candidates: tuple[Candidate, ...], chosen: Candidate, option: Option, warned: tuple[str, ...]) -> PlacementStatus:
    """The status of a service that has an entry to run on, or to wait for."""
    device = option.resolved.device[:MAX_DEVICE] or None
    rejected = rejections(candidates, (chosen.position, option))
    return PlacementStatus(chosen=chosen.name, device=device, concurrency=option.requests, rejected=rejected, warnings=warned)


def rejections(candidates: tuple[Candidate, ...], taken: tuple[int, Option] | None) -> tuple[RejectedAccelerator, ...]:
    """Everything before what was taken: other entries, and smaller classes of the same one."""
    found = [RejectedAccelerator(accelerator=name[:128], why=why[:_MAX_WHY]) for name, why in _reasons(candidates, taken)]
    if len(found) <= _MAX_REJECTED:
        return tuple(found)
    # Verdicts of the scheduler are kept first, because they are remembered only here.
    first = sorted(range(len(found)), key=lambda place: _VERDICT not in found[place].why)[: _MAX_REJECTED - 1]
    more = RejectedAccelerator(accelerator="others", why=f"{len(found) - _MAX_REJECTED + 1} more reasons are left out")
    return (*(found[place] for place in sorted(first)), more)


def _reasons(candidates: tuple[Candidate, ...], taken: tuple[int, Option] | None) -> Iterator[tuple[str, str]]:
    for one in candidates:
        if taken is not None and one.position > taken[0]:
            return
        if one.absent:
            yield one.name, one.absent
        mine = taken[1].identity if taken is not None and one.position == taken[0] else None
        for option in one.options:
            if option.why and not (option.ever and option.identity == mine):
                yield one.name, option.why


def waiting_status(awaited: Candidate, since: float) -> WaitingAccelerator:
    """The entry that the service waits for, and since when."""
    why = "; ".join(option.why for option in awaited.options if option.ever)
    return WaitingAccelerator(accelerator=awaited.name, entry=entry_digest(awaited.entry), since=stamp(since), why=why[:_MAX_WHY])


def warnings(inventory: Inventory, entries: Iterable[Accelerator], now: float) -> Iterator[str]:
    """At most nine, sorted by node, for nodes that an entry might mean."""
    asked = tuple(entry for entry in entries if entry.cpu is None)
    nodes = (node for node in inventory.troubled if any(_meant(node, entry) for entry in asked))
    found = [warning for node in nodes for warning in _warnings_of(node, now)]
    yield from found[:_MAX_WARNINGS]
    if len(found) > _MAX_WARNINGS:
        yield f"and {len(found) - _MAX_WARNINGS} more"


def _meant(node: Node, entry: Accelerator) -> bool:
    product, _ = of_product(node.labels.get(LABEL_GPU_PRODUCT, ""))
    return entry.gpu is None or matches(entry.gpu.product, product.removesuffix(MIG_INVALID))


def _warnings_of(node: Node, now: float) -> Iterator[str]:
    if node.mig.state == MIG_FAILED:
        yield f"{node.name}: mig-manager could not apply {node.mig.config or 'its configuration'}; its GPUs cannot be used"
    elif node.mig.state in MIG_AT_WORK and node.mig.since is not None and now - node.mig.since >= _PENDING_TOO_LONG:
        since = datetime.fromtimestamp(node.mig.since, UTC).strftime("%Y-%m-%d %H:%M UTC")
        yield f"{node.name}: mig.config.state has been {node.mig.state} since {since}; its GPUs cannot be used"
    elif node.stranded:
        yield f"{node.name}: MIG is enabled, and {node.stranded} of {node.gpus} GPUs have no partitions and cannot be used"
    elif node.bare and node.mig.state not in MIG_AT_WORK:
        yield f"{node.name}: MIG is enabled ({node.mig.config}), and the node offers neither GPUs nor slices"
    for offer in node.offers:
        if offer.allocatable < offer.capacity:
            yield f"{node.name}: {offer.capacity - offer.allocatable} of {offer.capacity} {offer.resource} are unhealthy"


def with_verdicts(question: Question, candidates: tuple[Candidate, ...], current: Current | None) -> tuple[Candidate, ...]:
    """The candidates with the scheduler's verdicts: of now for the current devices, of before for those that were given up. Otherwise a
    service would return to those and wait for each of them in turns, without end."""
    if current is None or current.position >= len(candidates):
        return candidates
    before = tuple(_remembered(one, question, current) for one in candidates)
    here = before[current.position]
    if why := _refused(question, candidates, before, current):
        here = here._replace(options=_without_room(here.options, current, why))
    return tuple(here if one.position == current.position else one for one in before)


def _remembered(one: Candidate, question: Question, current: Current) -> Candidate:
    """Without room in what was given up, though it may be free again: devices that were in use for a moment are no reason to return."""
    kept = question.kept.rejected if question.kept else ()
    verdicts = [rejected.why for rejected in kept if _VERDICT in rejected.why and rejected.accelerator == one.name]
    if one.position > current.position or not verdicts:
        return one
    mine = current.resolved.identity if one.position == current.position else None
    return one._replace(options=tuple(option if option.identity == mine else _given_up(option, verdicts) for option in one.options))


def _given_up(option: Option, verdicts: Sequence[str]) -> Option:
    why = next((why for why in verdicts if why.startswith(_mark(option))), "")
    return replace(option, free=0, why=why) if option.ever and why else option


def _refused(question: Question, candidates: tuple[Candidate, ...], before: tuple[Candidate, ...], current: Current) -> str:
    """Why there is no room on the current devices, if that changes anything. A service that waits on CPU waits until it has a node, even if
    the scheduler reports nothing for a moment: a wait that begins again may never end."""
    here, waited = before[current.position], _waited_for(question, before[current.position])
    if not current.refused or not (waited or before != candidates or _may_move(before, here, current)):
        return waited
    # The scheduler's message does not say whether the nodes are full or too small.
    small = too_small(question.sizes, here.entry.cpu) if here.entry.cpu is not None else ""
    return f"{small}; {current.refused}" if small else current.refused


def _waited_for(question: Question, here: Candidate) -> str:
    kept = question.kept.waiting if question.kept else None
    if here.entry.cpu is None or kept is None or (kept.accelerator, kept.entry) != (here.name, entry_digest(here.entry)):
        return ""
    return (kept.why or "").removeprefix(_VERDICT)


def _may_move(candidates: tuple[Candidate, ...], here: Candidate, current: Current) -> bool:
    """To another entry after a wait, or to another class of this one that has room; or the service waits for room on CPU."""
    if here.entry.cpu is not None and any(shortage in current.refused for shortage in _SHORTAGES):
        return True
    later = here.wait is not None and any(one.able for one in candidates[current.position + 1 :])
    return later or any(option.free and option.identity != current.resolved.identity for option in here.able)


def _without_room(options: tuple[Option, ...], current: Current, why: str) -> tuple[Option, ...]:
    """No room on the current devices. If none was counted either, the options keep the reason for that."""
    mine = [option for option in options if option.ever and option.identity == current.resolved.identity]
    if not any(option.free for option in mine):
        return options
    return tuple(replace(one, free=0, why=_mark(one) + why) if one in mine else one for one in options)


def _mark(option: Option) -> str:
    return f"{option.kind.name}: {_VERDICT}" if option.kind else _VERDICT
