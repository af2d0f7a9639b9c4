"""Reads a request's body within limits of size, time and of all bodies together. Called by http.py; knows nothing of JSON."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from aiohttp import hdrs, web

from pagoda_gateway.requests.errors import BodyTooLarge, BodyTooSlow, EncodingUnsupported, QueueFull

Take = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Limits:
    """What a request's body may be, and how many bytes all of them may have at once."""

    body_bytes: int
    body_seconds: float
    budget_bytes: int


class Budget:
    """Bytes of bodies in memory, of requests that are read, held and under way. A body is kept until its answer ends."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._taken = 0

    @contextmanager
    def account(self) -> Iterator[Take]:
        """One request's part: counted as bytes arrive (a length that is only announced costs nothing), given back at the end."""
        mine = 0

        def take(count: int) -> None:
            nonlocal mine
            if self._taken + count > self._limit:
                raise QueueFull(f"bodies of requests held and under way have {self._taken} bytes already (limit {self._limit})")
            self._taken += count
            mine += count

        try:
            yield take
        finally:
            self._taken -= mine


async def read(request: web.Request, limits: Limits, take: Take) -> bytes:
    """The whole body."""
    if request.headers.get(hdrs.CONTENT_ENCODING, "identity") != "identity":
        raise EncodingUnsupported(f"content-encoding {request.headers[hdrs.CONTENT_ENCODING]!r}: send the body as plain JSON")
    if (request.content_length or 0) > limits.body_bytes:
        raise BodyTooLarge(f"the body has {request.content_length} bytes, at most {limits.body_bytes} are taken")
    try:
        async with asyncio.timeout(limits.body_seconds):
            return await _pieces(request, limits, take)
    except TimeoutError as error:
        raise BodyTooSlow(f"the body did not arrive within {limits.body_seconds:g} s") from error


async def _pieces(request: web.Request, limits: Limits, take: Take) -> bytes:
    pieces, size = [], 0
    while piece := await request.content.readany():
        size += len(piece)
        if size > limits.body_bytes:
            raise BodyTooLarge(f"the body has more than {limits.body_bytes} bytes")
        take(len(piece))
        pieces.append(piece)
    return b"".join(pieces)
