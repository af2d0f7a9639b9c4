"""What is kept of objects that decisions over more than one service look at, by kind: each parser lives with whoever decides by it. Pure.

Each keeps what its kind's deciding module needs and nothing that changes with time alone (heartbeats, images, counters), as a value that
compares equal where nothing of that changed; None where nothing is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from pagoda_operator.api.state import ADAPTERS, NODES, PODS, QUOTAS, RESOURCE_CLAIMS, RESOURCE_SLICES, Json, Key, Resource
from pagoda_operator.decide.quota.caps import parse_quota
from pagoda_operator.inventory.nodes import parse_node
from pagoda_operator.inventory.pods import parse_occupant
from pagoda_operator.inventory.slices import parse_claim, parse_slice

Parser = Callable[[Json], Any]


def parse_adapter(body: Json) -> tuple[Key, int] | None:
    """The service that a LoraAdapter names, and the generation that names it."""
    reference: Any = (body.get("spec") or {}).get("serviceRef") or {}
    name, meta = reference.get("name"), body["metadata"]
    return (Key(str(reference.get("namespace") or meta["namespace"]), str(name)), int(meta.get("generation", 0))) if name else None


PARSERS: Final[Mapping[Resource, Parser]] = {
    ADAPTERS: parse_adapter,
    NODES: parse_node,
    PODS: parse_occupant,
    QUOTAS: parse_quota,
    RESOURCE_SLICES: parse_slice,
    RESOURCE_CLAIMS: parse_claim,
}
