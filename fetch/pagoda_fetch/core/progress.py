"""How far a fetch is, and what counts as progress. `steady` turns a trickle into an error; `Progress` is what others are shown."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Literal, NamedTuple

from pagoda_fetch.core.errors import Stalled
from pagoda_fetch.core.limits import Limits

Phase = Literal["resolving", "waiting", "fetching", "verifying", "done", "failed"]


class Progress(NamedTuple):
    """One moment of a fetch. `total` is 0 while unknown."""

    phase: Phase
    done: int = 0
    total: int = 0
    digest: str = ""
    path: str = ""


async def steady(chunks: AsyncGenerator[bytes], limits: Limits, what: str) -> AsyncGenerator[bytes]:
    """The chunks, or Stalled: a window of `silence` seconds must bring `floor` bytes. The whole may take any time."""
    clock = asyncio.get_running_loop().time
    until, came = clock() + limits.silence, 0
    async with aclosing(chunks) as stream:
        while True:
            try:
                async with asyncio.timeout_at(until):
                    chunk = await anext(stream, None)
            except TimeoutError:
                raise Stalled(f"{what}: {came} bytes in {limits.silence:g} s, at least {limits.floor} are progress") from None
            if chunk is None:
                return
            came += len(chunk)
            yield chunk
            if came >= limits.floor:
                until, came = clock() + limits.silence, 0
