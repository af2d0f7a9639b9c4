"""Observe: the outermost middleware of the API. Follows each request to its end, and then writes its access line.

What was learned on the way is in the request's `Observed`; handlers.py and authenticate.py fill it in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from pagoda_gateway.proxy.tracing import Tracing
from pagoda_gateway.requests.metrics import Metrics
from pagoda_gateway.requests.observed import Observed, access_line, is_logged

log = structlog.get_logger()

OBSERVED: Final = web.RequestKey("observed", Observed)


@dataclass(frozen=True, slots=True)
class Observe:
    """`clock_ms` is the gateway's clock. `lines`: whether there is an access log."""

    clock_ms: Callable[[], float]
    metrics: Metrics
    lines: bool = True
    tracing: Tracing | None = None

    def middleware(self) -> Middleware:
        """Returns it as aiohttp wants it."""

        @web.middleware
        async def observe(request: web.Request, handler: Handler) -> web.StreamResponse:
            observed = request[OBSERVED] = Observed(request.method, _route(request), self.clock_ms())
            span, status = None, None
            if self.tracing is not None:
                span, observed.traceparent = self.tracing.begin(request.method, request.headers)
            try:
                answer = await handler(request)
                status = answer.status
            finally:
                observed.end(status, self.clock_ms())
                self.record(observed)
                if self.tracing is not None and span is not None and is_logged(observed):
                    self.tracing.end(span, observed)
            return answer

        return observe

    def record(self, observed: Observed) -> None:
        """Records a request that has ended: its times, and its access line."""
        if (life := observed.life) is not None and life.asked_ms:
            ttft_ms = observed.ttft_ms
            self.metrics.took(life.service, observed.total_ms / 1000, None if ttft_ms is None else ttft_ms / 1000)
        if self.lines and is_logged(observed):
            log.info("request", **access_line(observed))


def _route(request: web.Request) -> str:
    resource = request.match_info.route.resource
    return "none" if resource is None else resource.canonical
