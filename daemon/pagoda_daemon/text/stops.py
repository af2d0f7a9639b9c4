"""StopMatcher: cuts an answer's text at its stop strings. Pure; one request's state each. Called by `text.answer`; knows no tokens."""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Cuts text before (`include`: behind) the stop string that is complete first, also where it spans several pushes; holds back what
    may yet become one. However the text is pushed, what comes out is the same. In text pushed with `ends=False` a stop string may begin,
    but none is complete."""

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        self.strings = tuple(stops)
        self._include = include
        self._pending = ""
        self._exempt = 0  # characters of `_pending` in which no stop string ends
        self.stopped = False

    def push(self, text: str, *, ends: bool = True) -> str:
        """Text that cannot belong to a stop string any more; nothing once stopped."""
        if self.stopped:
            return ""
        self._pending += text
        if not ends:
            self._exempt = len(self._pending)
        starts = ((stop, max(0, self._exempt + 1 - len(stop))) for stop in self.strings)
        found = [(at + len(stop), at) for stop, start in starts if (at := self._pending.find(stop, start)) >= 0]
        if found:
            self.stopped = True
            end, start = min(found)
            keep = end if self._include else start
        else:
            keep = len(self._pending) - max((overlap(self._pending, stop) for stop in self.strings), default=0)
        out, self._pending = self._pending[:keep], self._pending[keep:]
        self._exempt = max(0, self._exempt - keep)
        return out

    def flush(self) -> str:
        """What was kept back and did not become a stop string."""
        out, self._pending = ("" if self.stopped else self._pending), ""
        return out


def overlap(text: str, stop: str) -> int:
    """Length of the longest proper beginning of `stop` that `text` ends with."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)
