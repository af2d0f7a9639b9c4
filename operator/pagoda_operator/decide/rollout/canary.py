"""A canary: its steps, and whether a new revision does as well as the old one, by what gateways counted over the last minute. Pure.

Judged only on enough requests: see the constants. One that is not judged is not acquitted either; time passes it on (rollout.py).
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from pagoda_contracts.resources.traffic import AbortOn, CanaryStep
from pagoda_contracts.units import parse_duration

from pagoda_operator.api.signals import RevisionSignal

# Errors: Wilson's lower bound at 97.5 % must be above the limit, and from 20 requests on. One error of 20 (bound 0.9 %) does not break
# a limit of 1 %, two (2.8 %) do; below 20 a single one would.
MIN_REQUESTS: Final = 20
_Z: Final = 1.96
# Time to first token: of 40 requests two lie above the 95th percentile, so that one slow request alone decides nothing.
MIN_TIMED: Final = 40


class Steps(NamedTuple):
    """The canary's steps as they apply now; none where there is nothing to try the new revision against."""

    all: tuple[CanaryStep, ...]
    at: int | None

    @property
    def now(self) -> CanaryStep | None:
        """The step under way."""
        return self.all[self.at] if self.at is not None and self.at < len(self.all) else None


def share(wanted: int, weight: int) -> int:
    """Replicas that bear so many percent of the load, one at least."""
    return max(1, math.ceil(wanted * weight / 100))


def judge(limits: AbortOn, new: RevisionSignal, old: RevisionSignal) -> str:
    """Why the canary is over; empty where nothing speaks against it."""
    return _errors(limits, new) or _first_tokens(limits, new, old)


def _errors(limits: AbortOn, new: RevisionSignal) -> str:
    if limits.error_rate is None or new.requests < MIN_REQUESTS:
        return ""
    limit = float(limits.error_rate.removesuffix("%")) / 100
    if _lower_bound(new.errors, new.requests) <= limit:
        return ""
    return f"{new.errors} of {new.requests} requests failed within a minute, abortOn.errorRate is {limits.error_rate}"


def _first_tokens(limits: AbortOn, new: RevisionSignal, old: RevisionSignal) -> str:
    if limits.ttft_p95 is None or new.requests < MIN_TIMED or not new.ttft_p95_s:
        return ""
    slow = f"the first token took {new.ttft_p95_s:.2f} s (p95 of {new.requests} requests), abortOn.ttftP95 is {limits.ttft_p95}"
    if not limits.ttft_p95.endswith("x"):
        return slow if new.ttft_p95_s > parse_duration(limits.ttft_p95) else ""
    if old.requests < MIN_TIMED or not old.ttft_p95_s:
        return ""
    ratio = float(limits.ttft_p95.removesuffix("x"))
    return f"{slow} of the old one's {old.ttft_p95_s:.2f} s" if new.ttft_p95_s > ratio * old.ttft_p95_s else ""


def _lower_bound(hits: int, total: int) -> float:
    """Wilson's: what share is likely at least behind so many hits."""
    share, square = hits / total, _Z * _Z
    middle = share + square / (2 * total)
    margin = _Z * math.sqrt(share * (1 - share) / total + square / (4 * total * total))
    return (middle - margin) / (1 + square / total)
