"""Whether a replica can run on CPU: the model in its memory, the pod on a node, now or ever. Pure; called by `options`.

Where no node is known at all nothing is said of nodes: every node has cores, so it is only that none was shown, or none is there yet.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from pagoda_contracts.names import CONTAINER_DAEMON
from pagoda_contracts.resources.placement import CpuAccelerator
from pagoda_contracts.units import parse_quantity

from pagoda_operator.placement.blocks import Holding, Terms
from pagoda_operator.placement.cores import UNBOUNDED, Amount, by_words, count, too_small
from pagoda_operator.placement.fleet import Fleet
from pagoda_operator.placement.pods import amounts
from pagoda_operator.placement.shape import Asked, why_not_on_cores

_MAX_NAMED: Final = 3


class Verdict(NamedTuple):
    """Whether ever, for how many replicas now, and why not."""

    ever: bool
    free: int
    why: str = ""


def judge(cpu: CpuAccelerator, fleet: Fleet, terms: Terms, asked: Asked | None, enough: int) -> Verdict:
    """Places are counted up to `enough`."""
    if asked is not None and (why := why_not_on_cores(asked, int(parse_quantity(cpu.memory)))):
        return Verdict(ever=False, free=0, why=why)
    if not fleet.nodes:
        return Verdict(ever=True, free=UNBOUNDED)
    need = needed(cpu, terms)
    found = fleet.ground.holding(terms._replace(devices=False), need)
    if not found.open and not found.passing:
        return Verdict(ever=False, free=0, why=_never(found, need))
    free = count(found.open, need, fleet.held, terms.service_uid, enough)
    return Verdict(ever=True, free=free, why="" if free else _occupied(found, need))


def youngest(cpu: CpuAccelerator, fleet: Fleet, terms: Terms) -> float:
    """When the last of the nodes joined that may take such a replica now, in Unix seconds; ahead of any where there is none."""
    return fleet.ground.holding(terms._replace(devices=False), needed(cpu, terms)).youngest


def needed(cpu: CpuAccelerator, terms: Terms) -> Amount:
    """What a replica's pod asks for, its other containers included."""
    asked = {"requests": {"cpu": cpu.cores, "memory": cpu.memory}}
    others = [one for one in terms.pod.get("containers") or () if one.get("name") != CONTAINER_DAEMON]
    return Amount(*amounts({**terms.pod, "containers": [*others, {"name": CONTAINER_DAEMON, "resources": asked}]}))


def _never(found: Holding, need: Amount) -> str:
    """What nobody may use counts, and what is too small."""
    small = too_small(found.small, need) if found.small else ""
    return "; ".join(part for part in (small, by_words(found.lasting)) if part)


def _occupied(found: Holding, need: Amount) -> str:
    """Without numbers of the moment: each would be a write."""
    passing = "; ".join(dict.fromkeys(f"{name} is {why}" for name, why in found.passing[:_MAX_NAMED]))
    if not found.open:
        return passing
    told = f"no node has {need} free of {len(found.open)} that could hold it"
    return f"{told}; {passing}" if passing else told
