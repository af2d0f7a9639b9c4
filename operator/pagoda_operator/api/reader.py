"""The reads that may be asked for. Implemented by the API server's client, by the mirror and by all who stand between."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pagoda_operator.api.state import Json, Resource


class Reader(Protocol):
    """The reads that observing needs."""

    async def get(self, resource: Resource, namespace: str, name: str) -> Json | None:
        """The object, None where there is none."""

    async def list(self, resource: Resource, namespace: str, selector: str) -> Sequence[Json]:
        """The objects with these labels."""
