"""BlockPool: which KV blocks are free and how often each is used. Pure accounts; the bytes are the runner's.

Called by `kv.tables` only. A block with more than one reference is shared (prefix reuse, forks); it is free again when the last one goes.
"""

from __future__ import annotations

import numpy as np

from pagoda_daemon.batch import Ints
from pagoda_daemon.errors import DaemonError


class BrokenAccountsError(DaemonError):
    """Blocks were lost, taken twice or freed twice: our own bug, never a user's."""


class BlockPool:
    """Blocks 0..total-1. The free queue is a ring, so that taking and releasing cost the same whatever the pool's size."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._refs = np.zeros(total, np.int32)
        self._ring = np.arange(total, dtype=np.int32)
        self._head = 0
        self._free = total

    @property
    def free(self) -> int:
        return self._free

    @property
    def used(self) -> int:
        return self.total - self._free

    def refs(self, blocks: Ints) -> Ints:
        """How often each of `blocks` is used."""
        counts: Ints = self._refs[blocks]
        return counts

    def take(self, count: int) -> Ints:
        """`count` blocks with one reference each, the longest free first. The caller has asked `free` before."""
        if count > self._free:
            raise BrokenAccountsError(f"{count} blocks taken, {self._free} are free")
        blocks: Ints = self._ring[(self._head + np.arange(count)) % self.total]
        self._head = (self._head + count) % self.total
        self._free -= count
        self._refs[blocks] = 1
        return blocks

    def share(self, blocks: Ints) -> None:
        """One more reference to each of `blocks`, all of which are in use."""
        if (self._refs[blocks] < 1).any():
            raise BrokenAccountsError(f"a free block is shared: {blocks.tolist()}")
        self._refs[blocks] += 1

    def release(self, blocks: Ints) -> None:
        """One reference less to each of `blocks` (distinct ones); those without any are free again."""
        if (self._refs[blocks] < 1).any():
            raise BrokenAccountsError(f"a free block is released: {blocks.tolist()}")
        self._refs[blocks] -= 1
        freed = blocks[self._refs[blocks] == 0]
        self._ring[(self._head + self._free + np.arange(freed.size)) % self.total] = freed
        self._free += freed.size

    def check(self) -> None:
        """Raise unless every block is either used or free, exactly once."""
        queued = self._ring[(self._head + np.arange(self._free)) % self.total]
        free = np.zeros(self.total, np.bool_)
        free[queued] = True
        if (self._refs < 0).any() or int(free.sum()) != self._free or not np.array_equal(free, self._refs == 0):
            raise BrokenAccountsError(f"{self._free} of {self.total} blocks queued as free, {int((self._refs == 0).sum())} unreferenced")
