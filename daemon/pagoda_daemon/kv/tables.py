"""BlockTables: which blocks hold each row's context, grown on demand. Called by the scheduler; holds no bytes."""

from __future__ import annotations

import numpy as np

from pagoda_daemon.batch import Ints
from pagoda_daemon.kv.pool import BlockPool, BrokenAccountsError


class BlockTables:
    """Per row, an ordered list of blocks of `block_size` tokens."""

    def __init__(self, pool: BlockPool, rows: int, row_blocks: int, block_size: int) -> None:
        self.pool = pool
        self.block_size = block_size
        self._table = np.zeros((rows, row_blocks), np.int32)
        self._counts = np.zeros(rows, np.int32)

    def capacity(self, rows: Ints) -> Ints:
        """Tokens that the blocks of `rows` can hold."""
        tokens: Ints = self._counts[rows] * self.block_size
        return tokens

    def room(self, row: int) -> int:
        """Tokens that `row` could hold if it took every free block."""
        return (int(self._counts[row]) + self.pool.free) * self.block_size

    def grow(self, row: int, tokens: int) -> bool:
        """Take what `row` lacks to hold `tokens`; False, and nothing taken, when too few blocks are free."""
        have = int(self._counts[row])
        count = -(-tokens // self.block_size) - have
        if count <= 0:
            return True
        if count > self.pool.free:
            return False
        self._table[row, have : have + count] = self.pool.take(count)
        self._counts[row] = have + count
        return True

    def drop(self, row: int) -> None:
        """Release all of `row`'s blocks."""
        self.pool.release(self._table[row, : self._counts[row]])
        self._counts[row] = 0

    def view(self, rows: Ints) -> Ints:
        """A copy of the tables of `rows`, as wide as the longest, padded with 0."""
        counts = self._counts[rows]
        table = self._table[rows, : int(counts.max(initial=0))]
        table[np.arange(table.shape[1]) >= counts[:, None]] = 0
        return table

    def check(self) -> None:
        """Raise unless the tables' entries are exactly the pool's references."""
        self.pool.check()
        held = [self._table[row, :count] for row, count in enumerate(self._counts)]
        refs = np.bincount(np.concatenate(held), minlength=self.pool.total)
        if not np.array_equal(refs, self.pool.refs(np.arange(self.pool.total, dtype=np.int32))):
            raise BrokenAccountsError("the block tables hold other blocks than the pool counts as used")
