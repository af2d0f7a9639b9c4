"""What a request has used, as a replica reports it to a gateway: in a header of a whole answer, in notes of a stream (notes.py). Pure."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_HEADER: Final = re.compile(r"(\d{1,15}) (\d{1,15}) (\d{1,15})")


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
