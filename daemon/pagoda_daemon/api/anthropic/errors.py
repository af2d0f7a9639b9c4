"""Errors in Anthropic's shape. What an error is, and how it is retried, is decided by the one mapper of `api/openai/errors.py`: here only
its status, type and names become Anthropic's. Pure.
"""

from __future__ import annotations

import re
from typing import Final, Literal

import msgspec
from msgspec import UNSET, UnsetType
from starlette.responses import Response

from pagoda_daemon.api.anthropic.conversion import NO_THREADS, UNKNOWN
from pagoda_daemon.api.openai import errors
from pagoda_daemon.api.openai.errors import JSON, ErrorReply
from pagoda_daemon.core.errors import BadRequest, DaemonError, DeadlineExceeded

Type = Literal[
    "invalid_request_error",
    "authentication_error",
    "permission_error",
    "not_found_error",
    "request_too_large",
    "rate_limit_error",
    "api_error",
    "timeout_error",
    "overloaded_error",
]
OVERLOADED: Final = 529
_TYPES: Final[dict[int, Type]] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    504: "timeout_error",
    OVERLOADED: "overloaded_error",
}
# Names of chat fields that a shared check may name, and the names that they have in a message.
_NAMES: Final = (
    (re.compile(r"^tools\[(\d+)\]\.function\.parameters"), r"tools[\1].input_schema"),
    (re.compile(r"^tools\[(\d+)\]\.function"), r"tools[\1]"),
    (re.compile(r"^response_format\.json_schema\.schema"), "output_config.format.schema"),
    (re.compile(r"^response_format"), "output_config.format"),
    (re.compile(r"^stop$"), "stop_sequences"),
    (re.compile(r"^continue_final_message$"), "messages"),
)
_TOO_LONG: Final = "context_length_exceeded"


class ErrorDetails(msgspec.Struct, frozen=True):
    """What a client's program reads of a refusal."""

    error_code: str


class MessageError(msgspec.Struct, frozen=True):
    """What went wrong. `details` are those of a refused `thread` alone."""

    type: Type
    message: str
    details: ErrorDetails | UnsetType = UNSET


class MessageErrorReply(msgspec.Struct, frozen=True):
    """The body of every answer of the Messages API that is not a 2xx, and the last event of a stream that fails."""

    error: MessageError
    request_id: str
    type: Literal["error"] = "error"


def own_name(place: str) -> str:
    """Returns the name in a message of a place in a chat request."""
    for pattern, name in _NAMES:
        if pattern.search(place):
            return pattern.sub(name, place)
    return place


def status_of(error: DaemonError, status: int) -> int:
    """Returns the status for an error that OpenAI's API would report as `status`."""
    if isinstance(error, DeadlineExceeded):
        return 504
    return OVERLOADED if status == 503 else status


def body_of(error: DaemonError, request_id: str) -> MessageErrorReply:
    """Returns an error as Anthropic's clients read it."""
    status = status_of(error, errors.response_of(error).status_code)
    details = ErrorDetails(NO_THREADS) if isinstance(error, BadRequest) and error.code == NO_THREADS else UNSET
    return MessageErrorReply(MessageError(_type(status), _message(error), details), request_id)


def _type(status: int) -> Type:
    return _TYPES.get(status, "invalid_request_error")


def response_of(error: DaemonError, request_id: str) -> Response:
    """Returns the answer for an error before the first byte."""
    known = errors.response_of(error)
    return _answer(known, status_of(error, known.status_code), body_of(error, request_id))


def translated(known: Response, request_id: str) -> Response:
    """Returns an answer of OpenAI's shape in Anthropic's."""
    said = msgspec.json.decode(known.body, type=ErrorReply).error.message
    return _answer(known, known.status_code, MessageErrorReply(MessageError(_type(known.status_code), said), request_id))


def _answer(known: Response, status: int, body: MessageErrorReply) -> Response:
    """With the headers that clients and gateways retry by."""
    headers = {name: value for name, value in known.headers.items() if name not in ("content-length", "content-type")}
    return Response(msgspec.json.encode(body), status, headers, JSON)


def _message(error: DaemonError) -> str:
    """Agents shorten a conversation by the words that Anthropic has for one that is too long."""
    said = str(error)
    if not isinstance(error, BadRequest) or error.code == UNKNOWN:
        return said
    if error.code == _TOO_LONG:
        return f"prompt is too long: {said}"
    param = error.param or ""
    return re.sub(rf"(?<![\w.]){re.escape(param)}(?!\w)", own_name(param), said) if param else said
