"""Cuts a stream of bytes at the ends of its events, so that a client has received whole events whenever the stream ends. Pure."""

from __future__ import annotations

from typing import Final

from pagoda_contracts.names import MARK, MARK_DIED, MARK_OVER

_ENDS: Final = (b"\n\n", b"\r\n\r\n")
# Larger than any sane event. Longer ones pass as they come.
_MAX_TAIL: Final = 1 << 20


class Events:
    """Returns the bytes that it is fed, unchanged, but keeps an incomplete event until its rest arrives."""

    def __init__(self) -> None:
        self._tail = b""
        self.count = 0  # of events that were returned; their ends are \n\n in the streams of our own replicas

    def feed(self, chunk: bytes) -> bytes:
        """Returns whole events, perhaps none."""
        data = self._tail + chunk if self._tail else chunk
        if data.endswith(b"\n\n"):  # the usual chunk: no copy
            self._tail = b""
            self.count += data.count(b"\n\n")
            return data
        cut = max(at + len(end) if (at := data.rfind(end)) >= 0 else 0 for end in _ENDS)
        if len(data) - cut > _MAX_TAIL:
            cut = len(data)
        self._tail = data[cut:]
        self.count += data.count(b"\n\n", 0, cut)
        return data[:cut]

    def rest(self) -> bytes:
        """Returns what is left when the stream has ended well."""
        return self._tail


class MarkedEvents:
    """Returns the events of a stream that a replica marks, without its marks, and keeps events until their mark is there: what a client has
    received is then exactly what the marks say. No text of an answer can hold a mark, because events are JSON in one line."""

    def __init__(self) -> None:
        self._held = b""
        self.over = False  # the last event was returned
        self.died = False  # the replica says that it cannot go on

    def feed(self, chunk: bytes) -> tuple[bytes, list[bytes]]:
        """Returns events, perhaps none, and the contents of their marks."""
        data = self._held + chunk if self._held else chunk
        events, marks, at = [], [], 0
        while (found := self._mark(data, at)) is not None:
            begin, end = found
            content = data[begin + len(MARK) : end]
            if content == MARK_DIED:
                self.died = True
                break
            events.append(data[at:begin])
            if content == MARK_OVER:
                self.over = True
            elif content:
                marks.append(content)
            at = end + 2
        self._held = data[at:]
        return b"".join(events), marks

    @staticmethod
    def _mark(data: bytes, at: int) -> tuple[int, int] | None:
        """Returns where the next mark begins and ends; None if there is no whole one."""
        begin = at if data.startswith(MARK, at) else data.find(b"\n\n" + MARK, at) + 2
        end = data.find(b"\n\n", begin) if begin != 1 else -1
        return (begin, end) if end >= 0 else None
