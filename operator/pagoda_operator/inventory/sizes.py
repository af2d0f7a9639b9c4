"""Cores and memory of the largest nodes, for the reason that a replica on CPU has no node. Pure.

Nobody decides by them: whether a pod finds room is the scheduler's to say, and larger nodes may come.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from pagoda_contracts.resources.placement import CpuAccelerator
from pagoda_contracts.units import parse_quantity

from pagoda_operator.inventory.nodes import Node
from pagoda_operator.inventory.shape import tenths


class Size(NamedTuple):
    """What pods may have of a node."""

    millicores: int
    memory: int


def largest(nodes: Iterable[Node]) -> tuple[Size, ...]:
    """Sizes of nodes than which none has more of both: a handful, whatever the nodes."""
    found: list[Size] = []
    for size in sorted({Size(node.millicores, node.memory) for node in nodes}, reverse=True):
        if not found or size.memory > found[-1].memory:
            found.append(size)
    return tuple(found)


def too_small(sizes: tuple[Size, ...], cpu: CpuAccelerator) -> str:
    """What no node has for one replica; empty where one has it all, or where no node says what it has."""
    need = Size(int(parse_quantity(cpu.cores) * 1000), int(parse_quantity(cpu.memory)))
    cores, memory = max((size.millicores for size in sizes), default=0), max((size.memory for size in sizes), default=0)
    if 0 < cores < need.millicores:
        return f"needs {_cores(need.millicores, up=True)} on one node, but the largest node has {_cores(cores)}"
    if 0 < memory < need.memory:
        return f"needs {tenths(need.memory, up=True)} on one node, but the largest node has {tenths(memory)}"
    if cores and memory and not any(size.millicores >= need.millicores and size.memory >= need.memory for size in sizes):
        return f"needs {_cores(need.millicores, up=True)} and {tenths(need.memory, up=True)} on one node, but no node has both"
    return ""


def _cores(millicores: int, *, up: bool = False) -> str:
    """In tenths; what is needed rounded up and what there is down, so that they never read the same."""
    found = -(-millicores // 100) if up else millicores // 100
    return f"{found / 10:,.1f}".removesuffix(".0") + (" core" if found == 10 else " cores")
