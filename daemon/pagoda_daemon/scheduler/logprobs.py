"""Log-probabilities from a step's arrays to the messages of the requests that asked. Called by `commit`; pure."""

from __future__ import annotations

import msgspec

from pagoda_daemon.core.batch import Logprobs
from pagoda_daemon.core.messages import RowOutput, TokenLogprob
from pagoda_daemon.scheduler.request import Request

Said = tuple[TokenLogprob, ...]


def logprobs_by_row(given: Logprobs | None) -> dict[int, Said]:
    """Each row's entries in the plan's order; empty if no row asked."""
    if given is None:
        return {}
    found: dict[int, list[TokenLogprob]] = {}
    columns = zip(*(column.tolist() for column in given), strict=True)
    for row, logprob, rank, ids, values, width in columns:
        entry = TokenLogprob(logprob, rank, tuple(zip(ids[:width], values[:width], strict=True)))
        found.setdefault(row, []).append(entry)
    return {row: tuple(entries) for row, entries in found.items()}


def score(request: Request, scores: Said) -> Said:
    """Count the prompt's scores as delivered; after the last one a preempted request may use what is known of its prompt again."""
    if scores:
        request.scored += len(scores)
        request.reuses = request.scored >= request.prompt_len - 1
    return scores


def with_logprobs(output: RowOutput, said: Said, scores: Said) -> RowOutput:
    """`said` belongs to the token; where the worker returned none, there is nothing to say it of."""
    if not said and not scores:
        return output
    return msgspec.structs.replace(output, logprobs=said if output.token_ids else (), prompt_logprobs=scores)
