"""The OpenAPI 3.1 document, made from the types that the endpoints read and write. Pure; served at /openapi.json, tabled in docs/api.md.

What the types cannot say is added from where it is enforced: ranges of numbers, and fields that are only accepted at values which change
no answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgspec
from pagoda_contracts.absent_routes import NOT_BUILT
from pagoda_contracts.names import HEADER_RETRY_AFTER, HEADER_RETRY_AFTER_MS, HEADER_SHOULD_RETRY, PATH_TRACE

from pagoda_daemon.api.access.roles import PATH_LOAD, PATH_UNLOAD
from pagoda_daemon.api.anthropic.errors import MessageErrorReply
from pagoda_daemon.api.anthropic.replies import MESSAGE_EVENTS, CountTokensReply, MessageReply
from pagoda_daemon.api.anthropic.requests import CountTokensRequest, MessagesRequest
from pagoda_daemon.api.openai.errors import JSON, ErrorReply
from pagoda_daemon.api.openai.fields import foreign
from pagoda_daemon.api.openai.models import ModelCard, ModelList
from pagoda_daemon.api.openai.replies import ChatChunk, ChatReply, TextReply
from pagoda_daemon.api.openai.requests import ChatRequest, CompletionRequest
from pagoda_daemon.api.openai.sampling import RANGES
from pagoda_daemon.api.openai.trace import Trace
from pagoda_daemon.api.responses.events import EVENTS
from pagoda_daemon.api.responses.objects import Response
from pagoda_daemon.api.responses.requests import ResponsesRequest
from pagoda_daemon.api.routes.adapters import AdapterError, LoadAdapterRequest, UnloadAdapterRequest
from pagoda_daemon.api.routes.embeddings import EmbeddingReply, EmbeddingRequest
from pagoda_daemon.api.routes.texts import DetokenizeReply, DetokenizeRequest, TokenizeReply, TokenizeRequest
from pagoda_daemon.core.sampling import NUMBERS

SSE: Final = "text/event-stream"
TEXT: Final = "text/plain"
HTML: Final = "text/html"


class Version(msgspec.Struct, frozen=True):
    """GET /version."""

    version: str


class Load(msgspec.Struct, frozen=True):
    """GET /load: requests accepted and unfinished."""

    server_load: int


class Operation(NamedTuple):
    """One route. `chunk`: what each event of a streamed answer holds; `media` without a `reply` is an answer that is not JSON. `events`:
    what the events of a stream without [DONE] hold; `error`: what a refusal holds."""

    method: str
    path: str
    summary: str
    request: type[msgspec.Struct] | None = None
    reply: type[msgspec.Struct] | None = None
    chunk: type[msgspec.Struct] | None = None
    media: str | None = None
    events: tuple[type[msgspec.Struct], ...] = ()
    error: type[msgspec.Struct] = ErrorReply

    @property
    def name(self) -> str:
        words = self.path.replace("{", "").replace("}", "").replace(".", "/").strip("/").split("/")
        return "_".join([self.method, *words])


OPERATIONS: Final = (
    Operation("post", "/v1/chat/completions", "Answer a conversation", ChatRequest, ChatReply, ChatChunk),
    Operation("post", "/v1/completions", "Continue prompts", CompletionRequest, TextReply, TextReply),
    Operation("post", "/v1/responses", "Answer a conversation, in items; nothing is kept", ResponsesRequest, Response, events=EVENTS),
    Operation(
        *("post", "/v1/messages", "Answer a conversation, over Anthropic's API", MessagesRequest, MessageReply),
        events=MESSAGE_EVENTS,
        error=MessageErrorReply,
    ),
    Operation(
        *("post", "/v1/messages/count_tokens", "Tokens of a message's prompt", CountTokensRequest, CountTokensReply),
        error=MessageErrorReply,
    ),
    Operation("post", "/tokenize", "Token ids of a prompt or a conversation", TokenizeRequest, TokenizeReply),
    Operation("post", "/detokenize", "Text of token ids", DetokenizeRequest, DetokenizeReply),
    Operation("post", "/v1/embeddings", "Vectors of inputs, from the decoder's own states", EmbeddingRequest, EmbeddingReply),
    Operation("get", "/v1/models", "Served names", None, ModelList),
    Operation("get", "/v1/models/{name}", "One served name", None, ModelCard),
    Operation("get", PATH_TRACE, "What a request of yours went through: times and counts", None, Trace),
    Operation("get", "/health", "200 while requests are accepted, else 503", media=""),
    Operation("get", "/load", "Requests in flight", None, Load),
    Operation("get", "/version", "This daemon's version", None, Version),
    Operation("get", "/metrics", "Prometheus exposition", media=TEXT),
    Operation("get", "/openapi.json", "This document", media=JSON),
    Operation("get", "/docs", "This document as a page for people", media=HTML),
)
ADAPTER_OPERATIONS: Final = (
    Operation("post", PATH_LOAD, "Load a LoRA adapter", LoadAdapterRequest, media=TEXT, error=AdapterError),
    Operation("post", PATH_UNLOAD, "Unload a LoRA adapter", UnloadAdapterRequest, media=TEXT, error=AdapterError),
)
"""Only of a daemon that takes adapters."""

_ERRORS: Final[Mapping[str, str]] = {
    "400": "The request is wrong; `param` names the field",
    "401": "No valid credential",
    "403": "The credential does not allow this",
    "404": "Not served here",
    "405": "Another method is accepted here",
    "408": "The body came too slowly, or the request's own deadline passed",
    "413": "The body is too large",
    "429": "Too many requests wait here: try again after `retry-after`",
    "431": "The header is too large",
    "500": "This one request failed",
    "503": "Not now: loading, draining, or without memory or time for this request",
}
_OF_NOT_BUILT: Final[Mapping[str, str]] = {**{status: _ERRORS[status] for status in ("401", "403")}, "501": "Not built"}
_OF_MESSAGES: Final[Mapping[str, str]] = {"504": "The request's own deadline passed", "529": "Not now, as 503 elsewhere"}
_HINTS: Final = {
    HEADER_RETRY_AFTER: {"description": "Seconds, at most 120", "schema": {"type": "integer"}},
    HEADER_RETRY_AFTER_MS: {"description": "The same in milliseconds", "schema": {"type": "integer"}},
    HEADER_SHOULD_RETRY: {"description": "Whether the same request may succeed", "schema": {"enum": ["true", "false"]}},
}


def document(version: str, operations: Iterable[Operation] = OPERATIONS, prefix: str = "") -> dict[str, Any]:
    """The whole document, ready for JSON. `prefix`: the path under which a proxy offers the replica."""
    listed = tuple(operations)
    kinds = [kind for one in listed for kind in (one.request, one.reply, one.chunk, *one.events, one.error) if kind is not None]
    _, schemas = msgspec.json.schema_components([*dict.fromkeys(kinds)], ref_template="#/components/schemas/{name}")
    for kind in {operation.request for operation in listed if operation.request is not None}:
        _refine(schemas[kind.__name__], served=kind in (ChatRequest, CompletionRequest))
    paths: dict[str, Any] = {}
    for operation in listed:
        paths.setdefault(operation.path, {})[operation.method] = _described(operation)
    paths |= {path: {"post": _not_built(path, what)} for path, what in NOT_BUILT.items() if "{" not in path}
    servers = {"servers": [{"url": prefix}]} if prefix else {}
    return {
        "openapi": "3.1.0",
        **servers,
        "info": {"title": "Pagoda daemon", "version": version, "description": "One replica of a model, over the OpenAI API."},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _not_built(path: str, what: str) -> dict[str, Any]:
    """By one method, though any other one is answered in the same way."""
    error = MessageErrorReply if path.startswith("/v1/messages/") else ErrorReply
    answers = {status: _answer(said, {JSON: error}) for status, said in _OF_NOT_BUILT.items()}
    return {"summary": f"Not built, by any method: {what}", "responses": answers}


def _described(operation: Operation) -> dict[str, Any]:
    statuses = {**_ERRORS, **_OF_MESSAGES} if operation.error is MessageErrorReply else _ERRORS
    errors = {status: _answer(said, {JSON: operation.error}) for status, said in statuses.items()}
    for status in errors.keys() & {"429", "503", "529"}:
        errors[status]["headers"] = _HINTS
    if operation.path == "/health":
        errors["503"] = {"description": "Not accepting"}
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "responses": {"200": _success(operation), **errors},
    }
    if operation.request is not None:
        described["requestBody"] = {"required": True, "content": {JSON: {"schema": _ref(operation.request)}}}
    if named := re.findall(r"\{(\w+)\}", operation.path):
        schema = {"type": "string", "minLength": 1}
        described["parameters"] = [{"name": name, "in": "path", "required": True, "schema": schema} for name in named]
    return described


def _success(operation: Operation) -> dict[str, Any]:
    if operation.reply is None:
        return {"description": operation.summary, "content": {operation.media: {}}} if operation.media else {"description": "Accepting"}
    answer = _answer(operation.summary, {JSON: operation.reply})
    if operation.chunk is not None:
        said = f"Each event is a {operation.chunk.__name__} or an ErrorReply; the last one is [DONE]"
        answer["content"][SSE] = {
            "schema": {"type": "string", "description": said, "contentMediaType": SSE, "contentSchema": _ref(operation.chunk)}
        }
    if operation.events:
        said = "Each event is named by its type, which says what it holds; an error is the last one"
        schema = {"oneOf": [_ref(kind) for kind in operation.events]}
        answer["content"][SSE] = {"schema": {"type": "string", "description": said, "contentMediaType": SSE, "contentSchema": schema}}
    return answer


def _answer(said: str, content: Mapping[str, type[msgspec.Struct]]) -> dict[str, Any]:
    return {"description": said, "content": {media: {"schema": _ref(kind)} for media, kind in content.items()}}


def _ref(kind: type[msgspec.Struct]) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{kind.__name__}"}


def _refine(schema: dict[str, Any], *, served: bool) -> None:
    properties: dict[str, Any] = schema["properties"]
    for name in RANGES.keys() & properties.keys():
        for kind in _numbers(properties[name]):
            kind["minimum"], kind["maximum"] = RANGES[name]
    for name in NUMBERS.keys() & properties.keys():
        for kind in _numbers(properties[name]):
            kind["exclusiveMinimum" if NUMBERS[name].above else "minimum"], kind["maximum"] = NUMBERS[name].low, NUMBERS[name].high
    if served:
        properties.update({name: {"description": "Accepted; changes nothing."} for name in sorted(foreign().harmless)})
        properties.update({name: {"enum": [*values]} for name, values in sorted(foreign().neutral.items()) if name not in properties})


def _numbers(schema: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for one in (schema, *schema.get("anyOf", ())) if one.get("type") in ("integer", "number")]
