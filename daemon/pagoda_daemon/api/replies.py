"""What a client reads: the objects of OpenAI's two completion endpoints, whole and as SSE events. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, Protocol

import msgspec
from msgspec import UNSET, UnsetType

from pagoda_daemon.api.answer import Piece
from pagoda_daemon.api.logprobs import ChatLogprobs, PromptLogprobs, Spell, TextLogprobs, chat_logprobs, text_logprobs

SSE_HEADERS: Final = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)
DONE: Final = b"data: [DONE]\n\n"


def event(payload: msgspec.Struct) -> bytes:
    """One SSE frame."""
    return b"data: " + msgspec.json.encode(payload) + b"\n\n"


class Usage(msgspec.Struct, frozen=True):
    """Tokens of one request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class _Delta(msgspec.Struct, frozen=True, omit_defaults=True):
    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET


class _ChatMessage(msgspec.Struct, frozen=True):
    content: str
    role: str = "assistant"
    refusal: None = None


class _ChatChoice(msgspec.Struct, frozen=True):
    message: _ChatMessage
    finish_reason: str
    index: int = 0
    logprobs: ChatLogprobs | None = None


class _ChunkChoice(msgspec.Struct, frozen=True):
    delta: _Delta
    finish_reason: str | None = None
    index: int = 0
    logprobs: ChatLogprobs | None = None


class _TextChoice(msgspec.Struct, frozen=True):
    text: str
    finish_reason: str | None = None
    index: int = 0
    logprobs: TextLogprobs | None = None
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


_Choice = _ChatChoice | _ChunkChoice | _TextChoice


class Reply(msgspec.Struct, frozen=True):
    """Envelope of both endpoints, whole or in chunks; `usage` is absent unless asked for."""

    id: str
    object: Literal["chat.completion", "chat.completion.chunk", "text_completion"]
    created: int
    model: str
    choices: tuple[_Choice, ...]
    usage: Usage | UnsetType | None = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


@dataclass(frozen=True)
class Head:
    """What all chunks of an answer share. `spell` is there where log-probabilities are wanted."""

    request_id: str
    created: int
    model: str
    include_usage: bool
    spell: Spell | None = None


class Whole(NamedTuple):
    """An answer at once; `prompt_logprobs` where they were asked for by that name."""

    piece: Piece
    reason: str
    usage: Usage
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class Dialect(Protocol):
    """How an endpoint writes its answer."""

    def opening(self) -> bytes: ...
    def text(self, piece: Piece) -> bytes: ...
    def finish(self, reason: str) -> bytes: ...
    def usage(self, usage: Usage) -> bytes: ...
    def whole(self, answer: Whole) -> bytes: ...


class Chat:
    """`chat.completion` and its chunks: the role first, then text, then the reason."""

    def __init__(self, head: Head) -> None:
        self._head = head

    def opening(self) -> bytes:
        return self._chunk(_ChunkChoice(_Delta("assistant", "")))

    def text(self, piece: Piece) -> bytes:
        return self._chunk(_ChunkChoice(_Delta(content=piece.text), logprobs=self._logprobs(piece)))

    def finish(self, reason: str) -> bytes:
        return self._chunk(_ChunkChoice(_Delta(), reason))

    def usage(self, usage: Usage) -> bytes:
        return event(Reply(self._id, "chat.completion.chunk", self._head.created, self._head.model, (), usage))

    def whole(self, answer: Whole) -> bytes:
        choice = _ChatChoice(_ChatMessage(answer.piece.text), answer.reason, logprobs=self._logprobs(answer.piece))
        shared = (self._head.created, self._head.model, (choice,), answer.usage, answer.prompt_logprobs)
        return msgspec.json.encode(Reply(self._id, "chat.completion", *shared))

    def _logprobs(self, piece: Piece) -> ChatLogprobs | None:
        return None if self._head.spell is None else chat_logprobs(piece.scored, self._head.spell)

    @property
    def _id(self) -> str:
        return f"chatcmpl-{self._head.request_id}"

    def _chunk(self, choice: _ChunkChoice) -> bytes:
        usage = None if self._head.include_usage else UNSET
        return event(Reply(self._id, "chat.completion.chunk", self._head.created, self._head.model, (choice,), usage))


class Completion:
    """`text_completion`, whole and in chunks of the same shape."""

    def __init__(self, head: Head) -> None:
        self._head = head

    def opening(self) -> bytes:
        return b""

    def text(self, piece: Piece) -> bytes:
        return self._chunk(_TextChoice(piece.text, logprobs=self._logprobs(piece)))

    def finish(self, reason: str) -> bytes:
        return self._chunk(_TextChoice("", reason))

    def usage(self, usage: Usage) -> bytes:
        return event(self._reply((), usage))

    def whole(self, answer: Whole) -> bytes:
        piece, reason, usage, prompt = answer
        choice = _TextChoice(piece.text, reason, logprobs=self._logprobs(piece), prompt_logprobs=prompt)
        return msgspec.json.encode(self._reply((choice,), usage))

    def _logprobs(self, piece: Piece) -> TextLogprobs | None:
        return None if self._head.spell is None else text_logprobs(piece.scored, self._head.spell)

    def _chunk(self, choice: _TextChoice) -> bytes:
        return event(self._reply((choice,), None if self._head.include_usage else UNSET))

    def _reply(self, choices: tuple[_TextChoice, ...], usage: Usage | UnsetType | None) -> Reply:
        return Reply(f"cmpl-{self._head.request_id}", "text_completion", self._head.created, self._head.model, choices, usage)


class ModelCard(msgspec.Struct, frozen=True):
    """One entry of /v1/models."""

    id: str
    created: int
    root: str
    max_model_len: int | None
    object: Literal["model"] = "model"
    owned_by: str = "pagoda"
    parent: None = None


class ModelList(msgspec.Struct, frozen=True):
    """/v1/models."""

    data: tuple[ModelCard, ...]
    object: Literal["list"] = "list"
