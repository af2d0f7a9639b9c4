"""Outliers: replicas whose state says that they are ready, and whose requests fail one after the other. Pure.

Frames of state come by another connection than answers. So a replica may be ready by its frames while its API cannot be reached or fails.
After five failures in a row it gets no request for 5 s, then for twice as long, up to a minute. The first request after that decides: one
more failure leaves it out again, an answer makes it one of the others. It is judged by each gateway alone. Asked by requests/router.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pagoda_gateway.routing.endpoint import Endpoint, Failures
from pagoda_gateway.routing.verdict import ROUTABLE, judge

_IN_A_ROW: Final = 5
_FIRST_MS: Final = 5_000
_LONGEST_MS: Final = 60_000
# One that served for so long after it was left out begins with the first time again.
_FORGOTTEN_MS: Final = 300_000


def failed(failures: Failures, now_ms: float) -> Failures:
    """A request failed. Those that were under way when the replica was left out count no more."""
    if now_ms < failures.until_ms:
        return failures
    if failures.row + 1 < _IN_A_ROW:
        return failures._replace(row=failures.row + 1)
    times = 0 if now_ms - failures.until_ms > _FORGOTTEN_MS else failures.times
    return Failures(_IN_A_ROW - 1, times + 1, now_ms + min(_LONGEST_MS, _FIRST_MS * 2**times))


def answered(failures: Failures) -> Failures:
    """A request was answered. How often the replica was left out is remembered, so one that comes and goes is left out for longer."""
    return failures._replace(row=0)


def back(failures: Failures, now_ms: float) -> Failures:
    """The replica becomes ready again, because it was started again or was silent: what failed before says nothing of it."""
    return Failures(0, failures.times, min(now_ms, failures.until_ms))


def without_outliers(endpoints: Sequence[Endpoint], now_ms: float) -> Sequence[Endpoint]:
    """Returns the endpoints that are not left out. If less than half of a revision's that can take requests would be left, all of it stay:
    then the fault is likelier in the revision, the requests or the network, and the others could not carry the load. A canary that fails
    must go on failing: only its errors end it."""
    out = [endpoint for endpoint in endpoints if now_ms < endpoint.failures.until_ms]
    if not out:
        return endpoints
    few = {revision for revision in {endpoint.revision for endpoint in out} if _too_few(endpoints, revision, now_ms)}
    left_out = {endpoint.name for endpoint in out if endpoint.revision not in few}
    return [endpoint for endpoint in endpoints if endpoint.name not in left_out] if left_out else endpoints


def _too_few(endpoints: Sequence[Endpoint], revision: str, now_ms: float) -> bool:
    able = [endpoint for endpoint in endpoints if endpoint.revision == revision and judge(endpoint, now_ms) in ROUTABLE]
    left = sum(now_ms >= endpoint.failures.until_ms for endpoint in able)
    return not left or 2 * left < len(able)
