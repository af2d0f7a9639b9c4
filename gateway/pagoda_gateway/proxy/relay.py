"""One attempt: sends a call to a replica and relays its answer. Knows HTTP and SSE, not why this replica. Called through router.py.

Nothing goes to the client before the first byte of an answer is here, so a failed attempt can be repeated on another replica. Of a stream
whose notes have tokens the next attempt is the rest: the record says what the client has.
"""

from __future__ import annotations

from contextlib import suppress
from http import HTTPStatus
from typing import Final, Protocol

import aiohttp
import msgspec
import structlog
from aiohttp import hdrs, web
from multidict import CIMultiDict
from pagoda_contracts.names import (
    CONTINUABLE_EXACT,
    CONTINUABLE_OTHER,
    ERROR_OVER_RESERVATION,
    HEADER_CONTINUABLE,
    HEADER_ERROR_CODE,
    HEADER_NEEDED_TOKENS,
    HEADER_ROUTE,
    HEADER_USAGE,
)
from pagoda_contracts.usage import from_header

from pagoda_gateway.proxy.continuing import Record
from pagoda_gateway.proxy.headers import to_client
from pagoda_gateway.proxy.sse import Events, NotedEvents, Release, count
from pagoda_gateway.proxy.upstream import Call, Sent, Upstream
from pagoda_gateway.requests.budget import Take
from pagoda_gateway.requests.dialects import dialect_of, late_answer
from pagoda_gateway.requests.errors import (
    NOT_LET_IN,
    CannotContinue,
    Died,
    GatewayError,
    NeedsMore,
    Refused,
    UpstreamDied,
    failure_of,
)
from pagoda_gateway.requests.finish_reasons import FinishReasons
from pagoda_gateway.requests.limiter import Account

log = structlog.get_logger()

# 529 is what a replica of /v1/messages says for 503.
_UNAVAILABLE: Final = frozenset({HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS, 529})
# A client's credentials are not forwarded, so a replica that answers with this refuses the gateway's.
_UNAUTHORIZED: Final = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})
_CONTINUABLE: Final = frozenset({CONTINUABLE_EXACT, CONTINUABLE_OTHER})
_OTHER_NUMBERS: Final = b": this answer goes on at another replica, whose numbers may differ\n\n"


class Life(Protocol):
    """What a request's life hears of its stream."""

    begun: bool
    fixed: bool
    advanced: bool

    @property
    def take_bytes(self) -> Take: ...
    def first_byte(self) -> None: ...
    def heard(self) -> None: ...
    def continued(self, *, exact: bool) -> None: ...


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


_PING: Final = b": held\n\n"


class Relay:
    """One request's way to replicas and back to its client."""

    def __init__(self, upstream: Upstream, request: web.Request, request_id: str) -> None:
        self._upstream, self._request, self._request_id = upstream, request, request_id
        self.opened: web.StreamResponse | None = None  # a stream that its client has begun to read, be it comments
        self.begun: web.StreamResponse | None = None  # the same, once it has a part of a replica's answer
        self._count = 0  # of its events
        self._ended = False
        self._record: Record | None = None
        self._sent = Sent()
        self.account = Account()  # of a request that no quota concerns
        self.finish = FinishReasons()

    async def attempt(self, call: Call, life: Life, address: str, route: str, *, fresh: bool) -> web.StreamResponse:
        """With the first two arguments bound, router.py's Attempt."""
        record = self._record = self._record or Record(life.take_bytes)
        if self.begun is not None and record.lost:
            raise CannotContinue("the replica died with this answer under way; it cannot be continued")
        answer = await self._upstream.send(address, record.call(call), self._sent, fresh=fresh)
        try:
            headers = to_client(answer.headers, route)
            headers.update(self.account.headers)
            if (used := from_header(answer.headers.get(HEADER_USAGE, ""))) is not None:
                await self.account.note(used)
            if answer.status == HTTPStatus.OK and answer.content_type == "text/event-stream":
                return await self._stream(answer, headers, life, record)
            whole = await _whole(answer, headers)
            if self.begun is not None:
                fault = UpstreamDied if whole.status >= HTTPStatus.INTERNAL_SERVER_ERROR else CannotContinue
                raise fault(f"the replica died with this answer under way, and another one cannot continue it: {whole.status}")
            if isinstance(whole.body, bytes):
                self.finish.feed(whole.body)
                if self.opened is not None:
                    raise late_answer(whole.status, whole.body)
            return whole
        except BaseException:
            answer.close()  # not back into the pool: the replica sees at once that its answer is not read any more
            raise

    async def reserved(self, call: Call, life: Life, address: str, route: str, *, fresh: bool) -> web.StreamResponse:
        """The same within the request's reservation, which grows once if the replica finds that the request needs more."""
        before, self.account.sent = self.account.sent, True
        try:
            call.headers.update(self.account.terms())
            return await self.attempt(call, life, address, route, fresh=fresh)
        except NeedsMore as more:
            self.account.sent = before
            await self.account.grow(more.tokens)
            self.account.sent = True
            call.headers.update(self.account.terms())
            return await self.attempt(call, life, address, route, fresh=fresh)
        except Refused:
            self.account.sent = before  # nothing was computed
            raise

    async def _stream(self, answer: aiohttp.ClientResponse, headers: CIMultiDict[str], life: Life, record: Record) -> web.StreamResponse:
        """A stream, or its rest. Died if another replica can go on, UpstreamDied if none can."""
        noted = answer.headers.get(HEADER_CONTINUABLE)
        if self.begun is not None:
            await self._say_continued(self.begun, life, noted)
        events, release = Events() if noted is None else NotedEvents(), Release()
        try:
            while not release.end:
                chunk = await _read(answer)
                if not chunk and self.begun is None:
                    raise Died("empty", "the stream ended before its first event")
                release = events.take(chunk)
                life.heard()
                if release.events or release.answered:
                    begun = self.begun or await self._begin(headers, life, record, fixed=noted not in _CONTINUABLE)
                    await self._pass_on(release, begun, life, record)
            if release.end == "died":
                raise Died("engine-died" if chunk else "truncated", "the stream ended before its last note")
        except Died as death:
            if self.begun is None or not record.lost:
                raise
            answer.close()
            error = UpstreamDied("the replica died with this answer under way; it cannot be continued")
            await self.end(self.begun, error)
            raise error from death
        return self.begun or await self._begin(headers, life, record, fixed=True)

    async def _say_continued(self, begun: web.StreamResponse, life: Life, noted: str | None) -> None:
        if noted not in _CONTINUABLE:
            raise CannotContinue("the replica died with this answer under way, and another one began it anew")
        life.continued(exact=noted == CONTINUABLE_EXACT)
        if noted == CONTINUABLE_OTHER:
            await begun.write(_OTHER_NUMBERS)

    async def _begin(self, headers: CIMultiDict[str], life: Life, record: Record, *, fixed: bool) -> web.StreamResponse:
        """`fixed`: no other replica could go on."""
        life.first_byte()
        life.begun, life.fixed, record.lost = True, fixed, fixed
        self.begun = self.opened or await self._open(headers)
        return self.begun

    async def _open(self, headers: CIMultiDict[str]) -> web.StreamResponse:
        self.opened = web.StreamResponse(headers=headers)
        await self.opened.prepare(self._request)
        return self.opened

    async def ping(self, route: str) -> None:
        """Keeps the connection of a held stream alive by a comment. The first one commits the answer to 200."""
        headers = CIMultiDict({hdrs.CONTENT_TYPE: "text/event-stream; charset=utf-8", hdrs.CACHE_CONTROL: "no-cache", HEADER_ROUTE: route})
        headers.update(self.account.headers)
        opened = self.opened or await self._open(headers)
        await opened.write(_PING)

    async def outside(self, answer: Answer, headers: CIMultiDict[str]) -> web.StreamResponse:
        """Relays an answer from outside of the cluster, whose status is 200. It counts for no replica, and no replica can continue it."""
        headers.update(self.account.headers)
        if answer.content_type == "text/event-stream":
            return await self._stream_outside(answer, headers)
        body = await answer.read()
        self.finish.feed(body)
        if self.opened is not None:
            raise late_answer(answer.status, body)
        return web.Response(headers=headers, body=body)

    async def _stream_outside(self, answer: Answer, headers: CIMultiDict[str]) -> web.StreamResponse:
        events = await _read(answer)
        if not events:
            raise Died("empty", "the stream ended before its first event")
        opened = self.opened or await self._open(headers)
        try:
            while events:
                self._count += count(events)
                self.finish.feed(events)
                await opened.write(events)
                events = await _read(answer)
        except Died as death:
            error = UpstreamDied("the API outside of the cluster broke off this answer; it cannot be continued")
            await self.end(opened, error)
            raise error from death
        return opened

    async def _pass_on(self, release: Release, begun: web.StreamResponse, life: Life, record: Record) -> None:
        """The client has what the record says: both change in one step, without a wait between them."""
        if release.used is not None:
            await self.account.note(release.used)
        record.add(release.answered)
        life.fixed = life.fixed or record.lost
        life.advanced = life.advanced or bool(release.answered)
        self._count += count(release.events)
        self.finish.feed(release.events)
        await begun.write(release.events)

    async def end(self, begun: web.StreamResponse, error: GatewayError) -> web.StreamResponse:
        """Ends a stream with one error event, unless that was done: the client's parser raises it and finds the end that it waits for."""
        if not self._ended:
            self._ended = True
            with suppress(ConnectionError):  # the client may have left too: what ended the answer is the error
                await begun.write(dialect_of(self._request.path).event(error, self._request_id, self._count))
        return begun


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
    if (failure := failure_of(answer.status, code)) is not None:
        if failure.reason == NOT_LET_IN:
            log.warning("a replica refuses this gateway's token", route=headers[HEADER_ROUTE], status=answer.status)
        raise failure
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
