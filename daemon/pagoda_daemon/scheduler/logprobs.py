"""Log-probabilities from a step's arrays to the messages of the requests that asked. Called by `commit`; pure."""

from __future__ import annotations

import msgspec

from pagoda_daemon.batch import Ints, Logprobs
from pagoda_daemon.engine.messages import RowOutput, TokenLogprob
from pagoda_daemon.scheduler.state import State

Said = tuple[TokenLogprob, ...]


def said_by_row(given: Logprobs | None) -> dict[int, Said]:
    """Each row's entries in the plan's order; empty where nobody asked."""
    if given is None:
        return {}
    found: dict[int, list[TokenLogprob]] = {}
    columns = zip(*(column.tolist() for column in given), strict=True)
    for row, logprob, rank, ids, values, width in columns:
        entry = TokenLogprob(logprob, rank, tuple(zip(ids[:width], values[:width], strict=True)))
        found.setdefault(row, []).append(entry)
    return {row: tuple(entries) for row, entries in found.items()}


def deliver_scores(state: State, given: Logprobs | None, landed: Ints) -> dict[int, Said]:
    """The prompt's scores of those `landed` rows that have any, counted as delivered. Others lost the row since the plan was made."""
    by_row = said_by_row(given)
    scores = {row: by_row[row] for row in landed.tolist() if row in by_row}
    for row, said in scores.items():
        request = state.request(row)
        request.scored += len(said)
        request.reuses = request.scored >= request.prompt_len - 1
    return scores


def with_logprobs(output: RowOutput, said: Said, scores: Said) -> RowOutput:
    """`said` belongs to the token; a stop id that is not delivered takes it along."""
    if not said and not scores:
        return output
    return msgspec.structs.replace(output, logprobs=said if output.token_ids else (), prompt_logprobs=scores)
