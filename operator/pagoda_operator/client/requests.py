"""Requests to the API server and their answers: paths, bodies, errors, which failed reads are repeated, and a run's count. Pure; used by
cluster.py.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
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
# No repetition helps after the others of 5xx.
_TRANSIENT: Final = (
    HTTPStatus.INTERNAL_SERVER_ERROR,
    HTTPStatus.BAD_GATEWAY,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
)
# The second is for the token keys: that path answers application/json with 406.
OBJECT: Final = "application/json, application/jwk-set+json"


class Answer(NamedTuple):
    """An answer as it came. `body` is an object, or the Status of an error."""

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
        # A date in place of seconds is by the server's clock, and never a short wait.
        seconds = float(self.retry_after) if self.retry_after and self.retry_after.isdecimal() else None
        if self.status in _TRANSIENT:
            raise Unavailable(self._message(), seconds or 0.0)
        if self.status == HTTPStatus.TOO_MANY_REQUESTS and seconds is not None:  # without a time it is not repeated within the call
            raise Unavailable(self._message(), seconds)
        return self

    def _message(self) -> str:
        return f"{self.status}: {self.body.get('message', '')}"


def answer_of(status: int, data: bytes, retry_after: str | None = None) -> Answer:
    """Reads an answer; Unavailable if a good status comes without an object: cut off, or a proxy's page."""
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
    """A list; Unavailable if the body is none, since it did not come from an API server. Items of a list lack their kind; everything else
    is as in a GET."""
    version = (body.get("metadata") or {}).get("resourceVersion")
    if version is None or "items" not in body:
        raise Unavailable(f"no list of an API server: {str(body)[:200]}", 0.0)
    kind = {"apiVersion": resource.api_version, "kind": resource.kind}
    return Listed([kind | item for item in body["items"] or ()], version)


# Before the second attempt and before the third, times 0.5 to 1.5, so that reads that were refused together are repeated apart.
_PAUSES: Final = (0.1, 0.4)
# The longest Retry-After that is waited for; longer ones are left to the queue's backoff, which takes no worker.
_LONGEST_RETRY_AFTER: Final = 2.0
# An attempt that would have less time is not begun.
_LEAST_TIMEOUT: Final = 1.0
# What an attempt costs, what a request and a second add, and the most that is kept: 50 reads that fail at the same moment.
_COST: Final = 5.0
_PER_REQUEST: Final = 1.0
_PER_SECOND: Final = 5.0
_MOST: Final = 250.0


class RetryBudget:
    """Which failed reads are repeated within their call, and after which pause. All reads of a process share it.

    Without repetition one lost request ends a run of a dozen, which comes back seconds or a minute later. But repetition makes an overload
    worse, so there are two bounds: three attempts at a request ("Handling Overload" in Google's SRE book), and a token bucket of a fifth of
    all requests plus one per second (finagle.github.io/blog/2016/02/08/retry-budgets). A server that refuses everything gets 1.2 times as
    many requests, not three times.
    """

    def __init__(self, steady: Callable[[], float], rng: random.Random) -> None:
        self._steady, self._rng = steady, rng
        self._tokens, self._since = _MOST, steady()

    def asked(self) -> None:
        """A request was made, read or write; its later attempts do not count."""
        self._tokens = min(_MOST, self._tokens + _PER_REQUEST)

    def pause(self, soon: float | None, attempts: int, left: float) -> float | None:
        """Seconds before a read that failed after so many `attempts` is repeated; None if it is not. `soon`: after how many seconds that
        may help, None if it cannot; `left`: seconds left of the call."""
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


class Tally:
    """What one run asked of the API server: `requests`, `writes` among them, and `waited`, seconds with at least one answer outstanding."""

    def __init__(self) -> None:
        self.requests = self.writes = self._outstanding = 0
        self.waited = self._since = 0.0

    @contextmanager
    def request(self, clock: Callable[[], float], *, write: bool) -> Iterator[None]:
        """From sending a request until its answer."""
        self.requests += 1
        self.writes += write
        if not self._outstanding:
            self._since = clock()
        self._outstanding += 1
        try:
            yield
        finally:
            self._outstanding -= 1
            if not self._outstanding:
                self.waited += clock() - self._since


# The tally of the run under way, also in the tasks that it starts.
TALLY: Final[ContextVar[Tally]] = ContextVar("tally")


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
