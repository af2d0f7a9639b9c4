"""The block accounts against a naive model: sets and lists instead of rings and arrays."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from pagoda_daemon.kv.pool import BlockPool, BrokenAccountsError
from pagoda_daemon.kv.tables import BlockTables

ROWS, BLOCK = 4, 4


class PoolMachine(RuleBasedStateMachine):
    """`held` is a list of references: each entry is one hand-out of blocks."""

    @initialize(total=st.integers(1, 24))
    def start(self, total: int) -> None:
        self.pool = BlockPool(total)
        self.held: list[np.ndarray] = []

    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        blocks = self.pool.take(data.draw(st.integers(0, self.pool.free)))
        in_use = {int(b) for part in self.held for b in part}
        assert in_use.isdisjoint(blocks.tolist())
        assert len(set(blocks.tolist())) == blocks.size
        self.held.append(blocks)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        part = data.draw(st.sampled_from(self.held))
        self.pool.share(part)
        self.held.append(part)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        self.pool.release(self.held.pop(data.draw(st.integers(0, len(self.held) - 1))))

    @precondition(lambda self: self.pool.free < self.pool.total)
    @rule()
    def taking_too_much_is_refused(self) -> None:
        free = self.pool.free
        with pytest.raises(BrokenAccountsError):
            self.pool.take(free + 1)
        assert self.pool.free == free

    @invariant()
    def accounts_agree(self) -> None:
        self.pool.check()
        counts = np.zeros(self.pool.total, int)
        for part in self.held:
            counts[part] += 1
        assert self.pool.refs(np.arange(self.pool.total)).tolist() == counts.tolist()
        assert self.pool.used == int((counts > 0).sum())
        assert self.pool.free + self.pool.used == self.pool.total


class TablesMachine(RuleBasedStateMachine):
    """Rows that grow and drop; `lengths` is what each row may hold."""

    @initialize(total=st.integers(1, 12))
    def start(self, total: int) -> None:
        self.tables = BlockTables(BlockPool(total), ROWS, 16, BLOCK)
        self.blocks: dict[int, list[int]] = {row: [] for row in range(ROWS)}

    @rule(row=st.integers(0, ROWS - 1), tokens=st.integers(0, 16 * BLOCK))
    def grow(self, row: int, tokens: int) -> None:
        missing = max(0, -(-tokens // BLOCK) - len(self.blocks[row]))
        fits = missing <= self.tables.pool.free
        assert self.tables.grow(row, tokens) is fits
        before = self.blocks[row]
        table = self.tables.view(np.array([row], np.int32))[0].tolist()
        assert table[: len(before)] == before, "a row's earlier blocks never move"
        self.blocks[row] = table

    @rule(row=st.integers(0, ROWS - 1))
    def drop(self, row: int) -> None:
        self.tables.drop(row)
        self.blocks[row] = []

    @invariant()
    def no_block_has_two_rows(self) -> None:
        self.tables.check()
        held = [block for blocks in self.blocks.values() for block in blocks]
        assert len(held) == len(set(held)) == self.tables.pool.used


TestPool = PoolMachine.TestCase
TestTables = TablesMachine.TestCase
TestPool.settings = TestTables.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_releasing_a_free_block_is_refused() -> None:
    pool = BlockPool(2)
    blocks = pool.take(1)
    pool.release(blocks)
    with pytest.raises(BrokenAccountsError, match="released"):
        pool.release(blocks)


def test_a_shared_block_is_free_only_after_its_last_release() -> None:
    pool = BlockPool(2)
    blocks = pool.take(1)
    pool.share(blocks)
    pool.release(blocks)
    assert pool.free == 1
    pool.release(blocks)
    assert pool.free == 2


def test_the_longest_free_block_is_taken_first() -> None:
    pool = BlockPool(3)
    first = pool.take(1)
    pool.release(first)
    assert pool.take(3).tolist() == [1, 2, 0]


def test_check_sees_a_lost_block() -> None:
    tables = BlockTables(BlockPool(4), 2, 4, BLOCK)
    tables.grow(0, BLOCK)
    tables.pool.take(1)
    with pytest.raises(BrokenAccountsError):
        tables.check()


def test_views_pad_shorter_rows_with_zero() -> None:
    tables = BlockTables(BlockPool(8), 2, 4, BLOCK)
    tables.grow(0, 3 * BLOCK)
    tables.drop(0)
    tables.grow(0, BLOCK)
    tables.grow(1, 2 * BLOCK)
    assert tables.view(np.array([0, 1], np.int32)).tolist() == [[3, 0], [4, 5]]
