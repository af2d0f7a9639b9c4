"""One client connection, bounded: what a client may cost before and between its requests. aiohttp's HTTP protocol, and its limits.

Made by listener.py for each connection. Bounds the slowness and the size of a request's head, and the number of connections; refuses bytes
that are not HTTP without a word of theirs in an answer or a log. Bodies are body.py's business.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
import structlog
from aiohttp import HttpVersion11, hdrs, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_exceptions import BadHttpMessage, LineTooLong

from pagoda_gateway.requests.errors import HeadersTooLarge, MalformedHttp

if TYPE_CHECKING:
    import logging

log = structlog.get_logger()

_LOG_EVERY_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Bounds:
    """Seconds, bytes and counts. `idle_s` is longer than known balancers keep a connection (600 s): the balancer closes first, and no
    request meets a closed connection."""

    head_s: float = 10.0
    head_bytes: int = 64 * 1024
    idle_s: float = 3630.0
    connections: int = 8192


class Refusals:
    """Connections that were refused: a line at most every 10 s, since anybody can send garbage."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._logged = float("-inf")

    def add(self, code: str, now: float) -> None:
        """Counts one."""
        self._counts[code] += 1
        if now - self._logged >= _LOG_EVERY_S:
            self._logged = now
            log.warning("connections_refused", **self._counts)
            self._counts.clear()


class Connection(web.RequestHandler):
    """Overrides what aiohttp's own does on a connection, on bytes in, and on bytes that are not HTTP."""

    def __init__(self, server: web.Server, bounds: Bounds, refusals: Refusals) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=bounds.idle_s,
            access_log=cast("logging.Logger", None),  # aiohttp then writes none
            auto_decompress=False,
        )
        self._bounds, self._refusals, self._server = bounds, refusals, server
        self._last: Any = None  # the payload of the request that was read last
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Refuses one too many."""
        super().connection_made(transport)
        if len(self._server.connections) > self._bounds.connections:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "overloaded", f"this gateway holds {self._bounds.connections} connections")

    def connection_lost(self, exc: BaseException | None) -> None:
        """Ends the timer, too."""
        self._head_is_over()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes that complete no request and belong to no body are a part of a head. Its time and its size count from the first of them."""
        before, in_body = self._request_count, self._last is not None and not self._last.is_eof()
        super().data_received(data)
        if self._request_count != before:
            self._last = self._messages[-1][1] if self._messages else None
            self._head_is_over()
        elif data and not in_body and self.transport is not None:  # aiohttp itself feeds b"" when a body was read
            self._head_bytes += len(data)
            if self._head_timer is None:
                self._head_timer = self._loop.call_later(self._bounds.head_s, self._overdue)
            if self._head_bytes > self._bounds.head_bytes:
                self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "headers_too_large", too_large(self._bounds))

    def _head_is_over(self) -> None:
        self._head_bytes = 0
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _overdue(self) -> None:
        self._head_timer = None
        said = f"the headers took longer than {self._bounds.head_s:g} s"
        self._refuse(HTTPStatus.REQUEST_TIMEOUT, "request_timeout", said)

    def _refuse(self, status: HTTPStatus, code: str, message: str) -> None:
        """One answer and the end; only the end while another answer is under way, in the midst of which it would stand."""
        self._refusals.add(code, self._loop.time())
        self._head_is_over()
        transport = self.transport
        if transport is None:
            return
        if not self._request_in_progress and not self._messages:
            body = _document(code, message)
            head = f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\nserver: pagoda\r\n"
            transport.write(f"{head}content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body)
        self.force_close()

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """What aiohttp could not read. Its own answer and log would repeat the client's bytes, which may hold a key.
        A client that left while it was written to is no error."""
        if isinstance(exc, ConnectionError):
            raise exc
        if not isinstance(exc, BadHttpMessage):
            return super().handle_error(request, status, exc, message)
        large = isinstance(exc, LineTooLong) or "Too many headers" in exc.message
        code, said = ("headers_too_large", too_large(self._bounds)) if large else ("malformed_http", "this is not an HTTP/1.1 request")
        self._refusals.add(code, self._loop.time())
        if _written(request.writer):
            raise ConnectionError("the answer has begun")
        status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE if large else HTTPStatus.BAD_REQUEST
        answer = web.Response(status=status, body=_document(code, said), content_type="application/json", headers={"server": "pagoda"})
        answer.force_close()
        return answer


def too_large(bounds: Bounds) -> str:
    """Returns the error message for headers that are too large."""
    return f"a request has at most 128 headers of 8,190 bytes, and {bounds.head_bytes} bytes of them"


def check_head(request: web.BaseRequest) -> None:
    """Raises MalformedHttp for a head that aiohttp takes and a proxy may read in another way, HeadersTooLarge for one over the limit."""
    size = len(request.raw_path) + sum(len(name) + len(value) for name, value in request.raw_headers)
    if size > Bounds().head_bytes:
        raise HeadersTooLarge(too_large(Bounds()))
    coding = request.headers.get(hdrs.TRANSFER_ENCODING)
    if coding is not None and (coding.strip().lower() != "chunked" or request.version < HttpVersion11):
        raise MalformedHttp("the transfer coding must be chunked, of HTTP/1.1")
    if request.method == hdrs.METH_CONNECT:
        raise MalformedHttp("this server is not a proxy")


def _document(code: str, message: str) -> bytes:
    return msgspec.json.encode({"error": {"message": message, "type": "invalid_request_error", "param": None, "code": code}})


def _written(writer: AbstractStreamWriter) -> bool:
    return writer.output_size > 0
