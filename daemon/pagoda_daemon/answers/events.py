"""What an answer consists of, as events, and the protocol of its parser. Pure.

Every dialect of the API writes its answers from these events. A parser emits an event as soon as it is certain. The events of an answer,
joined, do not depend on the pieces that its text came in.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol


class Reasoning(NamedTuple):
    """Text that the model thinks, before or between what it says."""

    text: str


class Content(NamedTuple):
    """Text for the reader."""

    text: str


class Call(NamedTuple):
    """A call begins. Calls of an answer are numbered from 0."""

    number: int
    name: str


class Arguments(NamedTuple):
    """The next piece of a call's arguments, which are JSON text."""

    number: int
    text: str


Event = Reasoning | Content | Call | Arguments


class AnswerParser(Protocol):
    """Reads one answer. It has that answer's state and is used once."""

    def push(self, text: str) -> list[Event]:
        """Returns the events that are certain with `text`."""
        ...

    def finish(self) -> list[Event]:
        """Returns what is left when no text follows."""
        ...


class PlainText:
    """The parser of an answer that is content only."""

    def push(self, text: str) -> list[Event]:
        return [Content(text)] if text else []

    def finish(self) -> list[Event]:
        return []
