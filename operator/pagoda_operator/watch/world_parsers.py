"""Which kinds are mirrored, and by which parser: each lives with whoever decides by it. Called by process.py. Pure.

Each keeps what its kind's deciding module needs and nothing that changes with time alone (heartbeats, images, counters).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pagoda_operator.api.state import NODES, PODS, QUOTAS, RESOURCE_CLAIMS, RESOURCE_SLICES, Resource
from pagoda_operator.decide.quota.caps import parse_quota
from pagoda_operator.inventory.nodes import parse_node
from pagoda_operator.inventory.pods import parse_occupant
from pagoda_operator.inventory.slices import parse_claim, parse_slice
from pagoda_operator.watch.world import Parser

PARSERS: Final[Mapping[Resource, Parser]] = {
    NODES: parse_node,
    PODS: parse_occupant,
    QUOTAS: parse_quota,
    RESOURCE_SLICES: parse_slice,
    RESOURCE_CLAIMS: parse_claim,
}
