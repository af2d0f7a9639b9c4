"""Reads a request's body within limits of size and time. Called by handlers.py; knows nothing of JSON."""

from __future__ import annotations

import asyncio
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
    if request.headers.get(hdrs.CONTENT_ENCODING, "identity") != "identity":
        encoding = request.headers[hdrs.CONTENT_ENCODING]
        raise EncodingUnsupported(f"content-encoding {encoding!r} is not supported; send the body as plain JSON")
    if (request.content_length or 0) > limits.body_bytes:
        raise BodyTooLarge(f"the body must have at most {limits.body_bytes} bytes, got {request.content_length}")
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
            raise BodyTooLarge(f"the body must have at most {limits.body_bytes} bytes, got more")
        take(len(piece))
        pieces.append(piece)
    return b"".join(pieces)
