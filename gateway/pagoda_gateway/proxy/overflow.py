"""Overflow: a request that its service cannot take in time goes to an API outside of the cluster, if service and installation say so.

Only the body of the client's request leaves: no header, no key. Key and certificates of the target are the installation's. Called by
handlers.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from http import HTTPStatus
from typing import Final, NamedTuple

import aiohttp
import structlog
from aiohttp import hdrs, web
from multidict import CIMultiDict
from pagoda_contracts.names import HEADER_OVERFLOW, HEADER_ROUTE
from pagoda_contracts.route import REASON_OVERFLOW
from yarl import URL

from pagoda_gateway.proxy.relay import Relay
from pagoda_gateway.proxy.sse import Events, split
from pagoda_gateway.proxy.upstream import Call
from pagoda_gateway.requests.errors import AllOverloaded, AttemptFailed, GatewayError, HoldTimeout, QueueFull, ServiceStalled
from pagoda_gateway.requests.lifecycle import RequestLife
from pagoda_gateway.requests.outside import Letter, Meter, Target, address, fits, is_usage, letter
from pagoda_gateway.requests.router import Router

log = structlog.get_logger()

_TIMEOUT: Final = aiohttp.ClientTimeout(total=None, sock_connect=10.0, sock_read=600.0)


class TargetRefused(AttemptFailed):
    """The target answered with another status than 200."""


class Kept(AttemptFailed):
    """Nothing was sent to the target."""


class Parcel(NamedTuple):
    """A request for a target."""

    target: Target
    url: str
    authorization: str
    sent: Letter


def _parcel(life: RequestLife, relay: Relay, target: Target, call: Call) -> Parcel:
    """Returns what is sent. Kept if that is not possible: by the request's body, by the target's key, or as the name is an adapter's."""
    if life.is_for_adapter:  # known only since a replica started
        raise Kept("adapter")
    path, model = URL(call.path, encoded=True).path, life.overflow.model if life.overflow is not None else ""
    try:
        sent = letter(path, call.body, model or target.model, relay.account.bounds)
    except (ValueError, RecursionError) as error:
        raise Kept("body", str(error)) from error
    try:
        return Parcel(target, address(target, path), target.authorization(), sent)
    except ValueError as error:
        raise Kept("key", str(error)) from error


def _result(error: BaseException) -> str:
    """Returns what became of a request that ended so, as the metric says it. Only after "left" and "broken" it cannot go on."""
    match error:
        case Kept():
            return "kept"
        case TargetRefused():
            return "refused"
        case ConnectionResetError():  # by the client
            return "left"
        case aiohttp.ClientError() | AttemptFailed() | OSError():
            return "failed"
        case Exception():
            return "broken"
    return "left"


class Overflow:
    """The targets of this installation, and connections to them."""

    def __init__(self, targets: Mapping[str, Target]) -> None:
        self._targets = targets
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=_TIMEOUT,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=(hdrs.ACCEPT_ENCODING, hdrs.USER_AGENT),
        )

    async def close(self) -> None:
        """Closes idle connections."""
        await self._session.close()

    async def serve(self, router: Router, life: RequestLife, relay: Relay, call: Call) -> web.StreamResponse:
        """Returns the answer of a replica, or that of the service's target if none takes the request in time. If the target fails, the
        request is treated as without it: it is held on, or refused."""
        attempt = partial(relay.reserved, call, life)
        path = URL(call.path, encoded=True).path
        life.targets = frozenset(self._targets) if fits(path, call.body) and not life.is_for_adapter else frozenset()
        try:
            return await router.serve(life, attempt)
        except (HoldTimeout, QueueFull, AllOverloaded, ServiceStalled) as error:
            refusal: GatewayError = error
        if life.overflow is None:
            raise refusal
        target, reason = self._targets[life.overflow.target], life.reason
        if (answer := await self._outside(life, relay, target, call)) is not None:
            return answer
        life.targets, life.overflow, life.reason = frozenset(), None, reason
        if not isinstance(refusal, HoldTimeout):
            raise refusal
        life.claim = life.claim._replace(first=True)
        return await router.serve(life, attempt)

    async def _outside(self, life: RequestLife, relay: Relay, target: Target, call: Call) -> web.StreamResponse | None:
        """Returns the target's answer; None if it gave none that a client should have."""
        before, relay.account.sent, meter = relay.account.sent, True, Meter()
        life.reason, result = REASON_OVERFLOW, "answered"
        try:
            return await self._relayed(life, relay, _parcel(life, relay, target, call), meter)
        except BaseException as error:
            result = _result(error)
            if result in ("left", "broken"):
                raise
            why = error.reason if isinstance(error, AttemptFailed) else type(error).__name__
        finally:
            relay.account.used = meter.used or relay.account.used
            life.overflowed(target.name, result)
        relay.account.sent = before
        log.warning("an overflow target did not answer a request", target=target.name, service=life.service, why=why)
        return None

    async def _relayed(self, life: RequestLife, relay: Relay, parcel: Parcel, meter: Meter) -> web.StreamResponse:
        target, sent = parcel.target, parcel.sent
        headers = {hdrs.AUTHORIZATION: parcel.authorization, hdrs.CONTENT_TYPE: "application/json"}
        async with self._session.post(parcel.url, data=sent.body, headers=headers, ssl=target.tls, allow_redirects=False) as answer:
            # Also 400 and its like: a replica knows fields and lengths that this API may not know.
            if answer.status != HTTPStatus.OK:
                raise TargetRefused(f"status-{answer.status}")
            to_client = CIMultiDict({HEADER_ROUTE: life.route(), HEADER_OVERFLOW: target.name})
            to_client[hdrs.CONTENT_TYPE] = answer.headers.get(hdrs.CONTENT_TYPE, "application/json")
            response = await relay.outside(Metered(answer, meter, hides_usage=sent.hides_usage), to_client)
            life.status = response.status
            return response


class Metered:
    """A target's answer as relay.py reads one, with its usage counted."""

    def __init__(self, answer: aiohttp.ClientResponse, meter: Meter, *, hides_usage: bool) -> None:
        self._answer, self._meter, self._hides, self._events = answer, meter, hides_usage, Events()
        self.status, self.content_type, self.content = answer.status, answer.content_type, self

    async def readany(self) -> bytes:
        """Returns the next events, b"" at the end."""
        while data := await self._answer.content.readany():
            if kept := self._kept(self._events.take(data).events):
                return kept
        rest, self._events = self._events.take(b"").events, Events()
        return self._kept(rest)

    def _kept(self, events: bytes) -> bytes:
        self._meter.feed(events)
        return b"".join(event for event in split(events) if not is_usage(event)) if self._hides and b'"usage"' in events else events

    async def read(self) -> bytes:
        """Returns the whole body."""
        body = await self._answer.read()
        self._meter.feed(body)
        return body

    def close(self) -> None:
        """Ends the connection."""
        self._answer.close()
