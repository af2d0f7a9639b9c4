"""Calls as JSON objects with a name and arguments, between marks or alone. Pure; one answer's state. `forms` has the forms.

Nothing is lost: what begins like a call and is none comes out as content, marks and all. Once a call's name and the brace of its arguments
are there it is a call, and what follows streams as its arguments, however the model goes on.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Final

import msgspec

from pagoda_daemon.answers.scanner import Braces, MarkedScanner
from pagoda_daemon.answers.wishes import Wish

_MAX_HEAD: Final = 512  # a name has 128 characters: an answer without it by then is no call that can be streamed
_NAME: Final = r'"(?:[^"\\]|\\.)+"'


@dataclass(frozen=True)
class JsonForm:
    """`begin` and `end` stand around calls, `between` between two of them; both are empty if a call is the whole answer. `listed`: the
    calls are a JSON array. `other` are marks that a model may write instead."""

    begin: str
    end: str
    between: str
    listed: bool = False
    other: tuple[str, str] = ("", "")


class JsonCalls(MarkedScanner):
    """Also of answers without a mark: there only one that begins with a brace is a call."""

    def __init__(self, form: JsonForm, wish: Wish) -> None:
        super().__init__(form.begin, wish, form.other[0])
        self._form = form
        self._all_ends = tuple(mark for mark in ("]" if form.listed else "", form.end, form.other[1]) if mark)
        self._ends = self._all_ends  # those that may follow
        self._head = re.compile(rf'\s*\{{\s*"name"\s*:\s*({_NAME})\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{{)')
        self._step = self._step if form.begin else self._first
        self._braces = Braces()
        self._scanned = 0

    def _block(self) -> bool:
        self._ends = self._all_ends
        self._step = self._list if self._form.listed else self._object
        return True

    def _first(self) -> bool:
        """Without marks only an answer that begins with a brace is a call."""
        begin = self._text.lstrip()
        if not begin:
            return False
        self._step = self._object if begin[0] == "{" else self._rest
        return True

    def _list(self) -> bool:
        """`[` before the first call, or a single call without it."""
        begin = self._text.lstrip()
        if not begin:
            return False
        if begin[0] == "[":
            self._raw += self._text[: len(self._text) - len(begin) + 1]
            self._text = begin[1:]
        self._step = self._object
        return True

    def _object(self) -> bool:
        """The head of a call, or a whole object where its keys come in another order."""
        begin = self._text.lstrip()
        if not begin:
            return False
        if begin[0] != "{" or self._full:
            return self._none()
        found = self._head.match(self._text) if self._scanned <= _MAX_HEAD else None
        if found and found.end() <= _MAX_HEAD:
            return self._begin(json_string(found[1]), found.end())
        if self._scanned == 0:
            self._braces = Braces()
        end = self._braces.end(self._text[self._scanned :])
        if end is None:
            self._scanned = len(self._text)
            return False
        return self._whole(self._scanned + end)

    def _begin(self, name: str, end: int) -> bool:
        self._begin_call(name)
        self._text, self._scanned = self._text[end:], 0
        self._braces, self._step = Braces(), self._arguments
        return True

    def _whole(self, end: int) -> bool:
        call = _call_of(self._text[:end])
        if call is None:
            return self._none()
        name, arguments = call
        self._begin_call(name)
        self._arguments_piece(arguments)
        self._text, self._scanned = self._text[end:], 0
        self.calls += 1
        self._step = self._after
        return True

    def _none(self) -> bool:
        self._scanned = 0
        if self._form.begin and self._raw:
            return super()._none()
        self._say(self._raw or self._text)
        if not self._raw:
            self._text = ""
        self._raw, self._step = "", self._content if self._form.begin else self._rest
        return bool(self._text)

    def _close(self) -> bool:
        """The brace of the call itself, which a model may forget."""
        begin = self._text.lstrip()
        if not begin:
            return False
        if begin[0] == ",":
            self._braces, self._scanned, self._step = Braces(depth=1), 0, self._more_keys
            return True
        self._text = begin[1:] if begin[0] == "}" else begin
        self._step = self._after
        return True

    def _more_keys(self) -> bool:
        """What a call holds besides name and arguments is nobody's business."""
        end = self._braces.end(self._text[self._scanned :])
        if end is None:
            self._scanned = len(self._text)
            return False
        self._text, self._scanned, self._step = self._text[self._scanned + end :], 0, self._after
        return True

    def _after(self) -> bool:
        """The end mark, or what stands between two calls."""
        begin = self._text.lstrip()
        end = next((mark for mark in self._ends if begin.startswith(mark)), None)
        if end is not None:
            self._text, self._ends = begin[len(end) :], self._ends[self._ends.index(end) + 1 :]
            self._step = self._after if self._ends else self._content
            return True
        if not begin or any(mark.startswith(begin) for mark in self._ends):
            return False
        if begin[0] == self._form.between.strip()[:1] and len(self._ends) == len(self._all_ends):
            self._raw, self._text, self._step = begin[0], begin[1:], self._object
            return True
        self._step = self._content if self._form.begin else self._rest
        return True


def json_string(quoted: str) -> str:
    """The text that `quoted` stands for; as it is where that is none: half a surrogate pair is in no answer."""
    try:
        return msgspec.json.decode(quoted, type=str)
    except msgspec.DecodeError:
        return quoted.strip('"')


def _call_of(text: str) -> tuple[str, str] | None:
    """Name and arguments of a whole object; None where it is no call."""
    try:
        parsed = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None
    if not isinstance(parsed, dict) or not isinstance(name := parsed.get("name"), str) or not name:
        return None
    arguments = next((parsed[key] for key in ("arguments", "parameters") if key in parsed), None)
    if isinstance(arguments, str):
        return name, arguments
    try:
        return (name, json.dumps(arguments, ensure_ascii=False)) if isinstance(arguments, dict) else None
    except RecursionError:  # it writes fewer levels than msgspec reads
        return None
