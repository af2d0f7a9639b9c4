"""The one mapper from the daemon's errors to what a client sees: status, OpenAI's body, and what its retry rules read.

The openai client obeys `x-should-retry` and `retry-after` (up to 120 s): true where another replica, or this one later, can take
the request; false where generation began and a blind retry would pay twice.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import msgspec
from pagoda_contracts.names import (
    ERROR_ENGINE_DIED,
    HEADER_ERROR_CODE,
    HEADER_NEEDED_TOKENS,
    HEADER_RETRY_AFTER,
    HEADER_RETRY_AFTER_MS,
    HEADER_SHOULD_RETRY,
)
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from pagoda_daemon.core.errors import (
    MAX_SHOWN,
    BadRequest,
    CannotContinue,
    DaemonError,
    DeadlineExceeded,
    Draining,
    EndpointNotBuilt,
    EngineDied,
    Forbidden,
    ModelNotFound,
    NotReady,
    Overloaded,
    OverReservation,
    RequestError,
    RequestNotFound,
    ResponseNotFound,
    TooMany,
    Unauthenticated,
)

JSON: Final = "application/json"
RETRY_AFTER_S: Final = 1.0
MAX_RETRY_AFTER_S: Final = 120.0  # the openai client ignores more, and does not retry then
TOO_LARGE: Final = "request_too_large"
TOO_SLOW: Final = "request_timeout"
_STATUS_OF_CODE: Final = {TOO_LARGE: 413, TOO_SLOW: 408}


class ErrorBody(msgspec.Struct, frozen=True):
    """OpenAI's error object; `code` is always a string or null."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorReply(msgspec.Struct, frozen=True):
    """The body of every answer that is not a 2xx, and the last event of a stream that fails."""

    error: ErrorBody


class _Class(NamedTuple):
    status: int
    type: str
    code: str | None
    retry: bool | None


_CLASSES: Final[dict[type[DaemonError], _Class]] = {
    BadRequest: _Class(400, "invalid_request_error", None, None),
    ModelNotFound: _Class(404, "invalid_request_error", None, None),
    RequestNotFound: _Class(404, "invalid_request_error", None, None),
    ResponseNotFound: _Class(404, "invalid_request_error", None, None),
    EndpointNotBuilt: _Class(501, "invalid_request_error", None, False),
    Unauthenticated: _Class(401, "authentication_error", None, None),
    Forbidden: _Class(403, "permission_error", None, None),
    CannotContinue: _Class(409, "invalid_request_error", None, False),
    DeadlineExceeded: _Class(408, "invalid_request_error", None, False),
    Draining: _Class(503, "server_error", None, True),
    NotReady: _Class(503, "server_error", None, True),
    OverReservation: _Class(409, "invalid_request_error", None, False),
    Overloaded: _Class(503, "server_error", None, True),
    TooMany: _Class(429, "rate_limit_error", None, True),
    RequestError: _Class(500, "server_error", None, False),
    EngineDied: _Class(503, "server_error", ERROR_ENGINE_DIED, True),
}
_INTERNAL: Final = "internal_error"
_UNKNOWN: Final = _Class(500, "server_error", _INTERNAL, False)


def _class_of(error: DaemonError) -> _Class:
    return next((_CLASSES[kind] for kind in type(error).__mro__ if kind in _CLASSES), _UNKNOWN)


def body_of(error: DaemonError) -> ErrorReply:
    """OpenAI's shape of an error."""
    known = _class_of(error)
    code = error.code if isinstance(error, RequestError) else known.code
    param = error.param[:MAX_SHOWN] if isinstance(error, BadRequest) and error.param is not None else None
    return ErrorReply(ErrorBody(str(error), known.type, param, code))


def retryable(error: DaemonError) -> bool:
    """Whether another replica, or this one later, may do better."""
    return _class_of(error).retry is True


def response_of(error: DaemonError) -> Response:
    """The answer where no byte was sent yet."""
    known = _class_of(error)
    status = _STATUS_OF_CODE.get(error.code, known.status) if isinstance(error, BadRequest) else known.status
    headers = {"www-authenticate": "Bearer"} if isinstance(error, Unauthenticated) else {}
    if isinstance(error, OverReservation):
        headers[HEADER_NEEDED_TOKENS] = str(error.needed)
    if (code := body_of(error).error.code) is not None:
        headers[HEADER_ERROR_CODE] = code
    if known.retry is not None:
        headers[HEADER_SHOULD_RETRY] = "true" if known.retry else "false"
    if known.retry:
        wait = min(MAX_RETRY_AFTER_S, max(0.0, error.retry_after_s)) if isinstance(error, Overloaded) else RETRY_AFTER_S
        headers[HEADER_RETRY_AFTER] = str(math.ceil(wait))
        headers[HEADER_RETRY_AFTER_MS] = str(math.ceil(wait * 1000))
    return Response(msgspec.json.encode(body_of(error)), status, headers, JSON)


def on_daemon_error(request: Request, error: Exception) -> Response:
    """Starlette's handler, which calls `response_of`; the access line names the refusal."""
    if not isinstance(error, DaemonError):
        raise error
    reply = body_of(error).error
    request.scope["state"].update(refused(error, reply))
    return response_of(error)


def refused(error: DaemonError, reply: ErrorBody) -> dict[str, str]:
    """What the access line says of it. A message about the request itself may quote the client, hence is left out."""
    found = {"refusal": reply.code or reply.type}
    if reply.param:
        found["param"] = reply.param
    return found | ({"why": str(error)} if retryable(error) else {})


def on_http_error(request: Request, error: Exception) -> Response:
    """Unknown path or method, in the same shape."""
    if not isinstance(error, HTTPException):
        raise error
    message = f"{request.method} {request.url.path[:MAX_SHOWN]} is not served here" if error.status_code in (404, 405) else error.detail
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "http_error")
    request.scope["state"]["refusal"] = code
    reply = ErrorReply(ErrorBody(message, "invalid_request_error", None, code))
    return Response(msgspec.json.encode(reply), error.status_code, {**(error.headers or {}), HEADER_ERROR_CODE: code}, JSON)


def on_bug(_request: Request, _error: Exception) -> Response:
    """An error that nobody foresaw: the log has the stack, the client a sentence."""
    reply = ErrorReply(ErrorBody("internal error", "server_error", None, _INTERNAL))
    return Response(msgspec.json.encode(reply), 500, {HEADER_SHOULD_RETRY: "false", HEADER_ERROR_CODE: _INTERNAL}, JSON)
