"""Calls with a head of plain text before the JSON of their arguments: DeepSeek's, and the newer of Mistral's two forms. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NamedTuple

from pagoda_daemon.answers.json_calls import JsonCalls, JsonForm
from pagoda_daemon.answers.scanner import Braces, MarkedScanner
from pagoda_daemon.answers.wishes import Wish

_MAX_HEAD: Final = 512
_NAME: Final = r"(?P<name>[A-Za-z0-9_.-]{1,128})"


@dataclass(frozen=True)
class HeadedForm:
    """`begin` stands before the first call, and `end` behind the last one. `head` is a call's beginning up to the brace of its arguments,
    `tail` its end, `again` the beginning of the next call's head."""

    begin: str
    end: str
    head: re.Pattern[str]
    tail: tuple[str, ...]
    again: str


_CALL: Final = "<｜tool▁call▁begin｜>"
_SEP: Final = "<｜tool▁sep｜>"
# V3 and R1 write the type, the name and a fenced block; V3.1 writes the name and plain JSON.
_DEEPSEEK_HEAD: Final = re.compile(rf"\s*{_CALL}\s*(?:function{_SEP}{_NAME}\s*```json\s*|{_NAME.replace('name', 'plain')}{_SEP}\s*)")
DEEPSEEK: Final = HeadedForm("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", _DEEPSEEK_HEAD, ("```", "<｜tool▁call▁end｜>"), _CALL)
_MISTRAL_HEAD: Final = re.compile(rf"\s*{_NAME}\s*(?:\[CALL_ID\]\w*)?\s*(?:\[ARGS\])?\s*")


class Head(NamedTuple):
    """The name of a call and the length of its head. Without a name there is no call."""

    name: str
    end: int


def head_of(pattern: re.Pattern[str], text: str) -> Head | None:
    """Returns the head that `text` begins with; None if more text must come first."""
    brace = text.find("{", 0, _MAX_HEAD)
    if brace < 0:
        return Head("", 0) if len(text) >= _MAX_HEAD else None
    found = pattern.fullmatch(text, 0, brace)
    return Head("", 0) if found is None else Head(next(name for name in found.groups() if name), brace)


class HeadedCalls(MarkedScanner):
    """Of DeepSeek."""

    def __init__(self, form: HeadedForm, wish: Wish) -> None:
        super().__init__(form.begin, wish)
        self._form = form
        self._tail: tuple[str, ...] = ()

    def _block(self) -> bool:
        head = head_of(self._form.head, self._text)
        if head is None:
            return False
        if not head.name or self._full:
            return self._none()
        self._begin_call(head.name)
        self._text, self._braces, self._step = self._text[head.end :], Braces(), self._arguments
        return True

    def _close(self) -> bool:
        self._tail, self._step = self._form.tail, self._after
        return True

    def _after(self) -> bool:
        """The call's end, each part of which a model may forget, then the next call or the end of all."""
        begin = self._text.lstrip()
        found = next((mark for mark in (*self._tail, self._form.end) if begin.startswith(mark)), None)
        if found is not None:
            self._text = begin[len(found) :]
            self._tail = self._tail[self._tail.index(found) + 1 :] if found in self._tail else ()
            self._step = self._after if found != self._form.end else self._content
            return True
        if begin.startswith(self._form.again):
            self._step = self._block
            return True
        if any(mark.startswith(begin) for mark in (*self._tail, self._form.end, self._form.again)):
            return False
        self._step = self._content
        return True


class MistralCalls(JsonCalls):
    """`[TOOL_CALLS][{…}]`, or `[TOOL_CALLS]name[ARGS]{…}` for each call."""

    def __init__(self, form: JsonForm, wish: Wish) -> None:
        super().__init__(form, wish)
        self._headed = False

    def _list(self) -> bool:
        begin = self._text.lstrip()
        self._headed = bool(begin) and begin[0] not in "[{"
        if not self._headed:
            return super()._list()
        head = head_of(_MISTRAL_HEAD, self._text)
        if head is None:
            return False
        return self._begin(*head) if head.name and not self._full else self._none()

    def _close(self) -> bool:
        """The headed form has no brace around its call."""
        if not self._headed:
            return super()._close()
        self._step = self._content
        return True
