"""One attempt: sends a call to a replica and relays its answer. Knows HTTP and SSE, not why this replica. Called through route.py.

Until the first byte of an answer is here nothing goes to the client, so that a failed attempt can be repeated elsewhere unseen.
"""

from __future__ import annotations

import io
import socket
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final

import aiohttp
import msgspec
import structlog
from aiohttp import hdrs, web
from multidict import CIMultiDict, MultiMapping
from pagoda_contracts.names import (
    ERROR_DRAINING,
    ERROR_ENGINE_DIED,
    ERROR_FORBIDDEN,
    ERROR_NOT_READY,
    ERROR_OVERLOADED,
    ERROR_UNAUTHENTICATED,
    HEADER_INTERNAL_PREFIX,
    HEADER_REQUEST_ID,
    HEADER_ROUTE,
)
from yarl import URL

from pagoda_gateway.errors import Died, GatewayError, Overloaded, Refused, UpstreamDied, event
from pagoda_gateway.route import Call
from pagoda_gateway.sse import Events
from pagoda_gateway.tokens import OwnToken

log = structlog.get_logger()

_HOP_BY_HOP: Final = frozenset(
    {"connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer"}
    | {"transfer-encoding", "upgrade", "content-length"}
)
# From the client: an encoded answer could not be cut at events, an awaited 100 was sent already, and credentials are the gateway's
# business: replicas have no use for them.
_NOT_FORWARDED: Final = _HOP_BY_HOP | {"host", "expect", "accept-encoding", "authorization", "cookie", HEADER_REQUEST_ID}
_NOT_RELAYED: Final = _HOP_BY_HOP | {"date", "server", HEADER_REQUEST_ID}
_PRIVATE_PREFIXES: Final = (HEADER_INTERNAL_PREFIX, "x-gateway-")
_NOT_NOW: Final = frozenset({HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS})
_REFUSALS: Final = frozenset({ERROR_DRAINING, ERROR_NOT_READY})
# The client's own credentials are not forwarded, so a replica that says this means the gateway's.
_NOT_LET_IN: Final = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})
_STRANGERS: Final = frozenset({ERROR_UNAUTHENTICATED, ERROR_FORBIDDEN})
# A node that vanished sends no FIN. Probes after 5 s of silence, every 3 s, three times; unacknowledged data counts 14 s.
_KEEPALIVE: Final = ((socket.TCP_KEEPIDLE, 5), (socket.TCP_KEEPINTVL, 3), (socket.TCP_KEEPCNT, 3), (socket.TCP_USER_TIMEOUT, 14_000))
# Much shorter than the daemon's 75 s: the side that closes first does not race.
_IDLE_S: Final = 4.0
_LARGE_BODY: Final = 1 << 18


def outgoing(headers: MultiMapping[str], request_id: str) -> CIMultiDict[str]:
    """The client's headers as the replica gets them."""
    kept = _without(headers, _NOT_FORWARDED)
    kept[HEADER_REQUEST_ID] = request_id
    return kept


def _without(headers: MultiMapping[str], dropped: frozenset[str]) -> CIMultiDict[str]:
    named = {word.strip().lower() for line in headers.getall(hdrs.CONNECTION, ()) for word in line.split(",")}
    kept: CIMultiDict[str] = CIMultiDict()
    for name, value in headers.items():
        lower = name.lower()
        if lower not in dropped and lower not in named and not lower.startswith(_PRIVATE_PREFIXES):
            kept.add(name, value)
    return kept


class Upstream:
    """Connections to replicas: a pool, and single-use ones for a request whose pooled connection died."""

    def __init__(self, connect_timeout_s: float, own: OwnToken | None = None) -> None:
        self._own = own
        self._pool = _session(connect_timeout_s, single_use=False)
        self._fresh = _session(connect_timeout_s, single_use=True)

    async def close(self) -> None:
        """Closes idle connections."""
        await self._pool.close()
        await self._fresh.close()

    async def send(self, http: str, call: Call, *, fresh: bool) -> aiohttp.ClientResponse:
        """The answer's head. Refused without a connection, Died where one ended; cancelled, it closes the connection."""
        session = self._fresh if fresh else self._pool
        if self._own is not None:
            call.headers[hdrs.AUTHORIZATION] = self._own.header()
        try:
            return await session.post(URL(f"http://{http}{call.path}", encoded=True), data=_payload(call.body), headers=call.headers)
        except (aiohttp.ClientConnectorError, TimeoutError) as error:
            raise Refused("connect", str(error)) from error
        except (aiohttp.ClientError, OSError) as error:
            raise Died("closed", str(error)) from error


def _payload(body: bytes) -> bytes | io.BytesIO:
    """Large ones are written piece by piece, so that other requests get their turn between."""
    return body if len(body) < _LARGE_BODY else io.BytesIO(body)


def _session(connect_timeout_s: float, *, single_use: bool) -> aiohttp.ClientSession:
    keep: dict[str, Any] = {"force_close": True} if single_use else {"keepalive_timeout": _IDLE_S}
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, socket_factory=_socket, **keep),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_timeout_s),
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=(hdrs.ACCEPT_ENCODING, hdrs.USER_AGENT, hdrs.CONTENT_TYPE),
    )


def _socket(address: aiohttp.AddrInfoType) -> socket.socket:
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE:
        made.setsockopt(socket.IPPROTO_TCP, option, value)
    return made


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
            headers = _without(answer.headers, _NOT_RELAYED)
            headers[HEADER_ROUTE] = route
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
