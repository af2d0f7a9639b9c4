"""commit: what a step's result means for each request. Called by the engine's loop after each step; pure, time is a parameter.

Arrays as far as the outputs; only rows that end are looked at one by one. A row that ended or was preempted since the step was planned is
known by its epoch: what was computed for it is dropped.
"""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from pagoda_daemon.core.arrays import Bools, Ints
from pagoda_daemon.core.batch import NOT_FINITE, NOTHING_LEFT, StepResult
from pagoda_daemon.core.messages import Refusal, RowOutput
from pagoda_daemon.scheduler.conflict import conflict
from pagoda_daemon.scheduler.deep_check import lost, taken_out
from pagoda_daemon.scheduler.grammars import spend
from pagoda_daemon.scheduler.logprobs import logprobs_by_row, score, with_logprobs
from pagoda_daemon.scheduler.pooling import embedding, gather
from pagoda_daemon.scheduler.quarantine import acquit, keep_copies, suspect
from pagoda_daemon.scheduler.request import Request
from pagoda_daemon.scheduler.state import Flight, State

_NONE = -1


def commit(state: State, result: StepResult, now_ms: float) -> list[RowOutput]:
    """Take over the oldest step's tokens; the outputs of the rows that sampled, ended or had prompt tokens scored."""
    flight = state.land(now_ms)
    state.steps.compiled += result.compiled
    result = taken_out(state, flight, result)
    rows = state.rows
    current = rows.epoch[flight.plan.rows] == flight.epochs
    landed = flight.plan.rows[current]
    rows.computed[landed] += flight.counts[current]
    if state.suspects:
        acquit(state)
    outputs = _fail_rows(state, result, flight)
    prompts = flight.plan.rows[current & (flight.counts > 1)]
    state.kv.land(prompts[rows.live[prompts]] if outputs else prompts, rows.computed, rows.tokens)
    sampled = flight.plan.rows[flight.plan.sample & current]
    if outputs:
        sampled, landed = sampled[rows.live[sampled]], landed[rows.live[landed]]
    if result.pooled is not None:
        gather(state, result.pooled, landed)
    speakers = _speakers(state, result, landed)
    advanced = _advance(state, sampled, _tokens(state, result, sampled))
    outputs += _speak(result, speakers, sampled, advanced) if speakers else advanced
    landed = landed[rows.live[landed]]
    state.kv.slide(landed, rows.computed, rows.tokens)
    if state.twins:
        state.release_twins()
    return outputs


def fail_step(state: State, message: str, refusal: Refusal | None = None) -> list[RowOutput]:
    """The oldest step raised. A request that was alone in it ends with `message` (clients read it), or with `refusal` where there was no
    memory; several are tried again one by one (`quarantine`)."""
    flight = state.lose()
    current = flight.plan.rows[state.rows.epoch[flight.plan.rows] == flight.epochs]
    lost(state, flight)
    guilty = current if flight.plan.rows.size == 1 and flight.deep_check is None else suspect(state, flight, current)
    outputs = [_blamed(_spoil(state, row, message), refusal) for row in guilty.tolist()]
    keep_copies(state, flight)
    state.release_twins()
    return outputs


def _blamed(ended: RowOutput, refusal: Refusal | None) -> RowOutput:
    return ended if refusal is None or ended.index else replace(ended, finish_reason="refused", error=None, refusal=refusal)


def _speakers(state: State, result: StepResult, landed: Ints) -> dict[int, Request]:
    """The rows that get log-probabilities; none in nearly every step."""
    if result.logprobs is None and result.prompt_logprobs is None:
        return {}
    return {row: state.request(row) for row in landed.tolist()}


def _speak(result: StepResult, speakers: dict[int, Request], sampled: Ints, outputs: list[RowOutput]) -> list[RowOutput]:
    """`outputs`, one for each of `sampled`, with log-probabilities; and outputs with nothing else for prompts not yet done."""
    said, scored = logprobs_by_row(result.logprobs), logprobs_by_row(result.prompt_logprobs)
    found = dict(zip(sampled.tolist(), outputs, strict=True))
    for row, request in speakers.items():
        if row in said or row in scored:
            output = found.get(row) or RowOutput(request.request_id, (), index=request.index)
            found[row] = with_logprobs(output, said.get(row, ()), score(request, scored.get(row, ())))
    return list(found.values())


def _fail_rows(state: State, result: StepResult, flight: Flight) -> list[RowOutput]:
    if not result.errors:
        return []
    state.steps.corrupted += sum(error.message == NOT_FINITE for error in result.errors)
    mine = dict(zip(flight.plan.rows.tolist(), flight.epochs.tolist(), strict=True))
    return [_failed(state, row, message) for row, message in result.errors if state.rows.epoch[row] == mine.get(row)]


def _failed(state: State, row: int, message: str) -> RowOutput:
    """If its own fields left nothing to choose, the error names them, so that the client can change them."""
    if message != NOTHING_LEFT:
        return _spoil(state, row, message)
    known = state.rows.tokens[row, : state.rows.known[row]]
    fields = conflict(state.request(row), known, state.limits.worker.vocab_size)
    return replace(_spoil(state, row, message), refusal=Refusal("conflict", 0.0, message, fields) if fields else None)


def _tokens(state: State, result: StepResult, sampled: Ints) -> Ints:
    """The token of each of `sampled`, _NONE where the worker forgot one."""
    if result.rows.size == sampled.size and np.array_equal(result.rows, sampled):
        return result.token_ids
    of_row = np.full(state.limits.max_concurrency, _NONE, np.int32)
    of_row[result.rows] = result.token_ids
    tokens: Ints = of_row[sampled]
    return tokens


def _advance(state: State, sampled: Ints, tokens: Ints) -> list[RowOutput]:
    """Append each row's token, and end the rows for which it was the last."""
    rows, names = state.rows, state.names
    stopped = _stops(state, sampled, tokens)
    known = rows.known[sampled]
    rows.tokens[sampled, known] = tokens
    rows.known[sampled] = known + ~stopped
    if rows.constrained[sampled].any():
        spend(state, sampled)
    state.virtual.charge_outputs(rows.tenant[sampled])
    ended = stopped | (known + 1 >= rows.last[sampled])
    outputs = [RowOutput(names[row], (token,)) for row, token in zip(sampled.tolist(), tokens.tolist(), strict=True)]
    if state.groups:
        outputs = [replace(o, index=state.request(row).index) for o, row in zip(outputs, sampled.tolist(), strict=True)]
    if state.unreported:
        _report_lives(state, sampled, outputs)
    for place in np.flatnonzero(ended).tolist():
        row = int(sampled[place])
        outputs[place] = _last(state, row, int(tokens[place]), stopped=bool(stopped[place]))
    return outputs


def _report_lives(state: State, sampled: Ints, outputs: list[RowOutput]) -> None:
    """Put its life into the output of each row that speaks for the first time since it was seated."""
    for place, row in enumerate(sampled.tolist()):
        if row in state.unreported:
            state.unreported.discard(row)
            course = state.request(row).course
            if course.first_token_ms is None:
                course.first_token_ms = state.landed_ms
            outputs[place] = replace(outputs[place], life=course.life(state.landed_ms))


def _stops(state: State, sampled: Ints, tokens: Ints) -> Bools:
    """Where the token is one that ends the answer, or is none at all."""
    stopped: Bools = (state.rows.stops[sampled] == tokens[:, None]).any(axis=1)
    for place in np.flatnonzero(state.rows.many_stops[sampled]).tolist() if state.rows.many_stops.any() else ():
        stopped[place] |= int(tokens[place]) in state.request(int(sampled[place])).sampling.stop_token_ids
    return stopped


def _last(state: State, row: int, token: int, *, stopped: bool) -> RowOutput:
    if token == _NONE:
        return _end(state, row, "error", "the worker returned no token")
    if stopped:
        return _end(state, row, "stop", tokens=(token,))
    if state.request(row).sampling.pooling is not None:
        return _pooled(state, row, token)
    return _end(state, row, "length", tokens=(token,))


def _pooled(state: State, row: int, token: int) -> RowOutput:
    found = embedding(state.request(row))
    if found is None:
        return _spoil(state, row, NOT_FINITE)
    return replace(_end(state, row, "length", tokens=(token,)), embedding=found)


def _spoil(state: State, row: int, message: str) -> RowOutput:
    """End the row; what it computed may be wrong, hence is forgotten."""
    state.kv.spoil(row)
    return _end(state, row, "error", message)


def _end(state: State, row: int, reason: str, error: str | None = None, tokens: tuple[int, ...] = ()) -> RowOutput:
    request = state.end(row)
    return RowOutput(request.request_id, tokens, reason, error, request.index, life=request.course.life(state.landed_ms))
