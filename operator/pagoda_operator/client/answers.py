"""What an answer of the API server says: its body, its error as ours, and whether asking again may help. Pure; used by cluster.py."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final, NamedTuple

import msgspec

from pagoda_operator.api.errors import ClusterError, Conflict, Denied, Refused, Unavailable
from pagoda_operator.api.reader import Listed
from pagoda_operator.api.state import Json, Resource

_ERRORS: Final[dict[int, type[ClusterError]]] = {
    HTTPStatus.BAD_REQUEST: Refused,
    HTTPStatus.UNPROCESSABLE_ENTITY: Refused,
    HTTPStatus.UNAUTHORIZED: Denied,
    HTTPStatus.FORBIDDEN: Denied,
    HTTPStatus.CONFLICT: Conflict,
    HTTPStatus.NOT_FOUND: Conflict,  # of a write: what was observed is gone
}
# The others of 5xx say what the server, or a proxy before it, will not do.
_PASSING: Final = (
    HTTPStatus.INTERNAL_SERVER_ERROR,
    HTTPStatus.BAD_GATEWAY,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
)


class Answer(NamedTuple):
    """As it came."""

    status: int
    data: bytes
    retry_after: str | None = None

    def body(self) -> Any:
        """Read; Unavailable where a good answer is none of an API server."""
        return (parsed if 200 <= self.status < 300 else _refusal)(self.data)

    def standing(self) -> Answer:
        """This one, of a read; Unavailable where another attempt may find another answer."""
        if (soon := self._soon()) is None:
            return self
        raise Unavailable(_sentence(self.status, _refusal(self.data)), soon)

    def _soon(self) -> float | None:
        """A server that has too much to do says when it may be asked; one that does not say so is not asked at once. A date in place of
        seconds is by its clock, and nobody's short wait."""
        bidden = float(self.retry_after) if self.retry_after and self.retry_after.isdecimal() else None
        if self.status == HTTPStatus.TOO_MANY_REQUESTS:
            return bidden
        return (bidden or 0.0) if self.status in _PASSING else None


def parsed(data: bytes) -> Json:
    """An object; Unavailable where it is none: cut off, or a proxy's page."""
    try:
        answer: Json = msgspec.json.decode(data, type=dict)  # of a list of Deployments 1.5 times as fast as json.loads
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Unavailable(f"no answer of an API server: {error}", 0.0) from error
    return answer


def checked(status: int, body: Any) -> Json:
    """The body of a good answer; ours of its errors."""
    if 200 <= status < 300:
        answer: Json = body
        return answer
    raise _ERRORS.get(status, Unavailable)(_sentence(status, body))


def list_of(resource: Resource, body: Json) -> Listed:
    """A list; Unavailable where it is none: what no API server said proves nothing. Items of a list do not say what they are; everything
    else about them is as in a GET."""
    version = (body.get("metadata") or {}).get("resourceVersion")
    if version is None or "items" not in body:
        raise Unavailable(f"no list of an API server: {str(body)[:200]}", 0.0)
    kind = {"apiVersion": resource.api_version, "kind": resource.kind}
    return Listed([kind | item for item in body["items"] or ()], version)


def _sentence(status: int, body: Any) -> str:
    return f"{status}: {body.get('message', '') if isinstance(body, dict) else ''}"


def _refusal(data: bytes) -> Any:
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):  # a proxy's page instead of a Status
        return {"message": data[:200].decode(errors="replace")}


# The second for the token keys alone: that path answers application/json with 406.
OBJECT: Final = "application/json, application/jwk-set+json"
