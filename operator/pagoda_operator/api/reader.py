"""The reads that may be asked for. Implemented by the API server's client; `Reader` by the caches too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from pagoda_operator.api.state import Json, Resource


class Reader(Protocol):
    """The reads that observing needs."""

    async def get(self, resource: Resource, namespace: str, name: str) -> Json | None:
        """The object, None where there is none."""

    async def list(self, resource: Resource, namespace: str, selector: str) -> Sequence[Json]:
        """The objects with these labels."""


class Listed(NamedTuple):
    """A list by a quorum read, and its version."""

    items: Sequence[Json]
    version: str


class Lister(Protocol):
    """The quorum reads that verify what the caches show."""

    async def listed(self, resource: Resource, namespace: str, *, label: str = "", name: str = "") -> Listed:
        """The objects with this label, or the one of this name."""
