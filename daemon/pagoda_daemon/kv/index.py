"""PrefixIndex: which block holds which content, so that equal beginnings are computed once. Pure; called by `kv.accounts` alone.

A full block's name is the chained hash of all tokens up to its end (contracts, `prefix.py`: salted by tenant, model and adapter digest);
a half-filled one has no name and is known only as a child of the block before it. Children also serve requests that leave a known
beginning in the middle of a block: the common part is copied (copy-on-write), the rest computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np

from pagoda_daemon.batch import Ints

# A beginning that thousands of prompts share may have thousands of children; the latest ones are the likeliest.
_LOOK_AT = 16
# A shorter common part is not worth a copy: nearly every prompt shares its first token with some other one.
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
        self._parent: list[bytes | None] = [None] * total
        self._children: dict[bytes, int | dict[int, None]] = {}
        # Pages of zeros cost nothing until a block is registered.
        self._tokens = np.zeros((total, block_size), np.int32)
        self._fill = np.zeros(total, np.int32)
        self.block_size = block_size

    def __len__(self) -> int:
        return sum(parent is not None for parent in self._parent)

    def __contains__(self, block: int) -> bool:
        return self._parent[block] is not None

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
        children = self._children.get(parent)
        if children is None or wanted.size < min(_LEAST_SHARE, self.block_size):
            return 0, 0
        latest = np.fromiter(islice(reversed(children), _LOOK_AT) if isinstance(children, dict) else (children,), np.int64)
        same = np.logical_and.accumulate(self._tokens[latest, : wanted.size] == wanted, axis=1).sum(axis=1)
        common = np.minimum(same, self._fill[latest])
        best = int(common.argmax())
        count = int(common[best])
        return (int(latest[best]), count) if count >= min(_LEAST_SHARE, self.block_size) else (0, 0)

    def hold_content(self, blocks: Sequence[int], tokens: Ints) -> None:
        """Full `blocks` hold `tokens`, a row for each. Means nothing for a block that is not added then."""
        self._tokens[blocks] = tokens
        self._fill[blocks] = self.block_size

    def add(self, block: int, parent: bytes, name: bytes) -> int:
        """Make the full `block`, whose content is told, known as `name` after `parent`. Returns the block that has this content: another
        one where two requests computed the same beginning at the same time."""
        known = self._block_of.setdefault(name, block)
        if known == block:
            self._name[block] = name
            self._join(block, parent)
        return known

    def _join(self, block: int, parent: bytes) -> None:
        """Most blocks are only children: they need no dict of their own, which would be 200 bytes and work for the garbage collector."""
        self._parent[block] = parent
        siblings = self._children.setdefault(parent, block)
        if isinstance(siblings, dict):
            siblings[block] = None
        elif siblings != block:
            self._children[parent] = {siblings: None, block: None}

    def _part(self, block: int, parent: bytes) -> None:
        siblings = self._children[parent]
        if isinstance(siblings, dict):
            del siblings[block]
            if siblings:
                return
        del self._children[parent]

    def add_part(self, block: int, parent: bytes, tokens: Ints) -> None:
        """Make `block`, which holds less than it could, known as a child of `parent`."""
        self._join(block, parent)
        self._tokens[block, : tokens.size] = tokens
        self._fill[block] = tokens.size

    def forget(self, block: int) -> None:
        """`block` is taken for other content."""
        name, parent = self._name[block], self._parent[block]
        if name is not None:
            del self._block_of[name]
        if parent is not None:
            self._part(block, parent)
        self._name[block] = self._parent[block] = None
