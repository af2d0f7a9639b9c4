"""One request's way through the front: submit, tokens back to text, the end. Knows no HTTP.

Called by `api/routes/completions.py`. A `Submission` is made by submitting.py; `Generator` is the only place that talks to the engine.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from pagoda_daemon.answers.counting import ThoughtTokens
from pagoda_daemon.api.openai.reading import PLAIN, Reading
from pagoda_daemon.api.routes.ends import checked_reason
from pagoda_daemon.core.errors import BadRequest, DaemonError
from pagoda_daemon.core.messages import Life, RowOutput, Submit, TokenLogprob
from pagoda_daemon.core.sampling import Sampling
from pagoda_daemon.engine.client import EngineLink
from pagoda_daemon.engine.stream import Stream
from pagoda_daemon.metrics import Counts
from pagoda_daemon.metrics.records import Record
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
        """Of its tokens those that this engine gave; none while those of another one are read again."""
        return max(0, self.tokens - len(self.job.message.resumed))

    def _thought_tokens(self, row: RowOutput, reason: str | None) -> int:
        """A stop id is no part of the reasoning that it ends."""
        if self._thought is None:
            return 0
        self._thought.take(row.token_ids[:-1] if row.finish_reason == "stop" else row.token_ids)
        return self._thought.count if reason is None else self._thought.finish()


_Open = dict[str, dict[int, _Choice]]


@dataclass(frozen=True, eq=False)
class Answering:
    """The answers of one request: iterate for text as it comes, all that is new at a time, of each choice the last delta with a reason."""

    deltas: AsyncIterator[list[Delta]]
    records: Sequence[Record]

    def __aiter__(self) -> AsyncIterator[list[Delta]]:
        return self.deltas

    @contextmanager
    def written(self) -> Iterator[None]:
        """While they are written for the client: if that raises, the client gets an error, and all of them count as failed."""
        try:
            yield
        except Exception:
            for record in self.records:
                record.fail_all()
            raise


@dataclass(frozen=True)
class Generator:
    """Runs submissions on the engine and counts what comes back."""

    engine: EngineLink
    text: ModelText
    counts: Counts

    @asynccontextmanager
    async def answering(self, jobs: Sequence[Submission], arrived: float) -> AsyncIterator[Answering]:
        """Their answers; `arrived` is monotonic. They are counted when the block ends, because writing them may fail. If it is left early
        (client gone, cancelled), or one choice fails, the engine is told to stop all of them."""
        records: list[Record] = []
        try:
            async with aclosing(self._deltas(jobs, arrived, records)) as deltas:
                yield Answering(deltas, records)
        finally:
            for record in records:
                self.counts.close(record, record.ended or time.monotonic())

    async def _deltas(self, jobs: Sequence[Submission], arrived: float, records: list[Record]) -> AsyncGenerator[list[Delta]]:
        open_choices: _Open = {}
        try:
            stream = self._submit(jobs, open_choices, arrived, records)
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
                _cut(tuple(choices.values()))

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

    def _submit(self, jobs: Sequence[Submission], open_choices: _Open, arrived: float, records: list[Record]) -> Stream:
        stream = None
        for job in jobs:
            scores: list[TokenLogprob] = []
            sent = time.monotonic()  # before: the engine may have heard it, and count its queue, while this thread waits for its next turn
            if not job.closed:
                stream = self.engine.submit(job.message, stream) if stream else self.engine.submit(job.message)
            record = self.counts.open(job.message, arrived, sent)
            records.append(record)
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
            choice.record.ended = time.monotonic()
        elif not choice.ended:
            self.engine.abort_choice(request_id, choice.index)


def _cut(choices: Sequence[_Choice]) -> None:
    """Those of one prompt that nobody waits for any more."""
    record = choices[0].record
    record.completion_tokens += sum(choice.generated for choice in choices)
    record.ended = time.monotonic()


def _taken(answer: AnswerText, row: RowOutput, *, shows_stop: bool) -> Piece:
    if row.finish_reason == "stop" and row.token_ids and not shows_stop:
        before = len(row.token_ids) - 1
        piece = answer.push(row.token_ids[:before], row.logprobs[:before])
        return _joined(piece, answer.end_at(row.token_ids[before], row.logprobs[before:]))
    piece = answer.push(row.token_ids, row.logprobs)
    return _joined(piece, answer.end()) if row.finish_reason is not None else piece


def _joined(first: Piece, then: Piece) -> Piece:
    return Piece(first.text + then.text, (*first.scored, *then.scored), (*first.token_ids, *then.token_ids))
