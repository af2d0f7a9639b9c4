"""The fetch sidecar's gRPC over a folder of claims, in the test's own loop."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from pagoda_fetch.core.limits import Limits
from pagoda_fetch.serve.service import Fetches, listen
from pagoda_fetch.sources.choose import Surroundings
from pagoda_fetch.volume.lock import myself
from pagoda_fetch.volume.store import Store


@asynccontextmanager
async def adapter_sidecar(claims: Path, store: Path, port: int = 0) -> AsyncIterator[int]:
    """Its port. `claims` has a folder for each claim."""
    around = Surroundings("https://hub.invalid", claims.parent / "credentials", claims, limits=Limits(reserve=0, attempts=1))
    fetches = Fetches(Store(store, 0), around, myself(""))
    server, bound = await listen(fetches, port)
    try:
        yield bound
    finally:
        await fetches.stop()
        await server.stop(0)
