"""Reasoning between two marks, such as `<think>…</think>`, and what follows it. Pure; one answer's state.

What follows the reasoning goes to the parser of content and calls. An answer begins in reasoning, outside of it, or says so itself with the
first mark: the prompt's end decides (`starts_in`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pagoda_daemon.answers.events import AnswerParser, Event, Reasoning
from pagoda_daemon.text.stops import overlap

Start = Literal["inside", "outside", "open"]
"""Where an answer begins: in reasoning, after it, or wherever its first characters say."""


@dataclass(frozen=True)
class ReasoningForm:
    """The two marks. `always`: the model thinks even if neither the prompt nor the answer has the first mark."""

    name: str
    begin: str
    end: str
    always: bool = False


def starts_in(form: ReasoningForm, prompt_end: str) -> Start:
    """Decides by the prompt: a template that opens or closes the thinking block itself ends with a mark."""
    end = prompt_end.rstrip()
    if end.endswith(form.end):
        return "outside"
    return "inside" if form.always or end.endswith(form.begin) else "open"


class ReasoningParser:
    """Up to the end mark all is reasoning. If the answer ends before that mark, there is no content."""

    def __init__(self, form: ReasoningForm, start: Start, then: AnswerParser) -> None:
        self._form = form
        self._then = then
        self._text = ""
        self._step = {"inside": self._first, "open": self._first, "outside": self._after}[start]
        self._open = start == "open"

    def push(self, text: str) -> list[Event]:
        self._text += text
        return self._step()

    def finish(self) -> list[Event]:
        """A beginning of a mark that did not become one is text where it stands."""
        rest, self._text = self._text, ""
        if not rest or (self._step == self._first and self._open) or self._step == self._after:
            return [*(self._then.push(rest) if rest else ()), *self._then.finish()]
        return [Reasoning(rest), *self._then.finish()]

    @property
    def thinking(self) -> bool:
        """Whether the text so far ends in reasoning."""
        return self._step == self._inside or (self._step == self._first and not self._open)

    def _first(self) -> list[Event]:
        """The first mark, which a model may also write if the prompt has it already."""
        begin = self._text.lstrip()
        if len(begin) < len(self._form.begin) and self._form.begin.startswith(begin):
            return []
        if begin.startswith(self._form.begin):
            self._text, self._open = begin[len(self._form.begin) :], False
        self._step = self._after if self._open else self._inside
        return self._step()

    def _inside(self) -> list[Event]:
        thought, mark, after = self._text.partition(self._form.end)
        if mark:
            self._text, self._step = after, self._after
            return [*_reasoning(thought), *(self._after() if after else ())]
        keep = len(thought) - overlap(thought, self._form.end)
        self._text = thought[keep:]
        return _reasoning(thought[:keep])

    def _after(self) -> list[Event]:
        text, self._text = self._text, ""
        return self._then.push(text)


def _reasoning(text: str) -> list[Event]:
    return [Reasoning(text)] if text else []
