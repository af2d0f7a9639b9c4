"""The chat dialect where tools may be used: text goes through a parser first, and comes out as content and as OpenAI's fragments of calls.

Made by `routes.completions` instead of `replies.Chat`. A call's first fragment has its id and name, later ones a piece of the arguments
each.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET

from pagoda_daemon.api.openai.calls import FunctionCall, FunctionPart, ToolCall, ToolPart
from pagoda_daemon.api.openai.replies import Answer, Chat, ChatChoice, ChatDelta, ChatMessage, Head
from pagoda_daemon.api.openai.tool_formats import ToolFormat
from pagoda_daemon.api.openai.tool_parser import Call, Content, Event, Shape, ToolParser
from pagoda_daemon.api.openai.tools import Toolbox
from pagoda_daemon.text.answer import Piece, Scored


class ToolChat(Chat):
    """A parser for each choice; like `Chat` where the model calls nothing. `formatted`: what is no call has a format."""

    def __init__(self, head: Head, form: ToolFormat, box: Toolbox, *, formatted: bool = False) -> None:
        super().__init__(head)
        self._form = form
        self._named = box.named
        self._must = box.must
        shape: Shape = "calls" if box.must else "either" if formatted else "free"
        self._parsers = [ToolParser(form, 1 if box.single else None, shape) for _ in range(head.choices)]
        self._scored: list[tuple[Scored, ...]] = [()] * head.choices

    def text(self, piece: Piece, index: int = 0) -> bytes:
        self._scored[index] += piece.scored
        return self._written(self._parsers[index].push(piece.text), index)

    def finish(self, reason: str, index: int = 0) -> bytes:
        rest = self._written(self._parsers[index].finish(), index)
        if self._scored[index]:
            rest += self._part(ChatDelta(content=""), index)
        return rest + super().finish(self._reason(reason, index), index)

    def _choice(self, answer: Answer, index: int) -> ChatChoice:
        parser = self._parsers[index]
        events = [*parser.push(answer.piece.text), *parser.finish()]
        content = "".join(event.text for event in events if isinstance(event, Content))
        calls = self._calls(events, index)
        message = ChatMessage(content or (None if calls or self._must else ""), tool_calls=calls or UNSET)
        return ChatChoice(message, self._reason(answer.reason, index), index, self._logprobs(answer.piece))

    def _reason(self, reason: str, index: int) -> str:
        """A named tool was the client's choice, not the model's: OpenAI says "stop" then."""
        return "tool_calls" if reason == "stop" and self._parsers[index].calls and not self._named else reason

    def _written(self, events: Sequence[Event], index: int) -> bytes:
        return b"".join(self._part(self._fragment(event, index), index) for event in events)

    def _part(self, delta: ChatDelta, index: int) -> bytes:
        """Log-probabilities go with the first chunk that leaves after them."""
        scored, self._scored[index] = self._scored[index], ()
        return self._delta(delta, Piece("", scored), index)

    def _fragment(self, event: Event, index: int) -> ChatDelta:
        if isinstance(event, Content):
            return ChatDelta(content=event.text)
        if isinstance(event, Call):
            return ChatDelta(tool_calls=(ToolPart(event.number, FunctionPart("", event.name), self._id(index, event.number), "function"),))
        return ChatDelta(tool_calls=(ToolPart(event.number, FunctionPart(event.text)),))

    def _calls(self, events: Sequence[Event], index: int) -> tuple[ToolCall, ...]:
        names = [event.name for event in events if isinstance(event, Call)]
        texts = [""] * len(names)
        for event in events:
            if not isinstance(event, Call | Content):
                texts[event.number] += event.text
        return tuple(ToolCall(self._id(index, at), FunctionCall(name, texts[at])) for at, name in enumerate(names))

    def _id(self, index: int, call: int) -> str:
        return self._form.call_id(self._head.request_id, index, call)
