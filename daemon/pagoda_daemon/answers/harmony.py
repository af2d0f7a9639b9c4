"""GPT-OSS's answers (harmony): messages in channels, each `<|channel|>NAME …<|message|>TEXT<|end|>`. Pure; one answer's state.

The channel "analysis" is reasoning. A message to `functions.NAME` is a call, and every other one is content. Text without a header is
content.
"""

from __future__ import annotations

import re
from typing import Final

from pagoda_daemon.answers.events import Arguments, Call, Content, Event, Reasoning
from pagoda_daemon.answers.wishes import Wish
from pagoda_daemon.text.stops import overlap

START: Final = "<|start|>"
CHANNEL: Final = "<|channel|>"
MESSAGE: Final = "<|message|>"
CONSTRAIN: Final = "<|constrain|>"
_ENDS: Final = ("<|end|>", "<|call|>", "<|return|>", START, CHANNEL)
MARKS: Final = (START, CHANNEL, MESSAGE, CONSTRAIN, "<|end|>", "<|call|>", "<|return|>")
_TO: Final = re.compile(r"\bto=functions\.([A-Za-z0-9_.-]{1,128})")
_MAX_HEADER: Final = 1024


class Harmony:
    """`prompt_end` is what the prompt ends with: the beginning of the first message. Without a wish nothing is a call."""

    def __init__(self, wish: Wish | None, prompt_end: str = "") -> None:
        self._most = 0 if wish is None else wish.most
        self._silent = wish is not None and wish.shape == "calls"
        self._text = ""
        self._kind: type[Content | Reasoning | Arguments] = Content
        self._empty = True  # the message under way has no text yet
        self._events: list[Event] = []
        self.calls = 0
        self.read = 0  # characters of the answer before `_text`
        self.since = self.reach = 0  # of the last reasoning, in characters of the answer
        self._step = self._maybe_header
        self._role, mark, _ = prompt_end.rpartition(START)[2].partition(MESSAGE)
        if mark:  # the prompt has the whole header: a message is continued
            self._open("")

    def push(self, text: str) -> list[Event]:
        self._text += text
        while self._step():
            pass
        return self._taken()

    def finish(self) -> list[Event]:
        """A header that is cut is no text."""
        if self._step == self._body:
            self._say(self._text)
            self._close()
        self._text = ""
        return self._taken()

    @property
    def done(self) -> bool:
        return False

    def _taken(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def _take(self, count: int) -> str:
        taken, self._text = self._text[:count], self._text[count:]
        self.read += count
        return taken

    @property
    def thinking(self) -> bool:
        return self._step == self._body and self._kind is Reasoning

    def _maybe_header(self) -> bool:
        """Text that begins with no mark is content without a header."""
        begin = self._text.lstrip()
        if not begin or "<|".startswith(begin) or "to=".startswith(begin):
            return False
        if not begin.startswith(("<|", "to=")):
            self._role = ""
            self._open("")
            return True
        self._step = self._header
        return True

    def _header(self) -> bool:
        """Up to the message's text."""
        header, mark, _ = self._text.partition(MESSAGE)
        if not mark and len(self._text) < _MAX_HEADER:
            return False
        self._take(len(header) + len(mark) if mark else 0)
        self._open(header if mark else "")
        return True

    def _open(self, header: str) -> None:
        whole, self._role = f"{self._role} {header}", ""
        to, channel = _TO.search(whole), whole.partition(CHANNEL)[2].lstrip()
        if to is not None and (self._most is None or self.calls < self._most):
            self._kind = Arguments
            self._events.append(Call(self.calls, to[1]))
        else:
            self._kind = Reasoning if channel.startswith("analysis") else Content
        if self._kind is Reasoning:
            self.since = self.reach = self.read
        self._empty, self._step = True, self._body

    def _body(self) -> bool:
        found = [(at, mark) for mark in _ENDS if (at := self._text.find(mark)) >= 0]
        if not found:
            self._say(self._take(len(self._text) - max(overlap(self._text, mark) for mark in _ENDS)))
            return False
        at, mark = min(found)
        self._say(self._take(at))
        self._close()
        self._take(0 if mark in (START, CHANNEL) else len(mark))
        self._step = self._between
        return bool(self._text)

    def _between(self) -> bool:
        """The start of the next message, which a model may leave out."""
        begin = self._text.lstrip()
        if not begin or (len(begin) < len(START) and START.startswith(begin)):
            return False
        self._step = self._maybe_header
        if begin.startswith(START):
            self._take(len(self._text) - len(begin) + len(START))
            self._step = self._header
        return True

    def _say(self, text: str) -> None:
        if not text or (self._silent and self._kind is Content):
            return
        self._empty = False
        self.reach = self.read if self._kind is Reasoning else self.reach
        self._events.append(Arguments(self.calls, text) if self._kind is Arguments else self._kind(text))  # type: ignore[call-arg, arg-type]

    def _close(self) -> None:
        """A call without arguments has an empty object."""
        if self._kind is Arguments:
            if self._empty:
                self._events.append(Arguments(self.calls, "{}"))
            self.calls += 1
            self._kind = Content
