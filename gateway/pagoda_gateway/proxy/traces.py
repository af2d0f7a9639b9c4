"""`GET /v1/requests/ID/trace`: asks the replica that answered the request. Called by handlers.py."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from aiohttp import web
from pagoda_contracts.names import HEADER_TENANT

from pagoda_gateway.proxy.upstream import Upstream
from pagoda_gateway.requests.errors import AttemptFailed, RequestNotFound
from pagoda_gateway.requests.recent import Recent

TRACE_PATH: Final = "/v1/requests/{id}/trace"
_ELSEWHERE: Final = "another gateway may have it; `pagoda why request/ID` reads the logs of all gateways"


async def trace(name: str, tenant: str, recent: Recent, upstream: Upstream) -> web.Response:
    """Returns the replica's answer; RequestNotFound if the tenant has no such request here, or if its replica does not know it any more."""
    if (answered := recent.find(tenant, name)) is None:
        raise RequestNotFound(f"no request {name[:128]!r} of yours is among the last ones that this gateway forwarded; {_ELSEWHERE}")
    path = TRACE_PATH.replace("{id}", answered.id)
    try:
        status, body = await upstream.get(answered.address, path, {HEADER_TENANT: tenant} if tenant else {})
    except AttemptFailed as error:
        raise RequestNotFound(f"the replica that answered request {name[:128]!r} is gone, and the trace with it") from error
    if status != HTTPStatus.OK:
        raise RequestNotFound(f"the replica that answered request {name[:128]!r} does not remember it")
    return web.Response(body=body, content_type="application/json")
