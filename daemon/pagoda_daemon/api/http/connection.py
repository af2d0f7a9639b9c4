"""One client connection, bounded: what a client may cost before, between and after its requests. uvicorn's HTTP protocol, and its limits.

Made by uvicorn for each connection, by way of `front.py`. Bounds the size, the number and the slowness of headers, idle connections and
their number, requests sent ahead of their answers, and answers that nobody reads; refuses what proxies read in two ways. What is in a
request's body, and how long it takes to come, is `api/routes`' business.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, cast

import httptools
import msgspec
import structlog
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from pagoda_daemon.api.http.half_closed import Begun, Reset
from pagoda_daemon.api.http.lines import RefusedConnections
from pagoda_daemon.api.openai.errors import JSON, ErrorBody, ErrorReply

log = structlog.get_logger()


@dataclass(frozen=True)
class Bounds:
    """Seconds, bytes and counts. `stalled_s` is how long a connection may take no byte of its answer, `backlog` how many tokens of it may
    wait meanwhile: 1,024 there and what the buffers hold are half a minute of a fast model's answer. The kernel would buffer 4 MiB for each
    client that does not read, 2 GB for 500 of them."""

    header_bytes: int = 64 * 1024  # of one request, its address too; the largest known clients send 8 KiB, tracing included
    headers: int = 128
    head_s: float = 10.0
    idle_s: float = 75.0  # longer than any sensible client pool keeps a connection: the client closes first, no race
    rest_s: float = 5.0  # for the rest of a body that was refused unread: closing at once would lose the answer to a reset
    pipelined: int = 16
    connections: int = 8192
    send_buffer: int = 256 * 1024
    stalled_s: float = 30.0
    look_s: float = 0.5
    backlog: int = 1024


class _Refused(Exception):
    """Raised within the parser's callbacks; ends the connection with this status."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


_MALFORMED: Final = _Refused(400, "malformed_http", "this is not an HTTP/1.1 request")


def protocol(bounds: Bounds, backlog: Callable[[str], int]) -> type[BoundedProtocol]:
    """A protocol class for one server. `backlog`: tokens that wait for the reader of a request id."""
    own = {"bounds": bounds, "backlog": staticmethod(backlog), "refused": RefusedConnections()}
    return type("Connection", (BoundedProtocol,), own)


class BoundedProtocol(HttpToolsProtocol):
    """Overrides what uvicorn's own does on bytes in, on the edges of a request, and on a full send buffer."""

    bounds = Bounds()
    backlog: Callable[[str], int]
    refused: RefusedConnections

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_bytes = 0  # of headers that are not complete yet; -1 outside of them
        self._refusal: _Refused | None = None
        self._serving: RequestResponseCycle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None
        self._rest: asyncio.TimerHandle | None = None
        self._reset: Reset | None = None

    # Bytes in

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head_bytes = -1
        if len(self.connections) > self.bounds.connections:
            self._refuse(_Refused(503, "overloaded", f"this replica holds {self.bounds.connections} connections"))
        else:
            self._wait(self.bounds.idle_s)

    def data_received(self, data: bytes) -> None:
        """As uvicorn's, with our refusals instead of its text and its log line (anybody can send garbage; a log must not grow by it)."""
        if self.transport.is_closing() or self._refusal is not None:
            return
        self._unset_keepalive_if_required()
        try:
            self._feed(data)
        except httptools.HttpParserError as error:
            self._refuse(error.__context__ if isinstance(error.__context__, _Refused) else _MALFORMED)
            return
        if self._head_bytes >= 0:
            self._head_bytes += len(data)
            if self._head_bytes > self.bounds.header_bytes:
                self._refuse(_too_large(self.bounds))
        elif self._timer is None and not self._busy:
            self._wait(self.bounds.idle_s)  # blank lines, the rest of a refused body

    def _feed(self, data: bytes) -> None:
        """Java's HTTP client offers h2c with its first request, which the parser then takes for the last, without a body. It is parsed
        again without the offer: a server need not follow one."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            method = self.parser.get_method()
            lines = [name + b": " + value for name, value in self.headers if name not in (b"connection", b"upgrade")]
            self.parser = httptools.HttpRequestParser(self)
            self._feed(b"\r\n".join([method + b" " + self.url + b" HTTP/1.1", *lines, b"", data[offer.args[0] :]]))

    @property
    def _busy(self) -> bool:
        return bool(self.pipeline) or (self._serving is not None and not self._serving.response_complete)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_bytes = 0
        if not self._busy:
            self._wait(self.bounds.head_s)

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        if len(self.headers) > self.bounds.headers:
            raise _too_large(self.bounds)

    def on_headers_complete(self) -> None:
        self._head_bytes = -1
        self._wait(None)
        self._check_head()
        if self.parser.should_upgrade():
            return
        super().on_headers_complete()
        if len(self.pipeline) > self.bounds.pipelined:
            raise _Refused(429, "too_many_pipelined", f"at most {self.bounds.pipelined} requests may be sent ahead of their answers")

    def _check_head(self) -> None:
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > self.bounds.header_bytes:
            raise _too_large(self.bounds)
        names = [name for name, _ in self.headers]
        version = self.parser.get_http_version()
        if self.parser.get_method() == b"CONNECT":
            raise _Refused(405, "method_not_allowed", "this server is not a proxy")
        if names.count(b"host") > 1 or (version == "1.1" and b"host" not in names):
            raise _Refused(400, "malformed_http", "a request has one Host header")
        codings = [value.strip().lower() for name, value in self.headers if name == b"transfer-encoding"]
        if codings and (codings != [b"chunked"] or version == "1.0"):
            raise _Refused(400, "malformed_http", "the transfer coding must be chunked, of HTTP/1.1")

    # Requests

    @property
    def serving(self) -> RequestResponseCycle | None:
        """Whose answer is the next on the wire; `cycle` may be of a request that was sent ahead and waits behind it."""
        return self._serving

    @property
    def begun(self) -> bool:
        """Whether the first bytes of that answer were written before it was known."""
        return self._serving is not None and isinstance(self._serving.transport, Begun)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._serving = cycle
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._serving is not None and self._serving.more_body and not self.transport.is_closing():
            self._rest = self._rest or self.loop.call_later(self.bounds.rest_s, self._cut, "body_unread")

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        if self._rest is not None:
            self._rest.cancel()
            self._rest = None
        super().on_message_complete()
        if self._serving is not None and self._serving.response_complete:
            self._serving.more_body = False

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client sends no more. What it has asked is answered, unless it is gone: then what is written now comes back as a reset. Who
        sends a FIN in the midst of an answer counts as gone: to find out by the next token's bytes would cost one token more."""
        if self.transport.get_extra_info("sslcontext") is not None:  # asyncio ends an encrypted connection here in any case
            return False
        answering = self._serving is not None and self._serving.response_started and not self._serving.response_complete
        if not self._busy or self._head_bytes >= 0 or self.cycle.more_body or answering:
            return False
        self.cycle.keep_alive = False
        try:
            self._reset = self._reset or Reset(self.transport.get_extra_info("socket").fileno(), self.transport.abort)
        except OSError:  # no file is left to watch it by: it counts as gone, as all did that sent a FIN
            return False
        if self._serving is not None and not self._serving.response_started and not self.begun:
            self._serving.transport = cast("asyncio.Transport", Begun(self.transport))
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """uvicorn notifies only the request that came last; one that runs before it would run on for nobody."""
        if self._reset is not None:
            self._reset.close()
        for timer in (self._timer, self._stall, self._rest):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)
        self._give_up()

    def _give_up(self) -> None:
        for cycle in (self._serving, self.cycle, *(waiting for waiting, _ in self.pipeline)):
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        self.pipeline.clear()

    # Bytes out

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stall = self._stall or self.loop.call_later(self.bounds.look_s, self._look, self.loop.time() + self.bounds.stalled_s)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def _look(self, until: float) -> None:
        """The client has taken nothing for a while: for how long, and how much has it let pile up?"""
        request_id = str(self._serving.scope["state"].get("request_id", "")) if self._serving is not None else ""
        behind = self.backlog(request_id)
        if behind <= self.bounds.backlog and self.loop.time() < until:
            self._stall = self.loop.call_later(self.bounds.look_s, self._look, until)
            return
        log.warning("slow_reader_cut", request_id=request_id, tokens_behind=behind)
        self._cut("slow_reader")

    def timeout_keep_alive_handler(self) -> None:
        """uvicorn's would wait until the client has read what is written."""
        if self.transport.get_write_buffer_size():
            self._cut("unread")
        else:
            super().timeout_keep_alive_handler()

    # Ends

    def _wait(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else self.loop.call_later(seconds, self._overdue)

    def _overdue(self) -> None:
        self._timer = None
        if self._head_bytes < 0:
            self._cut("idle")
        else:
            self._refuse(_Refused(408, "request_timeout", f"the headers took longer than {self.bounds.head_s:g} s"))

    def _cut(self, _why: str) -> None:
        self.transport.abort()

    def _refuse(self, refusal: _Refused) -> None:
        """One answer and the end; none where another answer is under way, in the midst of which it would stand."""
        self._refusal = refusal
        self.refused.add(refusal.code, self.loop.time())
        self._wait(None)
        begun = self._serving is not None and self._serving.response_started and not self._serving.response_complete
        self._give_up()
        if begun:
            self._cut(refusal.code)
            return
        body = msgspec.json.encode(ErrorReply(ErrorBody(str(refusal), "invalid_request_error", None, refusal.code)))
        head = f"HTTP/1.1 {refusal.status} {HTTPStatus(refusal.status).phrase}\r\ncontent-type: {JSON}\r\n"
        self.transport.write(f"{head}content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body)
        self.transport.close()


def _too_large(bounds: Bounds) -> _Refused:
    return _Refused(431, "headers_too_large", f"a request has at most {bounds.headers} headers and {bounds.header_bytes} bytes of them")
