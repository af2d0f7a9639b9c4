"""The block accounts against naive models: sets and lists instead of rings and arrays, and a memory that is really written."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from pagoda_contracts.prefix import Scope, token_hashes
from pagoda_daemon.core.batch import WorkerLimits
from pagoda_daemon.kv.accounts import KvAccounts
from pagoda_daemon.kv.chain import Chain
from pagoda_daemon.kv.pool import BlockPool, BrokenAccountsError
from pagoda_daemon.kv.tables import BlockTables
from support.engine.kv_model import BLOCK, LONGEST, ROWS, NaiveDevice
from support.suite.profiles import examples


class PoolMachine(RuleBasedStateMachine):
    """`held` is a list of references: each entry is one hand-out of blocks. `kept` are the blocks with content."""

    @initialize(total=st.integers(1, 24))
    def start(self, total: int) -> None:
        self.evicted: list[int] = []
        self.pool = BlockPool(total, self.evicted.extend)
        self.held: list[list[int]] = []
        self.kept: set[int] = set()

    def in_use(self) -> set[int]:
        return {block for part in self.held for block in part}

    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        self.evicted.clear()
        free = [block for block in range(self.pool.total) if block not in self.in_use()]
        blank = [block for block in free if block not in self.kept]
        blocks = self.pool.take(data.draw(st.integers(0, self.pool.free)))
        assert self.in_use().isdisjoint(blocks)
        assert len(set(blocks)) == len(blocks)
        assert set(self.evicted) == set(blocks) & self.kept
        assert not self.evicted or set(blank) <= set(blocks), "content is given up only when no blank block is left"
        self.kept -= set(blocks)
        self.held.append(blocks)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        part = data.draw(st.sampled_from(self.held))
        self.pool.hold(part)
        self.held.append(part)

    @precondition(lambda self: self.kept)
    @rule(data=st.data())
    def hold_what_is_kept(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(sorted(self.kept)))
        self.pool.hold([block])
        self.held.append([block])

    @precondition(lambda self: self.in_use())
    @rule(data=st.data())
    def keep(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(sorted(self.in_use())))
        self.pool.keep([block])
        self.kept.add(block)

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
        counts = [sum(part.count(block) for part in self.held) for block in range(self.pool.total)]
        self.pool.check(counts)
        assert self.pool.kept == len(self.kept)
        assert self.pool.resting == len(self.kept - self.in_use())
        assert self.pool.used == sum(count > 0 for count in counts)


words = st.lists(st.integers(0, 1), min_size=1, max_size=LONGEST - 4)


class DeviceMachine(RuleBasedStateMachine):
    """Rows come, share, fork, write and go; the memory below must always give each row its own tokens back."""

    @initialize(
        total=st.integers(3, 40) | st.integers(2, 9), caching=st.booleans(), window=st.none() | st.integers(2, 12), block=st.integers(1, 9)
    )
    def start(self, total: int, caching: bool, window: int | None, block: int) -> None:
        self.device = NaiveDevice(total, caching=caching, window=window, block=block)

    def absent(self) -> list[int]:
        return [row for row in range(ROWS) if row not in self.device.rows]

    @precondition(lambda self: self.absent())
    @rule(tenant=st.sampled_from(("a", "b")), tokens=words)
    def open(self, tenant: str, tokens: list[int]) -> None:
        self.device.open(self.absent()[0], tenant, tokens)

    @precondition(lambda self: self.absent() and self.device.rows)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        self.device.fork(self.absent()[0], data.draw(st.sampled_from(sorted(self.device.rows))))

    @precondition(lambda self: self.device.rows)
    @rule(data=st.data(), count=st.integers(1, 9), fresh=st.lists(st.integers(0, 1), min_size=9, max_size=9))
    def feed(self, data: st.DataObject, count: int, fresh: list[int]) -> None:
        self.device.feed(data.draw(st.sampled_from(sorted(self.device.rows))), count, fresh)

    @precondition(lambda self: self.device.rows)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        self.device.close(data.draw(st.sampled_from(sorted(self.device.rows))))

    @rule()
    def reset(self) -> None:
        self.device.kv.reset()
        assert self.device.kv.pool.kept <= self.device.kv.pool.used

    @invariant()
    def all_agrees(self) -> None:
        self.device.check()

    def teardown(self) -> None:
        self.device.drain()


TestPool = PoolMachine.TestCase
TestDevice = DeviceMachine.TestCase
TestPool.settings = settings(max_examples=examples(50), stateful_step_count=40, deadline=None)
TestDevice.settings = settings(max_examples=examples(50), stateful_step_count=40, deadline=None)


@pytest.mark.deep
@pytest.mark.parametrize("caching", [True, False])
def test_100000_operations_leave_nothing_behind(caching: bool) -> None:
    device = NaiveDevice(24, caching=caching)
    drive(device, 100_000 if caching else 20_000)
    assert device.forked > 500
    assert device.refused > 100, "the pool never ran short: the run shows little"
    assert device.copied > 500
    assert device.reused > 10_000


@pytest.mark.parametrize("block", [5, 6, 8])
@pytest.mark.parametrize("total", [7, 8, 13])
def test_a_scarce_pool_of_any_shape_is_given_back_whole(total: int, block: int) -> None:
    """Blocks that can be shared by half (5 tokens and more), and so few that a shared half finds no block to be copied to."""
    device = NaiveDevice(total, block=block)
    drive(device, 2000)
    assert device.copied > 20
    assert device.refused > 20


def drive(device: NaiveDevice, operations: int) -> None:
    """The same rows for the same device: opened, forked, fed and closed as a seed has it."""
    draw = random.Random(20260821)
    for count in range(operations):
        row = draw.randrange(ROWS)
        if row not in device.rows:
            if device.rows and draw.random() < 0.3:
                device.fork(row, draw.choice(sorted(device.rows)))
            else:
                device.open(row, draw.choice("ab"), [draw.getrandbits(1) for _ in range(draw.randint(1, LONGEST - 4))])
        elif draw.random() < 0.3:
            device.close(row)
        else:
            device.feed(row, draw.randint(1, 9), [draw.getrandbits(1) for _ in range(9)])
        if count % 1000 == 0:
            device.check()
    device.drain()


def row_of(tokens: list[int], tenant: str = "a", adapter: str = "", block: int = BLOCK) -> tuple[Chain, np.ndarray]:
    return Chain.of(Scope(tenant, "m", adapter), block), np.asarray(tokens, np.int32)


def accounts(total: int = 16, **more: object) -> KvAccounts:
    return KvAccounts(WorkerLimits(total, BLOCK, 100, LONGEST), ROWS, **{"caching": True, **more})


def run(kv: KvAccounts, row: int, tokens: list[int], **scope: Any) -> int:
    """Open, feed everything, close; how many tokens were known."""
    chain, array = row_of(tokens, **scope)
    known = kv.open(row, chain, kv.match(chain, array))
    kv.tables.grow(row, array.size)
    kv.close(row, array)
    return known


def test_full_blocks_and_the_common_part_of_the_next_one_are_known() -> None:
    kv = accounts()
    assert run(kv, 0, [*range(10, 22)]) == 0
    assert run(kv, 0, [*range(10, 22)]) == 8, "the last token is computed, and 3 of a block are no copy worth"
    assert run(kv, 0, [*range(10, 22), 1, 2]) == 12
    assert run(kv, 0, [*range(50, 60)]) == 0


def test_a_half_filled_block_is_copied_and_the_original_left_alone() -> None:
    kv = KvAccounts(WorkerLimits(8, 8, 100, 64), 2, caching=True)
    chain, tokens = Chain.of(Scope("a", "m"), 8), np.arange(14, dtype=np.int32)
    kv.open(0, chain, kv.match(chain, tokens))
    kv.tables.grow(0, 14)
    tail = kv.tables.blocks(0)[1]
    kv.close(0, tokens)
    longer = np.array([*range(13), 77, 78], np.int32)
    chain = Chain.of(Scope("a", "m"), 8)
    match = kv.match(chain, longer)
    assert (match.tail, match.tail_tokens) == (tail, 5)
    assert kv.open(1, chain, match) == 13
    assert kv.take_copies().tolist() == [[tail, kv.tables.blocks(1)[1]]]
    assert tail != kv.tables.blocks(1)[1]


def test_a_half_shared_block_that_finds_no_room_for_its_copy_is_computed_and_let_go() -> None:
    kv = KvAccounts(WorkerLimits(2, 6, 100, 64), 2, caching=True)
    run(kv, 0, [*range(11)], block=6)
    chain, tokens = Chain.of(Scope("a", "m"), 6), np.array([*range(11), 50], np.int32)
    match = kv.match(chain, tokens)
    assert match.tail_tokens == 5
    assert kv.open(1, chain, match) == 6, "the one free block is the half-filled one itself"
    assert kv.pool.free == 1
    assert kv.tables.grow(1, 12)
    kv.check()


def test_what_a_block_held_before_is_not_found_behind_its_end() -> None:
    kv = KvAccounts(WorkerLimits(3, 8, 100, 64), 1, caching=True)
    run(kv, 0, [7] * 8, block=8)
    kv.pool.release(kv.pool.take(3))  # its content is given up, the numbers stay where they were noted
    run(kv, 0, [7] * 5, block=8)
    chain, longer = Chain.of(Scope("a", "m"), 8), np.array([7] * 9, np.int32)
    assert kv.match(chain, longer).tail_tokens == 5


@pytest.mark.parametrize("other", [{"tenant": "b"}, {"adapter": "sha"}])
def test_tenants_and_adapters_share_nothing(other: dict[str, str]) -> None:
    kv = accounts()
    run(kv, 0, [*range(20)])
    assert run(kv, 0, [*range(20)], **other) == 0


def test_blocks_are_named_as_the_contracts_say() -> None:
    chain, tokens = row_of([*range(11)], "salt", "digest")
    chain.extend(tokens[:5])
    chain.extend(tokens)
    assert chain.names == token_hashes(Scope("salt", "m", "digest"), range(11), BLOCK)


def test_a_block_gets_a_name_only_when_it_distinguishes_something() -> None:
    kv = accounts(total=32)
    run(kv, 0, [*range(10, 30)])
    run(kv, 0, [*range(50, 70)])
    assert kv.index.named == 0, "nobody asked for either, and they have nothing in common"
    assert run(kv, 0, [*range(10, 18), *range(70, 80)]) == 8
    assert kv.index.named == 2, "the beginning that both share; what follows differs at its first look"
    assert run(kv, 0, [*range(10, 30), 1]) == 20
    assert kv.index.named == 5


def test_a_preempted_request_whose_last_blocks_were_taken_finds_the_others() -> None:
    kv = accounts(total=6)
    run(kv, 0, [*range(10, 34)])
    kv.pool.take(2)
    assert run(kv, 0, [*range(10, 34)]) == 16


def test_an_answer_follows_its_prompt_without_a_name() -> None:
    kv = accounts()
    chain, tokens = row_of([*range(16)])
    kv.open(0, chain, kv.match(chain, tokens[:8]))
    kv.tables.grow(0, 16)
    kv.land(np.array([0], np.int32), np.full(ROWS, 8, np.int32), np.tile(tokens, (ROWS, 1)))
    kv.close(0, tokens)
    assert kv.index.named == 0
    assert run(kv, 0, [*range(20)]) == 16


def test_two_rows_that_computed_the_same_at_the_same_time_end_with_one_copy() -> None:
    kv = accounts()
    tokens = np.arange(8, dtype=np.int32)
    for row in (0, 1):
        chain = Chain.of(Scope("a", "m"), BLOCK)
        kv.open(row, chain, kv.match(chain, tokens))
        kv.tables.grow(row, 8)
    assert kv.pool.used == 4
    everything = np.tile(tokens, (ROWS, 1))
    kv.land(np.array([0, 1], np.int32), np.full(ROWS, 8, np.int32), everything)
    assert kv.pool.used == 2
    kv.check()


def test_the_least_recently_used_leaf_is_given_up_first() -> None:
    kv = accounts(total=6)
    run(kv, 0, [1] * 8 + [2] * 4)
    run(kv, 0, [1] * 8 + [3] * 4)
    kv.pool.take(kv.pool.free - 3)
    assert run(kv, 0, [1] * 8 + [2] * 5) == 8, "the leaf of the first request went, the beginning that both shared is there"


def test_blocks_of_a_failed_row_are_cached_neither_then_nor_when_it_closes() -> None:
    kv = accounts()
    chain, tokens = row_of([*range(20)])
    kv.open(0, chain, kv.match(chain, tokens))
    kv.tables.grow(0, 20)
    kv.land(np.array([0], np.int32), np.full(ROWS, 8, np.int32), np.tile(tokens, (ROWS, 1)))
    kv.spoil(0)
    assert not kv.match(*row_of([*range(20)])).blocks
    kv.close(0, tokens)
    assert not kv.match(*row_of([*range(20)])).blocks
    assert kv.pool.kept == 0


def test_a_window_gives_back_blocks_that_are_not_read_again() -> None:
    device = NaiveDevice(8, window=6)
    device.open(0, "a", [1] * 8)
    for _ in range(8):
        device.feed(0, 4, [0] * 4)
        device.check()
        assert len(device.kv.tables.blocks(0)) <= 3
    assert device.rows[0].fed >= 32


def test_without_caching_nothing_is_known() -> None:
    kv = accounts(caching=False)
    run(kv, 0, [*range(20)])
    assert run(kv, 0, [*range(20)]) == 0
    assert kv.pool.kept == 0


def test_releasing_a_free_block_is_refused() -> None:
    pool = BlockPool(2)
    blocks = pool.take(1)
    pool.release(blocks)
    with pytest.raises(BrokenAccountsError, match="released"):
        pool.release(blocks)


def test_a_block_that_is_taken_for_other_content_rests_no_more() -> None:
    pool = BlockPool(2)
    blocks = pool.take(2)
    pool.keep(blocks)
    pool.release(blocks)
    assert (pool.kept, pool.resting) == (2, 2)
    pool.take(1)
    assert (pool.kept, pool.resting) == (1, 1)


def test_sharing_a_free_block_without_content_is_refused() -> None:
    with pytest.raises(BrokenAccountsError, match="share"):
        BlockPool(2).hold([0])


def test_check_sees_a_lost_block() -> None:
    tables = BlockTables(BlockPool(4), 2, 4, BLOCK)
    tables.grow(0, BLOCK)
    tables.pool.take(1)
    with pytest.raises(BrokenAccountsError):
        tables.check()


def test_views_pad_shorter_rows_with_zero() -> None:
    tables = BlockTables(BlockPool(8), 2, 4, BLOCK)
    tables.pool.take(1)
    tables.grow(0, 3 * BLOCK)
    tables.drop(0)
    tables.grow(0, BLOCK)
    tables.grow(1, 2 * BLOCK)
    first, second = tables.view(np.array([0, 1], np.int32)).tolist()
    assert (first[1], 0 in second) == (0, False)
