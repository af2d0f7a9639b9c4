"""What the parsers of calls share: text that waits, events that are certain, and the end of a JSON object. Pure."""

from __future__ import annotations

from collections.abc import Callable

from pagoda_daemon.answers.events import Arguments, Call, Content, Event
from pagoda_daemon.answers.wishes import Wish
from pagoda_daemon.text.stops import overlap


class Braces:
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


class Scanner:
    """Consumes text in steps. Each step tells whether there may be more to do. An answer that must be calls has no content, also if it is
    cut within a call."""

    _step: Callable[[], bool]

    def __init__(self, wish: Wish) -> None:
        self._silent = wish.shape == "calls"
        self._most = wish.most
        self._text = ""
        self._raw = ""  # since the mark: what becomes content if it is no call
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

    @property
    def _full(self) -> bool:
        return self._most is not None and self.calls >= self._most

    def _taken(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def _say(self, text: str) -> None:
        """Blanks alone between two marks, or a mark and the answer's ends, are nothing to read."""
        if text and not self._silent and (self._said or not text.isspace()):
            self._said = True
            self._events.append(Content(text))

    def _rest(self) -> bool:
        self._say(self._text)
        self._text = ""
        return False

    def _begin_call(self, name: str) -> None:
        self._events.append(Call(self.calls, name))
        self._raw = ""

    def _arguments_piece(self, text: str) -> None:
        if text:
            self._events.append(Arguments(self.calls, text))


class MarkedScanner(Scanner):
    """Calls stand behind a mark, or behind the other one, `bare`, if a form has two. `_block` is the step behind it, and `_close` the one
    behind arguments that are a JSON object."""

    def __init__(self, begin: str, wish: Wish, bare: str = "") -> None:
        super().__init__(wish)
        self._mark = begin
        self._marks = (begin, bare) if bare else (begin,)
        self._braces = Braces()
        self._step = self._either if wish.shape == "either" else self._content

    def _block(self) -> bool:
        raise NotImplementedError

    def _close(self) -> bool:
        raise NotImplementedError

    def _arguments(self) -> bool:
        """They stream as they come, up to the brace that ends them."""
        end = self._braces.end(self._text)
        piece, self._text = (self._text, "") if end is None else (self._text[:end], self._text[end:])
        self._arguments_piece(piece)
        if end is None:
            return False
        self.calls += 1
        self._step = self._close
        return True

    def _either(self) -> bool:
        """A mark at the very beginning says that all is calls; in text of a format a mark is text."""
        begin = self._text.lstrip()
        if len(begin) < len(self._mark) and self._mark.startswith(begin):
            return False
        self._silent = begin.startswith(self._mark)
        self._step = self._content if self._silent else self._rest
        return True

    def _content(self) -> bool:
        """Up to the next mark; blanks wait for the first word."""
        _, mark = min(((at, mark) for mark in self._marks if (at := self._text.find(mark)) >= 0), default=(0, ""))
        if not mark:
            keep = len(self._text) - max(overlap(self._text, mark) for mark in self._marks)
            if not self._said and self._text[:keep].isspace():
                return False
            self._say(self._text[:keep])
            self._text = self._text[keep:]
            return False
        before, _, after = self._text.partition(mark)
        blank = before.isspace() and not self._said
        self._say(before)
        self._text, self._raw, self._said = after, before + mark if blank else mark, False
        self._step = self._block
        return True

    def _none(self) -> bool:
        """No call: the mark is content, and what follows may hold the next one."""
        self._say(self._raw)
        self._raw, self._step = "", self._content
        return bool(self._text)
