"""The gateway's HTTP: reads a request, gives it to requests/router.py, turns errors into answers. Started by serve/process.py.

Decides nothing about replicas and counts nothing. One aiohttp application for the API's port, one for the metrics' port.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from importlib.metadata import version
from typing import Final

import msgspec
import structlog
from aiohttp import hdrs, web
from pagoda_contracts.absent_routes import NOT_BUILT, STORED
from pagoda_contracts.name_owners import ServedName
from pagoda_contracts.names import HEADER_REQUEST_ID, PATH_TRACE
from prometheus_client import CONTENT_TYPE_LATEST

from pagoda_gateway.limits.wording import Style
from pagoda_gateway.proxy import body, parse
from pagoda_gateway.proxy.authenticate import KEY_ID, TENANT, Authenticate
from pagoda_gateway.proxy.body import Limits
from pagoda_gateway.proxy.connection import check_head
from pagoda_gateway.proxy.fields import fields_of
from pagoda_gateway.proxy.headers import to_replica
from pagoda_gateway.proxy.observe import OBSERVED, Observe
from pagoda_gateway.proxy.overflow import Overflow
from pagoda_gateway.proxy.relay import Relay
from pagoda_gateway.proxy.traces import Traces
from pagoda_gateway.proxy.tracing import TRACEPARENT
from pagoda_gateway.proxy.upstream import Call, Upstream
from pagoda_gateway.proxy.wish import wish
from pagoda_gateway.requests.dialects import ANTHROPIC, ENDPOINTS, dialect_of
from pagoda_gateway.requests.errors import (
    GatewayError,
    MalformedHttp,
    NotBuilt,
    NotServedHere,
    NotSynced,
    NotThisMethod,
    ResponseNotFound,
)
from pagoda_gateway.requests.hold_queue import claim_of
from pagoda_gateway.requests.in_flight import InFlight
from pagoda_gateway.requests.lifecycle import RequestLife
from pagoda_gateway.requests.limiter import Account, Asked, Limiter
from pagoda_gateway.requests.metrics import Metrics
from pagoda_gateway.requests.recent import Answered, Recent
from pagoda_gateway.requests.router import Router
from pagoda_gateway.requests.usage import Usage, ended, payer_of
from pagoda_gateway.watch.cache import EndpointCache

log = structlog.get_logger()

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_REQUEST_ID: Final = web.RequestKey("request_id", str)


@dataclass(slots=True)
class Api:
    """The OpenAI routes."""

    cache: EndpointCache
    in_flight: InFlight
    router: Router
    upstream: Upstream
    limits: Limits
    authenticate: Authenticate
    observe: Observe
    limiter: Limiter
    usage: Usage
    recent: Recent
    overflow: Overflow | None = None
    stopping: bool = False

    def application(self) -> web.Application:
        """Returns the application for the API's port."""
        app = web.Application(middlewares=[self.observe.middleware(), _envelope, self.authenticate.middleware()])
        app.add_routes([web.post(path, self._inference) for path in ENDPOINTS])
        app.add_routes([web.get("/v1/models", self._models), web.get("/v1/models/{id:.+}", self._model)])
        app.add_routes([web.get(PATH_TRACE, self._trace)])
        app.add_routes([web.get("/health", self._health), web.get("/version", _version)])
        app.add_routes([web.route("*", _pattern(path), _not_built(what)) for path, what in NOT_BUILT.items()])
        app.add_routes([web.route("*", _pattern(STORED), _not_stored)])
        app.on_response_prepare.append(self._sign)
        return app

    async def _sign(self, request: web.Request, response: web.StreamResponse) -> None:
        # An answer of aiohttp itself (to an unknown `expect`) did not pass `_envelope` and has no id yet.
        response.headers[HEADER_REQUEST_ID] = request.get(_REQUEST_ID) or parse.request_id(request.headers.get(HEADER_REQUEST_ID))
        response.headers[hdrs.SERVER] = "pagoda"
        if self.stopping:  # the next request of this client goes to another gateway
            response.headers[hdrs.CONNECTION] = "close"
            response.force_close()

    async def _inference(self, request: web.Request) -> web.StreamResponse:
        relay = Relay(self.upstream, request, request[_REQUEST_ID])
        try:
            async with self.in_flight.begin(request[_REQUEST_ID], request[TENANT]) as life:
                if (observed := request.get(OBSERVED)) is not None:
                    observed.life, observed.finish = life, relay.finish
                return await self._answer(request, life, relay)
        except GatewayError as error:
            if relay.opened is None:
                raise
            _note(request, error)
            return await relay.end(relay.opened, error)

    async def _answer(self, request: web.Request, life: RequestLife, relay: Relay) -> web.StreamResponse:
        whole = await body.read(request, self.limits, life.take_bytes)
        fields = fields_of(whole)
        life.request = parse.routing_request(fields, whole, request.headers, request[TENANT])
        life.ping = relay.ping if life.request.stream else None
        style: Style = "anthropic" if dialect_of(request.path) is ANTHROPIC else "openai"
        asked = Asked(request[TENANT], life.request.model, partial(wish, request.path, fields, len(whole)), style)
        async with self.limiter.admitted(asked) as relay.account:
            life.policy, life.claim = relay.account.policy, claim_of(life.request, relay.account.policy)
            path = request.rel_url.raw_path_qs  # a target in absolute form names the gateway, not the replica
            headers = to_replica(request.headers, request[_REQUEST_ID], life.request, continuable=parse.may_continue(request.headers))
            if (observed := request.get(OBSERVED)) is not None:
                observed.account = relay.account
                if observed.traceparent:
                    headers[TRACEPARENT] = observed.traceparent
            try:
                answer = await self._serve(life, relay, Call(path, headers, whole))
                relay.account.status = answer.status
                return answer
            finally:
                self._count(request, life, relay.account)
                if relay.finish.id and not life.target:
                    self.recent.add(request[TENANT], request[_REQUEST_ID], Answered(life.replica, life.endpoint, relay.finish.id))

    async def _serve(self, life: RequestLife, relay: Relay, call: Call) -> web.StreamResponse:
        if self.overflow is not None:
            return await self.overflow.serve(self.router, life, relay, call)
        return await self.router.serve(life, partial(relay.reserved, call, life))

    def _count(self, request: web.Request, life: RequestLife, account: Account) -> None:
        if account.used is not None:
            self.usage.record(payer_of(life, request[KEY_ID]), account.used, ended(life, account.status))

    async def _trace(self, request: web.Request) -> web.Response:
        return await Traces(self.recent, self.cache, self.upstream).get(request.match_info["id"], request[TENANT])

    async def _health(self, _request: web.Request) -> web.Response:
        """Clients of replicas ask so before they begin. Kubelet asks on the probes' port, without a key."""
        if self.stopping or not self.cache.synced:
            raise NotSynced("the gateway stops" if self.stopping else "the gateway has not listed the cluster's services yet")
        return web.Response()

    async def _models(self, request: web.Request) -> web.Response:
        return _json({"object": "list", "data": [self._card(model) for model in self._served(request[TENANT])]})

    async def _model(self, request: web.Request) -> web.Response:
        name, policy = request.match_info["id"], self.limiter.policy(request[TENANT])
        for model in self._served(request[TENANT]):
            if model.name == name:
                return _json(self._card(model))
        raise self.router.names.not_found(name, policy)

    def _card(self, model: ServedName) -> dict[str, str | int | bool]:
        """Returns OpenAI's model object. A service that is asleep is available: a request wakes it."""
        card: dict[str, str | int | bool] = {"id": model.name, "object": "model", "created": _epoch(model.created), "owned_by": model.owner}
        if parent := self.cache.parent(model.name):
            card["parent"] = parent
        why = self.router.why_not(model.owner)
        return card | {"available": not why} | ({"unavailable_reason": why} if why else {})

    def _served(self, tenant: str) -> list[ServedName]:
        """Returns the names that a tenant may use."""
        policy = self.limiter.policy(tenant)
        if not self.cache.synced:
            raise NotSynced("the gateway has not listed the cluster's services yet")
        return [model for model in self.cache.models() if policy.shows(model.name, model.namespace)]


def _pattern(path: str) -> str:
    """Returns a path of the contracts as aiohttp writes it."""
    return path.replace(":path}", ":.*}")


def _not_built(what: str) -> Handler:
    async def refuse(request: web.Request) -> web.StreamResponse:
        raise NotBuilt(f"{request.method} {request.path[:128]} is not built yet ({what}); docs/api.md lists what is")

    return refuse


async def _not_stored(request: web.Request) -> web.StreamResponse:
    name = request.match_info["id"].partition("/")[0]
    raise ResponseNotFound(f"response {name[:128]!r} was not found: replicas keep no responses; store is always false")


async def _version(_request: web.Request) -> web.Response:
    return _json({"version": version("pagoda")})


def _json(document: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(document), content_type="application/json")


def _epoch(rfc3339: str) -> int:
    return int(datetime.fromisoformat(rfc3339).timestamp()) if rfc3339 else 0


@web.middleware
async def _envelope(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Gives the request its id, and turns the error that ends it into an answer."""
    request[_REQUEST_ID] = request[OBSERVED].request_id = parse.request_id(request.headers.get(HEADER_REQUEST_ID))
    try:
        check_head(request)
        return await handler(request)
    except GatewayError as error:
        failure = error
    except web.HTTPNotFound:
        failure = NotServedHere(f"{request.method} {request.path} is not served here")
    except web.HTTPMethodNotAllowed as error:
        allowed = ", ".join(sorted(error.allowed_methods))
        failure = NotThisMethod(f"{request.method} {request.path} is not served here; the method must be {allowed}")
    except ConnectionError:  # the client left while it was written to
        raise
    except Exception:
        log.exception("a request failed by an error of the gateway", request_id=request[_REQUEST_ID])
        failure = GatewayError("internal error; the gateway's log has its cause")
    _note(request, failure)
    answer = dialect_of(request.path).reply(failure, request[_REQUEST_ID])
    response = web.Response(status=answer.status, headers=answer.headers, body=answer.body)
    if isinstance(failure, MalformedHttp):
        response.force_close()
    return response


def _note(request: web.Request, error: GatewayError) -> None:
    """For the access line: what ended the request, and a word on why, such as why its key is not valid."""
    if (observed := request.get(OBSERVED)) is not None:
        observed.error, observed.why = error, getattr(error.__cause__, "reason", "")


def metrics_application(metrics: Metrics) -> web.Application:
    """Returns the application for the metrics' port."""

    async def scrape(_request: web.Request) -> web.Response:
        return web.Response(body=metrics.exposition(), headers={hdrs.CONTENT_TYPE: CONTENT_TYPE_LATEST})

    app = web.Application()
    app.add_routes([web.get("/metrics", scrape)])
    return app
