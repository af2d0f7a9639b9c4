"""One request that goes through Envoy: reads it, picks its replica, and follows its answer. One per stream; made by server.py.

The same keys, quotas, picker and counts as in proxy/handlers.py. Envoy sends the request and passes the answer on, so that nothing can be
sent again, and a request is held only for as long as Envoy waits: long enough for the operator to see that somebody asks.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from aiohttp import hdrs
from pagoda_contracts.names import HEADER_REQUEST_ID
from pagoda_contracts.pb import extproc_pb2 as pb

from pagoda_gateway.access.keys import Owner
from pagoda_gateway.extproc import messages
from pagoda_gateway.extproc.answer import Answer
from pagoda_gateway.extproc.phases import Event, Exchange, Head, Piece, Side, chunks
from pagoda_gateway.limits.wording import Style
from pagoda_gateway.proxy import parse
from pagoda_gateway.proxy.authenticate import Authenticate
from pagoda_gateway.proxy.body import Collected, Limits, too_slow
from pagoda_gateway.proxy.fields import fields_of
from pagoda_gateway.proxy.headers import to_replica
from pagoda_gateway.proxy.observe import Observe
from pagoda_gateway.proxy.wish import wish
from pagoda_gateway.requests.dialects import ANTHROPIC, ENDPOINTS, dialect_of
from pagoda_gateway.requests.errors import AttemptFailed, GatewayError, NotServedHere, NotThisMethod
from pagoda_gateway.requests.finish_reasons import FinishReasons
from pagoda_gateway.requests.hold_queue import claim_of
from pagoda_gateway.requests.in_flight import InFlight
from pagoda_gateway.requests.lifecycle import RequestLife
from pagoda_gateway.requests.limiter import Account, Asked, Limiter
from pagoda_gateway.requests.observed import Observed
from pagoda_gateway.requests.router import Router
from pagoda_gateway.requests.terms import Terms
from pagoda_gateway.requests.usage import Usage, ended, payer_of
from pagoda_gateway.routing.endpoint import Endpoint
from pagoda_gateway.watch.cache import EndpointCache
from pagoda_gateway.watch.own_token import OwnToken

# A held request starts a service that is at 0 replicas. Half a second is enough for that; Envoy's timeout is 10 s.
HOLD_S: Final = 3.0

Write = Callable[[pb.ProcessingResponse], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Picker:
    """The parts of the gateway that a session needs. `own` is the token by which replicas know the gateway."""

    cache: EndpointCache
    in_flight: InFlight
    router: Router
    limits: Limits
    authenticate: Authenticate
    observe: Observe
    limiter: Limiter
    usage: Usage
    own: OwnToken | None
    hold_s: float = HOLD_S


class ClientLeft(ConnectionError):
    """Envoy ended the exchange before its answer was complete: its client left, or the replica's connection ended."""


class Session:
    """One stream of Envoy's."""

    def __init__(self, picker: Picker, messages: AsyncIterator[pb.ProcessingRequest], write: Write) -> None:
        self._picker, self._messages, self._write = picker, messages, write
        self._exchange, self._finish = Exchange(), FinishReasons()
        self._message = pb.ProcessingRequest()
        self._routed = False

    async def run(self) -> None:
        """Returns when the exchange is over; ProxyMisconfigured if Envoy's configuration is not one that can work."""
        head = await self._next()
        if not isinstance(head, Head):
            return
        path, _, _ = head.headers.get(":path", "").partition("?")
        observed = Observed(head.headers.get(":method", ""), path if path in ENDPOINTS else "none", self._picker.observe.clock_ms())
        observed.request_id = parse.request_id(head.headers.get(HEADER_REQUEST_ID))
        status = None
        try:
            with suppress(ClientLeft):
                status = await self._answered(head, path, observed)
        finally:
            observed.end(status, self._picker.observe.clock_ms())
            self._picker.observe.record(observed)

    async def _answered(self, head: Head, path: str, observed: Observed) -> int:
        try:
            if mode := messages.refused_mode(self._message):
                raise GatewayError(f"Envoy's body modes must be FULL_DUPLEX_STREAMED, got {mode}; see docs/operations/gateway.md")
            _check(head.headers.get(":method", ""), path)
            owner = self._picker.authenticate.owner(head.headers)
            if owner is not None:
                observed.tenant, observed.key_id = owner.tenant, owner.key_id
            async with self._picker.in_flight.begin(observed.request_id, observed.tenant) as life:
                observed.life, observed.finish = life, self._finish
                return await self._serve(head, path, owner, observed, life)
        except GatewayError as error:
            observed.error, observed.why = error, getattr(error.__cause__, "reason", "")
            if self._routed:  # the answer may have begun, and Envoy knows best how to end it
                raise
            reply = dialect_of(path).reply(error, observed.request_id)
            await self._write(messages.immediate(reply, {HEADER_REQUEST_ID: observed.request_id}))
            return reply.status

    async def _serve(self, head: Head, path: str, owner: Owner | None, observed: Observed, life: RequestLife) -> int:
        subset = messages.subset_of(self._message)
        body = await self._body(head, life)
        tenant, key = (owner.tenant, owner.key_id) if owner is not None else ("", "")
        fields = fields_of(body)
        life.request = parse.routing_request(fields, body, head.headers, tenant)
        style: Style = "anthropic" if dialect_of(path) is ANTHROPIC else "openai"
        asked = Asked(tenant, fields.model, partial(wish, path, fields, len(body)), style)
        async with self._picker.limiter.admitted(asked) as account:
            observed.account, life.policy, life.claim = account, account.policy, claim_of(life.request, account.policy)
            endpoint = await self._picker.router.choose(life, Terms(self._picker.hold_s, subset))
            try:
                with ExitStack() as place:
                    place.enter_context(life.at(endpoint))
                    await self._send(endpoint, head, body, life, account)
                    await self._follow(Answer(life, account, self._finish, place, dialect_of(path)), life, endpoint)
            except AttemptFailed:
                return account.status  # the client has it; what it means for the replica is recorded
            finally:
                if account.used is not None:
                    self._picker.usage.record(payer_of(life, key), account.used, ended(life, account.status))
            return account.status

    async def _body(self, head: Head, life: RequestLife) -> bytes:
        """Returns the whole body. Envoy has nothing of it before its head is answered, so it is read like any client's."""
        collected = Collected(head.headers, self._picker.limits, life.take_bytes)
        try:
            async with asyncio.timeout(self._picker.limits.body_seconds):
                while not self._exchange.request.whole:
                    event = await self._next()
                    if event is None or event.side is Side.ANSWER:
                        raise ClientLeft("Envoy answered by itself before the request was complete")
                    if isinstance(event, Piece):
                        collected.add(event.data)
        except TimeoutError as error:
            raise too_slow(self._picker.limits) from error
        return collected.whole()

    async def _send(self, endpoint: Endpoint, head: Head, body: bytes, life: RequestLife, account: Account) -> None:
        """Tells Envoy where the request goes, and gives its body back."""
        before = messages.plain(head.headers)
        after = to_replica(before, life.request_id, life.request)
        account.sent = True
        after.update(account.terms())
        if self._picker.own is not None:
            after[hdrs.AUTHORIZATION] = self._picker.own.header()
        self._routed = True
        await self._write(messages.routed(endpoint.address, messages.changes(before, after)))
        came = self._exchange.request
        await self._write_all(messages.bodies(Side.REQUEST, chunks(body, end=came.body and not came.trailers)))
        if came.trailers:
            await self._write(messages.trailers(Side.REQUEST))

    async def _follow(self, answer: Answer, life: RequestLife, picked: Endpoint) -> None:
        """Follows the answer to its end."""
        while not self._exchange.over:
            event = await self._next()
            if event is None:
                if self._exchange.answer.head_only:  # bodies of answers do not pass here
                    break
                raise ClientLeft("Envoy ended the exchange before the answer was complete")
            if isinstance(event, Head):
                self._moved(answer, life, picked)
                await self._write(await answer.head(event))
            elif isinstance(event, Piece):
                await self._write_all(await answer.piece(event))
            else:
                await self._write_all(await answer.trailers())
        answer.end()

    def _moved(self, answer: Answer, life: RequestLife, picked: Endpoint) -> None:
        """Counts the request where Envoy sent it, if Envoy says that it was another replica of the same service."""
        served = messages.served_by(self._message)
        service = self._picker.cache.service(life.service)
        if served in ("", picked.address) or service is None:
            return
        for endpoint in self._picker.cache.endpoints(service):
            if endpoint.address == served:
                answer.moved(endpoint)

    async def _next(self) -> Event | None:
        """Returns what Envoy sends next, None at the end of its stream."""
        message = await anext(self._messages, None)
        if message is None:
            return None
        self._message = message
        event = messages.event_of(message)
        self._exchange.take(event)
        return event

    async def _write_all(self, several: Iterable[pb.ProcessingResponse]) -> None:
        for message in several:
            await self._write(message)


def _check(method: str, path: str) -> None:
    if path not in ENDPOINTS:
        raise NotServedHere(f"{method} {path[:128]} is not served through Envoy; docs/operations/gateway.md lists the paths")
    if method != hdrs.METH_POST:
        raise NotThisMethod(f"{method} {path} is not served here; the method must be POST")
