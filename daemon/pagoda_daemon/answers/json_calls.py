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

from pagoda_daemon.answers.events import Arguments, Call, Content, Event
from pagoda_daemon.answers.wishes import Wish
from pagoda_daemon.text.stops import overlap

_MAX_HEAD: Final = 512  # a name has 128 characters: who has not written it by then writes no call that can be streamed
_NAME: Final = r'"(?:[^"\\]|\\.)+"'


@dataclass(frozen=True)
class JsonForm:
    """`begin` and `end` stand around calls, `between` between two of them; both are empty where a call is the whole answer. `arguments` is
    the key that the model's template teaches. `listed`: the calls are a JSON array."""

    begin: str
    end: str
    between: str
    arguments: str
    listed: bool = False


class _Braces:
    """Where a JSON object ends, fed piece by piece."""

    def __init__(self, depth: int = 0) -> None:
        self._depth = depth
        self._quoted = self._escaped = False

    def end(self, text: str) -> int | None:
        """The index behind the closing brace; None where it is not in `text`."""
        for at, character in enumerate(text):
            if self._quoted:
                self._quoted = self._escaped or character != '"'
                self._escaped = not self._escaped and character == "\\"
            elif character == '"':
                self._quoted = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if self._depth <= 0:
                    return at + 1
        return None


class JsonCalls:
    """An answer that must be calls has no content, also if it is cut within a call."""

    def __init__(self, form: JsonForm, wish: Wish) -> None:
        self._silent = wish.shape == "calls"
        self._form = form
        self._most = wish.most
        self._head = re.compile(rf'\s*\{{\s*"name"\s*:\s*({_NAME})\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{{)')
        self._text = ""
        self._raw = ""  # since the mark: what becomes content if it is no call
        self._step = self._first if not form.begin else self._either if wish.shape == "either" else self._content
        self._braces = _Braces()
        self._scanned = 0
        self._events: list[Event] = []
        self._said = False
        self.calls = 0

    def push(self, text: str) -> list[Event]:
        """What became certain with `text`."""
        self._text += text
        while self._step():
            pass
        return self._taken()

    def finish(self) -> list[Event]:
        """What is left when nothing follows: half a call is content, unless the answer is nothing but calls."""
        self._say(self._raw + self._text)
        self._raw = self._text = ""
        return self._taken()

    def _taken(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def _say(self, text: str) -> None:
        """Blanks alone between two marks, or a mark and the answer's ends, are nothing to read."""
        if text and not self._silent and (self._said or not text.isspace()):
            self._said = True
            self._events.append(Content(text))

    # Each step below consumes what it can of the text, and tells whether there may be more to do.

    def _first(self) -> bool:
        """Without marks only an answer that begins with a brace is a call."""
        begin = self._text.lstrip()
        if not begin:
            return False
        self._step = self._object if begin[0] == "{" else self._rest
        return True

    def _either(self) -> bool:
        """A mark at the very beginning says that all is calls; in text of a format a mark is text."""
        begin = self._text.lstrip()
        if len(begin) < len(self._form.begin) and self._form.begin.startswith(begin):
            return False
        self._silent = begin.startswith(self._form.begin)
        self._step = self._content if self._silent else self._rest
        return True

    def _rest(self) -> bool:
        self._say(self._text)
        self._text = ""
        return False

    def _content(self) -> bool:
        """Up to the next mark; blanks wait for the first word."""
        before, mark, after = self._text.partition(self._form.begin)
        if not mark:
            keep = len(self._text) - overlap(self._text, self._form.begin)
            if not self._said and self._text[:keep].isspace():
                return False
            self._say(self._text[:keep])
            self._text = self._text[keep:]
            return False
        blank = before.isspace() and not self._said
        self._say(before)
        self._text, self._raw, self._said = after, before + mark if blank else mark, False
        self._step = self._list if self._form.listed else self._object
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
        full = self._most is not None and self.calls >= self._most
        if begin[0] != "{" or full:
            return self._none()
        found = self._head.match(self._text) if self._scanned <= _MAX_HEAD else None
        if found and found.end() <= _MAX_HEAD:
            return self._begin(json_string(found[1]), found.end())
        if self._scanned == 0:
            self._braces = _Braces()
        end = self._braces.end(self._text[self._scanned :])
        if end is None:
            self._scanned = len(self._text)
            return False
        return self._whole(self._scanned + end)

    def _begin(self, name: str, end: int) -> bool:
        self._events.append(Call(self.calls, name))
        self._text, self._raw, self._scanned = self._text[end:], "", 0
        self._braces, self._step = _Braces(), self._arguments
        return True

    def _whole(self, end: int) -> bool:
        call = _call_of(self._text[:end])
        if call is None:
            return self._none()
        name, arguments = call
        self._events += (Call(self.calls, name), Arguments(self.calls, arguments))
        self._text, self._raw, self._scanned = self._text[end:], "", 0
        self.calls += 1
        self._step = self._after
        return True

    def _none(self) -> bool:
        """No call: the mark is content, and what follows may hold the next one."""
        self._say(self._raw or self._text)
        if not self._raw:
            self._text = ""
        self._raw, self._scanned = "", 0
        self._step = self._content if self._form.begin else self._rest
        return bool(self._text)

    def _arguments(self) -> bool:
        end = self._braces.end(self._text)
        piece, self._text = (self._text, "") if end is None else (self._text[:end], self._text[end:])
        if piece:
            self._events.append(Arguments(self.calls, piece))
        if end is None:
            return False
        self.calls += 1
        self._step = self._close
        return True

    def _close(self) -> bool:
        """The brace of the call itself, which a model may forget."""
        begin = self._text.lstrip()
        if not begin:
            return False
        if begin[0] == ",":
            self._braces, self._scanned, self._step = _Braces(depth=1), 0, self._more_keys
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
        end, form = self._form.end or ("]" if self._form.listed else ""), self._form
        if end and begin.startswith(end):
            self._text, self._step = begin[len(end) :], self._content
            return True
        if not begin or end.startswith(begin):
            return False
        if begin[0] == form.between.strip()[:1]:
            self._raw, self._text, self._step = begin[0], begin[1:], self._object
            return True
        self._step = self._content if form.begin else self._rest
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
    return (name, json.dumps(arguments, ensure_ascii=False)) if isinstance(arguments, dict) else None
