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
    """The two marks, in each of their spellings. `always`: the model thinks even if nothing has the first mark."""

    name: str
    begins: tuple[str, ...]
    ends: tuple[str, ...]
    always: bool = False

    def opened(self, text: str) -> bool:
        """Whether the last mark in `text` is a first one."""
        return max(map(text.rfind, self.begins)) > max(map(text.rfind, self.ends))


def starts_in(form: ReasoningForm, prompt_end: str) -> Start:
    """Decides by the prompt: a template that opens or closes the thinking block itself ends with a mark."""
    end = prompt_end.rstrip()
    if end.endswith(form.ends):
        return "outside"
    return "inside" if form.always or end.endswith(form.begins) else "open"


class ReasoningParser:
    """Up to the end mark all is reasoning. If the answer ends before that mark, there is no content."""

    def __init__(self, form: ReasoningForm, start: Start, then: AnswerParser) -> None:
        self._form = form
        self._then = then
        self._text = ""
        self._step = {"inside": self._first, "open": self._first, "outside": self._after}[start]
        self._open = start == "open"
        self._pushed = 0
        self.since = 0  # where the reasoning begins, in characters of the answer
        self.reach = 0  # up to where it is certain

    def push(self, text: str) -> list[Event]:
        self._text += text
        self._pushed += len(text)
        return self._step()

    def finish(self) -> list[Event]:
        """A beginning of a mark that did not become one is text where it stands."""
        rest, self._text = self._text, ""
        if not rest or (self._step == self._first and self._open) or self._step == self._after:
            return [*(self._then.push(rest) if rest else ()), *self._then.finish()]
        return [Reasoning(rest), *self._then.finish()]

    @property
    def thinking(self) -> bool:
        """Whether the text so far ends in reasoning, or may."""
        return self._step != self._after

    @property
    def done(self) -> bool:
        return self._step == self._after

    def _first(self) -> list[Event]:
        """The first mark, which a model may also write if the prompt has it already."""
        begin = self._text.lstrip()
        if any(len(begin) < len(mark) and mark.startswith(begin) for mark in self._form.begins):
            return []
        if (mark := next((mark for mark in self._form.begins if begin.startswith(mark)), None)) is not None:
            self._text, self._open = begin[len(mark) :], False
            self.since = self.reach = self._pushed - len(self._text)
        self._step = self._after if self._open else self._inside
        return self._step()

    def _inside(self) -> list[Event]:
        found = min(((at, mark) for mark in self._form.ends if (at := self._text.find(mark)) >= 0), default=None)
        keep = len(self._text) - max(overlap(self._text, mark) for mark in self._form.ends) if found is None else found[0]
        thought, self._text = self._text[:keep], self._text[keep:]
        self.reach = self._pushed - len(self._text)
        if found is not None:
            self._text, self._step = self._text[len(found[1]) :], self._after
        return [*([Reasoning(thought)] if thought else ()), *(self._after() if found is not None and self._text else ())]

    def _after(self) -> list[Event]:
        text, self._text = self._text, ""
        return self._then.push(text)
