"""Calls in tags, whose values have no types: Qwen3-Coder's and GLM's. Pure; one answer's state.

The arguments come out as JSON. A value that can only be a string streams as it comes, every other one when it is whole.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from pagoda_daemon.answers.events import Event
from pagoda_daemon.answers.scanner import MarkedScanner
from pagoda_daemon.answers.values import json_of, quoted, types_of
from pagoda_daemon.answers.wishes import Wish
from pagoda_daemon.text.stops import overlap

_MAX_HEAD: Final = 512
_NAME: Final = r"[A-Za-z0-9_.-]{1,128}"


@dataclass(frozen=True)
class TaggedForm:
    """`bare` stands where a model forgets `begin`. `head` is a call's name and what is around it, `may_be_head` what may yet become that;
    `follows`: one of these stands behind it. `key` is a parameter up to its value, and `value_end` stands behind the value. `ends` stand
    behind the call, and a model may forget them. `trimmed`: one line break on each side of a value is the form's."""

    begin: str
    bare: str
    head: re.Pattern[str]
    may_be_head: re.Pattern[str]
    follows: tuple[str, ...]
    key: re.Pattern[str]
    value_end: str
    ends: tuple[str, ...]
    trimmed: bool


_FUNCTION: Final = "<function="
QWEN3_CODER: Final = TaggedForm(
    begin="<tool_call>",
    bare=_FUNCTION,
    head=re.compile(rf"\s*{_FUNCTION}\s*({_NAME})\s*>"),
    may_be_head=re.compile(rf"\s*({'|'.join(_FUNCTION[:at] for at in range(len(_FUNCTION)))}|{_FUNCTION}\s*({_NAME})?\s*)"),
    follows=(),
    key=re.compile(r"\s*<parameter=\s*([^>\n]{1,128}?)\s*>"),
    value_end="</parameter>",
    ends=("</function>", "</tool_call>"),
    trimmed=True,
)
GLM: Final = TaggedForm(
    begin="<tool_call>",
    bare="",
    head=re.compile(rf"\s*({_NAME})\s*(?=<)"),
    may_be_head=re.compile(rf"\s*({_NAME})?\s*"),
    follows=("<arg_key>", "</tool_call>"),
    key=re.compile(r"\s*<arg_key>\s*([^<\n]{1,128}?)\s*</arg_key>\s*<arg_value>"),
    value_end="</arg_value>",
    ends=("</tool_call>",),
    trimmed=False,
)


class TaggedCalls(MarkedScanner):
    def __init__(self, form: TaggedForm, wish: Wish) -> None:
        super().__init__(form.begin, wish, form.bare)
        self._form = form
        self._parameters = wish.parameters
        self._name = ""
        self._keys: set[str] = set()
        self._types: frozenset[str] = frozenset()
        self._streams = self._dropped = self._begun = False  # the value under way: a string, left out, its first line break is read
        self._scanned = 0
        self._left: tuple[str, ...] = ()  # ends that may still come

    def finish(self) -> list[Event]:
        """A call that is cut keeps what there is of its arguments, as a JSON call does."""
        if self._step == self._value and not self._dropped:
            self._arguments_piece(quoted(self._text)[1:-1] if self._streams else self._text)
        if self._step in (self._value, self._tag):
            self._text = ""
        return super().finish()

    def _block(self) -> bool:
        """The name, and what only a call has behind it."""
        bare = self._form.bare if self._form.bare and self._raw.endswith(self._form.bare) else ""
        text = bare + self._text
        found = self._form.head.match(text)
        if found is None:
            return False if len(text) < _MAX_HEAD and self._form.may_be_head.fullmatch(text) else self._none()
        after = text[found.end() :]
        if self._full or (self._form.follows and not after.startswith(self._form.follows)):
            wait = not self._full and any(mark.startswith(after) for mark in self._form.follows)
            return False if wait else self._none()
        self._name, self._text = found[1], after
        self._begin_call(self._name)
        self._keys, self._step = set(), self._tag
        return True

    def _tag(self) -> bool:
        """The next parameter, or the end of the call."""
        found = self._form.key.match(self._text)
        if found is not None:
            self._text = self._text[found.end() :]
            self._key(found[1])
            return True
        begin = self._text.lstrip()
        if len(begin) < _MAX_HEAD and (not begin or (begin[0] == "<" and not begin.startswith(self._form.ends))):
            return False
        self._arguments_piece("}" if self._keys else "{}")
        self.calls += 1
        self._left, self._step = self._form.ends, self._after
        return True

    def _key(self, name: str) -> None:
        self._dropped = name in self._keys  # JSON has each key once
        if not self._dropped:
            self._types = types_of(self._parameters.get(self._name, {}), name)
            self._streams = self._types == {"string"}
            self._arguments_piece(f"{', ' if self._keys else '{'}{quoted(name)}: {chr(34) if self._streams else ''}")
            self._keys.add(name)
        self._begun, self._scanned, self._step = not self._form.trimmed, 0, self._value

    def _value(self) -> bool:
        if not self._begun and self._text:
            self._text, self._begun = self._text.removeprefix("\n"), True
        mark = self._form.value_end
        end = self._text.find(mark, max(0, self._scanned - len(mark)))
        if end < 0:
            self._hold()
            return False
        value, self._text = self._text[:end], self._text[end + len(mark) :]
        value = value.removesuffix("\n") if self._form.trimmed else value
        if not self._dropped:
            self._arguments_piece(quoted(value)[1:] if self._streams else json_of(value, self._types))
        self._step = self._tag
        return True

    def _hold(self) -> None:
        """Lets go what is certain of a string: not the beginning of the tag behind it, nor the line break before that."""
        self._scanned = len(self._text)
        if not self._streams or self._dropped:
            return
        keep = len(self._text) - overlap(self._text, self._form.value_end)
        if self._form.trimmed and self._text[:keep].endswith("\n"):
            keep -= 1
        self._arguments_piece(quoted(self._text[:keep])[1:-1])
        self._text, self._scanned = self._text[keep:], 0

    def _after(self) -> bool:
        """The ends of the call, each once."""
        begin = self._text.lstrip()
        mark = next((mark for mark in self._left if begin.startswith(mark)), None)
        if mark is not None:
            self._text, self._left = begin[len(mark) :], self._left[self._left.index(mark) + 1 :]
            return True
        if any(mark.startswith(begin) for mark in self._left):
            return False
        self._step = self._content
        return True
