"""What a source is, and which one an address belongs to. Declared for `job`, which asks no more of it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from pagoda_fetch.core.listing import Listing, RemoteFile


class Source(Protocol):
    """Files at a place. Errors are those of the one tree."""

    async def resolve(self) -> Listing:
        """What is there now."""

    def read(self, file: RemoteFile, offset: int) -> AsyncGenerator[bytes]:
        """A listed file's bytes from an offset on."""

    async def close(self) -> None:
        """Ends its connections."""
