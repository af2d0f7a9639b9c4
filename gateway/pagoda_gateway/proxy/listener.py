"""Listener: the socket of the API. Called by serve/process.py; what one connection may cost is connection.py's business."""

from __future__ import annotations

import asyncio
import resource
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, cast

from aiohttp import web

from pagoda_gateway.proxy.connection import Bounds, Connection, Refusals

_SPARE_FILES: Final = 1024  # connections to replicas, state streams, watches
# Of a handshake: a client that sends nothing would hold a socket for asyncio's 60 s.
_HANDSHAKE_S: Final = 10.0
# After the requests have ended only their last bytes are to be written.
_FLUSH_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Listener:
    """`port` is the bound port."""

    port: int
    server: asyncio.Server

    def close(self) -> None:
        """Takes no more connections; those that are open stay."""
        self.server.close()


@asynccontextmanager
async def listening(app: web.Application, host: str, port: int, tls: ssl.SSLContext | None, bounds: Bounds) -> AsyncIterator[Listener]:
    """Listens. A request is cancelled when its client leaves. At the end, idle connections are closed."""
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=_FLUSH_S)
    await runner.setup()
    try:
        http, refusals = cast("web.Server", runner.server), Refusals()
        more: dict[str, Any] = {} if tls is None else {"ssl": tls, "ssl_handshake_timeout": _HANDSHAKE_S}
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Connection(http, bounds, refusals), host, port, backlog=1024, **more)
        try:
            yield Listener(server.sockets[0].getsockname()[1], server)
        finally:
            server.close()
    finally:
        await runner.cleanup()


def default_bounds() -> Bounds:
    """Fewer connections where this process may not open so many files. A soft limit of 1,024 is a shell's habit, not a wish."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return Bounds(connections=min(Bounds().connections, max(64, (hard - _SPARE_FILES) // 2)))
