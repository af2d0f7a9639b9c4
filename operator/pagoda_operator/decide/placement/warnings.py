"""Devices of the cluster that nobody can use, in sentences: stranded by MIG, unhealthy, under mig-manager's hands for too long. Pure.

Told in the placement status of every service that asks for devices. Nothing in them changes with time alone: each change is a write.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Final

from pagoda_contracts.names import LABEL_GPU_PRODUCT, MIG_INVALID
from pagoda_contracts.resources.placement import Accelerator

from pagoda_operator.inventory.fleet import Fleet
from pagoda_operator.inventory.mig import matches, of_product
from pagoda_operator.inventory.nodes import MIG_AT_WORK, MIG_FAILED, Node

# Repartitioning takes a minute or two, with a reboot up to ten; a known fault leaves it pending for ever.
PENDING_TOO_LONG: Final = 15 * 60.0
_MAX: Final = 8


def warnings(fleet: Fleet, entries: Iterable[Accelerator], now: float) -> Iterator[str]:
    """At most nine, by node; of those nodes only that an entry might mean."""
    asked = tuple(entry for entry in entries if entry.cpu is None)
    there = (node for node in fleet.troubled if any(_meant(node, entry) for entry in asked))
    found = [told for node in there for told in _of(node, now)]
    yield from found[:_MAX]
    if len(found) > _MAX:
        yield f"and {len(found) - _MAX} more"


def _meant(node: Node, entry: Accelerator) -> bool:
    product, _ = of_product(node.labels.get(LABEL_GPU_PRODUCT, ""))
    return entry.gpu is None or matches(entry.gpu.product, product.removesuffix(MIG_INVALID))


def _of(node: Node, now: float) -> Iterator[str]:
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
