"""Notes: what a replica sends to a gateway beside the events of a stream, in SSE comments that the gateway takes out. Pure.

A gateway asks for them by HEADER_REPORT_USAGE, for tokens too by HEADER_CONTINUABLE. A note stands behind the events that it is about:
`: pagoda more 7 2 1 {"ids":[17]}`. A gateway keeps events until their note is there, so it knows what they cost and what made them before
it passes them on. No line of an event can look like a note: events are JSON in one line, and begin with `data:` or `event:`.
"""

from __future__ import annotations

import re
from typing import Final, Literal, NamedTuple, cast

from pagoda_contracts.usage import Used

State = Literal["more", "over", "died"]

NOTE: Final = b": pagoda "
# What was answered of one stream, as it stands behind the body for the replica that continues it. A token is six bytes: 500,000 tokens, or
# 8,000 with 20 log-probabilities each.
MAX_ANSWERED: Final = 3 << 20
_LINE: Final = re.compile(rb"(more|over|died)(?: (\d{1,15}) (\d{1,15}) (\d{1,15}))?(?: (\{[^\n]*\}))?")


class Note(NamedTuple):
    """`state`: the stream goes on; it is complete; or the replica cannot go on, and the events before the note hold the error. `used`: so
    far. `answered`: the tokens of the events, as the replica that continues the stream reads them; empty if no token made the events."""

    state: State = "more"
    used: Used | None = None
    answered: bytes = b""


_DIED: Final = Note("died")


def to_comment(note: Note) -> bytes:
    """The note as bytes of a stream."""
    used = b" %d %d %d" % note.used if note.used is not None else b""
    answered = b" " + note.answered if note.answered else b""
    return NOTE + note.state.encode() + used + answered + b"\n\n"


def from_line(line: bytes) -> Note:
    """What stands behind NOTE in its line. If that cannot be read, nothing is known of the events before it: the replica counts as dead."""
    found = _LINE.fullmatch(line)
    if found is None:
        return _DIED
    state, prompt, cached, answer, answered = found.groups(b"")
    used = Used(int(prompt), int(cached), int(answer)) if prompt else None
    return Note(cast("State", state.decode()), used, answered)
