"""Reads a request's body within limits of size and time. Called by handlers.py and extproc/session.py; knows nothing of JSON."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from aiohttp import hdrs, web

from pagoda_gateway.requests.budget import Take
from pagoda_gateway.requests.errors import BodyTooLarge, BodyTooSlow, EncodingUnsupported


@dataclass(frozen=True, slots=True)
class Limits:
    """How large a request's body may be, and how long it may take to arrive."""

    body_bytes: int
    body_seconds: float


async def read(request: web.Request, limits: Limits, take: Take) -> bytes:
    """Returns the whole body. `take` counts its bytes as they arrive."""
    collected = Collected(request.headers, limits, take)
    try:
        async with asyncio.timeout(limits.body_seconds):
            while piece := await request.content.readany():
                collected.add(piece)
    except TimeoutError as error:
        raise too_slow(limits) from error
    return collected.whole()


class Collected:
    """A body as it arrives, within its limits; refuses one whose headers say already that it cannot be taken."""

    def __init__(self, headers: Mapping[str, str], limits: Limits, take: Take) -> None:
        encoding, length = headers.get(hdrs.CONTENT_ENCODING, "identity"), headers.get(hdrs.CONTENT_LENGTH, "")
        if encoding != "identity":
            raise EncodingUnsupported(f"content-encoding {encoding!r} is not supported; send the body as plain JSON")
        if length.isdecimal() and int(length) > limits.body_bytes:
            raise BodyTooLarge(f"the body must have at most {limits.body_bytes} bytes, got {length}")
        self._limits, self._take = limits, take
        self._pieces: list[bytes] = []
        self._size = 0

    def add(self, piece: bytes) -> None:
        """Takes the next bytes."""
        self._size += len(piece)
        if self._size > self._limits.body_bytes:
            raise BodyTooLarge(f"the body must have at most {self._limits.body_bytes} bytes, got more")
        self._take(len(piece))
        self._pieces.append(piece)

    def whole(self) -> bytes:
        """Returns all bytes."""
        return b"".join(self._pieces)


def too_slow(limits: Limits) -> BodyTooSlow:
    """Returns the error of a body that did not arrive in time."""
    return BodyTooSlow(f"the body did not arrive within {limits.body_seconds:g} s")
