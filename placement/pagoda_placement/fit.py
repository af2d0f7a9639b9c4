"""The request of an entry on CPU against the sizes of nodes. Pure.

They of nodes decide nothing, since larger nodes may come; they only explain why a pod waits.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from pagoda_contracts.resources.placement import CpuAccelerator
from pagoda_contracts.units import parse_quantity
from pagoda_sizing.replica import tenths

from pagoda_placement.nodes import Node


class Size(NamedTuple):
    """A node's allocatable cores and memory."""

    millicores: int
    memory: int


def largest(nodes: Iterable[Node]) -> tuple[Size, ...]:
    """Returns the sizes that no other node exceeds in both: a handful for any number of nodes."""
    found: list[Size] = []
    for size in sorted({Size(node.millicores, node.memory) for node in nodes}, reverse=True):
        if not found or size.memory > found[-1].memory:
            found.append(size)
    return tuple(found)


def too_small(sizes: tuple[Size, ...], cpu: CpuAccelerator) -> str:
    """Returns what no node has for one replica; empty if one node has it all, or if no node reports its size."""
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
    """In tenths; needs are rounded up and sizes down, so that they never read the same."""
    found = -(-millicores // 100) if up else millicores // 100
    return f"{found / 10:,.1f}".removesuffix(".0") + (" core" if found == 10 else " cores")
