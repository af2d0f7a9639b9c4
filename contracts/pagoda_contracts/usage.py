"""How a replica tells a gateway what a request has used: in a header of a whole answer, in comments of a stream. Pure.

A gateway asks for it by HEADER_REPORT_USAGE. The comment stands before the events that it counts, so that a gateway knows what they cost
before it passes them on. No line of an event can look like the comment: events of replicas begin with `data:` or `event:`.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_COMMENT: Final = re.compile(rb"^: pagoda-usage (\d{1,15}) (\d{1,15}) (\d{1,15})\n\n", re.MULTILINE)
_HEADER: Final = re.compile(r"(\d{1,15}) (\d{1,15}) (\d{1,15})")
_MARK: Final = b": pagoda-usage "


class Used(NamedTuple):
    """Tokens of one request so far: of its prompts, how many of these were cached, and of all its answers."""

    prompt: int
    cached: int
    answer: int

    @property
    def total(self) -> int:
        """What a quota counts."""
        return self.prompt + self.answer


def to_header(used: Used) -> str:
    """The header's value."""
    return f"{used.prompt} {used.cached} {used.answer}"


def from_header(value: str) -> Used | None:
    """What a header says, None if it is not one of ours."""
    found = _HEADER.fullmatch(value)
    return Used(*map(int, found.groups())) if found else None


def to_comment(used: Used) -> bytes:
    """The comment as bytes of a stream."""
    return b": pagoda-usage %d %d %d\n\n" % used


def without_comments(events: bytes) -> tuple[bytes, Used | None]:
    """Whole events without the comments, and what the last comment says."""
    if _MARK not in events:
        return events, None
    found = _COMMENT.findall(events)
    return (_COMMENT.sub(b"", events), Used(*map(int, found[-1]))) if found else (events, None)
