"""`GET /v1/requests/ID/trace`: asks the replica that answered the request. Called by handlers.py."""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from aiohttp import web
from pagoda_contracts.names import HEADER_TENANT, PATH_TRACE

from pagoda_gateway.proxy.upstream import Upstream
from pagoda_gateway.requests.errors import AttemptFailed, RequestNotFound
from pagoda_gateway.requests.recent import Answered, Recent
from pagoda_gateway.watch.cache import EndpointCache

_ELSEWHERE: Final = "another gateway may have it; `pagoda why request/ID` reads the logs of all gateways"


@dataclass(frozen=True, slots=True)
class Traces:
    """Asks for traces. `cache` knows which replicas there are."""

    recent: Recent
    cache: EndpointCache
    upstream: Upstream

    async def get(self, name: str, tenant: str) -> web.Response:
        """Returns the replica's answer; RequestNotFound if the tenant has no such request here, or if its replica does not know it now."""
        shown = repr(name[:128])
        if (answered := self.recent.find(tenant, name)) is None:
            raise RequestNotFound(f"no request {shown} of yours is among the last ones that this gateway forwarded; {_ELSEWHERE}")
        if (found := await self._asked(answered, tenant)) is None:
            raise RequestNotFound(f"the replica that answered request {shown} is gone, and the trace with it")
        status, body = found
        if status != HTTPStatus.OK:
            raise RequestNotFound(f"the replica that answered request {shown} does not remember it")
        return web.Response(body=body, content_type="application/json")

    async def _asked(self, answered: Answered, tenant: str) -> tuple[int, bytes] | None:
        """An address may be another pod's by now, which must not get the gateway's token."""
        if self.cache.address(answered.replica) != answered.address:
            return None
        path = PATH_TRACE.replace("{id}", answered.id)
        try:
            return await self.upstream.get(answered.address, path, {HEADER_TENANT: tenant} if tenant else {})
        except AttemptFailed:
            return None
