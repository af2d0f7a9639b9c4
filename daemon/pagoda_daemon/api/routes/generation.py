"""One request's way through the front: prompt ids and limits, submit, tokens back to text, the end. Knows no HTTP.

Called by `api/routes/completions.py`. `Submission` is made by pure functions; `deltas` is the only place that talks to the engine.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, NamedTuple

from msgspec import structs

from pagoda_daemon.answers.counting import ThoughtTokens
from pagoda_daemon.api.openai.reading import PLAIN, Reading, reading_of, tool_form
from pagoda_daemon.api.openai.requests import ChatRequest, GenerationRequest
from pagoda_daemon.api.openai.sampling import Wished, sampling_of
from pagoda_daemon.api.openai.structured import grammar_of
from pagoda_daemon.api.openai.tools import Toolbox
from pagoda_daemon.api.routes.ends import checked_reason
from pagoda_daemon.api.routes.prompts import check_ids, infilled, max_tokens, prompt_listed, room, truncated
from pagoda_daemon.engine.client import EngineLink
from pagoda_daemon.engine.stream import Stream
from pagoda_daemon.metrics import Counts
from pagoda_daemon.metrics.records import Record
from pagoda_daemon.nouns.errors import BadRequest, DaemonError
from pagoda_daemon.nouns.messages import Life, Ready, RowOutput, Submit, TokenLogprob
from pagoda_daemon.nouns.sampling import Sampling
from pagoda_daemon.text.answer import AnswerText, Piece, echo
from pagoda_daemon.text.stops import StopMatcher
from pagoda_daemon.text.tokens import ModelText

_AT_ONCE: Final = 128  # tokens that are read again at a time: a millisecond
_ENDED: Final = "stop"  # an answer that was complete elsewhere


class Delta(NamedTuple):
    """What is new of a choice, all its tokens so far, how many of them are reasoning, and at its end the reason and the stop string. The
    prompt's scores come with its first. `row` is what the engine said; `again`: it said so elsewhere, and the client has read it."""

    piece: Piece
    completion_tokens: int
    finish_reason: str | None
    prompt_scores: tuple[TokenLogprob, ...] = ()
    choice: int = 0
    life: Life | None = None
    embedding: bytes = b""
    reasoning_tokens: int = 0
    stop: str | None = None
    row: RowOutput | None = None
    again: bool = False


@dataclass(frozen=True)
class Submission:
    """A validated prompt, ready for the engine; its answers are the choices from number `first` on. `echo`: the prompt's text, where the
    answers begin with it. `answered` is what another replica said already, `closed`: to the answer's end."""

    message: Submit
    stops: tuple[str, ...] = ()
    echo: str | None = None
    answers: bool = True  # false: the prompt is only scored, and the one token that the engine gives is dropped
    first: int = 0
    skip_special: bool = True
    shows_stop: bool = False  # the stop string, or the text of the stop id, is part of the answer
    shows_ids: bool = False  # the ids of the answer's tokens are part of it
    reading: Reading = PLAIN
    answered: tuple[RowOutput, ...] = ()
    closed: bool = False

    @property
    def sampling(self) -> Sampling:
        return self.message.sampling


def submissions(request: GenerationRequest, request_id: str, text: ModelText, limits: Ready) -> tuple[Submission, ...]:
    """One per prompt. Tokenises and checks against the engine's limits; BadRequest says by how many tokens it does not fit."""
    if isinstance(request, ChatRequest):
        ids = chat_ids(request, request.box, text, room(request, limits))
        return (_read_by(request, submission(request, request_id, ids, text, limits), text),)
    given = request.prompts()
    found = []
    for number, prompt in enumerate(given):
        special = request.add_special_tokens is not False
        written = infilled(prompt, request.suffix, text) if request.suffix else prompt
        ids = text.encode(written, room(request, limits), special=special) if isinstance(written, str) else written
        job = submission(request, request_id if len(given) == 1 else f"{request_id}-{number}", ids, text, limits)
        said = prompt if isinstance(prompt, str) and job.message.prompt == ids else text.decode(job.message.prompt)
        shown = said if request.echoes else None
        found.append(replace(job, echo=shown, first=number * job.message.n))
    return tuple(found)


def submission(request: GenerationRequest, request_id: str, prompt: tuple[int, ...], text: ModelText, limits: Ready) -> Submission:
    """Of one prompt."""
    prompt = truncated(prompt, request, limits)
    check_ids(prompt, limits.vocab_size)
    scored = 0 if request.listed is None and request.generated > (request.n or 1) else request.listed  # to find the best ones
    wished = Wished(max_tokens(request, len(prompt), limits.max_model_len), scored, prompt_listed(request))
    grammar = grammar_of(request, text.stop_ids)
    message = Submit(request_id, prompt, sampling_of(request, wished, text, limits.vocab_size), request.generated, grammar=grammar)
    skip, shows = request.skip_special_tokens, bool(request.include_stop_str_in_output)
    made = Submission(message, request.stops, answers=request.limit != 0, skip_special=skip, shows_stop=shows)
    return replace(made, shows_ids=bool(request.return_token_ids))


def chat_ids(request: ChatRequest, box: Toolbox | None, text: ModelText, context: int) -> tuple[int, ...]:
    """The prompt of a conversation with these tools: what is generated from, and what /tokenize counts."""
    if box is None:
        return text.encode_chat(request.turns(), context, request.shape)
    tool_form(text)  # whose template knows no tools is told so, instead of leaving them out
    return text.encode_chat(request.turns(), context, request.shape, box.for_template())


def _read_by(request: ChatRequest, job: Submission, text: ModelText) -> Submission:
    """Marks that the parser needs must not be left out of the text if they are special tokens."""
    reading = reading_of(request, job.message.prompt, job.message.grammar, text)
    message = structs.replace(job.message, grammar=reading.grammar)
    return replace(job, message=message, skip_special=job.skip_special and not reading.marks, reading=reading)


class _Choice:
    """One answer under way: the engine's tokens become its text."""

    def __init__(self, index: int, job: Submission, record: Record, scores: list[TokenLogprob], text: ModelText) -> None:
        self.job = job
        self.index = index
        self.record = record
        self.tokens = 0
        self.ended = False  # by the engine, which holds nothing of it any more
        stops = StopMatcher(job.stops, include=job.shows_stop)
        self._detokenizer = partial(text.detokenizer, skip_special=job.skip_special)
        self._answer = AnswerText(self._detokenizer(), stops, job.sampling.min_tokens, len(job.echo or ""))
        self._scores = scores  # of the prompt: all its choices have the list, the first one's outputs fill it
        self._begun = False
        thinker = job.reading.thinker
        self._thought = None if thinker is None else ThoughtTokens(thinker(), text.detokenizer(skip_special=False))

    def take(self, row: RowOutput) -> Delta | None:
        """None where nothing is to be said yet: a part of the prompt was scored."""
        self._scores += row.prompt_logprobs
        reason = checked_reason(row, self.job.message.grammar)
        self.ended = reason is not None
        if reason is None and not row.token_ids:
            return None
        self.tokens += len(row.token_ids)
        piece = _taken(self._answer, row, shows_stop=self.job.shows_stop) if self.job.answers else Piece("")
        if self.job.answers and self.job.shows_ids:
            piece = piece._replace(token_ids=tuple(row.token_ids))
        if self._answer.stopped:
            reason = "stop"
        scores: tuple[TokenLogprob, ...] = ()
        if not self._begun:
            self._begun, scores = True, tuple(self._scores)
            if self.job.echo is not None:
                piece = _joined(echo(self.job.echo, self.job.message.prompt, scores, self._detokenizer()), piece)
        tokens, thought = (self.tokens, self._thought_tokens(row, reason)) if self.job.answers else (0, 0)
        choice, stop = self.job.first + self.index, self._answer.stop
        return Delta(piece, tokens, reason, scores, choice, row.life, row.embedding, thought, stop, row)

    @property
    def generated(self) -> int:
        """Of its tokens those that this engine gave."""
        return self.tokens - len(self.job.message.resumed)

    def _thought_tokens(self, row: RowOutput, reason: str | None) -> int:
        """A stop id is no part of the reasoning that it ends."""
        if self._thought is None:
            return 0
        self._thought.take(row.token_ids[:-1] if row.finish_reason == "stop" else row.token_ids)
        return self._thought.count if reason is None else self._thought.finish()


_Open = dict[str, dict[int, _Choice]]


@dataclass(frozen=True)
class Generator:
    """Runs submissions on the engine and counts what comes back."""

    engine: EngineLink
    text: ModelText
    counts: Counts

    async def deltas(self, jobs: Sequence[Submission], arrived: float) -> AsyncIterator[list[Delta]]:
        """Text as it comes, all that is new at a time, of each choice the last delta with a reason; `arrived` is monotonic.

        Left early (client gone, cancelled), or with one choice failed, the engine is told to stop all of them.
        """
        open_choices: _Open = {}
        try:
            stream = self._submit(jobs, open_choices, arrived)
            for again in self._said_again(jobs, open_choices):
                yield again
                await asyncio.sleep(0)
            while open_choices:
                found, error = self._read(await stream.take(), open_choices)
                if found:
                    yield found
                if error is not None:
                    raise error
        except DaemonError:
            for choices in open_choices.values():
                for choice in choices.values():
                    choice.record.fail()
            raise
        finally:
            for request_id, choices in open_choices.items():
                self.engine.close_stream(request_id, finished=False)
                self._count_cut(tuple(choices.values()))

    def _read(self, rows: Sequence[RowOutput], open_choices: _Open) -> tuple[list[Delta], DaemonError | None]:
        """What the rows say, and what went wrong after it."""
        found: list[Delta] = []
        try:
            for row in rows:
                siblings = open_choices.get(row.request_id)
                choice = siblings.get(row.index) if siblings else None
                if choice is not None and (delta := self._heard(choice, row)) is not None:
                    found.append(delta)
                    if delta.finish_reason is not None:
                        self._close(open_choices, choice)
        except DaemonError as error:
            return found, error
        return found, None

    def _heard(self, choice: _Choice, row: RowOutput) -> Delta | None:
        now = time.monotonic()
        if row.life is not None or row.finish_reason is not None:
            self.counts.hear(choice.record, row, now)
        if row.token_ids:
            choice.record.gaps.hear(choice.index, now)
        delta = choice.take(row)
        if delta is not None and delta.finish_reason is not None:
            choice.record.end(choice.index, delta.finish_reason, choice.generated)
        return delta

    def _said_again(self, jobs: Sequence[Submission], open_choices: _Open) -> Iterator[list[Delta]]:
        """What was answered elsewhere, in pieces between which others have their turn: the text and all that reads it come to where they
        were there. The engine, which has the tokens already, computes meanwhile."""
        for job in jobs:
            choice = open_choices[job.message.request_id][0]
            for at in range(0, len(job.answered), _AT_ONCE):
                found = [choice.take(row) for row in job.answered[at : at + _AT_ONCE]]
                yield [delta._replace(again=True) for delta in found if delta is not None]
            if job.closed:
                choice.record.end(choice.index, _ENDED, choice.generated)
                self._close(open_choices, choice)

    def _submit(self, jobs: Sequence[Submission], open_choices: _Open, arrived: float) -> Stream:
        stream = None
        for job in jobs:
            scores: list[TokenLogprob] = []
            sent = time.monotonic()  # before: the engine may have heard it, and count its queue, while this thread waits for its next turn
            if not job.closed:
                stream = self.engine.submit(job.message, stream) if stream else self.engine.submit(job.message)
            record = self.counts.open(job.message, arrived, sent)
            share = (job, record, scores, self.text)
            open_choices[job.message.request_id] = {index: _Choice(index, *share) for index in range(job.message.n)}
        if not jobs:
            raise BadRequest("there is no prompt", "prompt")
        return stream or Stream(jobs[0].message.request_id)

    def _close(self, open_choices: _Open, choice: _Choice) -> None:
        """The choice is over. Where a stop string ended it, the engine still computes it."""
        request_id = choice.job.message.request_id
        siblings = open_choices[request_id]
        del siblings[choice.index]
        if not siblings:
            del open_choices[request_id]
            self.engine.close_stream(request_id, finished=choice.ended)
            self.counts.close(choice.record, time.monotonic())
        elif not choice.ended:
            self.engine.abort_choice(request_id, choice.index)

    def _count_cut(self, choices: Sequence[_Choice]) -> None:
        """Those of one prompt that nobody waits for any more."""
        record = choices[0].record
        record.completion_tokens += sum(choice.generated for choice in choices)
        self.counts.close(record, time.monotonic())


def _taken(answer: AnswerText, row: RowOutput, *, shows_stop: bool) -> Piece:
    if row.finish_reason == "stop" and row.token_ids and not shows_stop:
        before = len(row.token_ids) - 1
        piece = answer.push(row.token_ids[:before], row.logprobs[:before])
        return _joined(piece, answer.end_at(row.token_ids[before], row.logprobs[before:]))
    piece = answer.push(row.token_ids, row.logprobs)
    return _joined(piece, answer.end()) if row.finish_reason is not None else piece


def _joined(first: Piece, then: Piece) -> Piece:
    return Piece(first.text + then.text, (*first.scored, *then.scored), (*first.token_ids, *then.token_ids))
