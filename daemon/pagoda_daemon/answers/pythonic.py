"""Calls as Python writes them: `[f(a=1), g(b="x")]` is the whole answer (Llama 3.2 and 4). Pure; one answer's state.

A call comes out when its closing bracket is there. The text is parsed, and never evaluated.
"""

from __future__ import annotations

import re
from typing import Final

from pagoda_daemon.answers.literals import call
from pagoda_daemon.answers.scanner import Scanner
from pagoda_daemon.answers.values import dumped
from pagoda_daemon.answers.wishes import Wish

_MARKS: Final = ("<|python_start|>", "<|python_tag|>")
_END: Final = "<|python_end|>"
_HEAD: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,127}\s*\(")
_MAY_BE_HEAD: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_.]{0,127}\s*)?")


class Brackets:
    """Finds where a Python call ends, fed piece by piece."""

    def __init__(self) -> None:
        self._depth = 0
        self._quote = ""
        self._escaped = False

    def end(self, text: str) -> int | None:
        """Returns the index behind the closing bracket; None if it is not in `text`."""
        for at, character in enumerate(text):
            if self._quote:
                if self._escaped:
                    self._escaped = False
                elif character == "\\":
                    self._escaped = True
                elif character == self._quote:
                    self._quote = ""
            elif character in "\"'":
                self._quote = character
            elif character in "([{":
                self._depth += 1
            elif character in ")]}":
                self._depth -= 1
                if self._depth <= 0:
                    return at + 1
        return None


class PythonicCalls(Scanner):
    def __init__(self, wish: Wish) -> None:
        super().__init__(wish)
        self._brackets = Brackets()
        self._scanned = 0
        self._step = self._first

    def _first(self) -> bool:
        """Only an answer that begins with `[` and a call is calls."""
        begin = self._text.lstrip()
        mark = next((mark for mark in _MARKS if begin.startswith(mark)), "")
        after = begin[len(mark) :].lstrip()
        if any(mark.startswith(begin) for mark in _MARKS) or not after:
            return False
        if after[0] != "[":
            self._step = self._rest
            return True
        self._raw = self._text[: len(self._text) - len(after) + 1]
        self._text, self._step = after[1:], self._call
        return True

    def _call(self) -> bool:
        begin = self._text.lstrip()
        if _HEAD.match(begin) is None or self._full:
            return self._no_call() if self._full or _MAY_BE_HEAD.fullmatch(begin) is None else False
        end = self._brackets.end(self._text[self._scanned :])
        if end is None:
            self._scanned = len(self._text)
            return False
        try:
            found = call(self._text[: self._scanned + end])
            arguments = dumped(found.arguments)
        except ValueError:
            return self._no_call()
        self._begin_call(found.name)
        self._arguments_piece(arguments)
        self.calls += 1
        self._text, self._scanned, self._brackets, self._step = self._text[self._scanned + end :], 0, Brackets(), self._after
        return True

    def _after(self) -> bool:
        """`,` and the next call, or the end of the list."""
        begin = self._text.lstrip()
        if not begin:
            return False
        if begin[0] == ",":
            self._raw, self._text, self._step = ",", begin[1:], self._call
            return True
        self._text = begin.removeprefix("]")
        self._step = self._last
        return True

    def _last(self) -> bool:
        """What stands behind the list is content, but for the mark of its end."""
        begin = self._text.lstrip()
        if not begin or (len(begin) < len(_END) and _END.startswith(begin)):
            return False
        self._text = begin.removeprefix(_END) if begin.startswith(_END) else self._text
        self._step = self._rest
        return True

    def _no_call(self) -> bool:
        self._text, self._raw, self._step = self._raw + self._text, "", self._rest
        return True
