"""Cuts a stream of bytes at the ends of its events, so that a client has received whole events whenever the stream ends. Pure."""

from __future__ import annotations

import re
from typing import Final, Literal, NamedTuple

from pagoda_contracts.notes import NOTE, from_line
from pagoda_contracts.usage import Used

_END: Final = b"\n\n"
_ENDS: Final = (_END, b"\r\n\r\n")
_AFTER_END: Final = re.compile(rb"(?<=\n\n)|(?<=\r\n\r\n)")
# Larger than any sane event. Longer ones pass as they come.
_MAX_TAIL: Final = 1 << 20


class Release(NamedTuple):
    """What a chunk lets through: whole events, what the replica's notes say of them, and whether the stream has ended with them.
    `answered`: the tokens that they were made of. "died": the replica cannot go on."""

    events: bytes = b""
    used: Used | None = None
    answered: tuple[bytes, ...] = ()
    end: Literal["", "over", "died"] = ""


def count(events: bytes) -> int:
    """Returns how many events these are."""
    return sum(map(events.count, _ENDS))


def split(events: bytes) -> list[bytes]:
    """Returns whole events one by one, each with its end."""
    return _AFTER_END.split(events)


class Events:
    """A stream without notes. Returns the bytes that it is fed, but keeps an incomplete event until its rest arrives."""

    def __init__(self) -> None:
        self._tail = b""

    def take(self, chunk: bytes) -> Release:
        """Returns whole events, perhaps none. The stream ends well with an empty chunk, and an incomplete event with it."""
        if not chunk:
            return Release(self._tail, end="over")
        data = self._tail + chunk if self._tail else chunk
        if data.endswith(_END):  # the usual chunk: no copy
            self._tail = b""
            return Release(data)
        cut = max(at + len(end) if (at := data.rfind(end)) >= 0 else 0 for end in _ENDS)
        if len(data) - cut > _MAX_TAIL:
            cut = len(data)
        self._tail = data[cut:]
        return Release(data[:cut])


class NotedEvents:
    """A stream with notes (contracts, notes.py). Takes them out, and keeps events until their note is there: what a client has received is
    then exactly what the notes say."""

    def __init__(self) -> None:
        self._held = b""

    def take(self, chunk: bytes) -> Release:
        """Returns the events whose notes have come, perhaps none. A stream that ends without its last note has died."""
        if not chunk:
            return Release(end="died")
        data = self._held + chunk if self._held else chunk
        events, used, answered, at = [], None, [], 0
        while (found := _next_note(data, at)) is not None:
            begin, end = found
            note = from_line(data[begin + len(NOTE) : end])
            if note.state != "died":
                events.append(data[at:begin])
                used = note.used or used
                answered += [note.answered] if note.answered else []
            at = end + len(_END)
            if note.state != "more":
                return Release(b"".join(events), used, tuple(answered), note.state)
        self._held = data[at:]
        return Release(b"".join(events), used, tuple(answered))


def _next_note(data: bytes, at: int) -> tuple[int, int] | None:
    """Returns where the next note begins and where its line ends; None if there is no whole one."""
    begin = at if data.startswith(NOTE, at) else data.find(_END + NOTE, at) + len(_END)
    end = data.find(_END, begin) if begin != len(_END) - 1 else -1
    return (begin, end) if end >= 0 else None
