"""Which kinds are mirrored, and by which parser: each lives with whoever decides by it. Called by serve.py. Pure.

Each keeps what its kind's deciding module needs and nothing that changes with time alone (heartbeats, images, counters).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pagoda_operator.placement.nodes import parse_node
from pagoda_operator.placement.pods import parse_occupant
from pagoda_operator.placement.slices import parse_claim, parse_slice
from pagoda_operator.quota.caps import parse_quota
from pagoda_operator.state import NODES, PODS, QUOTAS, RESOURCE_CLAIMS, RESOURCE_SLICES, Resource
from pagoda_operator.world import Parser

PARSERS: Final[Mapping[Resource, Parser]] = {
    NODES: parse_node,
    PODS: parse_occupant,
    QUOTAS: parse_quota,
    RESOURCE_SLICES: parse_slice,
    RESOURCE_CLAIMS: parse_claim,
}
