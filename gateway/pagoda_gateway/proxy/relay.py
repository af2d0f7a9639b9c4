"""One attempt: sends a call to a replica and relays its answer. Knows HTTP and SSE, not why this replica. Called through router.py.

Nothing goes to the client before the first byte of an answer is here, so a failed attempt can be repeated on another replica. Of a stream
with marks the next attempt is the rest: the record says what the client has.
"""

from __future__ import annotations

from contextlib import suppress
from http import HTTPStatus
from typing import Final, Protocol

import aiohttp
import msgspec
import structlog
from aiohttp import web
from multidict import CIMultiDict
from pagoda_contracts.names import (
    CONTINUABLE_EXACT,
    ERROR_DRAINING,
    ERROR_ENGINE_DIED,
    ERROR_FORBIDDEN,
    ERROR_NOT_READY,
    ERROR_OVERLOADED,
    ERROR_UNAUTHENTICATED,
    HEADER_CONTINUABLE,
    HEADER_ERROR_CODE,
    HEADER_ROUTE,
)

from pagoda_gateway.proxy.continuing import Record
from pagoda_gateway.proxy.headers import to_client
from pagoda_gateway.proxy.sse import Events, MarkedEvents
from pagoda_gateway.proxy.upstream import Call, Upstream
from pagoda_gateway.requests.budget import Take
from pagoda_gateway.requests.dialects import dialect_of
from pagoda_gateway.requests.errors import AttemptFailed, Died, GatewayError, Overloaded, Refused, UpstreamDied

log = structlog.get_logger()

# 529 is what a replica of /v1/messages says for 503.
_UNAVAILABLE: Final = frozenset({HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS, 529})
_REFUSALS: Final = frozenset({ERROR_DRAINING, ERROR_NOT_READY})
# A client's credentials are not forwarded, so a replica that answers with this refuses the gateway's.
_UNAUTHORIZED: Final = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})
_UNAUTHORIZED_CODES: Final = frozenset({ERROR_UNAUTHENTICATED, ERROR_FORBIDDEN})
_END: Final = b"\n\n"
_OTHER_NUMBERS: Final = b": this answer goes on at another replica, whose numbers may differ\n\n"


class Life(Protocol):
    """What a request's life is told of its stream."""

    begun: bool
    fixed: bool

    @property
    def take_bytes(self) -> Take: ...
    def first_byte(self) -> None: ...
    def heard(self) -> None: ...
    def continued(self, *, exact: bool) -> None: ...


class Relay:
    """One request's way to replicas and back to its client."""

    def __init__(self, upstream: Upstream, request: web.Request, request_id: str) -> None:
        self._upstream, self._request, self._request_id = upstream, request, request_id
        self.begun: web.StreamResponse | None = None  # a stream whose first byte is on its way to the client
        self._count = 0  # of its events
        self._ended = False
        self._record: Record | None = None

    async def attempt(self, call: Call, life: Life, address: str, route: str, *, fresh: bool) -> web.StreamResponse:
        """With the first two arguments bound, router.py's Attempt."""
        record = self._record = self._record or Record(life.take_bytes)
        if self.begun is not None and record.lost:
            raise UpstreamDied("the replica died with this answer under way, and it cannot be continued")
        answer = await self._upstream.send(address, record.call(call), fresh=fresh)
        try:
            headers = to_client(answer.headers, route)
            if answer.status == HTTPStatus.OK and answer.content_type == "text/event-stream":
                marked = answer.headers.get(HEADER_CONTINUABLE)
                if marked is not None:
                    return await self._continuable(answer, headers, life, record)
                if self.begun is None:
                    return await self._stream(answer, headers, life, record)
            whole = await _whole(answer, headers)
            if self.begun is not None:
                raise UpstreamDied(f"the replica died with this answer under way, and another one cannot continue it: {whole.status}")
            return whole
        except BaseException:
            answer.close()  # not back into the pool: the replica sees at once that its answer is not read any more
            raise

    async def _stream(self, answer: aiohttp.ClientResponse, headers: CIMultiDict[str], life: Life, record: Record) -> web.StreamResponse:
        """A stream without marks: the replica, or its client, wants it to end where it breaks."""
        chunk = await _read(answer)
        if not chunk:
            raise Died("empty", "the stream ended before its first event")
        record.lost = life.fixed = True
        begun = await self._begin(headers, life)
        events = Events()
        try:
            while chunk:
                life.heard()
                if whole := events.feed(chunk):
                    self._count = events.count
                    await begun.write(whole)
                chunk = await _read(answer)
            await begun.write(events.rest())
        except Died as death:
            answer.close()
            error = UpstreamDied("the replica died with this answer under way; it cannot be continued")
            with suppress(ConnectionError):  # the client may have left too: what ended the answer is the replica's death
                await self.end(begun, error)
            raise error from death
        return begun

    async def _continuable(
        self, answer: aiohttp.ClientResponse, headers: CIMultiDict[str], life: Life, record: Record
    ) -> web.StreamResponse:
        """A stream with marks. Its client has what the record says: both change in one step, before anything is waited for."""
        events, begun, advanced = MarkedEvents(), self.begun, False
        if begun is not None:
            exact = answer.headers[HEADER_CONTINUABLE] == CONTINUABLE_EXACT
            life.continued(exact=exact)
            if not exact:
                await begun.write(_OTHER_NUMBERS)
        while not events.over:
            try:
                chunk = await _read(answer)
                if not chunk:
                    raise Died("truncated", "the stream ended before its last mark")
            except Died as death:
                raise self._death(death, record, advanced=advanced) from death
            life.heard()
            whole, marks = events.feed(chunk)
            if whole or marks:
                begun = begun or await self._begin(headers, life)
                record.add(marks)
                self._count += whole.count(_END)
                advanced = advanced or bool(marks)
                await begun.write(whole)
            if events.died:
                raise self._death(Died(ERROR_ENGINE_DIED.replace("_", "-")), record, advanced=advanced)
        return begun or await self._begin(headers, life)

    def _death(self, death: Died, record: Record, *, advanced: bool) -> AttemptFailed | GatewayError:
        if record.lost:
            return UpstreamDied("the replica died with this answer under way, which is too long to be continued")
        return Died(death.reason, str(death), advanced=advanced)

    async def _begin(self, headers: CIMultiDict[str], life: Life) -> web.StreamResponse:
        life.first_byte()
        life.begun = True
        self.begun = begun = web.StreamResponse(headers=headers)
        await begun.prepare(self._request)
        return begun

    async def end(self, begun: web.StreamResponse, error: GatewayError) -> web.StreamResponse:
        """Ends a stream with one error event, unless that was done: the client's parser raises it and finds the end that it waits for."""
        if not self._ended:
            self._ended = True
            await begun.write(dialect_of(self._request.path).event(error, self._request_id, self._count))
        return begun


async def _read(answer: aiohttp.ClientResponse) -> bytes:
    """Returns the next bytes, b"" at a good end; Died if the connection broke."""
    try:
        return await answer.content.readany()
    except (aiohttp.ClientError, OSError) as error:
        raise Died("closed", str(error)) from error


async def _whole(answer: aiohttp.ClientResponse, headers: CIMultiDict[str]) -> web.Response:
    """Relays an answer without stream when it is complete. Until then another replica can still give it."""
    try:
        body = await answer.read()
    except (aiohttp.ClientError, OSError) as error:
        raise Died("closed", str(error)) from error
    code = _error_code(answer, body) if answer.status in _UNAVAILABLE | _UNAUTHORIZED else ""
    if code in _UNAUTHORIZED_CODES and answer.status in _UNAUTHORIZED:
        log.warning("a replica refuses this gateway's token", route=headers[HEADER_ROUTE], status=answer.status)
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


def _error_code(answer: aiohttp.ClientResponse, body: bytes) -> str:
    """Returns the code of a replica's refusal: by its header, which stands in every dialect, or by the body of an older replica."""
    if named := answer.headers.get(HEADER_ERROR_CODE):
        return named
    try:
        return msgspec.json.decode(body, type=_ErrorBody).error.code or ""
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""
