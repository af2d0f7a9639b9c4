"""What a request to the API server and its answer say: paths, bodies and errors, and which failed reads are sent again. Pure; used by
cluster.py.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from http import HTTPStatus
from typing import Final, NamedTuple
from urllib.parse import quote

import msgspec

from pagoda_operator.api.errors import ClusterError, Conflict, Denied, Refused, Unavailable
from pagoda_operator.api.state import Json, Listed, Resource

_ERRORS: Final[dict[int, type[ClusterError]]] = {
    HTTPStatus.BAD_REQUEST: Refused,
    HTTPStatus.UNPROCESSABLE_ENTITY: Refused,
    HTTPStatus.UNAUTHORIZED: Denied,
    HTTPStatus.FORBIDDEN: Denied,
    HTTPStatus.CONFLICT: Conflict,
    HTTPStatus.NOT_FOUND: Conflict,  # of a write: what was observed is gone
}
# The others of 5xx say what the server, or a proxy before it, will not do.
_TRANSIENT: Final = (
    HTTPStatus.INTERNAL_SERVER_ERROR,
    HTTPStatus.BAD_GATEWAY,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
)
# The second for the token keys alone: that path answers application/json with 406.
OBJECT: Final = "application/json, application/jwk-set+json"


class Answer(NamedTuple):
    """An answer as it came. `body` is the object, or the Status of an error."""

    status: int
    body: Json
    retry_after: str | None = None

    def checked(self) -> Json:
        """Returns the object; raises our error for any other status than 2xx."""
        if _is_good(self.status):
            return self.body
        raise _ERRORS.get(self.status, Unavailable)(self._message())

    def final(self) -> Answer:
        """Returns itself; raises Unavailable if another attempt at the same read may find another answer."""
        if (wait := self._wait()) is None:
            return self
        raise Unavailable(self._message(), wait)

    def _wait(self) -> float | None:
        """A server that is overloaded says when it may be asked; one that does not say so is not asked at once. A date in place of
        seconds is by the server's clock, and never a short wait."""
        seconds = float(self.retry_after) if self.retry_after and self.retry_after.isdecimal() else None
        if self.status == HTTPStatus.TOO_MANY_REQUESTS:
            return seconds
        return (seconds or 0.0) if self.status in _TRANSIENT else None

    def _message(self) -> str:
        return f"{self.status}: {self.body.get('message', '')}"


def answer_of(status: int, data: bytes, retry_after: str | None = None) -> Answer:
    """Reads an answer; Unavailable if a good status comes with anything but an object: cut off, or a proxy's page."""
    try:
        body: Json = msgspec.json.decode(data, type=dict)  # of a list of Deployments 1.5 times as fast as json.loads
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if _is_good(status):
            raise Unavailable(f"no answer of an API server: {error}", 0.0) from error
        body = {"message": data[:200].decode(errors="replace")}
    return Answer(status, body, retry_after)


def _is_good(status: int) -> bool:
    return 200 <= status < 300


def list_of(resource: Resource, body: Json) -> Listed:
    """A list; Unavailable where it is none: what no API server said proves nothing. Items of a list do not say what they are; everything
    else about them is as in a GET."""
    version = (body.get("metadata") or {}).get("resourceVersion")
    if version is None or "items" not in body:
        raise Unavailable(f"no list of an API server: {str(body)[:200]}", 0.0)
    kind = {"apiVersion": resource.api_version, "kind": resource.kind}
    return Listed([kind | item for item in body["items"] or ()], version)


# Before the second attempt and before the third, times 0.5 to 1.5, so that reads that were refused together come apart.
_PAUSES: Final = (0.1, 0.4)
# The longest Retry-After that is waited for; the queue's backoff, which takes no worker, is made for longer ones.
_LONGEST_RETRY_AFTER: Final = 2.0
# An attempt that has less is given up before it begins.
_LEAST_TIMEOUT: Final = 1.0
# What an attempt costs; what a request and a second bring in; and the most that is kept: 50 reads that fail at the same moment.
_COST: Final = 5.0
_PER_REQUEST: Final = 1.0
_PER_SECOND: Final = 5.0
_MOST: Final = 250.0


class RetryBudget:
    """Which failed reads are sent again within their call, and after which pause. All reads of a process share it.

    A run of a dozen requests that ends with the first one lost comes back after seconds, then after a minute. But repeated requests make an
    overload worse. Hence two bounds. Three attempts at a request ("Handling Overload" in Google's SRE book). And of all requests a fifth,
    beside one a second, by a token bucket: the RetryBudget of Finagle (finagle.github.io/blog/2016/02/08/retry-budgets), whose defaults are
    20 % and 10 a second. So a server that refuses everything is asked 1.2 times as much, and not three times.
    """

    def __init__(self, steady: Callable[[], float], rng: random.Random) -> None:
        self._steady, self._rng = steady, rng
        self._tokens, self._since = _MOST, steady()

    def asked(self) -> None:
        """A request, read or write; no attempt after its first."""
        self._tokens = min(_MOST, self._tokens + _PER_REQUEST)

    def pause(self, soon: float | None, attempts: int, left: float) -> float | None:
        """Seconds before a read that failed after so many `attempts` is asked again; None where it fails. `soon`: after how long that may
        help, if it may; `left`: what is left of the call's patience."""
        if soon is None or soon > _LONGEST_RETRY_AFTER or attempts > len(_PAUSES):
            return None
        pause = soon + _PAUSES[attempts - 1] * self._rng.uniform(0.5, 1.5)
        return pause if left - pause >= _LEAST_TIMEOUT and self._spend() else None

    def _spend(self) -> bool:
        now = self._steady()
        self._tokens, self._since = min(_MOST, self._tokens + _PER_SECOND * (now - self._since)), now
        if self._tokens < _COST:
            return False
        self._tokens -= _COST
        return True


def path_of(resource: Resource, namespace: str = "", name: str = "") -> str:
    """A kind's objects, in one namespace or in all; or one of them."""
    scope = f"/namespaces/{quote(namespace)}" if namespace else ""
    return f"{root_of(resource)}{scope}/{resource.plural}" + (f"/{quote(name)}" if name else "")


def root_of(resource: Resource) -> str:
    """The kind's group and version."""
    return f"/apis/{resource.api_version}" if "/" in resource.api_version else f"/api/{resource.api_version}"


def object_path(resource: Resource, meta: Json) -> str:
    """The object with this metadata."""
    return path_of(resource, meta.get("namespace", ""), meta["name"])
