"""How an answer is written for a client of the Messages API: whole, and as the events of a stream. Pure; made for one answer.

It reads the events of the answer's parser, so it knows nothing of how a model writes thinking and calls.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
import pydantic_core

from pagoda_daemon.answers.events import Arguments, Call, Content, Event, Reasoning
from pagoda_daemon.api.anthropic.errors import body_of
from pagoda_daemon.api.anthropic.replies import (
    PING,
    Block,
    BlockDelta,
    BlockStart,
    BlockStop,
    Ending,
    InputJsonDelta,
    MessageDelta,
    MessageOutputDetails,
    MessageReply,
    MessageStart,
    MessageStop,
    MessageUsage,
    SignatureDelta,
    StopReason,
    TextBlock,
    TextDelta,
    ThinkingBlock,
    ThinkingDelta,
    ToolUseBlock,
    event,
)
from pagoda_daemon.api.openai.replies import Answer, Head, TextEvents, Usage
from pagoda_daemon.core.errors import DaemonError, RequestFailed, shown
from pagoda_daemon.text.answer import Piece

_OPENAI_CALL: Final = "call_"
_EMPTY: Final = msgspec.Raw(b"{}")


class Messages:
    """The state of one answer: its parser, which block of its stream is open, and how many there were. `cut_by_context`: the answer may
    have fewer tokens than the client allows, because the context holds no more. `hides_thinking`: thinking blocks are empty."""

    ping = PING

    def __init__(self, head: Head, *, cut_by_context: bool = False, hides_thinking: bool = False) -> None:
        self._head = head
        self._parser = head.reading.parser()
        self._cut_by_context = cut_by_context
        self._hides_thinking = hides_thinking
        self._begun = self._called = False
        self._index = -1
        self._open: type[Block] | None = None
        self._last: tuple[str, str | None] = ("stop", None)
        self._name, self._input = "", list[str]()  # of the call under way
        self._texts = TextEvents(lambda text, index: event(BlockDelta(index, TextDelta(text))))

    def opening(self) -> bytes:
        """The first event has the usage, which is known with the first token: it is written with the first text, or the end."""
        return b""

    def text(self, piece: Piece, index: int = 0) -> bytes:
        del index  # a message is one answer
        return self._start() + self._all(self._parser.push(piece.text))

    def finish(self, reason: str, index: int = 0, stop: str | None = None) -> bytes:
        del index
        self._last = reason, stop
        rest = self._start() + self._all(self._parser.finish())
        return rest + self._closed(cut=_is_cut(reason, stop))

    def end(self, usage: Usage) -> bytes:
        """Returns the last two events of an answer that is complete, or was cut at its limit."""
        return event(MessageDelta(self._ending(*self._last), used(usage))) + event(MessageStop())

    def failed(self, error: DaemonError) -> bytes:
        """Returns the last event of an answer that failed."""
        return event(body_of(error, self._head.request_id))

    def whole(self, answers: Sequence[Answer], usage: Usage) -> bytes:
        """Returns the answer without a stream. Used instead of the methods above."""
        (answer,) = answers
        groups = _grouped((*self._parser.push(answer.piece.text), *self._parser.finish()))
        self._called = any(isinstance(group[0], Call) for group in groups)
        cut = _is_cut(answer.reason, answer.stop)
        blocks = tuple(self._block(group, cut=cut and group is groups[-1]) for group in groups)
        return msgspec.json.encode(self._message(blocks, self._ending(answer.reason, answer.stop), usage))

    def _start(self) -> bytes:
        if self._begun:
            return b""
        self._begun = True
        return event(MessageStart(self._message((), None, self._head.used())))

    def _message(self, blocks: tuple[Block, ...], ending: Ending | None, usage: Usage) -> MessageReply:
        reason, stop = (None, None) if ending is None else (ending.stop_reason, ending.stop_sequence)
        return MessageReply(f"msg_{self._head.request_id}", self._head.model, blocks, reason, stop, used(usage))

    def _ending(self, reason: str, stop: str | None) -> Ending:
        if reason == "length":
            return Ending("model_context_window_exceeded" if self._cut_by_context else "max_tokens", None)
        said: StopReason = "stop_sequence" if stop is not None else "tool_use" if self._called else "end_turn"
        return Ending(said, stop)

    def _all(self, events: Iterable[Event]) -> bytes:
        return b"".join(self._written(one) for one in events)

    def _written(self, one: Event) -> bytes:
        if isinstance(one, Call):
            closed, self._called = self._closed(), True
            self._name, self._input = one.name, []
            return closed + self._block_start(ToolUseBlock(self._id(one), one.name, _EMPTY)) + self._delta(InputJsonDelta(""))
        if isinstance(one, Arguments):
            self._input.append(one.text)
            return self._delta(InputJsonDelta(one.text))
        if isinstance(one, Content):
            begin = b"" if self._open is TextBlock else self._closed() + self._block_start(TextBlock(""))
            return begin + self._texts.event(one.text, self._index)
        begin = b"" if self._open is ThinkingBlock else self._closed() + self._block_start(ThinkingBlock(""))
        return begin if self._hides_thinking else begin + self._delta(ThinkingDelta(one.text))

    def _id(self, call: Call) -> str:
        """Anthropic's prefix instead of OpenAI's. Where a template insists on a form, the id has none."""
        found = self._head.call_id(0, call.number)
        return f"toolu_{found.removeprefix(_OPENAI_CALL)}" if found.startswith(_OPENAI_CALL) else found

    def _delta(self, delta: ThinkingDelta | SignatureDelta | InputJsonDelta) -> bytes:
        return event(BlockDelta(self._index, delta))

    def _block_start(self, block: Block) -> bytes:
        self._index += 1
        self._open = type(block)
        return event(BlockStart(self._index, block))

    def _closed(self, *, cut: bool = False) -> bytes:
        """Ends the block that is open. RequestFailed if it is a call that the model did not write to its end: it must not be run."""
        if self._open is None:
            return b""
        if self._open is ToolUseBlock:
            tool_input(self._name, "".join(self._input), cut=cut)
        signed = self._delta(SignatureDelta()) if self._open is ThinkingBlock else b""
        self._open = None
        return signed + event(BlockStop(self._index))

    def _block(self, group: Sequence[Event], *, cut: bool) -> Block:
        first = group[0]
        text = "".join(one.text for one in group if not isinstance(one, Call))
        if isinstance(first, Call):
            return ToolUseBlock(self._id(first), first.name, tool_input(first.name, text, cut=cut))
        if isinstance(first, Reasoning):
            return ThinkingBlock("" if self._hides_thinking else text)
        return TextBlock(text)


def _is_cut(reason: str, stop: str | None) -> bool:
    """Whether the answer ended before the model ended it."""
    return reason == "length" or stop is not None


def used(usage: Usage) -> MessageUsage:
    """Returns the usage as Anthropic counts it."""
    cached = usage.prompt_tokens_details.cached_tokens
    thought = MessageOutputDetails(usage.completion_tokens_details.reasoning_tokens)
    return MessageUsage(usage.prompt_tokens - cached, usage.completion_tokens, cached, thought)


def tool_input(name: str, text: str, *, cut: bool) -> msgspec.Raw:
    """Returns a call's arguments as an object. `cut`: the answer ended within them, so they may be incomplete; what is there is taken as
    Anthropic's own client takes it from a stream."""
    if not text.strip():
        return _EMPTY
    try:
        found = pydantic_core.from_json(text, allow_inf_nan=False, allow_partial=cut)
    except ValueError as error:
        raise RequestFailed(f"the model called {shown(name)} with arguments that are not JSON: {error}") from error
    if not isinstance(found, dict):
        raise RequestFailed(f"the model called {shown(name)} with arguments that are not a JSON object")
    return msgspec.Raw(json.dumps(found).encode())


def _grouped(events: Iterable[Event]) -> list[list[Event]]:
    """The events of each block."""
    found: list[list[Event]] = []
    for one in events:
        if isinstance(one, Call) or not found or _kind(one) is not _kind(found[-1][0]):
            found.append([])
        found[-1].append(one)
    return found


def _kind(one: Event) -> type[Event]:
    return Call if isinstance(one, Arguments) else type(one)
