"""KvAccounts: blocks of rows, shared where beginnings are equal. The scheduler's only door to `kv`; pure.

A row opens with what is already known of its tokens (another request's blocks, held or still kept), grows block by block as it is fed,
and leaves its content behind when it closes. Only landed tokens are registered: what a step has yet to write is nobody else's.

Blocks may be freed, and taken again, while a step that reads or writes them is under way, because steps run in order on the device: the
new owner's first write comes in a later step. `copies` of one plan read all their sources before they write.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from pagoda_contracts.prefix import Scope, packed_hashes, root

from pagoda_daemon.batch import Ints, WorkerLimits
from pagoda_daemon.kv.index import Match, PrefixIndex, packed
from pagoda_daemon.kv.pool import BlockPool
from pagoda_daemon.kv.tables import BlockTables

NO_MATCH = Match()


class Chain:
    """The names of one request's blocks, made when first wanted. Survives preemption with the request."""

    __slots__ = ("_block_size", "names", "root")

    def __init__(self, root: bytes, block_size: int) -> None:
        self.root = root
        self.names: list[bytes] = []
        self._block_size = block_size

    @classmethod
    def of(cls, scope: Scope, block_size: int) -> Chain:
        """Nothing named yet, among those that share `scope`."""
        return cls(_root(scope, block_size), block_size)

    def copy(self) -> Chain:
        """For another answer to the same prompt, which goes on differently."""
        twin = Chain(self.root, self._block_size)
        twin.names = list(self.names)
        return twin

    def extend(self, tokens: Ints) -> None:
        """Name every full block of `tokens`, which go on from those named before."""
        full = tokens.size // self._block_size
        if full > len(self.names):
            fresh = tokens[len(self.names) * self._block_size : full * self._block_size]
            self.names += packed_hashes(self.names[-1] if self.names else self.root, packed(fresh), self._block_size)

    def parent(self, block: int) -> bytes:
        """The name before block number `block`."""
        return self.names[block - 1] if block else self.root


@lru_cache(maxsize=1024)
def _root(scope: Scope, block_size: int) -> bytes:
    """A pure function of few values: one for each tenant and adapter at work."""
    return root(scope, "tokens", block_size)


class KvAccounts:
    """Blocks of `worker`, for `rows` rows. Without `caching` nothing outlives its row and only forks share.

    A prompt's blocks are known to others as soon as they are full, an answer's when it ends: naming each of them on the way would cost
    every step of a batch that decodes, for a sharing that hardly ever happens.
    """

    def __init__(self, worker: WorkerLimits, rows: int, *, caching: bool) -> None:
        size = worker.block_size
        self.index = PrefixIndex(worker.blocks_total, size)
        self.pool = BlockPool(worker.blocks_total, self.index.forget)
        self.tables = BlockTables(self.pool, rows, -(-worker.max_model_len // size), size)
        self.caching = caching
        self.block_size = size
        self._window = worker.sliding_window
        self._chains: list[Chain | None] = [None] * rows
        self._named = np.zeros(rows, np.int32)
        self._copies: list[tuple[int, int]] = []

    def match(self, chain: Chain, tokens: Ints) -> Match:
        """What is known of `tokens`; the last one is always computed, as its output is wanted."""
        if not self.caching:
            return NO_MATCH
        chain.extend(tokens)
        return self.index.find(chain.root, chain.names, tokens[:-1])

    def cost(self, match: Match, blocks: int) -> int:
        """Free blocks fewer after a row opened with `match` and grew to `blocks`."""
        return blocks - len(match.blocks) + sum(self.pool.refs(block) == 0 for block in match.blocks)

    def open(self, row: int, chain: Chain, match: Match) -> int:
        """Give `row` what is known; returns the tokens it need not compute. A half-shared block costs a free one."""
        self._chains[row] = chain
        self.pool.hold(match.blocks)
        self.tables.append(row, match.blocks)
        self._named[row] = len(match.blocks)
        known = len(match.blocks) * self.block_size
        return known + self._copy_tail(row, match.tail, match.tail_tokens)

    def fork(self, row: int, chain: Chain, source: int, tokens: int) -> int:
        """Give `row` the first `tokens` of the context of row `source`: its full blocks are shared, the rest is copied before the
        first step writes to it."""
        full = tokens // self.block_size
        if int(self.tables.gone[source]):
            return self.open(row, chain, NO_MATCH)
        blocks = self.tables.blocks(source, 0, -(-tokens // self.block_size))
        match = Match(tuple(blocks[:full]), blocks[full] if len(blocks) > full else 0, tokens - full * self.block_size)
        opened = self.open(row, chain, match)
        self._named[row] = min(full, int(self._named[source]))
        return opened

    def _copy_tail(self, row: int, tail: int, tokens: int) -> int:
        if not tokens:
            return 0
        self.pool.hold((tail,))  # the block to copy to must not be this one
        if self.pool.free:
            self.tables.append(row, copy := self.pool.take(1))
            self._copies.append((tail, copy[0]))
        else:
            tokens = 0
        self.pool.release((tail,))
        return tokens

    def take_copies(self) -> Ints:
        """Pairs (source, destination) since the last plan."""
        copies, self._copies = self._copies, []
        return np.asarray(copies, np.int32).reshape(-1, 2)

    def land(self, rows: Ints, computed: Ints, tokens: Ints) -> None:
        """`rows` have computed so many of their `tokens` [every row, length]: what became full is known to others from now on."""
        if self.caching:
            for row in rows[computed[rows] // self.block_size > self._named[rows]].tolist():
                self._register(row, tokens[row, : computed[row]])

    def slide(self, rows: Ints, computed: Ints, tokens: Ints) -> None:
        """Give back what left the window of each of `rows`; what others may want of it is known before."""
        if self._window is None:
            return
        first = np.maximum(0, computed[rows] - self._window + 1) // self.block_size
        due = first > self.tables.gone[rows]
        self.land(rows[due], computed, tokens)
        for row, block in zip(rows[due].tolist(), first[due].tolist(), strict=True):
            self.tables.slide(row, block)

    def _register(self, row: int, tokens: Ints) -> None:
        """Name the full blocks of `tokens`; where another row was quicker with the same content, share its block."""
        chain = self._chains[row]
        if chain is None:
            return
        chain.extend(tokens)
        size, last = self.block_size, tokens.size // self.block_size
        first = max(int(self._named[row]), int(self.tables.gone[row]))
        if first < last:
            blocks = self.tables.blocks(row, first, last)
            content = tokens[first * size : last * size].reshape(-1, size)
            for place, known in self.index.add(blocks, chain.parent(first), chain.names[first:last], content):
                self.tables.swap(row, first + place, known)
                blocks[place] = known
            self.pool.keep(blocks)
        self._named[row] = last

    def close(self, row: int, tokens: Ints) -> None:
        """Take `row`'s blocks back; what it has computed, `tokens`, stays known until its blocks are wanted."""
        chain = self._chains[row]
        if self.caching and chain is not None:
            if tokens.size // self.block_size > self._named[row]:
                self._register(row, tokens)
            self._keep_tail(row, chain, tokens)
        self.tables.drop(row)
        self._chains[row] = None
        self._named[row] = 0

    def spoil(self, row: int) -> None:
        """What `row` read or wrote is not to be trusted: nobody shall find it again."""
        for block in self.tables.blocks(row):
            if block in self.index:
                self.index.forget((block,))
                self.pool.forget(block)
        self._chains[row] = None

    def _keep_tail(self, row: int, chain: Chain, tokens: Ints) -> None:
        full, rest = divmod(tokens.size, self.block_size)
        if rest:
            chain.extend(tokens)
        for block in self.tables.blocks(row, full, full + 1) if rest else ():
            if block not in self.index and self.index.add_part(block, chain.parent(full), tokens[full * self.block_size :]):
                self.pool.keep((block,))

    def reset(self) -> None:
        """Forget every beginning that no row holds."""
        for block in self.pool.queue():
            if block in self.index:
                self.index.forget((block,))
                self.pool.forget(block)

    def check(self) -> None:
        """Raise unless tables, counts, queue and index agree."""
        self.tables.check()
