"""The gateway's errors, one tree; `reply` alone turns one into HTTP, `event` into the last event of a stream.

GatewayError                  ends one request
├── BadRequest 400            the body is not JSON, or lacks `model`
│   ├── BodyTooLarge 413      BodyTooSlow 408      EncodingUnsupported 415
│   └── NotServedHere 404     no such path; NotThisMethod 405
├── ModelNotFound 404         no service answers to `model`
├── QueueFull 429             too many requests are held already, or too many bytes of bodies
├── HoldTimeout 503           no endpoint became ready in time
├── AllOverloaded 503         every ready replica said that it is overloaded
├── NotSynced 503             the gateway has not seen the cluster yet
├── UpstreamDied 502          the replica died with the answer under way
└── ShuttingDown 503          the gateway's own deadline
AttemptFailed                 ends one attempt; route.py picks again, no client sees it
├── Refused                   nothing was computed: draining, not ready, no connection
│   └── Overloaded            the replica is overloaded
└── Died                      the connection ended before the first byte of the answer
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
from pagoda_contracts.names import ERROR_MODEL_NOT_FOUND, ERROR_OVERLOADED, HEADER_RETRY_AFTER, HEADER_ROUTE, HEADER_SHOULD_RETRY


class GatewayError(Exception):
    """Ends one request. `code` is OpenAI's string code; `retry_after` seconds, at most 120: clients ignore larger ones."""

    status = 500
    type = "server_error"
    code = "internal_error"
    param: str | None = None
    retry_after: int | None = None
    should_retry = False
    route: str | None = None


class BadRequest(GatewayError):
    """The request itself is wrong: no retry cures it."""

    status, type, code = 400, "invalid_request_error", "invalid_value"

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class BodyTooLarge(BadRequest):
    """The body is over the limit."""

    status, code = 413, "request_too_large"


class BodyTooSlow(BadRequest):
    """The body did not arrive in time."""

    status, code = 408, "request_timeout"


class EncodingUnsupported(BadRequest):
    """The body is compressed."""

    status, code = 415, "unsupported_encoding"


class NotServedHere(BadRequest):
    """No such path, or not with this method."""

    status, code = 404, "not_found"


class NotThisMethod(NotServedHere):
    """The path exists."""

    status, code = 405, "method_not_allowed"


class ModelNotFound(GatewayError):
    """No service answers to `model`."""

    status, type, code, param = 404, "invalid_request_error", ERROR_MODEL_NOT_FOUND, "model"


class QueueFull(GatewayError):
    """Too many requests are held already, or too many bytes of bodies."""

    status, type, code, retry_after, should_retry = 429, "rate_limit_error", "queue_full", 5, True


class HoldTimeout(GatewayError):
    """No endpoint became ready in time."""

    status, code, retry_after, should_retry = 503, "no_ready_endpoint", 10, True


class AllOverloaded(GatewayError):
    """Every replica that is ready turned this request away for want of room."""

    status, code, retry_after, should_retry = 503, ERROR_OVERLOADED, 5, True


class NotSynced(GatewayError):
    """The gateway has not seen the cluster yet."""

    status, code, retry_after, should_retry = 503, "not_synced", 1, True


class UpstreamDied(GatewayError):
    """The replica died with the answer under way: generation had started, so a blind retry would pay twice."""

    status, code, should_retry = 502, "upstream_died", False


class ShuttingDown(GatewayError):
    """The gateway's own drain deadline ran out."""

    status, code, retry_after, should_retry = 503, "gateway_stopping", 1, True


class AttemptFailed(Exception):
    """Ends one attempt. `reason` is a word for the route header and the metric."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason


class Refused(AttemptFailed):
    """The replica computed nothing: picking another is free, as often as needed."""


class Overloaded(Refused):
    """The replica is overloaded: this request does not ask it twice, so that load never multiplies itself."""


class Died(AttemptFailed):
    """The connection ended after the request was sent: picked again once, so that a request that kills replicas kills two at most."""


class Reply(NamedTuple):
    """An error as HTTP."""

    status: int
    headers: dict[str, str]
    body: bytes


def document(error: GatewayError) -> bytes:
    """OpenAI's error object."""
    inner = {"message": str(error), "type": error.type, "param": error.param, "code": error.code}
    return msgspec.json.encode({"error": inner})


def reply(error: GatewayError) -> Reply:
    """The one way from an error to HTTP."""
    headers = {"content-type": "application/json", HEADER_SHOULD_RETRY: "true" if error.should_retry else "false"}
    if error.retry_after is not None:
        headers[HEADER_RETRY_AFTER] = str(error.retry_after)
    if error.route is not None:
        headers[HEADER_ROUTE] = error.route
    return Reply(error.status, headers, document(error))


def event(error: GatewayError) -> bytes:
    """The one way to end a stream that has begun: the client raises on the event, and its parser stops at [DONE]."""
    return b"data: " + document(error) + b"\n\ndata: [DONE]\n\n"
