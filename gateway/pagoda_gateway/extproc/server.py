"""Serves Envoy's external processing (`envoy.service.ext_proc.v3.ExternalProcessor`) and the standard health service on one port.

Started by serve/process.py if the settings name a port. Whoever calls gets the gateway's token for replicas as a part of the answer, so a
caller shows a secret, unless the settings say that the network keeps other callers away.
"""

from __future__ import annotations

import hmac
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio
import structlog
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from pagoda_contracts.bearer import AUTHORIZATION
from pagoda_contracts.names import GRPC_EXT_PROC, GRPC_EXT_PROC_PROCESS, GRPC_HEALTH, GRPC_HEALTH_CHECK
from pagoda_contracts.pb import extproc_pb2 as pb

from pagoda_gateway.extproc.session import Picker, Session
from pagoda_gateway.requests.errors import GatewayError

log = structlog.get_logger()

_OPTIONS: Final = [
    ("grpc.so_reuseport", 0),  # a taken port is an error, not a second listener
    ("grpc.max_concurrent_streams", 8192),
]
_SCHEME: Final = "Bearer "
# What an endpoint picker of the Gateway API's extension answers for, and the server as a whole.
_SERVICES: Final = frozenset({"", "liveness", "readiness", GRPC_EXT_PROC})


class ExtProcServer:
    """`secret`: the file with the text that callers show; None: all may call. `ready`: whether requests can be picked for now."""

    def __init__(self, picker: Picker, secret: Path | None, ready: Callable[[], bool]) -> None:
        self._picker, self._secret, self._ready = picker, secret, ready
        self._server = grpc.aio.server(options=_OPTIONS)

    async def start(self, address: str, credentials: grpc.ServerCredentials | None = None) -> int:
        """Starts the server and returns its port; RuntimeError if the port is taken. Without credentials it is not encrypted."""
        process = grpc.stream_stream_rpc_method_handler(
            self._process,
            request_deserializer=pb.ProcessingRequest.FromString,
            response_serializer=pb.ProcessingResponse.SerializeToString,
        )
        check = grpc.unary_unary_rpc_method_handler(
            self._check, request_deserializer=HealthCheckRequest.FromString, response_serializer=HealthCheckResponse.SerializeToString
        )
        for service, method, handler in ((GRPC_EXT_PROC, GRPC_EXT_PROC_PROCESS, process), (GRPC_HEALTH, GRPC_HEALTH_CHECK, check)):
            self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method.rpartition("/")[2]: handler}),))
        server = self._server
        port: int = server.add_insecure_port(address) if credentials is None else server.add_secure_port(address, credentials)
        await self._server.start()
        return port

    async def stop(self, seconds: float) -> None:
        """Takes no new stream. Returns when the open ones have ended, or ends them after `seconds`."""
        await self._server.stop(seconds)

    async def _process(self, requests: AsyncIterator[pb.ProcessingRequest], context: Any) -> None:
        if not self._lets_in(context):
            log.warning("a caller may not ask the picker", peer=context.peer())
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "send the metadata `authorization: Bearer SECRET`")
        try:
            await Session(self._picker, requests, context.write).run()
        except GatewayError as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))

    def _lets_in(self, context: Any) -> bool:
        """The file is read for each call: a renewed secret counts at once. An empty one lets nobody in."""
        if self._secret is None:
            return True
        shown = str(dict(context.invocation_metadata() or ()).get(AUTHORIZATION, ""))
        secret = self._secret.read_text().strip()
        return bool(secret) and hmac.compare_digest(shown.encode(), (_SCHEME + secret).encode())

    async def _check(self, request: HealthCheckRequest, context: Any) -> HealthCheckResponse:
        """SERVING as /readyz says; `liveness` always, because the answer itself shows it."""
        if request.service not in _SERVICES:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"{request.service[:64]!r} is not a service of this server")
        serving = request.service == "liveness" or self._ready()
        return HealthCheckResponse(status=HealthCheckResponse.SERVING if serving else HealthCheckResponse.NOT_SERVING)
