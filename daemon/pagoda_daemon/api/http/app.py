"""The Starlette application: routes, error handlers, and the middleware that puts a request id on every answer."""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from pagoda_contracts.names import HEADER_ANSWERED, HEADER_IGNORED, HEADER_REQUEST_ID, PATH_TRACE
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pagoda_daemon.api.access.auth import Guard, guarded
from pagoda_daemon.api.access.catalogue import Catalogue
from pagoda_daemon.api.access.roles import PATH_LOAD, PATH_UNLOAD
from pagoda_daemon.api.anthropic.conversion import ELSEWHERE
from pagoda_daemon.api.anthropic.dialect import Messages
from pagoda_daemon.api.anthropic.requests import CountTokensRequest, MessagesRequest
from pagoda_daemon.api.http.measured import Measured, patterns
from pagoda_daemon.api.http.refusals import NamedMessages, on_bug, on_daemon_error, on_http_error, response_of
from pagoda_daemon.api.http.spans import Ended
from pagoda_daemon.api.http.web import Web
from pagoda_daemon.api.openai import requests
from pagoda_daemon.api.openai.chat_replies import Chat
from pagoda_daemon.api.openai.errors import JSON, TOO_LARGE
from pagoda_daemon.api.openai.models import ModelCard, ModelList
from pagoda_daemon.api.openai.replies import Completion
from pagoda_daemon.api.openai.requests import ChatRequest, CompletionRequest
from pagoda_daemon.api.openai.trace import Traces
from pagoda_daemon.api.responses.dialect import Responses
from pagoda_daemon.api.responses.requests import ResponsesRequest
from pagoda_daemon.api.routes import docspage
from pagoda_daemon.api.routes.absent import absent_routes
from pagoda_daemon.api.routes.adapters import AdapterRoute, LoadAdapterRequest, UnloadAdapterRequest, load_adapter, unload_adapter
from pagoda_daemon.api.routes.admission import Admission
from pagoda_daemon.api.routes.completions import Generate
from pagoda_daemon.api.routes.continuing import seeds_of
from pagoda_daemon.api.routes.embeddings import Embed
from pagoda_daemon.api.routes.generation import Generator
from pagoda_daemon.api.routes.messages import CreateMessage, count_tokens
from pagoda_daemon.api.routes.openapi import ADAPTER_OPERATIONS, HTML, OPERATIONS, Load, Version, document
from pagoda_daemon.api.routes.responses import Respond
from pagoda_daemon.api.routes.texts import DetokenizeRequest, TextRoute, TokenizeRequest, detokenize, tokenize
from pagoda_daemon.core.errors import BadRequest, DaemonError, ModelNotFound, shown
from pagoda_daemon.health.replica import Replica
from pagoda_daemon.metrics import Exposition
from pagoda_daemon.metrics.text import CONTENT_TYPE

_SANE_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,128}")
_COUNT: Final = re.compile(r"[0-9]{1,15}")


@dataclass(frozen=True)
class Parts:
    """What the routes need, made by `front.py`."""

    replica: Replica
    admission: Admission
    generator: Generator
    exposition: Exposition
    served_names: tuple[str, ...]
    version: str
    revision: str = ""
    guard: Guard = field(default_factory=lambda: Guard(None))
    ping_after_s: float | None = None
    web: Web = field(default_factory=Web)
    export: Callable[[Ended], None] | None = None
    seed: int | None = None


def application(parts: Parts) -> ASGIApp:
    """The whole HTTP side of a replica."""
    made_by, seeds = fingerprint(parts.version, parts.revision), seeds_of(parts.seed)
    shared = (parts.admission, parts.generator, parts.served_names, made_by, parts.ping_after_s, seeds)
    texts = (parts.admission, parts.generator.text, parts.served_names)
    info = Info(parts, int(time.time()))
    routes = [
        Route("/v1/chat/completions", Generate(ChatRequest, Chat, *shared), methods=["POST"]),
        Route("/v1/completions", Generate(CompletionRequest, Completion, *shared), methods=["POST"]),
        Route("/v1/responses", Respond(ResponsesRequest, Responses, *shared), methods=["POST"]),
        Route("/tokenize", TextRoute(TokenizeRequest, tokenize, *texts), methods=["POST"]),
        Route("/detokenize", TextRoute(DetokenizeRequest, detokenize, *texts), methods=["POST"]),
        Route("/v1/messages", CreateMessage(MessagesRequest, Messages, *shared), methods=["POST"]),
        Route("/v1/messages/count_tokens", TextRoute(CountTokensRequest, count_tokens, *texts, ELSEWHERE), methods=["POST"]),
        Route("/v1/embeddings", Embed(parts.admission, parts.generator, parts.served_names), methods=["POST"]),
        Route("/v1/models", info.models),
        Route("/v1/models/{name:path}", info.model),
        Route(PATH_TRACE, Traces(parts.generator.counts.recent).get),
        Route("/metrics", info.metrics),
        Route("/health", info.health),
        Route("/version", info.version),
        Route("/load", info.load),
        Route("/openapi.json", info.openapi),
        Route("/docs", info.docs),
        *_adapter_routes(parts.admission),
        *absent_routes(),
    ]
    handlers = {DaemonError: on_daemon_error, HTTPException: on_http_error, Exception: on_bug}
    app = Starlette(routes=guarded(routes, parts.guard), exception_handlers=handlers)
    app.router.redirect_slashes = False  # the redirect would name whatever host the client wrote
    wrapped = parts.web.around(NamedMessages(Sized(app)))
    inner = Measured(wrapped, patterns(routes), parts.exposition.http, parts.generator.counts.recent, parts.export)
    return Outermost(inner, parts.replica)


def _adapter_routes(admission: Admission) -> list[Route]:
    catalogue = _own_adapters(admission)
    if catalogue is None:
        return []
    load = AdapterRoute(LoadAdapterRequest, load_adapter, admission, catalogue)
    unload = AdapterRoute(UnloadAdapterRequest, unload_adapter, admission, catalogue)
    return [Route(PATH_LOAD, load, methods=["POST"]), Route(PATH_UNLOAD, unload, methods=["POST"])]


def _own_adapters(admission: Admission) -> Catalogue | None:
    """The adapters that callers may load; None where there are none, or an operator says which there are."""
    catalogue = admission.adapters
    return None if catalogue is None or catalogue.config.fetch_port is not None else catalogue


def fingerprint(version: str, revision: str) -> str:
    """Changes when what computes the answers does."""
    return f"fp_{hashlib.sha256(f'{version}/{revision}'.encode()).hexdigest()[:10]}"


@dataclass(frozen=True)
class Info:
    """The endpoints that generate nothing."""

    parts: Parts
    created: int

    async def models(self, _request: Request) -> Response:
        return _json(ModelList(tuple(self._cards().values())))

    async def model(self, request: Request) -> Response:
        name = request.path_params["name"]
        if (card := (cards := self._cards()).get(name)) is None:
            raise ModelNotFound(f"model {shown(name)} is not served here, accepted: {', '.join(cards)}")
        return _json(card)

    async def metrics(self, _request: Request) -> Response:
        text = self.parts.exposition.text(time.monotonic(), time.time())
        return Response(text, headers={"content-type": CONTENT_TYPE})

    async def health(self, _request: Request) -> Response:
        return Response(status_code=200 if self.parts.replica.accepting else 503)

    async def version(self, _request: Request) -> Response:
        return _json(Version(self.parts.version))

    async def load(self, _request: Request) -> Response:
        return _json(Load(self.parts.replica.in_flight))

    async def openapi(self, _request: Request) -> Response:
        return Response(msgspec.json.encode(self._document()), media_type=JSON)

    async def docs(self, _request: Request) -> Response:
        return Response(docspage.page(self._document(), self.parts.web.root_path), headers=docspage.HEADERS, media_type=HTML)

    def _document(self) -> dict[str, Any]:
        more = () if _own_adapters(self.parts.admission) is None else ADAPTER_OPERATIONS
        return document(self.parts.version, (*OPERATIONS, *more), self.parts.web.root_path)

    def _cards(self) -> dict[str, ModelCard]:
        limits, adapters = self.parts.replica.limits, self.parts.admission.adapters
        length, base = limits.max_model_len if limits else None, self.parts.served_names[0]
        cards = {name: ModelCard(name, self.created, base, length) for name in self.parts.served_names}
        for name, (digest, created) in ({} if adapters is None else adapters.names()).items():
            cards[name] = ModelCard(name, created, digest, length, parent=base)
        return cards


def _json(payload: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(payload), media_type=JSON)


class Outermost:
    """Names every request, and closes connections after their answer while leaving.

    The engine sees only ids made here: a client's id is echoed in the header and used for nothing.
    """

    def __init__(self, app: ASGIApp, replica: Replica) -> None:
        self._app = app
        self._replica = replica

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        request_id = secrets.token_hex(16)
        scope.setdefault("state", {}).update(request_id=request_id, arrived=time.monotonic(), ignored=[])
        wished = headers.get(HEADER_REQUEST_ID, "")
        named = wished if _SANE_ID.fullmatch(wished) else request_id

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                answer = MutableHeaders(scope=message)
                answer[HEADER_REQUEST_ID] = named
                if scope["state"]["ignored"]:
                    answer[HEADER_IGNORED] = ", ".join(dict.fromkeys(scope["state"]["ignored"]))
                if self._replica.leaving:
                    answer["connection"] = "close"
            await send(message)

        await self._app(scope, receive, send_named)


class Sized:
    """Refuses bodies that say themselves that they are too large. Who calls is not known yet: `read_body` knows who may add what was
    answered."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        length, answered = headers.get("content-length", "0"), headers.get(HEADER_ANSWERED, "0")
        most = requests.most_bytes(int(answered) if _COUNT.fullmatch(answered) else 0)
        if length.isdecimal() and int(length) > most:
            scope["state"]["refusal"] = TOO_LARGE
            too_large = BadRequest(f"the body must have at most {most} bytes, got {shown(int(length))}", None, TOO_LARGE)
            await response_of(scope, too_large)(scope, receive, send)
            return
        await self._app(scope, receive, send)
