"""Admission: which calls on port 9100 begin. A token is verified before a call counts and before its message is waited for.

grpc's own bound on calls counts them first, so callers without a token could use up the places of watches. Used by server.py.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import grpc
import grpc.aio
import structlog
from pagoda_contracts.names import GRPC_DEMAND, GRPC_KEDA

from pagoda_gateway.demand.callers import Callers, Unauthorized

log = structlog.get_logger()

# Operators and other gateways are a handful. KEDA keeps two streams per trigger. The bounds keep callers from filling the memory.
MAX_WATCHES: Final = 64
_MAX_CALLS: Final = {GRPC_DEMAND: MAX_WATCHES, GRPC_KEDA: 4_096}
_STREAM: Final = grpc.stream_stream_rpc_method_handler


class Admission(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Without `callers` every caller may watch. KEDA has no token."""

    def __init__(self, callers: Callers | None) -> None:
        self._callers = callers
        self._open = dict.fromkeys(_MAX_CALLS, 0)

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
        """Returns what answers a call: the service's handler within the bound, or a refusal that reads nothing."""
        service = details.method.rpartition("/")[0].removeprefix("/")
        if service == GRPC_DEMAND and self._callers is not None:
            try:
                self._callers.role(details.invocation_metadata or ())
            except Unauthorized as error:
                log.warning("a caller may not watch the demand", why=str(error))
                return _refusing(grpc.StatusCode.PERMISSION_DENIED if error.known else grpc.StatusCode.UNAUTHENTICATED, str(error))
        handler = await continuation(details)
        return handler if handler is None or service not in self._open else self._counted(service, handler)

    def _counted(self, service: str, handler: Any) -> Any:
        """The call counts from its beginning: one whose message does not come would not be counted by a unary handler."""

        async def answer(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
            if self._open[service] >= _MAX_CALLS[service]:
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{_MAX_CALLS[service]} calls are open, which is the limit")
            self._open[service] += 1
            try:
                async for request in requests:
                    if not handler.response_streaming:
                        yield await handler.unary_unary(request, context)
                        return
                    async for response in handler.unary_stream(request, context):
                        yield response
                    return
            finally:
                self._open[service] -= 1

        return _STREAM(answer, request_deserializer=handler.request_deserializer, response_serializer=handler.response_serializer)


def _refusing(code: grpc.StatusCode, why: str) -> Any:
    async def refuse(_requests: AsyncIterator[bytes], context: Any) -> None:
        await context.abort(code, why)

    return _STREAM(refuse)
