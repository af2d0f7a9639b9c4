"""One clean error to every client that still waits, written past an event loop that stands still.

Called by `api/front/process.py` from the watchdog's thread, right before the process exits. What the loop has not sent yet makes a
connection's place in the protocol unknown: that one is left to break off.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Protocol

import structlog
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from pagoda_daemon.api.http.half_closed import BEGIN
from pagoda_daemon.api.http.refusals import final_events_of, response_of
from pagoda_daemon.core.errors import DaemonError

log = structlog.get_logger()


class Cycle(Protocol):
    """What uvicorn knows of the answer under way on a connection."""

    scope: Any
    response_started: bool
    response_complete: bool
    chunked_encoding: bool | None


def send_final_errors(connections: Iterable[Any], error: DaemonError) -> int:
    """Returns how many clients got their error; `connections` are `BoundedProtocol`s."""
    sent = 0
    for connection in list(connections):
        rest = final_bytes(connection.serving, error)
        if rest is not None:
            if connection.begun and not connection.serving.response_started:
                rest = rest.removeprefix(BEGIN)
            with suppress(OSError, RuntimeError, AttributeError):  # gone meanwhile, or a transport that is closing
                sent += _send(connection.transport, rest)
    return sent


def final_bytes(cycle: Cycle | None, error: DaemonError) -> bytes | None:
    """The rest of the answer: a whole one where none has begun, an error event at the end of a stream; None where nothing fits."""
    if cycle is None or cycle.response_complete:
        return None
    if not cycle.response_started:
        return _whole(cycle, error)
    if cycle.chunked_encoding:
        tail = final_events_of(cycle.scope, error)
        return b"%x\r\n%b\r\n0\r\n\r\n" % (len(tail), tail)
    return None


def _whole(cycle: Cycle, error: DaemonError) -> bytes:
    response = response_of(cycle.scope, error)
    head = [STATUS_LINE[response.status_code].removesuffix(b"\r\n")]
    head += [name + b": " + value for name, value in response.raw_headers]
    return b"\r\n".join([*head, b"connection: close", b"", bytes(response.body)])


def _send(transport: Any, rest: bytes) -> bool:
    """Never blocks: a client that does not read gets what fits, hence nothing it could mistake for an end."""
    if transport.get_write_buffer_size() or transport.get_extra_info("sslcontext") is not None:
        return False  # nothing can be encrypted past the loop: such a connection breaks off
    with socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno())) as raw:
        raw.setblocking(False)
        sent = raw.send(rest, socket.MSG_NOSIGNAL)
        raw.shutdown(socket.SHUT_WR)
    return sent == len(rest)
