"""What a pool and its workers say to each other: msgpack, one message per packet. Both come from one file tree: no version.

A worker answers every `Open` and `Advance` in order; the answer says that the mask of the matcher's slot is written.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Kind = Literal["json_schema", "regex", "choice", "grammar"]
Standing = Literal["open", "accepting", "complete"]
"""The text so far may not end here; may; must."""


class Open(msgspec.Struct, frozen=True, tag="open"):
    """A matcher for a grammar, its masks at `slot` of the shared memory. On `trial` it is closed with its answer."""

    matcher: int
    kind: Kind
    text: str
    slot: int
    trial: bool = False


class Advance(msgspec.Struct, frozen=True, tag="advance"):
    """The matcher's text goes on by `tokens`."""

    matcher: int
    tokens: tuple[int, ...]


class Close(msgspec.Struct, frozen=True, tag="close"):
    """Forget the matcher. Has no answer."""

    matcher: int


Job = Open | Advance | Close


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """The tokenizer is loaded."""


class Unfit(msgspec.Struct, frozen=True, tag="unfit"):
    """There will be no Hello; `why` is for the log."""

    why: str


class Masked(msgspec.Struct, frozen=True, tag="masked"):
    """The mask that follows `consumed` tokens is in the slot."""

    matcher: int
    consumed: int
    standing: Standing


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The grammar cannot be used, or not any further. The matcher is closed. `ours`: it was not the grammar that did it."""

    matcher: int
    why: str
    ours: bool = False


Answer = Hello | Unfit | Masked | Refused


def mask_words(vocab_size: int) -> int:
    """32-bit words of a mask: a bit for each id and one for "the text may end"."""
    return (vocab_size + 1 + 31) // 32
