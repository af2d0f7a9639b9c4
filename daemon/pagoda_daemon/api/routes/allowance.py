"""What a tenant's quota bounds of a request: its context, an answer without a bound of its own, and all tokens that are reserved for it.

Called by `completions` and `embeddings` while a request is prepared, so nothing is computed beyond a reservation. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from msgspec import structs
from pagoda_contracts.usage import Used

from pagoda_daemon.api.access.caller import Allowance
from pagoda_daemon.api.routes.generation import Submission
from pagoda_daemon.api.routes.usages import Usages
from pagoda_daemon.core.errors import OverReservation
from pagoda_daemon.core.messages import Ready


def within(limits: Ready, allowance: Allowance) -> Ready:
    """The engine's limits, with the tenant's context if that is smaller."""
    if allowance.context is None or allowance.context >= limits.max_model_len:
        return limits
    return structs.replace(limits, max_model_len=allowance.context)


def limited(job: Submission, most: int) -> Submission:
    """The submission for at most so many tokens."""
    sampling = structs.replace(job.sampling, max_tokens=min(most, job.sampling.max_tokens))
    return replace(job, message=structs.replace(job.message, sampling=sampling))


def allowed(jobs: Sequence[Submission], allowance: Allowance, *, bounded: bool) -> Sequence[Submission]:
    """The submissions, and those without a bound of their own (`bounded` False) with the default; OverReservation if they need more tokens
    than are reserved."""
    if not bounded and allowance.default is not None:
        jobs = [limited(job, allowance.default) for job in jobs]
    needed = sum(len(job.message.prompt) + (job.message.n * job.sampling.max_tokens if job.answers else 0) for job in jobs)
    if allowance.reserved is not None and needed > allowance.reserved:
        raise OverReservation(needed, allowance.reserved)
    return jobs


def used(usages: Usages) -> Used:
    """What the request has used so far, as it is reported to a gateway."""
    found = usages.usage()
    return Used(found.prompt_tokens, found.prompt_tokens_details.cached_tokens, found.completion_tokens)
