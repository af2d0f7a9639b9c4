"""The HTTP listener of a front: its socket and uvicorn's settings. Called by `front.py`; what one connection may cost: `connection.py`."""

from __future__ import annotations

import contextlib
import resource
import socket
import ssl
from collections.abc import Callable
from typing import Final

import uvicorn
from starlette.types import ASGIApp

from pagoda_daemon.api.http.connection import Bounds, protocol

_SPARE_FILES: Final = 256  # model, sockets to the engine, gRPC


def default_bounds() -> Bounds:
    """Fewer connections where this process may not open so many files."""
    return Bounds(connections=min(Bounds.connections, _open_files() - _SPARE_FILES))


def bind(host: str, port: int, send_buffer: int) -> socket.socket:
    """Bound, not listening yet; what it accepts has its options."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    with contextlib.ExitStack() as on_error:
        on_error.callback(listener.close)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        # asyncio's own loop, unlike uvloop's, leaves it out where a socket does not name its protocol: each answer then waited 40 ms.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.bind((host, port))
        on_error.pop_all()
    return listener


def server_config(
    app: ASGIApp, backlog: Callable[[str], int], flush_s: float, bounds: Bounds, tls: ssl.SSLContext | None = None
) -> uvicorn.Config:
    """`backlog`: tokens that wait for the reader of a request; `flush_s`: how long last bytes may take at the end."""
    config = uvicorn.Config(
        app,
        http=protocol(bounds, backlog),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_keep_alive=int(bounds.idle_s),
        timeout_graceful_shutdown=int(flush_s),
    )
    config.load()  # which says that there is no TLS: uvicorn would read the files itself, and name no field if it cannot
    config.ssl = tls
    return config


def _open_files() -> int:
    """As many as this process may have at all; a soft limit of 1,024 is a shell's habit, not a wish."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard if hard != resource.RLIM_INFINITY else 2**20
