"""Times every answer over HTTP, and files it under the pattern of its route. Wrapped around the router by `api/http/app.py`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Final

from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pagoda_daemon.metrics.http import HttpCounts

_LEFT: Final = 499  # the client was gone before an answer began


def patterns(routes: Iterable[Route]) -> dict[int, str]:
    """For `Measured`."""
    return {id(route.endpoint): route.path for route in routes}


class Measured:
    """`app`, timed. `patterns`: the pattern of each route by the identity of its endpoint, which the router leaves in the scope."""

    def __init__(self, app: ASGIApp, patterns: Mapping[int, str], counts: HttpCounts) -> None:
        self._app = app
        self._patterns = patterns
        self._counts = counts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        status, begun = _LEFT, time.monotonic()

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, noting)
        finally:
            handler = self._patterns.get(id(scope.get("endpoint")), "none")
            self._counts.add(handler, scope["method"], status, time.monotonic() - begun)
