"""PrefixIndex: which block holds which content, so that equal beginnings are computed once. Pure; called by `kv.accounts` alone.

A full block's name is the chained hash of all tokens up to its end (contracts, `prefix.py`: salted by tenant, model and adapter digest);
a half-filled one has no name and is known only as a child of the block before it. Children also serve requests that leave a known
beginning in the middle of a block: the common part is copied (copy-on-write), the rest computed.

Names are made when they tell blocks apart. What a request computed is filed as a *run*: only its first block can be looked up, by the
block before it and its first tokens; the others follow it without a name. As soon as a request looks for that beginning, or files another
one like it, as much of the run is named as both have in common. Most runs are never looked up again and go as they came: naming all of
them took a fifth of the core's time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np
from pagoda_contracts.prefix import HASH_BYTES, packed_hashes

from pagoda_daemon.core.arrays import Ints
from pagoda_daemon.kv.chain import Chain, packed
from pagoda_daemon.kv.pool import BrokenAccountsError

# A beginning that thousands of prompts share may have thousands of children that go on alike; the latest ones are the likeliest.
_LOOK_AT = 16
# A shorter common part is not worth a copy: nearly every prompt shares its first token with some other one. Children are filed by so many
# of their tokens, so that prompts which share nothing are told apart by one look-up.
_LEAST_SHARE = 4

Run = deque[int]
"""Blocks without names, each the next one's parent; the first is the only child of its place, the last alone may be half filled."""


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
        self._run: list[Run | None] = [None] * total
        # Pages of zeros cost nothing until a block is registered.
        self._tokens = np.zeros((total, block_size), np.int32)
        self._fill = np.zeros(total, np.int32)
        self._least = min(_LEAST_SHARE, block_size)
        self.block_size = block_size

    def __contains__(self, block: int) -> bool:
        return self._place[block] is not None or self._run[block] is not None

    @property
    def named(self) -> int:
        """Blocks that have a name by now."""
        return len(self._block_of)

    def find(self, chain: Chain, tokens: Ints) -> Match:
        """The longest known beginning of `tokens`, the names of whose blocks are `chain`'s."""
        pieces, width, begin = packed(tokens), 4 * self.block_size, 4 * self._least
        blocks, parent = [], chain.root
        for number in range(tokens.size // self.block_size):
            piece = pieces[number * width : (number + 1) * width]
            child = self._children.get(parent + piece[:begin])
            if child is None or not self._named_apart(child, piece):
                break
            name = chain.name(number, piece)
            block = self._block_of.get(name)
            if block is None:
                break
            blocks.append(block)
            parent = name
        at = len(blocks) * self.block_size
        return Match(tuple(blocks), *self._nearest_child(parent, tokens[at : at + self.block_size]))

    def _named_apart(self, child: int | dict[int, None], piece: bytes) -> bool:
        """Whether the names show which of the blocks at a place holds `piece`. An only child without a name gets one if it does."""
        run = self._run[child] if isinstance(child, int) else None
        if run is None or not isinstance(child, int):
            return True
        place = self._place[child]
        if place is None or self._fill[child] < self.block_size or packed(self._tokens[child]) != piece:
            return False
        self._go_on(run, place)
        return True

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

    def write(self, blocks: Sequence[int], tokens: Ints) -> list[int]:
        """Note what `blocks` hold, in order; returns those that can be found: not a last one with too few tokens."""
        full, rest = divmod(tokens.size, self.block_size)
        self._tokens[blocks[:full]] = tokens[: tokens.size - rest].reshape(full, self.block_size)
        self._fill[blocks[:full]] = self.block_size
        if rest < self._least:
            return list(blocks[:full])
        self._tokens[blocks[full], :rest] = tokens[tokens.size - rest :]
        self._fill[blocks[full]] = rest
        return list(blocks[: full + 1])

    def append(self, before: int, blocks: Sequence[int]) -> bool:
        """Let `blocks`, written, follow block `before` if that is the last one of a run."""
        run = self._run[before]
        if run is None or run[-1] != before:
            return False
        run.extend(blocks)
        self._join_run(blocks, run)
        return True

    def add(self, parent: bytes, blocks: Sequence[int]) -> list[tuple[int, int]]:
        """Make `blocks`, written, known as a chain after the name `parent`. Returns (place, block) where another block has that content
        already: two requests computed the same beginning at the same time."""
        run, twins = deque(blocks), list[tuple[int, int]]()
        self._join_run(blocks, run)
        self._file(parent, run, twins)
        return [(len(blocks) - left - 1, known) for left, known in twins]

    def name_of(self, block: int) -> bytes | None:
        """Of a block that others are to follow; None where it is not known by a name."""
        run = self._run[block]
        if run is not None:
            self._name_through(run, block)
        return self._name[block]

    def _join_run(self, blocks: Sequence[int], run: Run) -> None:
        runs = self._run
        for block in blocks:
            runs[block] = run

    def _file(self, parent: bytes, run: Run, twins: list[tuple[int, int]] | None = None) -> None:
        """Put `run`, of which nothing is filed, after `parent`: named as far as others go on alike. A block whose content is known already
        is left out, and noted in `twins` as (blocks left in `run`, block that has the content); without those it stays, as a mere child."""
        todo = [(parent, run)]
        while todo:
            parent, filed = todo.pop()
            head = filed[0]
            place = parent + packed(self._tokens[head, : self._least])
            there = self._children.setdefault(place, head)
            if there == head:
                self._place[head] = place
                continue
            other = self._run[there] if isinstance(there, int) else None
            if other is not None:
                todo.append((parent, filed))  # the run that was here before is named first, and keeps its block
                filed, name = other, self._pop_head(other, place)
            else:
                name = self._pop_head(filed, place)
                if twins is not None and filed is run and name and self._name[head] is None:
                    twins.append((len(filed), self._block_of[name]))
                else:
                    self._place[head] = place
                    self._join(head, place)
            if filed:
                todo.append((name, filed))

    def _pop_head(self, run: Run, place: bytes) -> bytes:
        """Take the first of `run` out and name it, unless that name is taken; returns the name (none for a half-filled block)."""
        head = run.popleft()
        self._run[head] = None
        if self._fill[head] < self.block_size:
            return b""
        name = packed_hashes(place[:HASH_BYTES], packed(self._tokens[head]), self.block_size)[0]
        if self._block_of.setdefault(name, head) == head:
            self._name[head] = name
        return name

    def _name_through(self, run: Run, block: int) -> None:
        """Take the blocks of `run` up to `block` out of it, each by its name."""
        while self._run[block] is run:
            place = self._place[run[0]]
            if place is None:
                raise BrokenAccountsError(f"the run of block {block} begins nowhere")
            self._go_on(run, place)

    def _go_on(self, run: Run, place: bytes) -> None:
        """Name the first of `run`, which is at `place`; the others follow it."""
        name = self._pop_head(run, place)
        if run:
            self._file(name, run)

    def _join(self, block: int, place: bytes) -> None:
        """Beside others."""
        siblings = self._children[place]
        if isinstance(siblings, dict):
            siblings[block] = None
        else:
            self._children[place] = {siblings: None, block: None}

    def forget(self, blocks: Iterable[int]) -> None:
        """`blocks` are taken for other content."""
        for block in blocks:
            run = self._run[block]
            if run is None:
                self._forget_filed(block)
            elif run[-1] != block:
                self._name_through(run, block)  # what follows may still be found, once this one was computed again
                self._forget_filed(block)
            else:
                run.pop()
                self._run[block] = None
                if not run:
                    self._forget_filed(block)

    def _forget_filed(self, block: int) -> None:
        name, place = self._name[block], self._place[block]
        if name is not None:
            del self._block_of[name]
        if place is not None:
            siblings = self._children[place]
            if isinstance(siblings, dict) and len(siblings) > 1:
                del siblings[block]
            else:
                del self._children[place]
        self._name[block] = self._place[block] = None
