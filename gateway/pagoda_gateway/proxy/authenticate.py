"""Authenticate: refuses a request without a valid API key before its body is read, and names its tenant. A middleware of the API.

Every path of port 8080 is behind it, and every request that Envoy asks about (extproc/). What a client writes about its tenant never
counts (proxy/headers.py drops it).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from pagoda_gateway.access.credentials import shown_key
from pagoda_gateway.access.keys import KeyRing, Owner, Refused
from pagoda_gateway.proxy.observe import OBSERVED
from pagoda_gateway.requests.errors import NotSynced, Unauthenticated
from pagoda_gateway.requests.metrics import Metrics

TENANT: Final = web.RequestKey("tenant", str)
KEY_ID: Final = web.RequestKey("key_id", str)
_HOW: Final = "send it as `authorization: Bearer KEY`; `pagoda key create` makes one"


@dataclass(frozen=True, slots=True)
class Authenticate:
    """`anonymous`: a request without a valid key is served too, for no tenant."""

    ring: KeyRing
    metrics: Metrics
    clock: Callable[[], datetime]
    anonymous: bool

    def owner(self, headers: Mapping[str, str]) -> Owner | None:
        """Returns whose key a request shows, None for an anonymous one; Unauthenticated if it has no valid key."""
        key = shown_key(headers)
        try:
            if not key:
                raise Refused("missing", f"this request has no API key; {_HOW}")
            return self.ring.owner(key, self.clock())
        except Refused as refused:
            if not self.ring.synced and (key or not self.anonymous):
                raise NotSynced("the gateway has not read the API keys yet") from refused
            if self.anonymous:
                return None
            self.metrics.unauthenticated(refused.reason)
            raise Unauthenticated(str(refused)) from refused

    def middleware(self) -> Middleware:
        """Returns it as aiohttp wants it."""

        @web.middleware
        async def authenticate(request: web.Request, handler: Handler) -> web.StreamResponse:
            owner = self.owner(request.headers)
            request[TENANT] = owner.tenant if owner is not None else ""
            request[KEY_ID] = owner.key_id if owner is not None else ""
            if owner is not None and (observed := request.get(OBSERVED)) is not None:
                observed.tenant, observed.key_id = owner.tenant, owner.key_id
            return await handler(request)

        return authenticate
