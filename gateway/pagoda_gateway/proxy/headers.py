"""Which headers pass: from a client to a replica, and from a replica to a client. Pure; called by handlers.py and relay.py."""

from __future__ import annotations

from typing import Final

from aiohttp import hdrs
from multidict import CIMultiDict, MultiMapping
from pagoda_contracts.names import (
    HEADER_CONTINUABLE,
    HEADER_INTERNAL_PREFIX,
    HEADER_PREFIX_HASHES,
    HEADER_REQUEST_ID,
    HEADER_ROUTE,
    HEADER_TENANT,
)
from pagoda_contracts.prefix import to_header

from pagoda_gateway.routing.request import RoutingRequest

_HOP_BY_HOP: Final = frozenset(
    {"connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer"}
    | {"transfer-encoding", "upgrade", "content-length"}
)
# An encoded answer could not be cut between events. The gateway has sent an awaited 100 already. Credentials end at the gateway, because
# replicas have no use for them.
# A page's origin is the gateway's to judge: a replica that keeps out foreign pages would refuse the gateway.
_NOT_FORWARDED: Final = _HOP_BY_HOP | {
    "origin",
    "host",
    "expect",
    "accept-encoding",
    "authorization",
    "x-api-key",
    "cookie",
    HEADER_REQUEST_ID,
}
_NOT_RELAYED: Final = _HOP_BY_HOP | {"date", "server", HEADER_REQUEST_ID}
_PRIVATE_PREFIXES: Final = (HEADER_INTERNAL_PREFIX, "x-gateway-")


def to_replica(headers: MultiMapping[str], request_id: str, request: RoutingRequest, *, continuable: bool = False) -> CIMultiDict[str]:
    """A client's headers as a replica gets them. Tenant and prefix names are the gateway's word, never the client's. `continuable`: its
    stream may go on at another replica."""
    kept = _without(headers, _NOT_FORWARDED)
    kept[HEADER_REQUEST_ID] = request_id
    if continuable:
        kept[HEADER_CONTINUABLE] = "1"
    if request.tenant:
        kept[HEADER_TENANT] = request.tenant
    if request.prefix_hashes:
        kept[HEADER_PREFIX_HASHES] = to_header(request.prefix_hashes)
    return kept


def to_client(headers: MultiMapping[str], route: str) -> CIMultiDict[str]:
    """A replica's headers as a client gets them."""
    kept = _without(headers, _NOT_RELAYED)
    kept[HEADER_ROUTE] = route
    return kept


def _without(headers: MultiMapping[str], dropped: frozenset[str]) -> CIMultiDict[str]:
    named = {word.strip().lower() for line in headers.getall(hdrs.CONNECTION, ()) for word in line.split(",")}
    kept: CIMultiDict[str] = CIMultiDict()
    for name, value in headers.items():
        lower = name.lower()
        if lower not in dropped and lower not in named and not lower.startswith(_PRIVATE_PREFIXES):
            kept.add(name, value)
    return kept
