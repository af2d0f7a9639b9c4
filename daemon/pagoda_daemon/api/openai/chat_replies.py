"""The chat dialect: an answer's events as `chat.completion` and its chunks. Pure; made by `routes.completions`.

A call's first fragment has its id and name. Later ones have a piece of the arguments each. Reasoning has two names: vLLM's own, and the
older one that many clients read.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType

from pagoda_daemon.answers.events import Arguments, Call, Content, Event, PlainText, Reasoning
from pagoda_daemon.api.openai.calls import FunctionCall, FunctionPart, ToolCall, ToolPart
from pagoda_daemon.api.openai.logprobs import ChatLogprobs, chat_logprobs
from pagoda_daemon.api.openai.replies import (
    Answer,
    ChatChoice,
    ChatChunk,
    ChatDelta,
    ChatMessage,
    ChatReply,
    ChunkChoice,
    EndedByDone,
    Head,
    Ids,
    TextEvents,
    Usage,
    event,
)
from pagoda_daemon.text.answer import Piece, Scored


class Chat(EndedByDone):
    """A parser for each choice. The role of every choice comes first, then its events, then its reason."""

    def __init__(self, head: Head) -> None:
        self._head = head
        self._envelope = head.envelope("chatcmpl")
        self._texts = TextEvents(lambda text, index: self._chunk(ChunkChoice(ChatDelta(content=text), None, index)))
        self._parsers = [head.reading.parser() for _ in range(head.choices)]
        # Tokens that wait for a chunk: an answer in which no text becomes certain has all of them here.
        self._scored: list[list[Scored]] = [[] for _ in range(head.choices)]
        self._ids: list[list[int]] = [[] for _ in range(head.choices)]
        self._called = [False] * head.choices
        self._is_text = head.plain and head.reading.parser is PlainText  # as most are: an event costs a quarter

    def opening(self) -> bytes:
        """Every prompt of a chat is the same one."""
        prompt: Ids | UnsetType = self._head.prompts[0] if self._head.prompts else UNSET
        choices = (ChunkChoice(ChatDelta("assistant", ""), index=index) for index in range(self._head.choices))
        return b"".join(self._chunk(choice, prompt) for choice in choices)

    def text(self, piece: Piece, index: int = 0) -> bytes:
        if self._is_text and piece.text:
            return self._texts.event(piece.text, index)
        self._scored[index] += piece.scored
        self._ids[index] += piece.token_ids
        return self._written(self._parsers[index].push(piece.text), index)

    def finish(self, reason: str, index: int = 0, _stop: str | None = None) -> bytes:
        rest = self._written(self._parsers[index].finish(), index)
        if self._scored[index] or self._ids[index]:
            rest += self._part(ChatDelta(content=""), index)
        return rest + self._chunk(ChunkChoice(ChatDelta(), self._reason(reason, called=self._called[index]), index))

    def usage(self, usage: Usage) -> bytes:
        return event(ChatChunk(**self._envelope, choices=(), usage=usage))

    def whole(self, answers: Sequence[Answer], usage: Usage) -> bytes:
        choices = tuple(self._choice(answer, index) for index, answer in enumerate(answers))
        logprobs, ids = answers[0].prompt_logprobs, answers[0].prompt_ids
        reply = ChatReply(**self._envelope, choices=choices, usage=usage, prompt_logprobs=logprobs, prompt_token_ids=ids)
        return msgspec.json.encode(reply)

    def _choice(self, answer: Answer, index: int) -> ChatChoice:
        parser = self._head.reading.parser()
        events = [*parser.push(answer.piece.text), *parser.finish()]
        calls = tuple(
            ToolCall(self._head.call_id(index, at), FunctionCall(name, arguments)) for at, (name, arguments) in enumerate(calls_of(events))
        )
        content, thought = joined(events, Content), joined(events, Reasoning)
        nothing = None if calls or thought or self._head.reading.must else ""
        message = ChatMessage(content or nothing, tool_calls=calls or UNSET, reasoning=thought or UNSET, reasoning_content=thought or UNSET)
        shown = self._logprobs(answer.piece.scored), self._head.token_ids(answer.piece.token_ids)
        return ChatChoice(message, self._reason(answer.reason, called=bool(calls)), index, *shown)

    def _reason(self, reason: str, *, called: bool) -> str:
        """A named tool was the client's choice, not the model's: OpenAI says "stop" then."""
        return "tool_calls" if reason == "stop" and called and not self._head.reading.named else reason

    def _written(self, events: Sequence[Event], index: int) -> bytes:
        return b"".join(self._event(one, index) for one in events)

    def _event(self, one: Event, index: int) -> bytes:
        if isinstance(one, Content) and self._head.plain:
            return self._texts.event(one.text, index)
        self._called[index] = self._called[index] or isinstance(one, Call)
        return self._part(self._fragment(one, index), index)

    def _part(self, delta: ChatDelta, index: int) -> bytes:
        """Log-probabilities and ids go with the first chunk that leaves after them."""
        scored, self._scored[index] = self._scored[index], []
        ids, self._ids[index] = self._ids[index], []
        return self._chunk(ChunkChoice(delta, None, index, self._logprobs(scored), self._head.token_ids(tuple(ids))))

    def _fragment(self, one: Event, index: int) -> ChatDelta:
        if isinstance(one, Content):
            return ChatDelta(content=one.text)
        if isinstance(one, Reasoning):
            return ChatDelta(reasoning=one.text, reasoning_content=one.text)
        if isinstance(one, Call):
            part = ToolPart(one.number, FunctionPart("", one.name), self._head.call_id(index, one.number), "function")
            return ChatDelta(tool_calls=(part,))
        return ChatDelta(tool_calls=(ToolPart(one.number, FunctionPart(one.text)),))

    def _logprobs(self, scored: Sequence[Scored]) -> ChatLogprobs | None:
        return None if self._head.spell is None else chat_logprobs(scored, self._head.spell)

    def _chunk(self, choice: ChunkChoice, prompt: Ids | UnsetType = UNSET) -> bytes:
        return event(ChatChunk(**self._envelope, choices=(choice,), usage=self._head.usage(), prompt_token_ids=prompt))


def joined(events: Sequence[Event], kind: type[Content | Reasoning]) -> str:
    """Returns the text of one kind of event."""
    return "".join(one.text for one in events if isinstance(one, kind))


def calls_of(events: Sequence[Event]) -> list[tuple[str, str]]:
    """Returns name and arguments of each call, in order."""
    names = [one.name for one in events if isinstance(one, Call)]
    texts: list[list[str]] = [[] for _ in names]
    for one in events:
        if isinstance(one, Arguments):
            texts[one.number].append(one.text)
    return list(zip(names, map("".join, texts), strict=True))
