"""The gateway's HTTP: reads a request, hands it to the road (route.py), turns errors into answers. Started by serve.py.

Decides nothing about replicas. One aiohttp server on the API's port, one on the metrics' port.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from http import HTTPStatus
from typing import Final

import msgspec
import structlog
from aiohttp import hdrs, web
from pagoda_contracts.claims import Claim
from pagoda_contracts.names import HEADER_REQUEST_ID
from prometheus_client import CONTENT_TYPE_LATEST

from pagoda_gateway.proxy import body, parse
from pagoda_gateway.proxy.body import Budget, Limits
from pagoda_gateway.proxy.headers import to_replica
from pagoda_gateway.proxy.relay import Relay
from pagoda_gateway.proxy.upstream import Call, Upstream
from pagoda_gateway.requests.errors import (
    GatewayError,
    ModelNotFound,
    NotServedHere,
    NotSynced,
    NotThisMethod,
    ShuttingDown,
    reply,
)
from pagoda_gateway.requests.metrics import Metrics
from pagoda_gateway.requests.router import Journey, Router
from pagoda_gateway.watch.fleet import Fleet

log = structlog.get_logger()

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_CLIENT_LEFT: Final = 499
_FAILED: Final = 500
_REQUEST_ID = web.RequestKey("request_id", str)


@dataclass(slots=True)
class Api:
    """The OpenAI routes."""

    fleet: Fleet
    router: Router
    upstream: Upstream
    metrics: Metrics
    limits: Limits
    stopping: bool = False
    _budget: Budget = field(init=False)
    _active: set[asyncio.Timeout] = field(default_factory=set)
    _idle: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._budget = Budget(self.limits.budget_bytes)

    def application(self) -> web.Application:
        """The app on the API's port."""
        app = web.Application(middlewares=[_envelope])
        routes = [web.post(path, self._inference) for path in ("/v1/chat/completions", "/v1/completions")]
        app.add_routes([*routes, web.get("/v1/models", self._models), web.get("/v1/models/{id:.+}", self._model)])
        app.on_response_prepare.append(self._sign)
        return app

    async def _sign(self, request: web.Request, response: web.StreamResponse) -> None:
        # What aiohttp answers by itself (an unknown `expect`) did not pass `_envelope` and has no id yet.
        response.headers[HEADER_REQUEST_ID] = request.get(_REQUEST_ID) or parse.request_id(request.headers.get(HEADER_REQUEST_ID))
        response.headers[hdrs.SERVER] = "pagoda"
        if self.stopping:  # the next request of this client goes to another gateway
            response.headers[hdrs.CONNECTION] = "close"
            response.force_close()

    async def _inference(self, request: web.Request) -> web.StreamResponse:
        journey, code = Journey(), _CLIENT_LEFT
        relay = Relay(self.upstream, request, partial(self.router.first_token, journey))
        try:
            async with self._counted():
                response = await self._road(request, journey, relay)
            code = HTTPStatus.BAD_GATEWAY if relay.broken else response.status
            self.router.answered(journey, failed=code >= _FAILED)
            return response
        except GatewayError as error:
            code = error.status
            if relay.begun is None:
                raise
            return await relay.end(relay.begun, error)
        finally:
            self.metrics.answered(journey.service, code)
            self.router.ended(journey, failed=None if code == _CLIENT_LEFT else code >= _FAILED)

    async def _road(self, request: web.Request, journey: Journey, relay: Relay) -> web.StreamResponse:
        with self._budget.account() as take:
            whole = await body.read(request, self.limits, take)
            journey.model = parse.head(whole).model
            path = request.rel_url.raw_path_qs  # a target in absolute form names us, not the replica
            call = Call(path, to_replica(request.headers, request[_REQUEST_ID]), whole)
            return await self.router.serve(journey, partial(relay.attempt, call))

    @property
    def under_way(self) -> int:
        """Requests that are read, held or answered now."""
        return len(self._active)

    @asynccontextmanager
    async def _counted(self) -> AsyncIterator[None]:
        """A request that is under way; `finish` may end it."""
        scope = asyncio.timeout(None)
        self._active.add(scope)
        try:
            async with scope:
                yield
        except TimeoutError as error:
            raise ShuttingDown("the gateway stopped before this request could finish") from error
        finally:
            self._active.discard(scope)
            self._idle.set()

    async def finish(self, seconds: float) -> None:
        """Returns when no request is under way; after `seconds` it ends those that are."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._until_idle()
        for scope in self._active:
            scope.reschedule(asyncio.get_running_loop().time())
        await self._until_idle()

    async def _until_idle(self) -> None:
        while self._active:
            self._idle.clear()
            await self._idle.wait()

    async def _models(self, _request: web.Request) -> web.Response:
        return _json({"object": "list", "data": [_card(claim) for claim in self._claims()]})

    async def _model(self, request: web.Request) -> web.Response:
        name = request.match_info["id"]
        for claim in self._claims():
            if claim.name == name:
                return _json(_card(claim))
        raise ModelNotFound(f"no service answers to the model {name[:128]!r}: GET /v1/models lists those that are served")

    def _claims(self) -> list[Claim]:
        if not self.fleet.synced:
            raise NotSynced("the gateway has not seen the cluster yet")
        return self.fleet.claims()


def _card(claim: Claim) -> dict[str, str | int]:
    """OpenAI's model object."""
    return {"id": claim.name, "object": "model", "created": _epoch(claim.created), "owned_by": claim.owner}


def _json(document: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(document), content_type="application/json")


def _epoch(rfc3339: str) -> int:
    return int(datetime.fromisoformat(rfc3339).timestamp()) if rfc3339 else 0


@web.middleware
async def _envelope(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Names the request, and turns whatever ends it into an answer."""
    request[_REQUEST_ID] = parse.request_id(request.headers.get(HEADER_REQUEST_ID))
    try:
        return await handler(request)
    except GatewayError as error:
        failure = error
    except web.HTTPNotFound:
        failure = NotServedHere(f"{request.method} {request.path} is not served here")
    except web.HTTPMethodNotAllowed as error:
        failure = NotThisMethod(f"{request.method} {request.path} is not served here, accepted: {', '.join(sorted(error.allowed_methods))}")
    except ConnectionError:  # the client left while it was written to
        raise
    except Exception:
        log.exception("a request failed by our own fault", request_id=request[_REQUEST_ID])
        failure = GatewayError("internal error; the gateway's log has its cause")
    answer = reply(failure)
    return web.Response(status=answer.status, headers=answer.headers, body=answer.body)


def metrics_application(metrics: Metrics) -> web.Application:
    """The app on the metrics' port."""

    async def scrape(_request: web.Request) -> web.Response:
        return web.Response(body=metrics.exposition(), headers={hdrs.CONTENT_TYPE: CONTENT_TYPE_LATEST})

    app = web.Application()
    app.add_routes([web.get("/metrics", scrape)])
    return app
