"""A naive device under the block accounts: a memory that is really written and copied, and rows that read their tokens back from it."""

from __future__ import annotations

import numpy as np
from pagoda_contracts.prefix import Scope
from pagoda_daemon.core.batch import WorkerLimits
from pagoda_daemon.kv.accounts import KvAccounts
from pagoda_daemon.kv.chain import Chain
from pagoda_daemon.kv.index import Match

ROWS, BLOCK, LONGEST, TOKENS = 5, 4, 40, 2


Beginning = tuple[str, tuple[int, ...]]
"""Whose, and every token up to the end of a block."""


class Row:
    """What one request has written; `known` tokens of `tokens` need no feeding any more."""

    def __init__(self, tenant: str, tokens: list[int], block: int) -> None:
        self.tokens = tokens
        self._contexts = [hash(tenant)]
        self.fed = 0
        self.chain = Chain.of(Scope(tenant, "model"), block)
        self.tenant = tenant

    def context(self, place: int) -> int:
        """What a device writes at `place`: keys and values depend on every token up to there."""
        known = self._contexts
        while len(known) <= place + 1:
            known.append(hash((known[-1], self.tokens[len(known) - 1])))
        return known[place + 1]


class NaiveDevice:
    """Drives `KvAccounts` and fails as soon as somebody reads what was not theirs, or writes what others read."""

    def __init__(self, total: int, *, caching: bool = True, window: int | None = None, block: int = BLOCK) -> None:
        self.block = block
        self.kv = KvAccounts(WorkerLimits(total, block, TOKENS, LONGEST, window), ROWS, caching=caching)
        self.memory = np.full((total, block), -1, np.int32)
        self.contexts = np.zeros((total, block), np.int64)
        self.rows: dict[int, Row] = {}
        self.written: list[Beginning] = [("", ())] * total
        self.window = window
        self.reused = self.copied = self.forked = self.refused = 0

    def open(self, row: int, tenant: str, tokens: list[int]) -> None:
        made = Row(tenant, tokens, self.block)
        match = self.kv.match(made.chain, np.asarray(tokens, np.int32))
        if self.kv.caching:
            self._all_that_is_known(match, tenant, tokens)
        blocks = -(-len(tokens) // self.block)
        before = self.kv.pool.free
        cost = self.kv.cost(match, blocks)
        if cost > before:
            self.refused += 1
            return
        made.fed = self.kv.open(row, made.chain, match)
        self._opened(row, made)
        assert self.kv.tables.grow(row, len(tokens))
        assert before - self.kv.pool.free == cost, "a request cost more or less than foretold"

    def _all_that_is_known(self, match: Match, tenant: str, tokens: list[int]) -> None:
        """Looked for the slow way: whole blocks while any known block ends this beginning, and as much of one more."""
        known = {self.written[block] for block in range(self.kv.pool.total) if block in self.kv.index}
        blocks = 0
        while (blocks + 1) * self.block < len(tokens) and (tenant, tuple(tokens[: (blocks + 1) * self.block])) in known:
            blocks += 1
        assert len(match.blocks) == blocks, f"{len(match.blocks)} blocks of {tokens} are found, {blocks} are known"
        for number, block in enumerate(match.blocks, 1):
            assert self.written[block] == (tenant, tuple(tokens[: number * self.block])), f"block {block} has other content"

    def fork(self, row: int, source: int) -> None:
        twin = self.rows[source]
        if twin.fed < 2 or self.kv.pool.free < 2:
            return
        tokens = twin.tokens[: twin.fed]
        made = Row(twin.tenant, tokens, self.block)
        made.fed = self.kv.fork(row, made.chain, source, len(tokens) - 1)
        self.forked += made.fed > 0
        self._opened(row, made)

    def _opened(self, row: int, made: Row) -> None:
        copies = self.kv.take_copies()
        for memory in (self.memory, self.contexts):
            memory[copies[:, 1]] = memory[copies[:, 0]]
        for block in copies[:, 1].tolist():
            self.written[block] = ("", ())
        self.copied += len(copies)
        self.reused += made.fed
        self.rows[row] = made
        assert made.fed < len(made.tokens), "the last token's output is wanted: it must be computed"
        self.reads_back(row)

    def feed(self, row: int, count: int, fresh: list[int]) -> None:
        """Compute `count` tokens of `row`; beyond those that it has, `fresh` ones are sampled."""
        held = self.rows[row]
        held.tokens += fresh[: max(0, held.fed + count - len(held.tokens))]
        end = min(held.fed + count, len(held.tokens), LONGEST)
        if not self.kv.tables.grow(row, end):
            self.refused += 1
            return
        table = self.kv.tables.view(np.array([row], np.int32))[0]
        for place in range(held.fed, end):
            block = int(table[place // self.block])
            assert self.kv.pool.refs(block) == 1, "a block that two rows read is written"
            assert block not in self.kv.index, "a block that is known to others is written"
            self.memory[block, place % self.block] = held.tokens[place]
            self.contexts[block, place % self.block] = held.context(place)
            self.written[block] = (held.tenant, tuple(held.tokens[: place + 1]))
        held.fed = end
        tokens, computed = np.zeros((ROWS, LONGEST), np.int32), np.zeros(ROWS, np.int32)
        tokens[row, : len(held.tokens)], computed[row] = held.tokens[:LONGEST], end
        if count > 1:
            self.kv.land(np.array([row], np.int32), computed, tokens)
        self.kv.slide(np.array([row], np.int32), computed, tokens)
        self.reads_back(row)

    def close(self, row: int) -> None:
        held = self.rows.pop(row)
        self.kv.close(row, np.asarray(held.tokens[: held.fed], np.int32))

    def reads_back(self, row: int) -> None:
        held = self.rows[row]
        table = self.kv.tables.view(np.array([row], np.int32))[0]
        first = max(0, held.fed - self.window + 1) if self.window else 0
        read = self.memory[table].reshape(-1)[first : held.fed].tolist()
        assert read == held.tokens[first : held.fed], f"row {row} reads {read}"
        contexts = self.contexts[table].reshape(-1)[first : held.fed].tolist()
        other = [first + at for at, found in enumerate(contexts) if found != held.context(first + at)]
        assert not other, f"row {row} reads its own tokens at {other}, computed behind others"

    def check(self) -> None:
        """Everything at once: accounts, each row's content, and what the index believes of the memory."""
        self.kv.check()
        for row in self.rows:
            self.reads_back(row)
        used = {block for row in self.rows for block in self.kv.tables.blocks(row)}
        assert self.kv.pool.used == len(used)
        assert self.kv.pool.free + self.kv.pool.used == self.kv.pool.total
        known = [block for block in range(self.kv.pool.total) if self.kv.caching and block in self.kv.index]
        assert self.kv.pool.kept == len(known)
        for block in known:
            fill = int(self.kv.index._fill[block])
            assert self.memory[block, :fill].tolist() == self.kv.index._tokens[block, :fill].tolist()

    def drain(self) -> None:
        for row in list(self.rows):
            self.close(row)
        self.check()
        assert self.kv.pool.free == self.kv.pool.total
        assert not any(self.kv.pool.refs(block) for block in range(self.kv.pool.total))
