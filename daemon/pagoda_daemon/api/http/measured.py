"""Times every answer over HTTP, files it under the pattern of its route, and logs it. Wrapped around the router by `api/http/app.py`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import structlog
from starlette.datastructures import Headers
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pagoda_daemon.api.http.lines import access, is_logged
from pagoda_daemon.api.http.spans import Ended
from pagoda_daemon.metrics.http import HttpCounts
from pagoda_daemon.metrics.records import Record, Ring

log = structlog.get_logger()

_LEFT: Final = 499  # the client was gone before an answer began


def patterns(routes: Iterable[Route]) -> dict[int, str]:
    """For `Measured`."""
    return {id(route.endpoint): route.path for route in routes}


class Measured:
    """`app`, timed. `patterns`: the pattern of each route by the identity of its endpoint, which the router leaves in the scope."""

    def __init__(
        self, app: ASGIApp, patterns: Mapping[int, str], counts: HttpCounts, recent: Ring, export: Callable[[Ended], None] | None = None
    ) -> None:
        self._app = app
        self._patterns = patterns
        self._counts = counts
        self._recent = recent
        self._export = export

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
            seconds = time.monotonic() - begun
            self._counts.add(handler, scope["method"], status, seconds)
            if is_logged(scope["method"], status):
                self._log(scope, handler, status)

    def _log(self, scope: Scope, handler: str, status: int) -> None:
        state = scope["state"]
        total_ms = round(1000 * (time.monotonic() - state["arrived"]), 3)
        said = {"id": state["request_id"], "route": handler, "status": status, "total_ms": total_ms}
        more = {name: state[name] for name in ("model", "refusal", "param", "why") if name in state}
        records = self._recent.get(state["request_id"])
        log.info("request", **said, **more, **access(records))
        if self._export is not None and "caller" in state:  # whoever was not let in cannot fill a collector
            self._export(_ended(scope, handler, status, records))


def _ended(scope: Scope, handler: str, status: int, records: Sequence[Record]) -> Ended:
    state, headers = scope["state"], Headers(scope=scope)
    times = (state["arrived"], time.monotonic())
    fields = (state.get("model", ""), state.get("refusal", ""), headers.get("traceparent", ""))
    return Ended(state["request_id"], scope["method"], handler, status, *times, *fields, records)
