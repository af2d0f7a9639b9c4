"""One request's way through the front: prompt ids and limits, submit, tokens back to text, the end. Knows no HTTP.

Called by `api/endpoints.py`. `Submission` is made by pure functions; `deltas` is the only place that talks to the engine.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from pagoda_daemon.api.answer import AnswerText, Piece, echo
from pagoda_daemon.api.replies import Usage
from pagoda_daemon.api.requests import ChatRequest, GenerationRequest
from pagoda_daemon.api.sampling import Wished, sampling_of
from pagoda_daemon.engine.client import EngineLink
from pagoda_daemon.engine.messages import Ready, Refusal, RowOutput, Sampling, Submit, TokenLogprob
from pagoda_daemon.errors import BadRequest, DaemonError, Draining, Overloaded, RequestFailed
from pagoda_daemon.metrics import Counts
from pagoda_daemon.tokens import ModelText, StopMatcher

_FINISHED: Final = frozenset(("stop", "length"))


class Delta(NamedTuple):
    """What is new, all tokens generated so far, and at the end the reason. The prompt's scores come once, with the first."""

    piece: Piece
    completion_tokens: int
    finish_reason: str | None
    prompt_scores: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True)
class Submission:
    """A validated request, ready for the engine. `echo`: the prompt's text, where the answer begins with it."""

    message: Submit
    stops: tuple[str, ...] = ()
    echo: str | None = None
    answers: bool = True  # false: the prompt is only scored, and the one token that the engine gives is dropped

    @property
    def sampling(self) -> Sampling:
        return self.message.sampling

    def usage(self, completion_tokens: int) -> Usage:
        prompt = len(self.message.prompt)
        return Usage(prompt, completion_tokens, prompt + completion_tokens)


def submission(request: GenerationRequest, request_id: str, text: ModelText, limits: Ready) -> Submission:
    """Tokenises and checks against the engine's limits; BadRequest says by how many it does not fit."""
    if isinstance(request, ChatRequest):
        prompt, given = text.encode_chat(request.turns(), limits.max_model_len), None
    else:
        given = request.single()
        prompt = text.encode(given, limits.max_model_len) if isinstance(given, str) else given
    _check_ids(prompt, limits.vocab_size)
    wished = Wished(_max_tokens(len(prompt), request.limit, limits.max_model_len), request.listed, _prompt_listed(request))
    echo = (given if isinstance(given, str) else text.decode(prompt)) if request.echoes else None
    message = Submit(request_id, prompt, sampling_of(request, wished, text, limits.vocab_size))
    return Submission(message, request.stops, echo, answers=request.limit != 0)


def _prompt_listed(request: GenerationRequest) -> int | None:
    """An echo with log-probabilities shows the prompt's, vLLM's own field may ask for more of them."""
    asked = (request.prompt_logprobs, request.listed if request.echoes else None)
    return max((one for one in asked if one is not None), default=None)


def _check_ids(prompt: tuple[int, ...], vocab_size: int) -> None:
    if not prompt:
        raise BadRequest("the prompt has no tokens", "prompt")
    wrong = next((token for token in prompt if not 0 <= token < vocab_size), None)
    if wrong is not None:
        raise BadRequest(f"prompt holds token id {wrong!s:.32}, accepted are 0 to {vocab_size - 1}", "prompt")


def _max_tokens(prompt: int, wished: int | None, context: int) -> int:
    needed = prompt + (1 if wished is None else max(1, wished))
    if needed > context:
        raise BadRequest(
            f"this model's context is {context} tokens; the prompt has {prompt} and {needed - prompt} are to be generated: "
            f"{needed - context} too many",
            "messages" if wished is None else "max_tokens",
            "context_length_exceeded",
        )
    return context - prompt if wished is None else max(1, wished)


@dataclass(frozen=True)
class Generator:
    """Runs submissions on the engine and counts what comes back."""

    engine: EngineLink
    text: ModelText
    counts: Counts

    async def deltas(self, job: Submission, arrived: float) -> AsyncIterator[Delta]:
        """Text as it comes, the last delta with a reason; `arrived` is monotonic.

        Left early (client gone, cancelled), the engine is told to stop.
        """
        request_id = job.message.request_id
        stream = self.engine.submit(job.message)
        answer, before = self._answer(job), job.echo
        scores: list[TokenLogprob] = []
        tokens, reason = 0, None
        try:
            self.counts.prompt_tokens += len(job.message.prompt)
            while reason is None:
                row = await stream.get()
                scores += row.prompt_logprobs
                reason = _checked_reason(row)
                if reason is None and not row.token_ids:
                    continue  # a part of the prompt was scored
                if tokens == 0 and row.token_ids:
                    self.counts.first_token(time.monotonic() - arrived)
                tokens += len(row.token_ids)
                self.counts.generation_tokens += len(row.token_ids)
                piece = _taken(answer, row, last=reason is not None) if job.answers else Piece("")
                if before is not None:
                    piece, before = _joined(echo(before, job.message.prompt, scores, self.text.decode), piece), None
                if reason is not None:
                    self.engine.close_stream(request_id, finished=True)
                if answer.stopped:
                    reason = "stop"
                yield Delta(piece, tokens if job.answers else 0, reason, tuple(scores))
                scores = []
        except DaemonError:
            self.counts.finished["error"] += 1
            raise
        finally:
            self.engine.close_stream(request_id, finished=False)
            if reason is not None:
                self.counts.finished[reason] += 1

    def _answer(self, job: Submission) -> AnswerText:
        stops = StopMatcher(job.stops, include=job.sampling.deliver_stop)
        return AnswerText(self.text.decode, stops, job.sampling.min_tokens, len(job.echo or ""))


def _taken(answer: AnswerText, row: RowOutput, *, last: bool) -> Piece:
    piece = answer.push(row.token_ids, row.logprobs)
    return _joined(piece, answer.end()) if last else piece


def _joined(first: Piece, then: Piece) -> Piece:
    return Piece(first.text + then.text, (*first.scored, *then.scored))


def _checked_reason(row: RowOutput) -> str | None:
    if row.finish_reason is None or row.finish_reason in _FINISHED:
        return row.finish_reason
    if row.refusal is not None:
        raise _refused(row.refusal)
    why = row.error or f"the engine ended this request: {row.finish_reason}"
    raise RequestFailed(f"{why} (request {row.request_id})")


def _refused(refusal: Refusal) -> DaemonError:
    """Nothing was generated: another replica may take it."""
    if refusal.reason == "draining":
        return Draining(refusal.message)
    return Overloaded(f"{refusal.reason}: {refusal.message}", refusal.retry_after_s)
