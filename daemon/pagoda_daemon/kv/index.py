"""PrefixIndex: which block holds which content, so that equal beginnings are computed once. Pure; called by `kv.accounts` alone.

A full block's name is the chained hash of all tokens up to its end (contracts, `prefix.py`: salted by tenant, model and adapter digest);
a half-filled one has no name and is known only as a child of the block before it. Children also serve requests that leave a known
beginning in the middle of a block: the common part is copied (copy-on-write), the rest computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np

from pagoda_daemon.batch import Ints

# A beginning that thousands of prompts share may have thousands of children that go on alike; the latest ones are the likeliest.
_LOOK_AT = 16
# A shorter common part is not worth a copy: nearly every prompt shares its first token with some other one. Children are filed by so many
# of their tokens, so that prompts which share nothing are told apart by one look-up.
_LEAST_SHARE = 4


class Match(NamedTuple):
    """A known beginning: whole blocks, and `tail_tokens` at the begin of block `tail` (0: none)."""

    blocks: tuple[int, ...] = ()
    tail: int = 0
    tail_tokens: int = 0


class PrefixIndex:
    """Content of blocks; a block is in it at most once."""

    def __init__(self, total: int, block_size: int) -> None:
        self._block_of: dict[bytes, int] = {}
        self._name: list[bytes | None] = [None] * total
        # By the name before and the first tokens: a block, or several. Most are alone, and need no dict of their own: 200 bytes each, and
        # work for the garbage collector.
        self._children: dict[bytes, int | dict[int, None]] = {}
        self._place: list[bytes | None] = [None] * total
        # Pages of zeros cost nothing until a block is registered.
        self._tokens = np.zeros((total, block_size), np.int32)
        self._fill = np.zeros(total, np.int32)
        self._least = min(_LEAST_SHARE, block_size)
        self.block_size = block_size

    def __contains__(self, block: int) -> bool:
        return self._place[block] is not None

    def find(self, root: bytes, names: Sequence[bytes], tokens: Ints) -> Match:
        """The longest known beginning of `tokens`, whose full blocks have `names` in the chain that begins at `root`."""
        blocks, parent = [], root
        for name in names[: tokens.size // self.block_size]:
            block = self._block_of.get(name)
            if block is None:
                break
            blocks.append(block)
            parent = name
        at = len(blocks) * self.block_size
        return Match(tuple(blocks), *self._nearest_child(parent, tokens[at : at + self.block_size]))

    def _nearest_child(self, parent: bytes, wanted: Ints) -> tuple[int, int]:
        """The child that has most in common with `wanted`, and how much; (0, 0) where that is too little."""
        children = self._children.get(parent + packed(wanted[: self._least])) if wanted.size >= self._least else None
        if children is None:
            return 0, 0
        latest = np.fromiter(islice(reversed(children), _LOOK_AT) if isinstance(children, dict) else (children,), np.int64)
        same = np.logical_and.accumulate(self._tokens[latest, : wanted.size] == wanted, axis=1).sum(axis=1)
        common = np.minimum(same, self._fill[latest])
        best = int(common.argmax())
        return int(latest[best]), int(common[best])

    def add(self, blocks: Sequence[int], parent: bytes, names: Sequence[bytes], tokens: Ints) -> list[tuple[int, int]]:
        """Make full `blocks`, a chain after `parent`, known; `tokens` has a row for each. Returns (place, block) where another block has
        that content already: two requests computed the same beginning at the same time."""
        self._tokens[blocks] = tokens  # also of those: nobody looks at a block that is in no table of this class
        self._fill[blocks] = self.block_size
        pieces, width, begin = packed(tokens), 4 * self.block_size, 4 * self._least
        block_of, children, twins = self._block_of, self._children, []
        for place, (block, name) in enumerate(zip(blocks, names, strict=True)):
            known = block_of.setdefault(name, block)
            if known != block:
                twins.append((place, known))
            else:
                self._name[block] = name
                self._place[block] = at = parent + pieces[width * place : width * place + begin]
                if children.setdefault(at, block) != block:
                    self._join(block, at)
            parent = name
        return twins

    def add_part(self, block: int, parent: bytes, tokens: Ints) -> bool:
        """Make `block`, which holds less than it could, known as a child of `parent`; False where that is too little to be found."""
        if tokens.size < self._least:
            return False
        self._place[block] = at = parent + packed(tokens[: self._least])
        if self._children.setdefault(at, block) != block:
            self._join(block, at)
        self._tokens[block, : tokens.size] = tokens
        self._fill[block] = tokens.size
        return True

    def _join(self, block: int, place: bytes) -> None:
        """Beside others."""
        siblings = self._children[place]
        if isinstance(siblings, dict):
            siblings[block] = None
        else:
            self._children[place] = {siblings: None, block: None}

    def forget(self, blocks: Iterable[int]) -> None:
        """`blocks` are taken for other content."""
        names, places, children = self._name, self._place, self._children
        for block in blocks:
            name, place = names[block], places[block]
            if name is not None:
                del self._block_of[name]
            if place is not None:
                siblings = children[place]
                if isinstance(siblings, dict) and len(siblings) > 1:
                    del siblings[block]
                else:
                    del children[place]
            names[block] = places[block] = None


def packed(tokens: Ints) -> bytes:
    """As the contracts pack them."""
    return tokens.astype("<i4", copy=False).tobytes()
