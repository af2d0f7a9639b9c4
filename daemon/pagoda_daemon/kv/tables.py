"""BlockTables: which blocks hold each row's context, grown on demand. Called by `kv.accounts`; holds no bytes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pagoda_daemon.core.arrays import Ints
from pagoda_daemon.kv.pool import BlockPool


class BlockTables:
    """Per row, an ordered list of blocks of `block_size` tokens; the first `gone[row]` of them were given back (sliding window)."""

    def __init__(self, pool: BlockPool, rows: int, row_blocks: int, block_size: int) -> None:
        self.pool = pool
        self.block_size = block_size
        # Zero wherever no block is, so that a view needs no mask.
        self._table = np.zeros((rows, row_blocks), np.int32)
        self.counts = np.zeros(rows, np.int32)
        self.gone = np.zeros(rows, np.int32)
        self.version = 0  # grows with every change of any row's blocks

    def capacity(self, rows: Ints) -> Ints:
        """Tokens that the blocks of `rows` can hold."""
        tokens: Ints = self.counts[rows] * self.block_size
        return tokens

    def room(self, row: int) -> int:
        """Tokens that `row` could hold if it took every free block."""
        return (int(self.counts[row]) + self.pool.free) * self.block_size

    def blocks(self, row: int, start: int = 0, end: int | None = None) -> list[int]:
        """The blocks that `row` holds, in order, those from `start` to `end` where given."""
        first, last = max(start, int(self.gone[row])), int(self.counts[row]) if end is None else end
        blocks: list[int] = self._table[row, first:last].tolist()
        return blocks

    def block(self, row: int, number: int) -> int:
        """Block number `number` of `row`, which holds it."""
        return int(self._table[row, number])

    def at(self, rows: Ints, numbers: Ints) -> Ints:
        """Block number `numbers[i]` of each of `rows`."""
        found: Ints = self._table[rows, numbers]
        return found

    def grow(self, row: int, tokens: int) -> bool:
        """Take what `row` lacks to hold `tokens`; False, and nothing taken, when too few blocks are free."""
        count = -(-tokens // self.block_size) - int(self.counts[row])
        if count <= 0:
            return True
        if count > self.pool.free:
            return False
        self.append(row, self.pool.take(count))
        return True

    def grow_each(self, rows: Ints) -> bool:
        """Take one more block for each of `rows`; False, and nothing taken, when too few are free."""
        if rows.size > self.pool.free:
            return False
        self.version += 1
        counts = self.counts[rows]
        self._table[rows, counts] = self.pool.take(rows.size)
        self.counts[rows] = counts + 1
        return True

    def append(self, row: int, blocks: Sequence[int]) -> None:
        """`blocks`, already referenced, come next in `row`."""
        self.version += 1
        have = int(self.counts[row])
        self._table[row, have : have + len(blocks)] = blocks
        self.counts[row] = have + len(blocks)

    def swap(self, row: int, at: int, block: int) -> None:
        """Hold `block`, which has the same content, instead of the row's block number `at`."""
        self.version += 1
        old = int(self._table[row, at])
        self.pool.hold((block,))
        self._table[row, at] = block
        self.pool.release((old,))

    def slide(self, row: int, first: int) -> None:
        """Give back the blocks before number `first`. Their entries name the oldest block that is still used. Nothing reads them, and a
        gather that ignores windows finds the row's own finite numbers there."""
        gone = int(self.gone[row])
        if first > gone:
            self.version += 1
            self.pool.release(self.blocks(row, gone, first)[::-1])
            self._table[row, :first] = self._table[row, first]
            self.gone[row] = first

    def drop(self, row: int) -> None:
        """Release all of `row`'s blocks, the last one first."""
        self.version += 1
        self.pool.release(self.blocks(row)[::-1])
        self._table[row, : self.counts[row]] = 0
        self.counts[row] = self.gone[row] = 0

    def view(self, rows: Ints) -> Ints:
        """A copy of the tables of `rows`, as wide as the longest, padded with 0."""
        table: Ints = self._table[rows, : int(self.counts[rows].max(initial=0))]
        return table

    def check(self) -> None:
        """Raise unless the tables' entries are exactly the pool's references."""
        blocks = [block for row in range(self.counts.size) for block in self.blocks(row)]
        self.pool.check(np.bincount(blocks, minlength=self.pool.total).tolist())
