"""KvAccounts: blocks of rows, shared where beginnings are equal. The scheduler's only interface to `kv`; pure.

A row opens with what is already known of its tokens (another request's blocks, held or still kept), grows block by block as it is fed,
and leaves its content behind when it closes. Only landed tokens are registered: what a step has yet to write is shared with no other row.

Blocks may be freed, and taken again, while a step that reads or writes them is under way, because steps run in order on the device: the
new owner's first write comes in a later step. `copies` of one plan read all their sources before they write.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pagoda_daemon.core.arrays import Ints
from pagoda_daemon.core.batch import WorkerLimits
from pagoda_daemon.kv.chain import Chain
from pagoda_daemon.kv.index import Match, PrefixIndex
from pagoda_daemon.kv.ledger import BlockLedger
from pagoda_daemon.kv.pool import BlockPool
from pagoda_daemon.kv.tables import BlockTables
from pagoda_daemon.kv.text_prefixes import TextPrefixes

NO_MATCH = Match()


class KvAccounts:
    """Blocks of `worker`, for `rows` rows. Without `caching` nothing outlives its row and only forks share.

    A prompt's blocks are known to others as soon as they are full, an answer's when it ends: naming each of them on the way would cost
    every step of a batch that decodes, for a sharing that hardly ever happens.
    """

    def __init__(self, worker: WorkerLimits, rows: int, *, caching: bool) -> None:
        size = worker.block_size
        self.index = PrefixIndex(worker.blocks_total, size)
        self.pool = BlockPool(worker.blocks_total, self._forget)
        self.text_prefixes = TextPrefixes()
        self.ledger: BlockLedger | None = None
        self.tables = BlockTables(self.pool, rows, -(-worker.max_model_len // size), size)
        self.caching = caching
        self.block_size = size
        self._window = worker.sliding_window
        self._chains: list[Chain | None] = [None] * rows
        self._filed = np.zeros(rows, np.int32)
        self._copies: list[tuple[int, int]] = []

    def match(self, chain: Chain, tokens: Ints) -> Match:
        """What is known of `tokens`; the last one is always computed, as its output is wanted."""
        if not self.caching:
            return NO_MATCH
        return self.index.find(chain, tokens[:-1])

    def cost(self, match: Match, blocks: int) -> int:
        """Free blocks fewer after a row opened with `match` and grew to `blocks`."""
        return blocks - len(match.blocks) + sum(self.pool.refs(block) == 0 for block in match.blocks)

    def open(self, row: int, chain: Chain, match: Match) -> int:
        """Give `row` what is known; returns the tokens it need not compute. A half-shared block costs a free one."""
        self._chains[row] = chain
        self.pool.hold(match.blocks)
        self.tables.append(row, match.blocks)
        self._filed[row] = len(match.blocks)
        if chain.text_prefixes:
            self.text_prefixes.settle(chain, match.blocks, 0)
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
        self._filed[row] = min(full, int(self._filed[source]))
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

    def give_copies_back(self, copies: Ints) -> None:
        """Pairs that were taken and not made: they come with the next plan."""
        self._copies += [(source, target) for source, target in copies.tolist()]

    def land(self, rows: Ints, computed: Ints, tokens: Ints) -> None:
        """`rows` have computed so many of their `tokens` [every row, length]: what became full is known to others from now on."""
        if self.caching:
            for row in rows[computed[rows] // self.block_size > self._filed[rows]].tolist():
                self._file(row, tokens[row, : computed[row] // self.block_size * self.block_size])

    def slide(self, rows: Ints, computed: Ints, tokens: Ints) -> None:
        """Give back what left the window of each of `rows`; what others may want of it is known before."""
        if self._window is None:
            return
        first = np.maximum(0, computed[rows] - self._window + 1) // self.block_size
        due = first > self.tables.gone[rows]
        self.land(rows[due], computed, tokens)
        for row, block in zip(rows[due].tolist(), first[due].tolist(), strict=True):
            self.tables.slide(row, block)

    def _file(self, row: int, tokens: Ints) -> None:
        """Make known what `row` holds of `tokens`; where another row was quicker with the same content, share its block."""
        chain, size = self._chains[row], self.block_size
        if chain is None:
            return
        first = max(int(self._filed[row]), int(self.tables.gone[row]))
        self._filed[row] = tokens.size // size
        blocks = self.tables.blocks(row, first, -(-tokens.size // size))
        blocks = self.index.write(blocks, tokens[first * size :]) if blocks else blocks
        if not blocks:
            return
        before = self.tables.block(row, first - 1) if first > self.tables.gone[row] else None
        if before is None or not self.index.append(before, blocks):
            name = None if before is None else self.index.name_of(before)
            if name is None:
                chain.extend(tokens[: first * size])
                name = chain.parent(first)
            for place, known in self.index.add(name, blocks):
                self.tables.swap(row, first + place, known)
                blocks[place] = known
        self.pool.keep(blocks)
        full = blocks[: tokens.size // size - first]
        if chain.text_prefixes:
            self.text_prefixes.settle(chain, full, first)
        if self.ledger is not None:
            self.ledger.stored(chain, full, first, tokens)

    def _forget(self, blocks: Sequence[int]) -> None:
        """`blocks` are taken for other content."""
        self.index.forget(blocks)
        self.text_prefixes.lost(blocks)
        if self.ledger is not None:
            self.ledger.removed(blocks)

    def close(self, row: int, tokens: Ints) -> None:
        """Take `row`'s blocks back; what it has computed, `tokens`, stays known until its blocks are wanted."""
        chain = self._chains[row]
        if self.caching and chain is not None:
            self._file(row, tokens)
        self.tables.drop(row)
        self._chains[row] = None
        self._filed[row] = 0

    def spoil(self, row: int) -> None:
        """What `row` read or wrote is not to be trusted: no request may find it again."""
        for block in reversed(self.tables.blocks(row)):
            if block in self.index:
                self._forget((block,))
                self.pool.forget(block)
        self._chains[row] = None

    def reset(self) -> None:
        """Forget every beginning that no row holds."""
        for block in self.pool.queue():
            if block in self.index:
                self._forget((block,))
                self.pool.forget(block)

    def check(self) -> None:
        """Raise unless tables, counts, queue and index agree."""
        self.tables.check()
