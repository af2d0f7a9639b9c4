"""The dialect of responses: an answer's events as items, whole and as the events of a stream. Pure; made by `api/routes/responses.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import count

import msgspec
from msgspec import UNSET, structs

from pagoda_daemon.answers.events import Arguments, Call, Content, Event, Reasoning
from pagoda_daemon.api.openai.errors import body_of
from pagoda_daemon.api.openai.logprobs import ChatToken, chat_logprobs
from pagoda_daemon.api.openai.replies import PING, Answer, Head, Usage
from pagoda_daemon.api.openai.structured import TextFormat
from pagoda_daemon.api.responses.events import (
    ResponseCompleted,
    ResponseCreated,
    ResponseEvent,
    ResponseFailed,
    ResponseIncomplete,
    ResponseInProgress,
    StreamError,
    framed,
)
from pagoda_daemon.api.responses.names import refusal
from pagoda_daemon.api.responses.objects import (
    FailureCode,
    IncompleteDetails,
    InputDetails,
    OutputDetails,
    Response,
    ResponseFailure,
    ResponseUsage,
    Settings,
    Status,
)
from pagoda_daemon.api.responses.requests import ChosenTools, ReasoningSettings, ResponsesRequest, TextSettings
from pagoda_daemon.api.responses.writer import Writer
from pagoda_daemon.core.errors import BadRequest, DaemonError, Overloaded
from pagoda_daemon.core.sampling import Sampling
from pagoda_daemon.text.answer import Piece, Scored


@dataclass(frozen=True)
class Terms:
    """What a response is written from beside its answer. `clock` gives Unix seconds."""

    head: Head
    asked: ResponsesRequest
    sampling: Sampling
    clock: Callable[[], float]


class Responses:
    """The state of one answer."""

    ping = PING

    def __init__(self, terms: Terms) -> None:
        self._head = terms.head
        self._terms = terms
        self._parser = terms.head.reading.parser()
        self._number = count().__next__
        self._writer = Writer(terms.head.request_id, self._number)
        self._waiting: list[Piece] = []  # tokens with log-probabilities whose text is not yet read as text, thinking or a call
        self._at = 0  # characters of the answer that were read
        self._reason = "stop"
        self._opened = False
        begun = structs.asdict(settings_of(terms.asked, terms.sampling))
        self._begun = Response(**begun, id=f"resp_{terms.head.request_id}", created_at=terms.head.created, status="in_progress")

    def opening(self) -> bytes:
        self._opened = True
        created = ResponseCreated(sequence_number=self._number(), response=self._begun)
        return framed(created) + framed(ResponseInProgress(sequence_number=self._number(), response=self._begun))

    def text(self, piece: Piece, index: int = 0) -> bytes:
        del index  # a response is one answer
        if piece.scored or self._waiting:
            return _frames(self._read(piece))
        self._at += len(piece.text)
        return b"".join(map(self._sent, self._parser.push(piece.text)))

    def _sent(self, one: Event) -> bytes:
        """As it is sent. More text of a message is by far the most frequent event."""
        if isinstance(one, Content) and (saying := self._writer.saying) is not None:
            return saying.framed(one.text)
        return _frames(self._event(one))

    def finish(self, reason: str, index: int = 0, stop: str | None = None) -> bytes:
        del index, stop  # a response has no stop strings
        return _frames(self._finished(reason))

    def end(self, usage: Usage) -> bytes:
        """The last event of an answer that is complete, or was cut at its limit."""
        kind = ResponseIncomplete if self._reason == "length" else ResponseCompleted
        response = self._ended(usage)
        return framed(kind(sequence_number=self._number(), response=response))

    def failed(self, error: DaemonError) -> bytes:
        """The last two events of an answer that failed: the first ends the response, the second is what official clients raise. A stream
        that began with a comment alone gets its first events too."""
        opening = b"" if self._opened else self.opening()
        body = body_of(refusal(error) if isinstance(error, BadRequest) else error).error
        failure = ResponseFailure(_failure_code(error), body.message)
        response = structs.replace(self._begun, status="failed", output=self._writer.output(), error=failure)
        failed = ResponseFailed(sequence_number=self._number(), response=response)
        raised = StreamError(sequence_number=self._number(), message=body.message, code=body.code, param=body.param, error=body)
        return opening + framed(failed) + framed(raised)

    def whole(self, answers: Sequence[Answer], usage: Usage) -> bytes:
        """Returns the answer without a stream. Used instead of the methods above."""
        (answer,) = answers
        self._read(answer.piece)
        self._finished(answer.reason)
        return msgspec.json.encode(self._ended(usage))

    def _read(self, piece: Piece) -> list[ResponseEvent]:
        """Token by token if they have log-probabilities, so that each is where its text is, in whatever pieces the text came."""
        events: list[ResponseEvent] = []
        for part in _apart(piece, self._at):
            self._waiting += (part,) if part.scored else ()
            events += self._written(self._parser.push(part.text))
        self._at += len(piece.text)
        return events

    def _finished(self, reason: str) -> list[ResponseEvent]:
        """An answer without anything is an empty message. The token that ends a message shows no text."""
        self._reason = reason
        events = self._written(self._parser.finish())
        empty = not self._writer.begun and not self._head.reading.must
        if empty or (self._waiting and self._writer.saying):
            self._waiting = [part for part in self._waiting if not part.text]
            events += self._writer.says("", self._tokens(""))
        return events + self._writer.end(self._status)

    @property
    def _status(self) -> Status:
        return "incomplete" if self._reason == "length" else "completed"

    def _written(self, events: Sequence[Event]) -> list[ResponseEvent]:
        """Log-probabilities belong to text: those of thinking and calls are in no response."""
        if events and not any(isinstance(one, Content) for one in events):
            self._waiting.clear()
        return [made for one in (_merged(events) if self._waiting else events) for made in self._event(one)]

    def _event(self, one: Event) -> list[ResponseEvent]:
        match one:
            case Content(text):
                return self._writer.says(text, self._tokens(text))
            case Reasoning(text):
                return self._writer.thinks(text)
            case Call(number, name):
                return self._writer.calls(self._head.call_id(0, number), name)
            case Arguments(_, text):
                return self._writer.arguments(text)

    def _tokens(self, text: str) -> Sequence[ChatToken]:
        """The last ones that came, as many as `text` is made of: marks and blanks before it were read as something else."""
        if not self._waiting or self._head.spell is None:
            return ()
        scored = _last(self._waiting, len(text))
        self._waiting.clear()
        return chat_logprobs(scored, self._head.spell).content

    def _ended(self, usage: Usage) -> Response:
        cut = IncompleteDetails("max_output_tokens") if self._status == "incomplete" else None
        completed = UNSET if cut is not None else int(self._terms.clock())
        done = structs.replace(self._begun, status=self._status, output=self._writer.output(), usage=used(usage))
        return structs.replace(done, incomplete_details=cut, completed_at=completed)


def _apart(piece: Piece, at: int) -> Iterable[Piece]:
    """One token each; the text of `piece` begins at character `at`."""
    if not piece.scored:
        return (piece,)
    ends = [*(scored.offset - at for scored in piece.scored[1:]), len(piece.text)]
    begins = [0, *ends]
    return [Piece(piece.text[begin:end], (scored,)) for begin, end, scored in zip(begins, ends, piece.scored, strict=False)]


def _merged(events: Sequence[Event]) -> list[Event]:
    """Text that became certain at once is one piece, whose tokens came together."""
    found: list[Event] = []
    for one in events:
        if isinstance(one, Content) and found and isinstance(last := found[-1], Content):
            found[-1] = Content(last.text + one.text)
        else:
            found.append(one)
    return found


def _last(waiting: Sequence[Piece], length: int) -> list[Scored]:
    """Tokens of the last `length` characters, with those before them that are a character's beginning and show nothing yet."""
    begin, found = len(waiting), 0
    while begin and (found < length or not waiting[begin - 1].text):
        begin -= 1
        found += len(waiting[begin].text)
    return [scored for part in waiting[begin:] for scored in part.scored]


def _frames(events: Iterable[ResponseEvent]) -> bytes:
    return b"".join(map(framed, events))


def used(usage: Usage) -> ResponseUsage:
    """The same tokens, by this API's names."""
    details = InputDetails(usage.prompt_tokens_details.cached_tokens)
    thought = OutputDetails(usage.completion_tokens_details.reasoning_tokens)
    return ResponseUsage(usage.prompt_tokens, usage.completion_tokens, usage.total_tokens, details, thought)


def settings_of(asked: ResponsesRequest, sampling: Sampling) -> Settings:
    """What a response repeats, with defaults where the request is silent."""
    text = asked.text or TextSettings()
    choice = asked.tool_choice or "auto"
    if isinstance(choice, ChosenTools) and choice.type == "allowed_tools":
        choice = structs.replace(choice, mode=choice.mode or "auto")
    return Settings(
        model=asked.model,
        instructions=asked.instructions,
        tools=asked.tools or [],
        tool_choice=choice,
        parallel_tool_calls=asked.parallel_tool_calls is not False,
        text=TextSettings(text.format or TextFormat(), text.verbosity or "medium"),
        reasoning=asked.reasoning or ReasoningSettings(),
        max_output_tokens=asked.max_output_tokens,
        max_tool_calls=asked.max_tool_calls,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_logprobs=asked.top_logprobs or 0,
        metadata=asked.metadata or {},
        user=asked.user,
        prompt_cache_key=asked.prompt_cache_key,
        safety_identifier=asked.safety_identifier,
    )


def _failure_code(error: DaemonError) -> FailureCode:
    """OpenAI has but these for a response; the error event has our own."""
    if isinstance(error, BadRequest):
        return "invalid_prompt"
    return "rate_limit_exceeded" if isinstance(error, Overloaded) else "server_error"
