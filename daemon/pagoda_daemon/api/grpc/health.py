"""The standard health service (grpc.health.v1), for load balancers that know nothing of Pagoda. Made by `front.py`.

SERVING is what /readyz says: accepting requests. Open to all; it shows one bit. Kubelet uses the HTTP probes, which have a thread of
their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Final

import grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from pagoda_contracts.names import GRPC_DAEMON, GRPC_HEALTH_CHECK, GRPC_HEALTH_WATCH, GRPC_INFERENCE

from pagoda_daemon.api.access.caller import Principal
from pagoda_daemon.api.grpc.server import Context, Method
from pagoda_daemon.core.errors import Overloaded, shown
from pagoda_daemon.health.replica import Replica

_SERVICES: Final = frozenset(("", GRPC_DAEMON, GRPC_INFERENCE))  # "" is the server as a whole

_MAX_WATCHERS: Final = 64  # anybody may: they shall not take the server's calls away from gateways


class HealthService:
    """One verdict for every service of this server."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._changed: set[asyncio.Event] = set()
        replica.listeners.append(self._wake)

    def methods(self) -> tuple[Method, ...]:
        return (
            Method(GRPC_HEALTH_CHECK, HealthCheckRequest, unary=self.check),
            Method(GRPC_HEALTH_WATCH, HealthCheckRequest, stream=self.watch),
        )

    async def check(self, _caller: Principal, request: HealthCheckRequest, context: Context) -> HealthCheckResponse:
        """The verdict now; NOT_FOUND for a service that is none of ours, as the standard has it."""
        if request.service not in _SERVICES:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"{shown(request.service)} is not a service of this server")
        return HealthCheckResponse(status=self._status(request.service))

    async def watch(self, _caller: Principal, request: HealthCheckRequest, _context: Context) -> AsyncGenerator[HealthCheckResponse]:
        """The verdict now and whenever it changes; SERVICE_UNKNOWN for what is none of ours."""
        if len(self._changed) >= _MAX_WATCHERS:
            raise Overloaded(f"{_MAX_WATCHERS} callers watch already")
        changed, sent = asyncio.Event(), None
        self._changed.add(changed)
        try:
            while True:
                changed.clear()
                status = self._status(request.service)
                if status != sent:
                    sent = status
                    yield HealthCheckResponse(status=status)
                await changed.wait()
        finally:
            self._changed.discard(changed)

    def _status(self, service: str) -> HealthCheckResponse.ServingStatus:
        if service not in _SERVICES:
            return HealthCheckResponse.SERVICE_UNKNOWN
        return HealthCheckResponse.SERVING if self._replica.accepting else HealthCheckResponse.NOT_SERVING

    def _wake(self) -> None:
        for event in self._changed:
            event.set()
