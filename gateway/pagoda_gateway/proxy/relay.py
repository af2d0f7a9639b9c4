"""One attempt: sends a call to a replica and relays its answer. Knows HTTP and SSE, not why this replica. Called through router.py.

Nothing goes to the client before the first byte of an answer is here, so a failed attempt can be repeated on another replica.
"""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import Final

import aiohttp
import msgspec
import structlog
from aiohttp import web
from multidict import CIMultiDict
from pagoda_contracts.names import (
    ERROR_DRAINING,
    ERROR_ENGINE_DIED,
    ERROR_FORBIDDEN,
    ERROR_NOT_READY,
    ERROR_OVERLOADED,
    ERROR_UNAUTHENTICATED,
    HEADER_ROUTE,
)

from pagoda_gateway.proxy.headers import to_client
from pagoda_gateway.proxy.sse import Events
from pagoda_gateway.proxy.upstream import Call, Upstream
from pagoda_gateway.requests.errors import Died, GatewayError, Overloaded, Refused, UpstreamDied, event

log = structlog.get_logger()

_NOT_NOW: Final = frozenset({HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS})
_REFUSALS: Final = frozenset({ERROR_DRAINING, ERROR_NOT_READY})
# The client's own credentials are not forwarded, so a replica that says this means the gateway's.
_NOT_LET_IN: Final = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})
_STRANGERS: Final = frozenset({ERROR_UNAUTHENTICATED, ERROR_FORBIDDEN})


class Relay:
    """One request's way to replicas and back to its client. `first` is called when a stream's first byte is there."""

    def __init__(self, upstream: Upstream, request: web.Request, first: Callable[[], None] = lambda: None) -> None:
        self._upstream, self._request, self._first = upstream, request, first
        self.begun: web.StreamResponse | None = None  # a stream whose first byte is on its way to the client
        self.broken = False  # it ended with an error event

    async def attempt(self, call: Call, http: str, route: str, *, fresh: bool) -> web.StreamResponse:
        """With the call bound, route.py's Attempt."""
        answer = await self._upstream.send(http, call, fresh=fresh)
        try:
            headers = to_client(answer.headers, route)
            if answer.status == HTTPStatus.OK and answer.content_type == "text/event-stream":
                return await self._stream(answer, headers)
            return await _whole(answer, headers)
        except BaseException:
            answer.close()  # not back into the pool: a replica sees at once that nobody listens
            raise

    async def _stream(self, answer: aiohttp.ClientResponse, headers: CIMultiDict[str]) -> web.StreamResponse:
        chunk = await _read(answer)
        if not chunk:
            raise Died("empty", "the stream ended before its first event")
        self._first()
        self.begun, events = web.StreamResponse(headers=headers), Events()
        await self.begun.prepare(self._request)
        try:
            while chunk:
                if whole := events.feed(chunk):
                    await self.begun.write(whole)
                chunk = await _read(answer)
            await self.begun.write(events.rest())
            return self.begun
        except Died as death:
            answer.close()
            log.warning("stream broke", route=headers[HEADER_ROUTE], why=str(death))
            return await self.end(self.begun, UpstreamDied("the replica died with this answer under way; it cannot be continued"))

    async def end(self, begun: web.StreamResponse, error: GatewayError) -> web.StreamResponse:
        """One clean event: the client's parser raises it, and finds the end it waits for."""
        self.broken = True
        await begun.write(event(error))
        return begun


async def _read(answer: aiohttp.ClientResponse) -> bytes:
    """The next bytes, b"" at a good end; Died at a torn one."""
    try:
        return await answer.content.readany()
    except (aiohttp.ClientError, OSError) as error:
        raise Died("closed", str(error)) from error


async def _whole(answer: aiohttp.ClientResponse, headers: CIMultiDict[str]) -> web.Response:
    """An answer that is no stream is relayed when it is complete: until then another replica can still give it."""
    try:
        body = await answer.read()
    except (aiohttp.ClientError, OSError) as error:
        raise Died("closed", str(error)) from error
    code = _error_code(body) if answer.status in _NOT_NOW | _NOT_LET_IN else ""
    if code in _STRANGERS and answer.status in _NOT_LET_IN:
        log.warning("a replica does not let this gateway in", route=headers[HEADER_ROUTE], status=answer.status)
        raise Refused("not-let-in")
    if code in _REFUSALS:
        raise Refused(code.replace("_", "-"))
    if code == ERROR_OVERLOADED:
        raise Overloaded(code)
    if code == ERROR_ENGINE_DIED:
        raise Died(code.replace("_", "-"))
    return web.Response(status=answer.status, headers=headers, body=body)


class _ErrorCode(msgspec.Struct):
    code: str | None = None


class _ErrorBody(msgspec.Struct):
    error: _ErrorCode


def _error_code(body: bytes) -> str:
    try:
        return msgspec.json.decode(body, type=_ErrorBody).error.code or ""
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""
