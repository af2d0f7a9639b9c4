"""What the status says of a placement: the choice, why not the entries before it, and devices that nobody can use. Pure; called by `place`.

Nothing in it changes with time alone, and there are no numbers of the moment: each change is a write. The warnings are in the status of
every service that asks for devices: stranded by MIG, unhealthy, in mig-manager's hands for too long.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Final

from pagoda_contracts.names import LABEL_GPU_PRODUCT, MIG_INVALID
from pagoda_contracts.resources.placement import Accelerator
from pagoda_contracts.resources.status import PlacementStatus, RejectedAccelerator, WaitingAccelerator

from pagoda_operator.decide.placement.options import Candidate, Option
from pagoda_operator.decide.placement.unschedulable import given_up
from pagoda_operator.decide.render.children import entry_digest
from pagoda_operator.inventory.fleet import Fleet
from pagoda_operator.inventory.nodes import MIG_AT_WORK, MIG_FAILED, Node
from pagoda_operator.inventory.values import matches, of_product, stamp

_MAX_REJECTED: Final = 32
_MAX_WHY: Final = 1000
MAX_DEVICE: Final = 250
# Repartitioning takes a minute or two, with a reboot up to ten; a known fault leaves it pending for ever.
PENDING_TOO_LONG: Final = 15 * 60.0
_MAX_WARNINGS: Final = 8


def chosen_status(candidates: tuple[Candidate, ...], chosen: Candidate, option: Option, warned: tuple[str, ...]) -> PlacementStatus:
    """Of a service that has an entry to run on, or to wait for."""
    device = option.resolved.device[:MAX_DEVICE] or None
    return PlacementStatus(chosen=chosen.name, device=device, rejected=rejections(candidates, (chosen.position, option)), warnings=warned)


def rejections(candidates: tuple[Candidate, ...], taken: tuple[int, Option] | None) -> tuple[RejectedAccelerator, ...]:
    """Everything before what was taken: other entries, and smaller classes of the same one."""
    found = [RejectedAccelerator(accelerator=name[:128], why=why[:_MAX_WHY]) for name, why in _reasons(candidates, taken)]
    if len(found) <= _MAX_REJECTED:
        return tuple(found)
    # First those that the scheduler rejected: they are remembered here only.
    first = sorted(range(len(found)), key=lambda place: not given_up(found[place].why))[: _MAX_REJECTED - 1]
    more = RejectedAccelerator(accelerator="others", why=f"{len(found) - _MAX_REJECTED + 1} more reasons are left out")
    return (*(found[place] for place in sorted(first)), more)


def _reasons(candidates: tuple[Candidate, ...], taken: tuple[int, Option] | None) -> Iterator[tuple[str, str]]:
    for one in candidates:
        if taken is not None and one.position > taken[0]:
            return
        if one.absent:
            yield one.name, one.absent
        for option in one.options:
            mine = taken is not None and one.position == taken[0]
            if option.why and not (mine and taken and option.ever and option.resolved.identity == taken[1].resolved.identity):
                yield one.name, option.why


def waiting_status(awaited: Candidate, since: float) -> WaitingAccelerator:
    """What is waited for, and since when."""
    why = "; ".join(option.why for option in awaited.options if option.ever)
    return WaitingAccelerator(accelerator=awaited.name, entry=entry_digest(awaited.entry), since=stamp(since), why=why[:_MAX_WHY])


def warnings(fleet: Fleet, entries: Iterable[Accelerator], now: float) -> Iterator[str]:
    """At most nine, by node; of those nodes only that an entry might mean."""
    asked = tuple(entry for entry in entries if entry.cpu is None)
    there = (node for node in fleet.troubled if any(_meant(node, entry) for entry in asked))
    found = [warning for node in there for warning in _warnings_of(node, now)]
    yield from found[:_MAX_WARNINGS]
    if len(found) > _MAX_WARNINGS:
        yield f"and {len(found) - _MAX_WARNINGS} more"


def _meant(node: Node, entry: Accelerator) -> bool:
    product, _ = of_product(node.labels.get(LABEL_GPU_PRODUCT, ""))
    return entry.gpu is None or matches(entry.gpu.product, product.removesuffix(MIG_INVALID))


def _warnings_of(node: Node, now: float) -> Iterator[str]:
    if node.mig.state == MIG_FAILED:
        yield f"{node.name}: mig-manager could not apply {node.mig.config or 'its configuration'}; its GPUs cannot be used"
    elif node.mig.state in MIG_AT_WORK and node.mig.since is not None and now - node.mig.since >= PENDING_TOO_LONG:
        since = datetime.fromtimestamp(node.mig.since, UTC).strftime("%Y-%m-%d %H:%M UTC")
        yield f"{node.name}: mig.config.state has been {node.mig.state} since {since}; its GPUs cannot be used"
    elif node.stranded:
        cannot = f"{node.stranded} of {node.gpus} GPUs have no partitions and cannot be used"
        yield f"{node.name}: MIG is enabled, and {cannot}"
    elif node.bare and node.mig.state not in MIG_AT_WORK:
        yield f"{node.name}: MIG is enabled ({node.mig.config}), and the node offers neither GPUs nor slices"
    for offer in node.offers:
        if offer.allocatable < offer.capacity:
            yield f"{node.name}: {offer.capacity - offer.allocatable} of {offer.capacity} {offer.resource} are unhealthy"
