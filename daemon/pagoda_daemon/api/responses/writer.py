"""What an answer's events make of a response: its items, and the events of its stream in their order. Pure; one answer's state.

A stream and a whole answer are written by the same steps; a whole one leaves their events away. Called by `dialect`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from pagoda_daemon.api.openai.logprobs import ChatToken
from pagoda_daemon.api.responses.events import (
    ArgumentsDelta,
    ArgumentsDone,
    ContentPartAdded,
    ContentPartDone,
    EventBest,
    EventToken,
    OutputItemAdded,
    OutputItemDone,
    OutputTextDelta,
    OutputTextDone,
    ReasoningTextDelta,
    ReasoningTextDone,
    ResponseEvent,
    TextDeltas,
)
from pagoda_daemon.api.responses.objects import (
    FunctionCallItem,
    OutputItem,
    OutputMessage,
    OutputText,
    ReasoningItem,
    ReasoningText,
    Status,
)


class _Open(Protocol):
    """The item that is being written."""

    def begin(self) -> list[ResponseEvent]: ...
    def item(self, status: Status) -> OutputItem: ...
    def end(self, status: Status) -> list[ResponseEvent]: ...


class _Item:
    def __init__(self, item_id: str, index: int, number: Callable[[], int]) -> None:
        self.id = item_id
        self.index = index
        self.number = number
        self._pieces: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    def added(self, item: OutputItem) -> ResponseEvent:
        return OutputItemAdded(sequence_number=self.number(), output_index=self.index, item=item)

    def done(self, item: OutputItem) -> ResponseEvent:
        return OutputItemDone(sequence_number=self.number(), output_index=self.index, item=item)

    def part_added(self, part: OutputText | ReasoningText) -> ResponseEvent:
        return ContentPartAdded(sequence_number=self.number(), item_id=self.id, output_index=self.index, part=part)

    def part_done(self, part: OutputText | ReasoningText) -> ResponseEvent:
        return ContentPartDone(sequence_number=self.number(), item_id=self.id, output_index=self.index, part=part)


class Saying(_Item):
    """A message under way."""

    def __init__(self, item_id: str, index: int, number: Callable[[], int]) -> None:
        super().__init__(item_id, index, number)
        self._tokens: list[ChatToken] = []
        self._deltas = TextDeltas(item_id, index)

    def begin(self) -> list[ResponseEvent]:
        return [self.added(OutputMessage(self.id, "in_progress")), self.part_added(OutputText(""))]

    def more(self, text: str, tokens: Sequence[ChatToken]) -> ResponseEvent:
        self._pieces.append(text)
        self._tokens += tokens
        number, logprobs = self.number(), _briefly(tokens)
        return OutputTextDelta(sequence_number=number, item_id=self.id, output_index=self.index, delta=text, logprobs=logprobs)

    def framed(self, text: str) -> bytes:
        """As `more`, for text without log-probabilities, as it is sent."""
        self._pieces.append(text)
        return self._deltas.framed(self.number(), text)

    def item(self, status: Status) -> OutputMessage:
        return OutputMessage(self.id, status, [OutputText(self.text, logprobs=self._tokens)])

    def end(self, status: Status) -> list[ResponseEvent]:
        item, number, logprobs = self.item(status), self.number(), _briefly(self._tokens)
        said = item.content[0].text
        text = OutputTextDone(sequence_number=number, item_id=self.id, output_index=self.index, text=said, logprobs=logprobs)
        return [text, self.part_done(item.content[0]), self.done(item)]


class Thinking(_Item):
    """Reasoning under way."""

    def begin(self) -> list[ResponseEvent]:
        return [self.added(ReasoningItem(self.id, "in_progress")), self.part_added(ReasoningText(""))]

    def more(self, text: str) -> ResponseEvent:
        self._pieces.append(text)
        return ReasoningTextDelta(sequence_number=self.number(), item_id=self.id, output_index=self.index, delta=text)

    def item(self, status: Status) -> ReasoningItem:
        return ReasoningItem(self.id, status, [ReasoningText(self.text)])

    def end(self, status: Status) -> list[ResponseEvent]:
        item = self.item(status)
        text = ReasoningTextDone(sequence_number=self.number(), item_id=self.id, output_index=self.index, text=item.content[0].text)
        return [text, self.part_done(item.content[0]), self.done(item)]


class Calling(_Item):
    """A call under way."""

    def __init__(self, item_id: str, index: int, number: Callable[[], int], call: tuple[str, str]) -> None:
        super().__init__(item_id, index, number)
        self._call_id, self._name = call

    def begin(self) -> list[ResponseEvent]:
        return [self.added(self.item("in_progress"))]

    def more(self, text: str) -> ResponseEvent:
        self._pieces.append(text)
        return ArgumentsDelta(sequence_number=self.number(), item_id=self.id, output_index=self.index, delta=text)

    def item(self, status: Status) -> FunctionCallItem:
        return FunctionCallItem(self.id, self._call_id, self._name, self.text, status)

    def end(self, status: Status) -> list[ResponseEvent]:
        item = self.item(status)
        arguments = ArgumentsDone(sequence_number=self.number(), item_id=self.id, output_index=self.index, arguments=item.arguments)
        return [arguments, self.done(item)]


class Writer:
    """The items so far. Every method gives the events of what it did."""

    def __init__(self, request_id: str, number: Callable[[], int]) -> None:
        self._request_id = request_id
        self._number = number
        self._items: list[OutputItem] = []
        self._open: _Open | None = None

    @property
    def begun(self) -> bool:
        return bool(self._items) or self._open is not None

    @property
    def saying(self) -> Saying | None:
        """The message under way."""
        return self._open if isinstance(self._open, Saying) else None

    def says(self, text: str, tokens: Sequence[ChatToken] = ()) -> list[ResponseEvent]:
        """More of the answer's text."""
        opened = self._open if isinstance(self._open, Saying) else Saying(*self._place("msg"))
        begun = self._switch(opened)
        return [*begun, opened.more(text, tokens)] if text or tokens else begun

    def thinks(self, text: str) -> list[ResponseEvent]:
        """More of what the model thinks."""
        opened = self._open if isinstance(self._open, Thinking) else Thinking(*self._place("rs"))
        return [*self._switch(opened), opened.more(text)]

    def calls(self, call_id: str, name: str) -> list[ResponseEvent]:
        """A call begins."""
        return self._switch(Calling(*self._place("fc"), (call_id, name)))

    def arguments(self, text: str) -> list[ResponseEvent]:
        """More of the arguments of the call that began last."""
        return [self._open.more(text)] if isinstance(self._open, Calling) and text else []

    def end(self, status: Status) -> list[ResponseEvent]:
        """The item under way is over; `status` is its status."""
        if self._open is None:
            return []
        events = self._open.end(status)
        self._items.append(self._open.item(status))
        self._open = None
        return events

    def output(self) -> list[OutputItem]:
        """All items; one under way is incomplete."""
        return [*self._items, self._open.item("incomplete")] if self._open else self._items

    def _switch(self, opened: _Open) -> list[ResponseEvent]:
        """Nothing where it is under way already."""
        if opened is self._open:
            return []
        events = [*self.end("completed"), *opened.begin()]
        self._open = opened
        return events

    def _place(self, prefix: str) -> tuple[str, int, Callable[[], int]]:
        """An id that is this item's in all its events, and its index."""
        index = len(self._items) + (self._open is not None)
        return f"{prefix}_{self._request_id}{index:04x}", index, self._number


def _briefly(tokens: Sequence[ChatToken]) -> list[EventToken]:
    """As events have them: without bytes."""
    best = [[EventBest(one.token, one.logprob) for one in token.top_logprobs] for token in tokens]
    return [EventToken(token.token, token.logprob, top) for token, top in zip(tokens, best, strict=True)]
