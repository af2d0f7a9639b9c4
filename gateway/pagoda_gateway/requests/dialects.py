"""How each API writes errors: as a document, and as the last event of a stream. Pure; called by proxy/handlers.py and proxy/relay.py.

OpenAI's completions end a stream by an error event and [DONE], its Responses API by an `error` event with a sequence number, and
Anthropic's Messages by an `error` event. A client of each raises its own exception on them.
"""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import Final, NamedTuple

import msgspec
from pagoda_contracts.names import HEADER_RETRY_AFTER, HEADER_ROUTE, HEADER_SHOULD_RETRY

from pagoda_gateway.requests.errors import GatewayError

# Anthropic's own status for a server that has no room. Its clients retry it as they retry 503.
_OVERLOADED: Final = 529
# Anthropic names the kind of an error by its status.
_ANTHROPIC: Final = {
    HTTPStatus.UNAUTHORIZED: "authentication_error",
    HTTPStatus.FORBIDDEN: "permission_error",
    HTTPStatus.NOT_FOUND: "not_found_error",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "request_too_large",
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error",
    HTTPStatus.SERVICE_UNAVAILABLE: "overloaded_error",
}


class Reply(NamedTuple):
    """An error as HTTP."""

    status: int
    headers: dict[str, str]
    body: bytes


class Dialect(NamedTuple):
    """`document(error, request_id)`; `event(error, request_id, events)`, where `events` is how many events the stream had before;
    `unavailable`: the status that stands for 503."""

    document: Callable[[GatewayError, str], bytes]
    event: Callable[[GatewayError, str, int], bytes]
    unavailable: int = HTTPStatus.SERVICE_UNAVAILABLE

    def reply(self, error: GatewayError, request_id: str) -> Reply:
        """Returns an error as HTTP."""
        headers = {"content-type": "application/json", HEADER_SHOULD_RETRY: "true" if error.should_retry else "false", **error.headers}
        if error.retry_after is not None:
            headers[HEADER_RETRY_AFTER] = str(error.retry_after)
        if error.route is not None:
            headers[HEADER_ROUTE] = error.route
        status = self.unavailable if error.status == HTTPStatus.SERVICE_UNAVAILABLE else error.status
        return Reply(status, headers, self.document(error, request_id))


def _openai_error(error: GatewayError) -> dict[str, str | None]:
    return {"message": str(error), "type": error.type, "param": error.param, "code": error.code}


def _openai_document(error: GatewayError, _request_id: str) -> bytes:
    return msgspec.json.encode({"error": _openai_error(error)})


def _openai_event(error: GatewayError, request_id: str, _events: int) -> bytes:
    """The client raises on the event, and its parser stops at [DONE]."""
    return b"data: " + _openai_document(error, request_id) + b"\n\ndata: [DONE]\n\n"


def _responses_event(error: GatewayError, _request_id: str, events: int) -> bytes:
    """OpenAI documents the flat fields. Its clients raise on the object `error` alone, and would take the stream for whole without it."""
    inner = {"type": "error", "sequence_number": events, "code": error.code, "message": str(error), "param": error.param}
    inner["error"] = _openai_error(error)
    return b"event: error\ndata: " + msgspec.json.encode(inner) + b"\n\n"


def _anthropic_document(error: GatewayError, request_id: str) -> bytes:
    kind = _ANTHROPIC.get(HTTPStatus(error.status)) or ("api_error" if error.status >= HTTPStatus.INTERNAL_SERVER_ERROR else error.type)
    return msgspec.json.encode({"type": "error", "error": {"type": kind, "message": str(error)}, "request_id": request_id})


def _anthropic_event(error: GatewayError, request_id: str, _events: int) -> bytes:
    return b"event: error\ndata: " + _anthropic_document(error, request_id) + b"\n\n"


OPENAI: Final = Dialect(_openai_document, _openai_event)
RESPONSES: Final = Dialect(_openai_document, _responses_event)
ANTHROPIC: Final = Dialect(_anthropic_document, _anthropic_event, _OVERLOADED)

# The endpoints of a replica whose body names a model.
ENDPOINTS: Final = {
    "/v1/chat/completions": OPENAI,
    "/v1/completions": OPENAI,
    "/v1/embeddings": OPENAI,
    "/v1/responses": RESPONSES,
    "/v1/messages": ANTHROPIC,
    "/v1/messages/count_tokens": ANTHROPIC,
    "/tokenize": OPENAI,
    "/detokenize": OPENAI,
}


class _Said(msgspec.Struct):
    message: str = ""
    type: str = ""
    param: str | None = None
    code: str | None = None


class _Body(msgspec.Struct):
    error: _Said = msgspec.field(default_factory=_Said)


def late_answer(status: int, body: bytes) -> GatewayError:
    """Returns the error that stands for a replica's answer without a stream, if the client's stream has begun: it can only be an event."""
    try:
        said = msgspec.json.decode(body, type=_Body).error
    except (msgspec.DecodeError, UnicodeDecodeError):
        said = _Said()
    error = GatewayError(said.message or f"the replica answered with {status} and without a stream")
    error.status = status if status >= HTTPStatus.BAD_REQUEST else HTTPStatus.BAD_GATEWAY
    error.type, error.param, error.code = said.type or error.type, said.param, said.code or error.code
    return error


def dialect_of(path: str) -> Dialect:
    """Returns the dialect of a path. An unknown one is OpenAI's, unless it is below /v1/messages."""
    return ENDPOINTS.get(path) or (ANTHROPIC if path.startswith("/v1/messages/") else OPENAI)
