"""commit: what a step's result means for each request. Called by the engine's loop after each step; pure, time is a parameter."""

from __future__ import annotations

from pagoda_daemon.batch import StepPlan, StepResult
from pagoda_daemon.engine.messages import RowOutput
from pagoda_daemon.kv.pool import BrokenAccountsError
from pagoda_daemon.scheduler.state import State


def commit(state: State, result: StepResult, now_ms: float) -> list[RowOutput]:
    """Take over the step's tokens; the outputs of the rows that sampled or ended."""
    done = _land(state)
    state.step_time.observe(done.tokens, now_ms - state.planned_ms)
    state.rows.computed[done.rows] += done.starts[1:] - done.starts[:-1]
    tokens = dict(zip(result.rows.tolist(), result.token_ids.tolist(), strict=True))
    errors = dict(result.errors)
    outputs = []
    for row, sampled in zip(done.rows.tolist(), done.sample.tolist(), strict=True):
        if state.request(row).aborted:
            outputs.append(_end(state, row, "abort"))
        elif row in errors:
            outputs.append(_end(state, row, "error", errors[row]))
        elif sampled:
            outputs.append(_advance(state, row, tokens.get(row)))
    return outputs


def fail_step(state: State, message: str) -> list[RowOutput]:
    """The step raised: every request in it ends with `message` (clients read it), the others go on."""
    done = _land(state)
    ends = [("abort", None) if state.request(row).aborted else ("error", message) for row in done.rows.tolist()]
    return [_end(state, row, reason, error) for row, (reason, error) in zip(done.rows.tolist(), ends, strict=True)]


def _land(state: State) -> StepPlan:
    done, state.in_flight = state.in_flight, None
    if done is None:
        raise BrokenAccountsError("a result came without a plan")
    state.steps += 1
    return done


def _advance(state: State, row: int, token: int | None) -> RowOutput:
    """Append the sampled token and say whether it was the last."""
    request, rows = state.request(row), state.rows
    if token is None:
        return _end(state, row, "error", "the worker returned no token")
    if token in request.sampling.stop_token_ids:
        return _end(state, row, "stop")
    known = int(rows.known[row])
    rows.tokens[row, known] = token
    rows.known[row] = known + 1
    if known + 1 < request.last_len:
        return RowOutput(request.request_id, (token,))
    state.unseat(row)
    return RowOutput(request.request_id, (token,), "length")


def _end(state: State, row: int, reason: str, error: str | None = None) -> RowOutput:
    return RowOutput(state.unseat(row).request_id, (), reason, error)
