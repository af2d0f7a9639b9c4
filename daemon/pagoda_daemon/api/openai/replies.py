"""What a client reads: the objects of OpenAI's two completion endpoints, whole and as SSE events. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, Protocol

import msgspec
from msgspec import UNSET, UnsetType

from pagoda_daemon.api.openai.calls import ToolCall, ToolPart
from pagoda_daemon.api.openai.errors import body_of
from pagoda_daemon.api.openai.logprobs import ChatLogprobs, PromptLogprobs, Spell, TextLogprobs, text_logprobs
from pagoda_daemon.api.openai.reading import PLAIN, Reading
from pagoda_daemon.api.openai.trace import Timing
from pagoda_daemon.core.errors import DaemonError
from pagoda_daemon.text.answer import Piece

SSE_HEADERS: Final = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)
PING: Final = b": ping\n\n"
DONE: Final = b"data: [DONE]\n\n"
Ids = tuple[int, ...]  # of tokens
_MARK: Final = "\0"
_ENCODED_MARK: Final = msgspec.json.encode(_MARK)


def event(payload: msgspec.Struct) -> bytes:
    """One SSE frame."""
    return b"data: " + msgspec.json.encode(payload) + b"\n\n"


class PromptDetails(msgspec.Struct, frozen=True):
    """Of the prompt's tokens: how many were known already, from an earlier request with the same beginning."""

    cached_tokens: int = 0


class CompletionDetails(msgspec.Struct, frozen=True):
    """Of the answer's tokens."""

    reasoning_tokens: int = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0


class Usage(msgspec.Struct, frozen=True):
    """Tokens of one request: each prompt once, and all answers. `timing` where `include_timing` asked for it."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails = PromptDetails()
    completion_tokens_details: CompletionDetails = CompletionDetails()
    timing: Timing | UnsetType = UNSET


class ChatDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a chunk adds to a message."""

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: tuple[ToolPart, ...] | UnsetType = UNSET


class ChatMessage(msgspec.Struct, frozen=True):
    """The answer as a message."""

    content: str | None
    role: str = "assistant"
    refusal: None = None
    tool_calls: tuple[ToolCall, ...] | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET


class ChatChoice(msgspec.Struct, frozen=True):
    """One answer."""

    message: ChatMessage
    finish_reason: str
    index: int = 0
    logprobs: ChatLogprobs | None = None
    token_ids: Ids | UnsetType = UNSET


class ChunkChoice(msgspec.Struct, frozen=True):
    """A part of one answer."""

    delta: ChatDelta
    finish_reason: str | None = None
    index: int = 0
    logprobs: ChatLogprobs | None = None
    token_ids: Ids | UnsetType = UNSET


class TextChoice(msgspec.Struct, frozen=True):
    """One answer, or a part of it."""

    text: str
    finish_reason: str | None = None
    index: int = 0
    logprobs: TextLogprobs | None = None
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    prompt_token_ids: Ids | UnsetType = UNSET
    token_ids: Ids | UnsetType = UNSET


class _Envelope(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    created: int
    model: str
    system_fingerprint: str


class ChatReply(_Envelope, frozen=True, kw_only=True):
    """POST /v1/chat/completions."""

    choices: tuple[ChatChoice, ...]
    usage: Usage
    object: Literal["chat.completion"] = "chat.completion"
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    prompt_token_ids: Ids | UnsetType = UNSET


class ChatChunk(_Envelope, frozen=True, kw_only=True):
    """One event of a streamed chat; `usage` is absent unless asked for."""

    choices: tuple[ChunkChoice, ...]
    usage: Usage | UnsetType | None = UNSET
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    prompt_token_ids: Ids | UnsetType = UNSET


class TextReply(_Envelope, frozen=True, kw_only=True):
    """POST /v1/completions, whole or as one event; in events `usage` is absent unless asked for."""

    choices: tuple[TextChoice, ...]
    usage: Usage | UnsetType | None = UNSET
    object: Literal["text_completion"] = "text_completion"


def _nothing() -> Usage:
    return Usage(0, 0, 0)


@dataclass(frozen=True)
class Head:
    """What all chunks of an answer share. `spell` is there where log-probabilities are wanted. `prompts`: the prompt's ids of each choice,
    if the request asks for ids."""

    request_id: str
    created: int
    model: str
    include_usage: bool
    spell: Spell | None = None
    fingerprint: str = ""
    choices: int = 1
    so_far: Callable[[], Usage] | None = None  # the usage that every chunk has
    reading: Reading = PLAIN
    prompts: tuple[Ids, ...] = ()
    used: Callable[[], Usage] = _nothing  # so far

    @property
    def plain(self) -> bool:
        """Chunks differ in their text alone."""
        return self.spell is None and self.so_far is None and not self.prompts

    def token_ids(self, ids: Ids) -> Ids | UnsetType:
        """The ids of an answer or of a part of it, if they are asked for."""
        return ids if self.prompts else UNSET

    def usage(self) -> Usage | UnsetType | None:
        """Of a chunk that is not the last one."""
        if self.so_far is not None:
            return self.so_far()
        return None if self.include_usage else UNSET

    def call_id(self, choice: int, number: int) -> str:
        return self.reading.call_id(self.request_id, choice, number)

    def envelope(self, prefix: str) -> dict[str, Any]:
        return {
            "id": f"{prefix}-{self.request_id}",
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }


class Answer(NamedTuple):
    """One choice at once; `prompt_logprobs` where they were asked for by that name, the prompt's ids where ids were. `stop` is the
    stop string that ended it."""

    piece: Piece
    reason: str
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    prompt_ids: Ids | UnsetType = UNSET
    stop: str | None = None


class TextEvents:
    """Events of which one string alone differs: what stands before and behind it is written once (2 us), then only the string is (0.3).
    `write` gives the whole event, and what comes from here is equal to it byte for byte."""

    def __init__(self, write: Callable[[str, int], bytes]) -> None:
        self._write = write
        self._around: dict[int, tuple[bytes, bytes]] = {}

    def event(self, text: str, index: int) -> bytes:
        around = self._around.get(index)
        if around is None:
            # Nothing behind an event's text comes from outside, so the last mark is the text's own.
            before, _, behind = self._write(_MARK, index).rpartition(_ENCODED_MARK)
            around = self._around[index] = before, behind
        return around[0] + msgspec.json.encode(text) + around[1]


class Dialect(Protocol):
    """How an endpoint writes its answers. `index` is the choice's, `stop` the stop string that ended it; `ping` fills silence."""

    @property
    def ping(self) -> bytes: ...
    def opening(self) -> bytes: ...
    def text(self, piece: Piece, index: int = 0) -> bytes: ...
    def finish(self, reason: str, index: int = 0, stop: str | None = None) -> bytes: ...
    def end(self, usage: Usage) -> bytes: ...
    def failed(self, error: DaemonError) -> bytes: ...
    def whole(self, answers: Sequence[Answer], usage: Usage) -> bytes: ...


class EndedByDone:
    """How the streams of both completions end: with the usage, if it was asked for, or an error, and always with [DONE]."""

    ping = PING
    _head: Head

    def usage(self, usage: Usage) -> bytes:
        raise NotImplementedError

    def end(self, usage: Usage) -> bytes:
        return (self.usage(usage) if self._head.include_usage else b"") + DONE

    def failed(self, error: DaemonError) -> bytes:
        return event(body_of(error)) + DONE


class Completion(EndedByDone):
    """`text_completion`, whole and in chunks of the same shape."""

    def __init__(self, head: Head) -> None:
        self._head = head
        self._envelope = head.envelope("cmpl")
        self._texts = TextEvents(lambda text, index: self._chunk(TextChoice(text, None, index)))
        self._prompts = dict(enumerate(head.prompts))  # that were not sent yet

    def opening(self) -> bytes:
        return b""

    def text(self, piece: Piece, index: int = 0) -> bytes:
        if self._head.plain:
            return self._texts.event(piece.text, index)
        return self._chunk(self._choice(piece, None, index, prompt_ids=self._prompts.pop(index, UNSET)))

    def finish(self, reason: str, index: int = 0, _stop: str | None = None) -> bytes:
        return self._chunk(TextChoice("", reason, index))

    def usage(self, usage: Usage) -> bytes:
        return event(TextReply(**self._envelope, choices=(), usage=usage))

    def whole(self, answers: Sequence[Answer], usage: Usage) -> bytes:
        choices = tuple(self._choice(*answer[:2], index, answer.prompt_logprobs, answer.prompt_ids) for index, answer in enumerate(answers))
        return msgspec.json.encode(TextReply(**self._envelope, choices=choices, usage=usage))

    def _choice(
        self,
        piece: Piece,
        reason: str | None,
        index: int,
        prompt_logprobs: PromptLogprobs | UnsetType = UNSET,
        prompt_ids: Ids | UnsetType = UNSET,
    ) -> TextChoice:
        said = (piece.text, reason, index, self._logprobs(piece), prompt_logprobs)
        return TextChoice(*said, prompt_ids, self._head.token_ids(piece.token_ids))

    def _logprobs(self, piece: Piece) -> TextLogprobs | None:
        return None if self._head.spell is None else text_logprobs(piece.scored, self._head.spell)

    def _chunk(self, choice: TextChoice) -> bytes:
        return event(TextReply(**self._envelope, choices=(choice,), usage=self._head.usage()))
