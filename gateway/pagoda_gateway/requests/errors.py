"""The gateway's errors, one tree. Only dialects.py turns one into HTTP or into the last event of a stream.

GatewayError                  ends one request
├── BadRequest 400            the body is not JSON, or lacks `model`
│   ├── BodyTooLarge 413      BodyTooSlow 408      EncodingUnsupported 415
│   ├── MalformedHttp 400     the head can be read in two ways; HeadersTooLarge 431
│   └── NotServedHere 404     no such path; NotThisMethod 405; ResponseNotFound 404; RequestNotFound 404
├── NotBuilt 501              a path of OpenAI's that Pagoda does not have yet
├── Unauthenticated 401       no API key, or one that is not valid here
├── ModelNotFound 404         no service has the name `model`, or the tenant may not use it (ModelNotAllowed)
├── OverQuota 429             a quota of the tenant has no room for the request
├── QueueFull 429             too many requests are held already, or too many bytes of bodies
│   └── LoadShed 429          many requests are held, and this one is among those that are refused first
├── ServiceStalled 503        no replica serves, and only a person can change that
├── HoldTimeout 503           no endpoint became ready in time
├── AllOverloaded 503         every ready replica refused the request as overloaded
├── NotSynced 503             the gateway has not listed the cluster yet
├── UpstreamDied 502          the replica died with the answer under way
│   └── CannotContinue 502    one did, and the next one, which is sound, cannot go on with the answer
├── ProxyMisconfigured 500    Envoy asks for a replica in a way that cannot work
└── ShuttingDown 503          the gateway's own deadline
NeedsMore                     the request needs more tokens than are reserved; handlers.py reserves them and sends it again
AttemptFailed                 ends one attempt; router.py picks again, no client sees it
├── Refused                   nothing was computed: draining, not ready, no connection
│   └── Overloaded            the replica is overloaded
└── Died                      the connection ended before the first byte of the answer, or its stream can go on elsewhere
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from types import MappingProxyType
from typing import Final

from pagoda_contracts.names import (
    ERROR_DRAINING,
    ERROR_ENGINE_DIED,
    ERROR_FORBIDDEN,
    ERROR_MODEL_NOT_FOUND,
    ERROR_NOT_READY,
    ERROR_OVERLOADED,
    ERROR_UNAUTHENTICATED,
)

from pagoda_gateway.limits.wording import Refusal

_NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})


class GatewayError(Exception):
    """Ends one request. `code` is OpenAI's string code; `retry_after` seconds, at most 120: clients ignore larger ones; `headers` are
    further headers of the answer."""

    status = 500
    type = "server_error"
    code = "internal_error"
    param: str | None = None
    retry_after: int | None = None
    should_retry = False
    route: str | None = None
    headers: Mapping[str, str] = _NO_HEADERS


class BadRequest(GatewayError):
    """The request itself is wrong. A retry does not help."""

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


class MalformedHttp(BadRequest):
    """The request's head can be read in two ways. The connection ends with it."""

    code = "malformed_http"


class HeadersTooLarge(MalformedHttp):
    """The request's head is over the limit."""

    status, code = 431, "headers_too_large"


class EncodingUnsupported(BadRequest):
    """The body is compressed."""

    status, code = 415, "unsupported_encoding"


class NotServedHere(BadRequest):
    """No such path, or not with this method."""

    status, code = 404, "not_found"


class ResponseNotFound(BadRequest):
    """Responses are not kept."""

    status, code = 404, "response_not_found"


class RequestNotFound(BadRequest):
    """No replica has the trace of such a request of this tenant."""

    status, code = 404, "request_not_found"


class NotThisMethod(NotServedHere):
    """The path exists."""

    status, code = 405, "method_not_allowed"


class NotBuilt(GatewayError):
    """A path of OpenAI's API that Pagoda does not have yet."""

    status, type, code = 501, "invalid_request_error", "unsupported_endpoint"


class Unauthenticated(GatewayError):
    """The request has no API key, or one that is not valid here."""

    status, type, code = 401, "invalid_request_error", "invalid_api_key"
    headers = MappingProxyType({"www-authenticate": "Bearer"})


class ModelNotFound(GatewayError):
    """No service has the name `model`."""

    status, type, code, param = 404, "invalid_request_error", ERROR_MODEL_NOT_FOUND, "model"

    def __init__(self, model: str, near: Sequence[str] = ()) -> None:
        super().__init__(f"{self.why(model[:128])}; {_meant(near) or 'GET /v1/models lists the names'}")

    def why(self, model: str) -> str:
        """Returns what is wrong with the name."""
        return f"no service has the model name {model!r}"


class ModelGone(ModelNotFound):
    """The name was lost seconds ago. Its service may be made anew at this moment, as GitOps tools do."""

    retry_after, should_retry = 5, True


class ModelNotAllowed(ModelNotFound):
    """A quota does not allow the tenant to use this model. Whether it exists is not said."""

    def why(self, model: str) -> str:
        return f"the model {model!r} does not exist, or the quota of your tenant does not allow it"


def _meant(near: Sequence[str]) -> str:
    return f"did you mean {' or '.join(map(repr, near))}?" if near else ""


class OverQuota(GatewayError):
    """A quota of the tenant has no room for the request."""

    status, type, code = 429, "rate_limit_error", "rate_limit_exceeded"

    def __init__(self, refusal: Refusal, headers: Mapping[str, str]) -> None:
        super().__init__(refusal.message)
        self.retry_after, self.should_retry, self.headers = refusal.retry_after, refusal.worth_a_retry, headers


class QueueFull(GatewayError):
    """Too many requests are held already, or too many bytes of bodies."""

    status, type, code, retry_after, should_retry = 429, "rate_limit_error", "queue_full", 5, True


class LoadShed(QueueFull):
    """Many requests are held. This one is refused because of its tier, its priority or what its tenant holds already."""

    code = "load_shed"


class ServiceStalled(GatewayError):
    """No replica serves, and the operator says that only a person can change that. To wait would not help."""

    status, code, should_retry = 503, "service_stalled", False


class HoldTimeout(GatewayError):
    """No endpoint became ready in time."""

    status, code, retry_after, should_retry = 503, "no_ready_endpoint", 10, True


class AllOverloaded(GatewayError):
    """Every ready replica refused this request as overloaded."""

    status, code, retry_after, should_retry = 503, ERROR_OVERLOADED, 5, True


class NotSynced(GatewayError):
    """The gateway has not listed the cluster's services and replicas yet."""

    status, code, retry_after, should_retry = 503, "not_synced", 1, True


class UpstreamDied(GatewayError):
    """The replica died while it answered. Tokens were generated already, so a blind retry would pay twice."""

    status, code, should_retry = 502, "upstream_died", False


class CannotContinue(UpstreamDied):
    """A replica died while it answered, and the one that was to go on cannot. It is not that one's failure."""


class ShuttingDown(GatewayError):
    """The gateway's own drain deadline has passed."""

    status, code, retry_after, should_retry = 503, "gateway_stopping", 1, True


class ProxyMisconfigured(GatewayError):
    """Envoy asks for a replica in a way that cannot work. Only a change of its configuration helps."""

    code = "proxy_misconfigured"


class NeedsMore(Exception):
    """A replica refuses to begin, because the request needs `tokens`, more than are reserved for it."""

    def __init__(self, tokens: int) -> None:
        super().__init__(f"the request needs {tokens} tokens")
        self.tokens = tokens


class AttemptFailed(Exception):
    """Ends one attempt. `reason` is a word for the route header and the metric."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason


class Refused(AttemptFailed):
    """The replica computed nothing, so another pick costs nothing, as often as needed."""


class Overloaded(Refused):
    """The replica is overloaded. This request does not ask it twice, so that retries do not add load."""


UNREACHABLE: Final = "connect"
"""The reason of a Refused by a replica to which there is no connection."""


class Died(AttemptFailed):
    """The connection ended after the request was sent. It is picked again: a request that kills replicas kills two at most."""


NOT_LET_IN: Final = "not-let-in"
"""The reason of a Refused by a replica that does not accept this gateway's token."""

_FAILURES: Final[Mapping[str, type[AttemptFailed]]] = MappingProxyType(
    {ERROR_DRAINING: Refused, ERROR_NOT_READY: Refused, ERROR_OVERLOADED: Overloaded, ERROR_ENGINE_DIED: Died}
)


def failure_of(status: int, code: str) -> AttemptFailed | None:
    """Returns what an answer of a replica with this error code means for the attempt; None if the answer is the client's."""
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN) and code in (ERROR_UNAUTHENTICATED, ERROR_FORBIDDEN):
        return Refused(NOT_LET_IN)
    kind = _FAILURES.get(code) if status >= HTTPStatus.TOO_MANY_REQUESTS else None
    return kind(code.replace("_", "-")) if kind is not None else None
