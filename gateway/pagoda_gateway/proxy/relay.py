"""One attempt: sends a call to a replica and relays its answer. Knows HTTP and SSE, not why this replica. Called through router.py.

Nothing goes to the client before the first byte of an answer is here, so a failed attempt can be repeated on another replica.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from typing import Final, Protocol

import aiohttp
import msgspec
import structlog
from aiohttp import hdrs, web
from multidict import CIMultiDict
from pagoda_contracts.names import (
    ERROR_DRAINING,
    ERROR_ENGINE_DIED,
    ERROR_FORBIDDEN,
    ERROR_NOT_READY,
    ERROR_OVER_RESERVATION,
    ERROR_OVERLOADED,
    ERROR_UNAUTHENTICATED,
    HEADER_ERROR_CODE,
    HEADER_NEEDED_TOKENS,
    HEADER_ROUTE,
    HEADER_USAGE,
)
from pagoda_contracts.usage import from_header

from pagoda_gateway.proxy.headers import to_client
from pagoda_gateway.proxy.sse import Events
from pagoda_gateway.proxy.upstream import Call, Upstream
from pagoda_gateway.requests.dialects import dialect_of, late_answer
from pagoda_gateway.requests.errors import Died, GatewayError, NeedsMore, Overloaded, Refused, UpstreamDied
from pagoda_gateway.requests.limiter import Account
from pagoda_gateway.requests.told import Told

log = structlog.get_logger()

# 529 is what a replica of /v1/messages says for 503.
_UNAVAILABLE: Final = frozenset({HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS, 529})
_REFUSALS: Final = frozenset({ERROR_DRAINING, ERROR_NOT_READY})
# A client's credentials are not forwarded, so a replica that answers with this refuses the gateway's.
_UNAUTHORIZED: Final = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})
_UNAUTHORIZED_CODES: Final = frozenset({ERROR_UNAUTHENTICATED, ERROR_FORBIDDEN})


class Pieces(Protocol):
    """A body that arrives."""

    async def readany(self) -> bytes: ...


class Answer(Protocol):
    """An answer as aiohttp gives it, or as proxy/overflow.py does."""

    @property
    def status(self) -> int: ...
    @property
    def content_type(self) -> str: ...
    @property
    def content(self) -> Pieces: ...
    async def read(self) -> bytes: ...
    def close(self) -> None: ...


_PING: Final = b": held\n\n"


class Relay:
    """One request's way to replicas and back to its client."""

    def __init__(self, upstream: Upstream, request: web.Request, request_id: str) -> None:
        self._upstream, self._request, self._request_id = upstream, request, request_id
        self.begun: web.StreamResponse | None = None  # a stream whose first byte is on its way to the client
        self._events = Events()
        self._ended = False
        self.account = Account()  # of a request that no quota concerns
        self.told = Told()

    async def attempt(self, call: Call, first_byte: Callable[[], None], address: str, route: str, *, fresh: bool) -> web.StreamResponse:
        """With the first two arguments bound, router.py's Attempt. Calls `first_byte` when a stream's first byte has arrived."""
        answer = await self._upstream.send(address, call, fresh=fresh)
        try:
            headers = to_client(answer.headers, route)
            headers.update(self.account.headers)
            if (used := from_header(answer.headers.get(HEADER_USAGE, ""))) is not None:
                await self.account.note(used)
            if answer.status == HTTPStatus.OK and answer.content_type == "text/event-stream":
                return await self._stream(answer, headers, first_byte)
            whole = await _whole(answer, headers)
            if isinstance(whole.body, bytes):
                self.told.feed(whole.body)
                if self.begun is not None:
                    raise late_answer(whole.status, whole.body)
            return whole
        except BaseException:
            answer.close()  # not back into the pool: the replica sees at once that its answer is not read any more
            raise

    async def reserved(self, call: Call, first_byte: Callable[[], None], address: str, route: str, *, fresh: bool) -> web.StreamResponse:
        """The same within the request's reservation, which grows once if the replica finds that the request needs more."""
        before, self.account.sent = self.account.sent, True
        try:
            call.headers.update(self.account.terms())
            return await self.attempt(call, first_byte, address, route, fresh=fresh)
        except NeedsMore as more:
            self.account.sent = before
            await self.account.grow(more.tokens)
            self.account.sent = True
            call.headers.update(self.account.terms())
            return await self.attempt(call, first_byte, address, route, fresh=fresh)
        except Refused:
            self.account.sent = before  # nothing was computed
            raise

    async def _stream(self, answer: Answer, headers: CIMultiDict[str], first_byte: Callable[[], None]) -> web.StreamResponse:
        chunk = await _read(answer)
        if not chunk:
            raise Died("empty", "the stream ended before its first event")
        first_byte()
        begun = self.begun or await self._begin(headers)
        try:
            await self._pass_on(answer, chunk, begun)
        except Died as death:
            answer.close()
            error = UpstreamDied("the replica died with this answer under way; it cannot be continued")
            with suppress(ConnectionError):  # the client may have left too: what ended the answer is the replica's death
                await self.end(begun, error)
            raise error from death
        return begun

    async def outside(self, answer: Answer, headers: CIMultiDict[str]) -> web.StreamResponse:
        """Relays an answer from outside of the cluster. It counts for no replica."""
        headers.update(self.account.headers)
        if answer.status == HTTPStatus.OK and answer.content_type == "text/event-stream":
            return await self._stream(answer, headers, lambda: None)
        body = await answer.read()
        if self.begun is not None:
            raise late_answer(answer.status, body)
        return web.Response(status=answer.status, headers=headers, body=body)

    async def ping(self, route: str) -> None:
        """Keeps the connection of a held stream alive by a comment. The first one commits the answer to 200."""
        headers = CIMultiDict({hdrs.CONTENT_TYPE: "text/event-stream; charset=utf-8", hdrs.CACHE_CONTROL: "no-cache", HEADER_ROUTE: route})
        headers.update(self.account.headers)
        begun = self.begun or await self._begin(headers)
        await begun.write(_PING)

    async def _begin(self, headers: CIMultiDict[str]) -> web.StreamResponse:
        self.begun = web.StreamResponse(headers=headers)
        await self.begun.prepare(self._request)
        return self.begun

    async def end(self, begun: web.StreamResponse, error: GatewayError) -> web.StreamResponse:
        """Ends a stream with one error event, unless that was done: the client's parser raises it and finds the end that it waits for."""
        if not self._ended:
            self._ended = True
            await begun.write(dialect_of(self._request.path).event(error, self._request_id, self._events.count))
        return begun

    async def _pass_on(self, answer: Answer, chunk: bytes, begun: web.StreamResponse) -> None:
        while chunk:
            events, used = self._events.take(chunk)
            if used is not None:
                await self.account.note(used)
            if events:
                self.told.feed(events)
                await begun.write(events)
            chunk = await _read(answer)
        await begun.write(self._events.rest())


async def _read(answer: Answer) -> bytes:
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
    code = _error_code(answer, body) if answer.status in _UNAVAILABLE | _UNAUTHORIZED | {HTTPStatus.CONFLICT} else ""
    if code == ERROR_OVER_RESERVATION and (needed := answer.headers.get(HEADER_NEEDED_TOKENS, "")).isdecimal():
        raise NeedsMore(int(needed))
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
