"""One request's way through the front: prompt ids and limits, submit, tokens back to text, the end. Knows no HTTP.

Called by `api/endpoints.py`. `Submission` is made by pure functions; `deltas` is the only place that talks to the engine.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from pagoda_daemon.api.replies import Usage
from pagoda_daemon.api.requests import ChatRequest, GenerationRequest
from pagoda_daemon.engine.client import EngineLink
from pagoda_daemon.engine.messages import Ready, RowOutput, Sampling, Submit
from pagoda_daemon.errors import BadRequest, DaemonError, RequestFailed
from pagoda_daemon.metrics import Counts
from pagoda_daemon.tokens import Detokenizer, ModelText, StopMatcher

_FINISHED: Final = frozenset(("stop", "length"))


class Delta(NamedTuple):
    """New text, all tokens generated so far, and at the end the reason."""

    text: str
    completion_tokens: int
    finish_reason: str | None


@dataclass(frozen=True)
class Submission:
    """A validated request, ready for the engine."""

    message: Submit
    stops: tuple[str, ...]

    def usage(self, completion_tokens: int) -> Usage:
        prompt = len(self.message.prompt)
        return Usage(prompt, completion_tokens, prompt + completion_tokens)


def submission(request: GenerationRequest, request_id: str, text: ModelText, limits: Ready) -> Submission:
    """Tokenises and checks against the engine's limits; BadRequest says by how many it does not fit."""
    if isinstance(request, ChatRequest):
        prompt = text.encode_chat(request.turns(), limits.max_model_len)
    else:
        single = request.single()
        prompt = text.encode(single, limits.max_model_len) if isinstance(single, str) else single
    _check_ids(prompt, limits.vocab_size)
    sampling = Sampling(
        max_tokens=_max_tokens(len(prompt), request.limit, limits.max_model_len),
        temperature=text.defaults.temperature if request.temperature is None else request.temperature,
        top_p=text.defaults.top_p if request.top_p is None else request.top_p,
        top_k=max(0, text.defaults.top_k if request.top_k is None else request.top_k),
        seed=request.seed,
        stop_token_ids=() if request.ignore_eos else text.stop_ids,
    )
    return Submission(Submit(request_id, prompt, sampling), request.stops)


def _check_ids(prompt: tuple[int, ...], vocab_size: int) -> None:
    if not prompt:
        raise BadRequest("the prompt has no tokens", "prompt")
    wrong = next((token for token in prompt if not 0 <= token < vocab_size), None)
    if wrong is not None:
        raise BadRequest(f"prompt holds token id {wrong!s:.32}, accepted are 0 to {vocab_size - 1}", "prompt")


def _max_tokens(prompt: int, wished: int | None, context: int) -> int:
    needed = prompt + (1 if wished is None else wished)
    if needed > context:
        raise BadRequest(
            f"this model's context is {context} tokens; the prompt has {prompt} and {needed - prompt} are to be generated: "
            f"{needed - context} too many",
            "messages" if wished is None else "max_tokens",
            "context_length_exceeded",
        )
    return context - prompt if wished is None else wished


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
        detokenizer, stops = Detokenizer(self.text.decode), StopMatcher(job.stops)
        tokens, reason = 0, None
        try:
            self.counts.prompt_tokens += len(job.message.prompt)
            while reason is None:
                row = await stream.get()
                if tokens == 0 and row.token_ids:
                    self.counts.first_token(time.monotonic() - arrived)
                tokens += len(row.token_ids)
                self.counts.generation_tokens += len(row.token_ids)
                reason = _checked_reason(row)
                text = stops.push(detokenizer.push(row.token_ids))
                if reason is not None:
                    text += stops.push(detokenizer.flush()) + stops.flush()
                    self.engine.close_stream(request_id, finished=True)
                if stops.stopped:
                    reason = "stop"
                yield Delta(text, tokens, reason)
        except DaemonError:
            self.counts.finished["error"] += 1
            raise
        finally:
            self.engine.close_stream(request_id, finished=False)
            if reason is not None:
                self.counts.finished[reason] += 1


def _checked_reason(row: RowOutput) -> str | None:
    if row.finish_reason is None or row.finish_reason in _FINISHED:
        return row.finish_reason
    why = row.error or f"the engine ended this request: {row.finish_reason}"
    raise RequestFailed(f"{why} (request {row.request_id})")
